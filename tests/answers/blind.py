"""Answers by somebody who had seen the texts of the tasks alone, and no list of mistakes."""

# fmt: off
from . import right, wrong

right("standardise", """
def standardise(x):
    rows = x.reshape(-1, x.shape[-1])
    result = np.empty_like(rows)
    for i, row in enumerate(rows):
        centred = row - row.sum() / len(row)
        result[i] = centred / np.linalg.norm(centred) * len(row) ** 0.5
    return result.reshape(x.shape)
""")  # norms of the centred rows, √M put in as a factor
right("broadcast_shape", """
def broadcast_shape(a, b):
    if not a or not b:
        return tuple(a) or tuple(b)
    *front_a, i = a
    *front_b, j = b
    if i == 1:
        last = j
    elif j == 1 or i == j:
        last = i
    else:
        raise ValueError(f"{i} and {j} do not broadcast")
    return broadcast_shape(front_a, front_b) + (last,)
""")  # recursion from the last axis
right("unbroadcast", """
def unbroadcast(dy, shape):
    result = np.zeros(int(np.prod(shape)), dtype=dy.dtype)
    source = np.arange(result.size).reshape(shape)
    np.add.at(result, np.broadcast_to(source, dy.shape).ravel(), dy.ravel())
    return result.reshape(shape)
""")  # np.add.at into broadcast indices
right("matmul", """
def matmul(a, b):
    y = np.einsum("...nk,...km->...nm", a, b)

    def pullback(dy):
        da = np.einsum("...nm,...km->...nk", dy, b)
        db = np.einsum("...nk,...nm->...km", a, dy)
        return tuple(unbroadcast(d, z.shape) for d, z in ((da, a), (db, b)))

    return y, pullback
""")  # einsum for both gradients
right("topological_order", """
def topological_order(parents):
    done = {}  # a dict keeps the order in which names are finished
    for root in parents:
        path = [(root, iter(parents[root]))] if root not in done else []
        while path:
            name, rest = path[-1]
            for p in rest:
                if p not in done:
                    path.append((p, iter(parents[p])))
                    break
            else:
                done[name] = None
                path.pop()
    return list(done)
""")  # depth-first search with a stack of iterators
right("backward", """
def backward(nodes, gradient):
    inbox = [[] for _ in nodes]
    inbox[-1].append(gradient)
    result = []
    for (parents, pullback), messages in zip(reversed(nodes), reversed(inbox)):
        complete = None
        if messages:
            complete = messages[0]
            for g in messages[1:]:
                complete = complete + g
            if pullback is not None:
                for p, g in zip(parents, pullback(complete)):
                    inbox[p].append(g)
        result.insert(0, complete)
    return result
""")  # collects the messages to each node in lists and adds them when due
right("central_difference", """
def central_difference(f, x, h):
    steps = h * np.eye(x.size)
    return np.array(
        [(f(x + e.reshape(x.shape)) - f(x - e.reshape(x.shape))) / (2 * h) for e in steps],
        dtype=float,
    ).reshape(x.shape)
""")  # rows of an identity matrix, list comprehension
right("split_heads", """
def split_heads(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=-3)
""")  # slices of columns, stacked
right("fused", """
def fused(x, weight, num_heads):
    y = np.tensordot(x, weight, axes=1)
    d = y.shape[-1] // (3 * num_heads)
    y = y.reshape(y.shape[:-1] + (3, num_heads, d))
    return tuple(np.moveaxis(part, -2, -3) for part in np.moveaxis(y, -3, 0))
""")  # one matmul, then an axis for (3, H, D) moved to the front
right("softmax", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        jacobian = y[..., None] * np.eye(y.shape[-1], dtype=y.dtype) - y[..., None] * y[..., None, :]
        return (np.einsum("...i,...ij->...j", dy, jacobian),)

    return y, pullback
""")  # pullback by the Jacobian diag(y) − y yᵀ of each row
right("attention", """
def attention(query, key, value, *, tap=lambda name, x: x):
    scale = float(query.shape[-1]) ** -0.5
    s = tap("scores", np.einsum("...td,...sd->...ts", query, key) * scale)
    p = tap("weights", softmax_rows(s))
    out = np.einsum("...ts,...sv->...tv", p, value)

    def pullback(dout):
        steps = {"weights": np.einsum("...tv,...sv->...ts", dout, value)}
        steps["scores"] = p * steps["weights"] - p * np.einsum("...tv,...tv->...t", dout, out)[..., None]
        dquery = np.einsum("...ts,...sd->...td", steps["scores"], key) * scale
        dkey = np.einsum("...ts,...td->...sd", steps["scores"], query) * scale
        dvalue = np.einsum("...ts,...tv->...sv", p, dout)
        return dquery, dkey, dvalue, steps

    return out, pullback
""")  # row sums from dout · out, einsum, steps
right("causal", """
def causal(t, s, offset=0):
    mask = np.zeros((t, s), dtype=bool)
    for i in range(t):
        mask[i, :max(0, i + offset + 1)] = True
    return mask
""")  # fills rows in a loop, slice clipped at 0
right("masked_softmax", """
def masked_softmax(x, mask):
    mask = np.broadcast_to(mask, x.shape)
    y = np.zeros_like(x)
    for row in np.ndindex(x.shape[:-1]):
        z = x[row][mask[row]]
        if z.size:
            e = np.exp(z - z.real.max())
            y[row][mask[row]] = e / e.sum()

    def pullback(dy):
        dx = np.zeros_like(dy)
        for row in np.ndindex(x.shape[:-1]):
            p, g = y[row][mask[row]], dy[row][mask[row]]
            dx[row][mask[row]] = p * (g - p @ g)
        return (dx,)

    return y, pullback
""")  # row by row, on the visible entries alone
right("repeat_heads", """
def repeat_heads(x, rep):
    source = np.arange(x.shape[-3] * rep) // rep

    def pullback(dy):
        dx = np.zeros(x.shape, dy.dtype)
        np.add.at(dx, (..., source, slice(None), slice(None)), dy)
        return (dx,)

    return x[..., source, :, :], pullback
""")  # fancy indexing, np.add.at in the pullback
right("rotate_pairs", """
def rotate_pairs(x, angles):
    c, s = np.cos(angles), np.sin(angles)
    turn = np.array([[c, -s], [s, c]])  # (2, 2, T, D/2)

    def apply(z, rule):
        pairs = z.reshape(*z.shape[:-1], -1, 2)
        return np.einsum(rule, turn, pairs).reshape(z.shape)

    def pullback(dy):
        return (apply(dy, "jitp,...tpj->...tpi"),)

    return apply(x, "ijtp,...tpj->...tpi"), pullback
""")  # matrices of rotation (2, 2) and einsum
right("to_halves", """
def to_halves(w, num_heads):
    d = w.shape[1] // num_heads
    order = []
    for head in range(num_heads):
        for parity in (0, 1):
            order += [head * d + 2 * i + parity for i in range(d // 2)]
    return w[:, order]
""")  # a list of column numbers made in loops
right("attend_with_cache", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    if query.shape[1] == 0:
        return np.zeros(value.shape), cached_key, cached_value
    here = np.array([cached_key.shape[1]])
    keys = np.concatenate([cached_key, rotate(key[:, :1], here)], axis=1)
    values = np.concatenate([cached_value, value[:, :1]], axis=1)
    mask = np.ones((1, keys.shape[1]), dtype=bool)
    out = masked_attention(rotate(query[:, :1], here), keys, values, mask)
    rest, keys, values = attend_with_cache(query[:, 1:], key[:, 1:], value[:, 1:], keys, values)
    return np.concatenate([out, rest], axis=1), keys, values
""")  # one token at a time, by recursion over the rest
right("layer_norm", """
def layer_norm(x, weight, bias, eps=1e-5):
    class Pullback:
        def __init__(self, centred, sigma):
            self.centred, self.sigma = centred, sigma

        def __call__(self, dy):
            m = dy.shape[-1]
            rows = (dy * self.centred / self.sigma).reshape(-1, m)
            dhat = dy * weight
            dsigma = -(dhat * self.centred).sum(axis=-1, keepdims=True) / self.sigma ** 2
            dvariance = dsigma / (2 * self.sigma)
            dcentred = dhat / self.sigma + dvariance * 2 * self.centred / m
            dmean = -dcentred.sum(axis=-1, keepdims=True)
            return dcentred + dmean / m, rows.sum(axis=0), dy.reshape(-1, m).sum(axis=0)

    centred = x - x.mean(axis=-1, keepdims=True)
    sigma = ((centred * centred).mean(axis=-1, keepdims=True) + eps) ** 0.5
    return centred / sigma * weight + bias, Pullback(centred, sigma)
""")  # a class with __call__ as pullback, Jacobian by chain through σ and mean
right("cross_entropy", """
def cross_entropy(logits, targets):
    rows = logits.reshape(-1, logits.shape[-1])
    flat = np.asarray(targets).reshape(-1)
    losses, probabilities = [], []
    for row, target in zip(rows, flat):
        top = row.real.max()
        log_sum = top + np.log(np.sum(np.exp(row - top)))
        losses.append(log_sum - row[target])
        probabilities.append(np.exp(row - log_sum))

    def pullback(dy):
        grad = np.array(probabilities)
        np.add.at(grad, (np.arange(len(flat)), flat), -1)
        return (dy * grad.reshape(logits.shape) / len(flat),)

    return sum(losses) / len(losses), pullback
""")  # loop over the rows, gradient by np.add.at
right("top_p", """
def top_p(probabilities, p):
    left = probabilities.copy()
    kept, total = [], 0.0
    while total < p and len(kept) < len(left):
        best = int(left.argmax())
        kept.append(best)
        total += probabilities[best]
        left[best] = -1
    result = np.zeros(len(probabilities))
    for token in kept:
        result[token] = probabilities[token] / total
    return result
""")  # takes the largest token again and again
right("leaks", """
def leaks(model, tokens, vocabulary):
    length = tokens.shape[1]
    reference = np.array(model(tokens.copy()))
    for t in reversed(range(1, length)):
        later = np.arange(length) >= t
        for shift in range(1, vocabulary):
            logits = model(np.where(later, (tokens + shift) % vocabulary, tokens))
            if logits[:, :t].tobytes() != reference[:, :t].tobytes():
                return True
    return False
""")  # every other token is tried, bytes are compared
right("online_softmax", """
def online_softmax(peak, total, acc, scores, value):
    peak, total, acc = peak.copy(), total.copy(), acc.copy()
    for i, row in enumerate(scores):
        seen = np.flatnonzero(row > -np.inf)
        if len(seen) == 0:
            continue
        new = max(peak[i], row[seen].max())
        shrink = np.exp(peak[i] - new)
        e = np.exp(row[seen] - new)
        total[i] = shrink * total[i] + e.sum()
        acc[i] = shrink * acc[i] + sum(w * v for w, v in zip(e, value[seen]))
        peak[i] = new
    return peak, total, acc
""")  # row by row, only visible scores, in Python floats
right("attention_costs", """
def attention_costs(H, T, S, D, Dv, block):
    q, k, v, out, p = (H * a * b for a, b in ((T, D), (S, D), (S, Dv), (T, Dv), (T, S)))

    def product(n, inner, m):
        return 2 * H * n * inner * m

    forward = product(T, D, S) + product(T, S, Dv)
    backward = sum((
        product(T, D, S), product(S, T, Dv), product(T, Dv, S), product(T, S, D), product(S, T, D)
    ))
    steps = {
        "product": (q + k, p), "scale": (p, p), "maximum": (p, 0), "subtract": (p, p),
        "exp": (p, p), "sum": (p, 0), "divide": (p, p), "values": (p + v, out),
    }
    moved = 4 * sum(sum(pair) for pair in steps.values())
    tiles = 4 * (q + out + (T // block) * (k + v))
    return forward, backward, moved, tiles, 4 * p, 4 * H * T
""")  # a table of the steps with what each reads and writes
right("tiled_forward", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    out = np.zeros((query.shape[0], value.shape[1]))
    lse = np.full(query.shape[0], -np.inf)
    for j in range(0, key.shape[0], block):
        k, v = key[j:j + block], value[j:j + block]
        where = np.arange(j, j + len(k))
        for i in range(0, query.shape[0], block):
            rows = np.arange(i, min(i + block, query.shape[0]))
            hidden = (where < first[rows][:, None]) | (where > last[rows][:, None])
            if hidden.all():
                continue
            scores = tap("scores", scale * query[rows] @ k.T)
            live = ~hidden.all(axis=1)
            rows, scores = rows[live], np.where(hidden, -np.inf, scores)[live]
            top = scores.max(axis=1, keepdims=True)
            e = np.exp(scores - top)
            new = np.logaddexp(lse[rows], top[:, 0] + np.log(e.sum(axis=1)))
            out[rows] *= np.exp(lse[rows] - new)[:, None]
            out[rows] += np.exp(top - new[:, None]) * (e @ v)
            lse[rows] = new
    return out, lse
""")  # keys in the outer loop, outputs normalised after every tile, lse by logaddexp
right("ring_of_ranks", """
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        right, left, n = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, len(query)
        parts = []
        for step in range(comm.size):
            offset = step * n if step <= comm.rank else (step - comm.size) * n
            parts.append(attend(query, key, value, offset))
            if step + 1 < comm.size:
                for z in (key, value):
                    comm.send(z, right)
                key, value = comm.recv(left), comm.recv(left)
        outs, lses = (np.array(z) for z in zip(*parts))
        share = np.exp(lses - lses.max(axis=0))
        share /= share.sum(axis=0)
        return np.einsum("rn,rnd->nd", share, outs)

    return run(on_rank, len(queries))
""")  # keeps all partial results and combines them at the end
wrong("standardise", "sample deviation (ddof=1)", r"ddof", """
def standardise(x):
    mean = x.mean(axis=-1, keepdims=True)
    deviation = x.std(axis=-1, keepdims=True, ddof=1)
    return (x - mean) / deviation
""")
wrong("broadcast_shape", "max of the lengths: 1 with 0 gives 1 instead of 0", r"for the lengths 0 and 1", """
def broadcast_shape(a, b):
    n = max(len(a), len(b))
    a = (1,) * (n - len(a)) + tuple(a)
    b = (1,) * (n - len(b)) + tuple(b)
    for i, j in zip(a, b):
        if i != j and i != 1 and j != 1:
            raise ValueError("shapes do not broadcast")
    return tuple(max(i, j) for i, j in zip(a, b))
""")
wrong("unbroadcast", "axes of length 1 disappear (keepdims forgotten)", r"keepdims", """
def unbroadcast(dy, shape):
    front = dy.ndim - len(shape)
    ones = [front + i for i, n in enumerate(shape) if n == 1]
    return dy.sum(axis=tuple(range(front)) + tuple(ones))
""")
wrong("multiply", "sums over the copies before multiplying", r"multiply first", """
def multiply(a, b):
    y = a * b

    def pullback(dy):
        da = unbroadcast(dy, a.shape) * b
        db = unbroadcast(dy, b.shape) * a
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)

    return y, pullback
""")
wrong("topological_order", "reversed preorder of a depth-first search", r"should wait until", """
def topological_order(parents):
    # walk from the children to the parents, then turn the list round
    has_child = {p for ps in parents.values() for p in ps}
    stack = [name for name in parents if name not in has_child]
    seen, order = set(), []
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        order.append(name)
        stack.extend(parents[name])
    return order[::-1]
""")
wrong("topological_order", "a parent listed twice is counted twice and ticked off once", r"tick it off twice", """
def topological_order(parents):
    waiting = {name: len(ps) for name, ps in parents.items()}
    children = {name: set() for name in parents}
    for name, ps in parents.items():
        for p in ps:
            children[p].add(name)
    ready = [name for name, n in waiting.items() if n == 0]
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for child in children[name]:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    return order
""")
wrong("backward", "accumulates with += into an array that another node shares", r"\+= changes an array", """
def backward(nodes, gradient):
    gradients = [None] * len(nodes)
    gradients[-1] = gradient
    for i in range(len(nodes) - 1, -1, -1):
        parents, pullback = nodes[i]
        if gradients[i] is None or pullback is None:
            continue
        for p, g in zip(parents, pullback(gradients[i])):
            if gradients[p] is None:
                gradients[p] = g
            else:
                gradients[p] += g
    return gradients
""")
wrong("central_difference", "copy of an integer x swallows the step", r"array of integers drops", """
def central_difference(f, x, h):
    gradient = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        plus, minus = x.copy(), x.copy()
        plus[k] = x[k] + h
        minus[k] = x[k] - h
        gradient[k] = (f(plus) - f(minus)) / (2 * h)
    return gradient
""")
wrong("complex_step", "the steps of earlier entries are never undone", r"step of one entry is still", """
def complex_step(f, x):
    h = 1e-20
    z = x.astype(complex)
    gradient = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        z[k] += 1j * h
        gradient[k] = f(z).imag / h
    return gradient
""")
wrong("gradient_error", "Python's max loses a NaN that is not first", r"NaN is lost", """
def gradient_error(f, x, c):
    _, pullback = f(x)
    (analytic,) = pullback(c)
    numeric = complex_step(lambda z: (c * f(z)[0]).sum(), x)
    worst = 0.0
    for a, n in zip(analytic.ravel(), numeric.ravel()):
        worst = max(worst, abs(a - n))
    return worst / np.abs(numeric).max()
""")
wrong("linear", "gradient of the weight summed over the first axis only", r"summed over the axes", """
def linear(x, weight):
    def pullback(dy):
        dx = dy @ weight.T
        dweight = x.swapaxes(-1, -2) @ dy
        if dweight.ndim > 2:
            dweight = dweight.sum(axis=0)
        return dx, dweight

    return x @ weight, pullback
""")
wrong("split_heads", "reshapes to (H, T, D) directly, without swapping axes", r"reshape straight", """
def split_heads(x, num_heads):
    *front, t, width = x.shape
    return x.reshape(*front, num_heads, t, width // num_heads)
""")
wrong("stack_weights", "reshape without moving the axis of heads", r"reshape of \(H, M, D\)", """
def stack_weights(weights):
    h, m, d = weights.shape
    return weights.reshape(m, h * d)
""")
wrong("fused", "takes q, k, v as blocks within each head", r"split into heads first", """
def fused(x, weight, num_heads):
    heads = split_heads(x @ weight, num_heads)  # (…, H, T, 3·D)
    q, k, v = np.split(heads, 3, axis=-1)
    return q, k, v
""")
wrong("bilinear", "keys left, queries right: the transposed matrix", r"axes are in the order", """
def bilinear(w_q, w_k):
    return np.einsum("hmd,hnd->hmn", w_k, w_q)
""")
wrong("scores", "np.sqrt gives a float64 scalar and float32 becomes float64", r"np\.sqrt\(8\)", """
def scores(query, key):
    scale = 1 / np.sqrt(query.shape[-1])
    y = query @ key.swapaxes(-1, -2) * scale

    def pullback(dy):
        dy = dy * scale
        return dy @ key, dy.swapaxes(-1, -2) @ query

    return y, pullback
""")
wrong("attention_forward", "scales after the tap: it is given unscaled scores", r"before you call tap", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scores = tap("scores", query @ key.swapaxes(-1, -2))
    scores = scores / query.shape[-1] ** 0.5
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
    return weights @ value
""")
wrong("attention", "steps['scores'] already contains the factor 1/√D", r"dscores is divided by √D", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))
    out = weights @ value

    def pullback(dout):
        dvalue = weights.mT @ dout
        dweights = dout @ value.mT
        dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True)) / root
        return dscores @ key, dscores.mT @ query, dvalue, {"weights": dweights, "scores": dscores}

    return out, pullback
""")
wrong("padding", "one key too many (<= instead of <)", r"one key too many", """
def padding(lengths, s):
    return (np.arange(s)[None, :] <= np.asarray(lengths)[:, None])[:, None, None, :]
""")
wrong("documents", "finds document borders, so an id that returns is another document", r"only neighbours are compared", """
def documents(ids):
    change = np.diff(ids, axis=1) != 0
    number = np.concatenate([np.zeros((len(ids), 1), int), change.cumsum(axis=1)], axis=1)
    return (number[:, :, None] == number[:, None, :])[:, None]
""")
wrong("masked_softmax", "-1e9 for hidden entries: a row that sees nothing becomes uniform", r"large negative number", """
def masked_softmax(x, mask):
    x = np.where(mask, x, -1e9)
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        dy = np.where(mask, dy, 0)
        dx = y * (dy - (y * dy).sum(axis=-1, keepdims=True))
        return (np.where(mask, dx, 0),)

    return y, pullback
""")
wrong("masked_softmax", "a NaN in dy at a hidden entry reaches the row sum", r"0 · NaN", """
def masked_softmax(x, mask):
    mask = np.broadcast_to(mask, x.shape)
    shown = np.where(mask, x, 0)
    peak = np.where(mask, shown.real, -np.inf).max(axis=-1, keepdims=True)
    peak = np.where(np.isinf(peak), 0, peak)
    e = np.where(mask, np.exp(np.where(mask, shown - peak, 0)), 0)
    total = e.sum(axis=-1, keepdims=True)
    y = e / np.where(total == 0, 1, total)

    def pullback(dy):
        dx = y * (dy - (y * dy).sum(axis=-1, keepdims=True))
        return (np.where(mask, dx, 0),)

    return y, pullback
""")
wrong("repeat_heads", "pullback groups the heads as tile would, not as repeat", r"heads of a group are adjacent", """
def repeat_heads(x, rep):
    y = np.repeat(x, rep, axis=-3)

    def pullback(dy):
        *front, g, s, d = x.shape
        return (dy.reshape(*front, rep, g, s, d).sum(axis=-4),)

    return y, pullback
""")
wrong("multi_head_attention", "does not go on with what tap returns for merged", r"continue with what tap returns", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    q, back_q = linear(x, w_q)
    k, back_k = linear(x, w_k)
    v, back_v = linear(x, w_v)
    query = tap("query", split(q, num_heads))
    key = tap("key", split(k, num_heads))
    value = tap("value", split(v, num_heads))
    heads, back_attention = attention(query, key, value)
    heads = tap("heads", heads)
    merged = merge(heads)
    tap("merged", merged)
    y, back_o = linear(merged, w_o)

    def pullback(dy):
        dmerged, dw_o = back_o(dy)
        dheads = split(dmerged, num_heads)
        dquery, dkey, dvalue = back_attention(dheads)
        dx_q, dw_q = back_q(merge(dquery))
        dx_k, dw_k = back_k(merge(dkey))
        dx_v, dw_v = back_v(merge(dvalue))
        steps = {"query": dquery, "key": dkey, "value": dvalue, "heads": dheads, "merged": dmerged}
        return dx_q + dx_k + dx_v, dw_q, dw_k, dw_v, dw_o, steps

    return y, pullback
""")
wrong("sinusoidal", "sines in the left half, cosines in the right half", r"sines fill one half", """
def sinusoidal(count, width, base=10000.0):
    theta = base ** (-2 * np.arange(width // 2) / width)
    angles = np.arange(count)[:, None] * theta
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
""")
wrong("sinusoidal", "frequency from the column instead of the pair", r"both columns of pair", """
def sinusoidal(count, width, base=10000.0):
    column = np.arange(width)
    angles = np.arange(count)[:, None] * base ** (-column / width)
    return np.where(column % 2 == 0, np.sin(angles), np.cos(angles))
""")
wrong("rotate_pairs", "pullback rotates forward again, not back", r"rotated by θ, as in the forward", """
def rotate_pairs(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)

    def turn(z):
        a, b = z[..., 0::2], z[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(z.shape)

    def pullback(dy):
        return (turn(dy),)

    return turn(x), pullback
""")
wrong("rotate_pairs", "the second column is computed from the first, already rotated", r"after its change", """
def rotate_pairs(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    y = x.copy()
    y[..., 0::2] = y[..., 0::2] * cos - y[..., 1::2] * sin
    y[..., 1::2] = y[..., 1::2] * cos + y[..., 0::2] * sin

    def pullback(dy):
        dx = np.empty_like(dy)
        dx[..., 0::2] = dy[..., 0::2] * cos + dy[..., 1::2] * sin
        dx[..., 1::2] = dy[..., 1::2] * cos - dy[..., 0::2] * sin
        return (dx,)

    return y, pullback
""")
wrong("to_halves", "even and odd columns of the whole matrix, not of each head", r"different heads are mixed", """
def to_halves(w, num_heads):
    return np.concatenate([w[:, 0::2], w[:, 1::2]], axis=1)
""")
wrong("to_halves", "the inverse reordering, from halves to neighbours", r"this is the inverse", """
def to_halves(w, num_heads):
    m, width = w.shape
    d = width // num_heads
    heads = w.reshape(m, num_heads, 2, d // 2)
    return heads.swapaxes(-1, -2).reshape(m, width)
""")
wrong("alibi_bias", "queries counted from position 0, cache forgotten", r"first query is at position 0", """
def alibi_bias(slopes, t, s):
    distance = np.abs(np.arange(t)[:, None] - np.arange(s)[None, :])
    return -slopes[:, None, None] * distance
""")
wrong("alibi_bias", "signed difference: later keys get a bonus", r"use abs", """
def alibi_bias(slopes, t, s):
    i = np.arange(s - t, s)
    j = np.arange(s)
    return -slopes.reshape(-1, 1, 1) * (i[:, None] - j)
""")
wrong("attend_with_cache", "new tokens rotated from position 0", r"starts at position 0 in every call", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    t, n = query.shape[1], cached_key.shape[1]
    positions = np.arange(t)
    query, key = rotate(query, positions), rotate(key, positions)
    keys = np.concatenate([cached_key, key], axis=1)
    values = np.concatenate([cached_value, value], axis=1)
    mask = np.arange(n + t) <= np.arange(n, n + t)[:, None]
    return masked_attention(query, keys, values, mask), keys, values
""")
wrong("attend_with_cache", "the cached keys are rotated a second time", r"cached keys are rotated again", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    t, n = query.shape[1], cached_key.shape[1]
    keys = np.concatenate([cached_key, key], axis=1)
    values = np.concatenate([cached_value, value], axis=1)
    keys = rotate(keys, np.arange(n + t))
    query = rotate(query, np.arange(n, n + t))
    mask = np.tri(t, n + t, n, dtype=bool)
    return masked_attention(query, keys, values, mask), keys, values
""")
wrong("attend_with_cache", "all new tokens see all keys (no causal mask among the new)", r"nothing is hidden", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    t, n = query.shape[1], cached_key.shape[1]
    positions = n + np.arange(t)
    cached_key = np.concatenate([cached_key, rotate(key, positions)], axis=1)
    cached_value = np.concatenate([cached_value, value], axis=1)
    mask = np.ones((t, n + t), dtype=bool)  # the cache only holds earlier tokens
    out = masked_attention(rotate(query, positions), cached_key, cached_value, mask)
    return out, cached_key, cached_value
""")
wrong("cross_entropy", "gradient of the sum: not divided by the number of targets", r"1/N is missing", """
def cross_entropy(logits, targets):
    shifted = logits - logits.real.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(log_p, targets[..., None], axis=-1).mean()

    def pullback(dy):
        one_hot = np.eye(logits.shape[-1])[targets]
        return (dy * (np.exp(log_p) - one_hot),)

    return loss, pullback
""")
wrong("cross_entropy", "logarithm of a probability that underflows to 0: infinite loss", r"exp\(-1000\) is rounded", """
def cross_entropy(logits, targets):
    e = np.exp(logits - logits.real.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(p, targets[..., None], axis=-1)
    loss = np.mean(-np.log(chosen))

    def pullback(dy):
        one_hot = np.arange(logits.shape[-1]) == targets[..., None]
        return (dy * (p - one_hot) / targets.size,)

    return loss, pullback
""")
wrong("cross_entropy", "pullback changes the kept probabilities: a second call is wrong", r"called twice", """
def cross_entropy(logits, targets):
    c = logits.shape[-1]
    rows, flat = logits.reshape(-1, c), targets.ravel()
    index = np.arange(len(rows))
    shifted = rows - rows.real.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1)
    loss = (np.log(total) - shifted[index, flat]).mean()
    p = np.exp(shifted) / total[:, None]

    def pullback(dy):
        p[index, flat] -= 1
        return ((dy / len(rows) * p).reshape(logits.shape),)

    return loss, pullback
""")
wrong("layer_norm", "deviation treated as a constant in the gradient", r"x̂ · mean\(g · x̂\) is missing", """
def layer_norm(x, weight, bias, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + eps)
    xhat = centred / sigma

    def pullback(dy):
        axes = tuple(range(dy.ndim - 1))
        g = dy * weight
        dx = (g - g.mean(axis=-1, keepdims=True)) / sigma
        return dx, (dy * xhat).sum(axis=axes), dy.sum(axis=axes)

    return xhat * weight + bias, pullback
""")
wrong("layer_norm", "eps added to the deviation instead of the variance", r"eps is added to the root", """
def layer_norm(x, weight, bias, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    std = np.sqrt((centred ** 2).mean(axis=-1, keepdims=True))
    sigma = std + eps
    xhat = centred / sigma

    def pullback(dy):
        axes = tuple(range(dy.ndim - 1))
        g = dy * weight
        inner = (g * xhat).mean(axis=-1, keepdims=True)
        dx = (g - g.mean(axis=-1, keepdims=True) - xhat * inner * sigma / std) / sigma
        return dx, (dy * xhat).sum(axis=axes), dy.sum(axis=axes)

    return xhat * weight + bias, pullback
""")
wrong("adamw_step", "weight decay added to the gradient (L2, not decoupled)", r"decay is added to the gradient", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    step = m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)
    return p - lr * step, m, v
""")
wrong("adamw_step", "returns the corrected averages as the new m and v", r"m̂ and v̂ are returned", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g ** 2
    m = m / (1 - beta1 ** t)
    v = v / (1 - beta2 ** t)
    p = p - lr * m / (np.sqrt(v) + eps) - lr * weight_decay * p
    return p, m, v
""")
wrong("adamw_step", "decays the parameter after the step, so the new p is decayed", r"parameter after the step", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g ** 2
    mhat, vhat = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
    p = p - lr * mhat / (np.sqrt(vhat) + eps)
    p = p - lr * weight_decay * p
    return p, m, v
""")
wrong("top_p", "leaves out the token with which the sum reaches p", r"crosses p is dropped", """
def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    keep = np.cumsum(probabilities[order]) <= p
    keep[0] = True
    result = np.zeros_like(probabilities)
    result[order[keep]] = probabilities[order[keep]]
    return result / result.sum()
""")
wrong("top_p", "sorts back with the same permutation instead of its inverse", r"order is applied a second time", """
def top_p(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    ranked = probabilities[order]
    before = np.cumsum(ranked) - ranked
    kept = np.where(before < p, ranked, 0)
    return (kept / kept.sum())[order]
""")
wrong("attention_entropy", "bits instead of nats", r"in bits", """
def attention_entropy(weights):
    safe = np.where(weights > 0, weights, 1)
    return -(weights * np.log2(safe)).sum(axis=-1)
""")
wrong("without_gradient", "each gradient compared with its own largest entry", r"largest entry of all gradients", """
def without_gradient(gradients):
    names = []
    for name, g in gradients.items():
        if g is None or not (np.abs(g) > 1e-6 * np.abs(g).max()).any():
            names.append(name)
    return names
""")
wrong("without_gradient", "fails if all gradients are None (maximum of nothing)", r"empty sequence", """
def without_gradient(gradients):
    largest = max(np.abs(g).max() for g in gradients.values() if g is not None)
    return [
        name for name, g in gradients.items() if g is None or np.abs(g).max() <= 1e-6 * largest
    ]
""")
wrong("without_gradient", "looks at the sum of the entries, which may cancel", r"entries of a sum cancel", """
def without_gradient(gradients):
    largest = max((np.abs(g).max() for g in gradients.values() if g is not None), default=0)
    return [
        name
        for name, g in gradients.items()
        if g is None or abs(np.sum(g)) <= 1e-6 * largest
    ]
""")
wrong("leaks", "compares with a tolerance, though any change counts", r"small change is a leak", """
def leaks(model, tokens, vocabulary):
    before = model(tokens)
    for t in range(1, tokens.shape[1]):
        other = tokens.copy()
        other[:, t:] = (other[:, t:] + 1) % vocabulary
        if not np.allclose(model(other)[:, :t], before[:, :t]):
            return True
    return False
""")
wrong("leaks", "changes only the last token", r"only the last token is changed", """
def leaks(model, tokens, vocabulary):
    other = tokens.copy()
    other[:, -1] = (other[:, -1] + 1) % vocabulary
    return bool((model(other)[:, :-1] != model(tokens)[:, :-1]).any())
""")
wrong("leaks", "counts the logits at position t itself", r"every model seems to leak", """
def leaks(model, tokens, vocabulary):
    logits = model(tokens)
    for t in range(1, tokens.shape[1]):
        other = tokens.copy()
        other[:, t:] = (tokens[:, t:] + 1) % vocabulary
        if not np.array_equal(model(other)[:, : t + 1], logits[:, : t + 1]):
            return True
    return False
""")
wrong("leaks", "looks only at the first sequence of the batch", r"only sequence 0", """
def leaks(model, tokens, vocabulary):
    logits = model(tokens)[0]
    for t in range(1, tokens.shape[1]):
        other = tokens.copy()
        other[:, t:] = (other[:, t:] + 1) % vocabulary
        if (model(other)[0, :t] != logits[:t]).any():
            return True
    return False
""")
wrong("online_softmax", "acc is not scaled down to the new maximum", r"relative to the new maximum", """
def online_softmax(peak, total, acc, scores, value):
    new = np.maximum(peak, scores.max(axis=1))
    base = np.where(np.isneginf(new), 0, new)
    e = np.exp(scores - base[:, None])
    total = total * np.exp(peak - base) + e.sum(axis=1)
    acc = acc + e @ value
    return new, total, acc
""")
wrong("online_softmax", "-inf minus -inf is NaN in rows without a visible key", r"−∞ − \(−∞\) is NaN", """
def online_softmax(peak, total, acc, scores, value):
    new = np.maximum(peak, scores.max(axis=1))
    factor = np.exp(peak - new)
    e = np.exp(scores - new[:, None])
    return new, factor * total + e.sum(axis=1), factor[:, None] * acc + e @ value
""")
wrong("attention_costs", "keys and values read once in all, not once for each block", r"each block of queries reads them once", """
def attention_costs(H, T, S, D, Dv, block):
    pairs = H * T * S
    flops = 2 * pairs * (D + Dv)
    flops_backward = 2 * pairs * (3 * D + 2 * Dv)
    inputs = H * (T * D + S * D + S * Dv)
    moved = 4 * (12 * pairs + inputs + H * T * Dv)
    moved_in_tiles = 4 * (inputs + H * T * Dv)
    return flops, flops_backward, moved, moved_in_tiles, 4 * pairs, 4 * H * T
""")
wrong("attention_costs", "maximum and sum counted as if they wrote all scores", r"14 times", """
def attention_costs(H, T, S, D, Dv, block):
    pairs = H * T * S
    flops = 2 * pairs * (D + Dv)
    flops_backward = 2 * pairs * (D + Dv + Dv + D + D)
    moved = H * T * D + H * S * D + pairs       # Q Kᵀ
    moved += 6 * 2 * pairs                      # scale, maximum, subtract, exp, sum, divide
    moved += pairs + H * S * Dv + H * T * Dv    # weights · V
    tiles = H * (T * D + T // block * S * (D + Dv) + T * Dv)
    return flops, flops_backward, 4 * moved, 4 * tiles, 4 * pairs, 4 * H * T
""")
wrong("attention_costs", "bytes kept for one head only", r"this is one head", """
def attention_costs(H, T, S, D, Dv, block):
    flops = 2 * H * T * S * D + 2 * H * T * S * Dv
    flops_backward = 2 * H * T * S * (3 * D + 2 * Dv)
    moved = 4 * H * (12 * T * S + (T + S) * (D + Dv))
    moved_in_tiles = 4 * H * (T * (D + Dv) + T // block * S * (D + Dv))
    return flops, flops_backward, moved, moved_in_tiles, 4 * T * S, 4 * T
""")
wrong("tiled_forward", "lse without the maximum that was subtracted", r"peak is missing", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    t, s = len(query), len(key)
    out, lse = np.zeros((t, value.shape[1])), np.full(t, -np.inf)
    for i in range(0, t, block):
        rows = slice(i, min(i + block, t))
        n = rows.stop - rows.start
        peak, total, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for j in range(0, s, block):
            cols = slice(j, min(j + block, s))
            index = np.arange(cols.start, cols.stop)
            mask = (first[rows, None] <= index) & (index <= last[rows, None])
            if not mask.any():
                continue
            scores = tap("scores", scale * query[rows] @ key[cols].T)
            scores = np.where(mask, scores, -np.inf)
            peak, total, acc = online_softmax(peak, total, acc, scores, value[cols])
        seen = total > 0
        out[rows][seen] = acc[seen] / total[seen, None]
        lse[rows][seen] = np.log(total[seen])
    return out, lse
""")
wrong("tiled_forward", "a query that sees nothing gets 0 / 0 = NaN", r"do not divide by it", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    t, s = len(query), len(key)
    outs, lses = [], []
    for i in range(0, t, block):
        q, lo, hi = query[i:i + block], first[i:i + block], last[i:i + block]
        peak, total = np.full(len(q), -np.inf), np.zeros(len(q))
        acc = np.zeros((len(q), value.shape[1]))
        for j in range(0, s, block):
            k = key[j:j + block]
            index = j + np.arange(len(k))
            mask = (lo[:, None] <= index) & (index <= hi[:, None])
            if mask.any():
                scores = tap("scores", scale * (q @ k.T))
                scores = np.where(mask, scores, -np.inf)
                peak, total, acc = online_softmax(peak, total, acc, scores, value[j:j + block])
        outs.append(acc / total[:, None])
        lses.append(peak + np.log(total))
    return np.concatenate(outs), np.concatenate(lses)
""")
wrong("tiled_forward", "range of keys of a tile taken from its first and last query only", r"skip it only if none", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    t, s = len(query), len(key)
    out, lse = np.zeros((t, value.shape[1])), np.full(t, -np.inf)
    for i in range(0, t, block):
        stop = min(i + block, t)
        peak, total = np.full(stop - i, -np.inf), np.zeros(stop - i)
        acc = np.zeros((stop - i, value.shape[1]))
        for j in range(0, s, block):
            end = min(j + block, s)
            if j > last[stop - 1] or end - 1 < first[i]:
                continue  # tile is hidden
            index = np.arange(j, end)
            mask = (first[i:stop, None] <= index) & (index <= last[i:stop, None])
            if not mask.any():
                continue
            scores = tap("scores", scale * query[i:stop] @ key[j:end].T)
            scores = np.where(mask, scores, -np.inf)
            peak, total, acc = online_softmax(peak, total, acc, scores, value[j:end])
        safe = np.where(total == 0, 1, total)
        out[i:stop] = acc / safe[:, None]
        lse[i:stop] = peak + np.log(safe)
    return out, lse
""")
wrong("tiled_backward", "row sum of weights · dweights over the tile instead of all keys", r"delta belongs to the whole row", """
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    for i in range(0, len(query), block):
        r = slice(i, i + block)
        for j in range(0, len(key), block):
            c = slice(j, j + block)
            index = np.arange(j, min(j + block, len(key)))
            mask = (first[r, None] <= index) & (index <= last[r, None])
            if not mask.any():
                continue
            base = np.where(np.isinf(lse[r]), 0, lse[r])[:, None]
            scores = np.where(mask, scale * query[r] @ key[c].T, -np.inf)
            weights = tap("weights", np.exp(scores - base))
            dvalue[c] += weights.T @ dout[r]
            dweights = dout[r] @ value[c].T
            inner = (dweights * weights).sum(axis=1, keepdims=True)
            dscores = tap("dscores", weights * (dweights - inner))
            dquery[r] += scale * dscores @ key[c]
            dkey[c] += scale * dscores.T @ query[r]
    return dquery, dkey, dvalue
""")
wrong("tiled_backward", "lse of -inf is subtracted: NaN for queries that see nothing", r"hide before exp", """
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    delta = (dout * out).sum(axis=1)
    for j in range(0, len(key), block):
        c = slice(j, j + block)
        index = np.arange(j, min(j + block, len(key)))
        for i in range(0, len(query), block):
            r = slice(i, i + block)
            mask = (first[r, None] <= index) & (index <= last[r, None])
            if not mask.any():
                continue
            scores = np.where(mask, scale * (query[r] @ key[c].T), -np.inf)
            weights = tap("weights", np.exp(scores - lse[r, None]))
            dvalue[c] += weights.T @ dout[r]
            dscores = tap("dscores", weights * (dout[r] @ value[c].T - delta[r, None]))
            dquery[r] += scale * dscores @ key[c]
            dkey[c] += scale * dscores.T @ query[r]
    return dquery, dkey, dvalue
""")
wrong("tiled_backward", "tap gets dscores with the scale already multiplied in", r"contains the scale already", """
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    delta = (dout * out).sum(axis=1, keepdims=True)
    for i in range(0, len(query), block):
        r = slice(i, i + block)
        q, g = query[r], dout[r]
        for j in range(0, len(key), block):
            c = slice(j, j + block)
            k, v = key[c], value[c]
            index = j + np.arange(len(k))
            mask = (first[r][:, None] <= index) & (index <= last[r][:, None])
            if not mask.any():
                continue
            exponent = np.where(mask, scale * q @ k.T, -np.inf)
            exponent = exponent - np.where(np.isinf(lse[r]), 0, lse[r])[:, None]
            weights = tap("weights", np.exp(exponent))
            dscores = tap("dscores", scale * weights * (g @ v.T - delta[r]))
            dquery[r] += dscores @ k
            dkey[c] += dscores.T @ q
            dvalue[c] += weights.T @ g
    return dquery, dkey, dvalue
""")
wrong("tiled_product", "grid rounds down: the rows and columns of the last tiles stay 0", r"grid is too small", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))

    def grid():
        return out.shape[0] // m, out.shape[1] // n

    def kernel(x, y, out):
        i, j = ct.bid(0), ct.bid(1)
        total = np.zeros((m, n))
        for l in range(ct.cdiv(x.shape[1], k)):
            a = ct.load(x, index=(i, l), shape=(m, k))
            b = ct.load(y, index=(l, j), shape=(k, n))
            inside = l * k + np.arange(k) < x.shape[1]
            total = total + np.where(inside, a, 0) @ np.where(inside[:, None], b, 0)
        ct.store(out, index=(i, j), tile=total)

    ct.launch(None, grid(), kernel, (x, y, out))
    return out
""")
wrong("tiled_product", "number of steps along D counted with n instead of k", r"tile \(0, 2\).* outside", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))

    def grid():
        return ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)

    def kernel(x, y, out):
        i, j = ct.bid(0), ct.bid(1)
        total = np.zeros((m, n))
        for l in range(ct.cdiv(x.shape[1], n)):
            a = ct.load(x, index=(i, l), shape=(m, k))
            b = ct.load(y, index=(l, j), shape=(k, n))
            inside = l * k + np.arange(k) < x.shape[1]
            total = total + np.where(inside, a, 0) @ np.where(inside[:, None], b, 0)
        ct.store(out, index=(i, j), tile=total)

    ct.launch(None, grid(), kernel, (x, y, out))
    return out
""")
wrong("softmax_rows", "sum not scaled down when a later tile has a larger maximum", r"old sum is not rescaled", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros(x.shape)

    def kernel(x, out):
        i = ct.bid(0)
        steps = ct.cdiv(x.shape[1], n)
        peak, total = np.full((m, 1), -np.inf), np.zeros((m, 1))
        for j in range(steps):
            inside = j * n + np.arange(n) < x.shape[1]
            tile = np.where(inside, ct.load(x, index=(i, j), shape=(m, n)), -np.inf)
            peak = np.maximum(peak, tile.max(axis=1, keepdims=True))
            total = total + np.exp(tile - peak).sum(axis=1, keepdims=True)
        for j in range(steps):
            tile = ct.load(x, index=(i, j), shape=(m, n))
            ct.store(out, index=(i, j), tile=np.exp(tile - peak) / total)

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
wrong("softmax_rows", "columns beyond the edge counted in maximum and sum", r"padding of a tile used", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros(x.shape)

    def kernel(x, out):
        i = ct.bid(0)
        peak, total = np.full((m, 1), -np.inf), np.zeros((m, 1))
        for j in range(ct.cdiv(x.shape[1], n)):
            tile = ct.load(x, index=(i, j), shape=(m, n))
            new = np.maximum(peak, tile.max(axis=1, keepdims=True))
            total = total * np.exp(peak - new) + np.exp(tile - new).sum(axis=1, keepdims=True)
            peak = new
        for j in range(ct.cdiv(x.shape[1], n)):
            tile = ct.load(x, index=(i, j), shape=(m, n))
            ct.store(out, index=(i, j), tile=np.exp(tile - peak) / total)

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
wrong("key_gradients_in_blocks", "delta subtracted after multiplying by the weights", r"delta is outside the bracket", """
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct

    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        j = ct.bid(0)
        k = ct.load(key, index=(j, 0), shape=(n, d))
        v = ct.load(value, index=(j, 0), shape=(n, dv))
        dk, dvl = np.zeros((n, d)), np.zeros((n, dv))
        for i in range(ct.cdiv(t, m)):
            inside = (i * m + np.arange(m) < t)[:, None]
            q = np.where(inside, ct.load(query, index=(i, 0), shape=(m, d)), 0)
            g = np.where(inside, ct.load(dout, index=(i, 0), shape=(m, dv)), 0)
            norm = np.where(inside, ct.load(lse, index=(i,), shape=(m,))[:, None], 0)
            row = np.where(inside, ct.load(delta, index=(i,), shape=(m,))[:, None], 0)
            weights = np.where(inside, np.exp(scale * (q @ k.T) - norm), 0)
            dvl = dvl + weights.T @ g
            dscores = weights * (g @ v.T) - row
            dk = dk + scale * (dscores.T @ q)
        ct.store(dkey, index=(j, 0), tile=dk)
        ct.store(dvalue, index=(j, 0), tile=dvl)

    arrays = query, key, value, lse, dout, delta, dkey, dvalue
    ct.launch(None, (ct.cdiv(s, n),), kernel, arrays)
    return dkey, dvalue
""")
wrong("key_gradients_in_blocks", "factor scale forgotten in dkey", r"scale is missing in dkey", """
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct

    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        j = ct.bid(0)
        k = ct.load(key, index=(j, 0), shape=(n, d))
        v = ct.load(value, index=(j, 0), shape=(n, dv))
        dk, dvl = np.zeros((n, d)), np.zeros((n, dv))
        for i in range(ct.cdiv(t, m)):
            inside = (i * m + np.arange(m) < t)[:, None]
            q = np.where(inside, ct.load(query, index=(i, 0), shape=(m, d)), 0)
            g = np.where(inside, ct.load(dout, index=(i, 0), shape=(m, dv)), 0)
            norm = np.where(inside, ct.load(lse, index=(i,), shape=(m,))[:, None], 0)
            row = np.where(inside, ct.load(delta, index=(i,), shape=(m,))[:, None], 0)
            weights = np.where(inside, np.exp(scale * (q @ k.T) - norm), 0)
            dvl = dvl + weights.T @ g
            dk = dk + (weights * (g @ v.T - row)).T @ q
        ct.store(dkey, index=(j, 0), tile=dk)
        ct.store(dvalue, index=(j, 0), tile=dvl)

    arrays = query, key, value, lse, dout, delta, dkey, dvalue
    ct.launch(None, (ct.cdiv(s, n),), kernel, arrays)
    return dkey, dvalue
""")
wrong("step_costs", "Adam's update writes the gradients as well", r"does not write the gradients", """
def step_costs(vocabulary, layers, B, T, M, H):
    block = 4 * M * M + 4 * M + 8 * M * M + 5 * M + 4 * M
    parameters = (vocabulary + T) * M + layers * block + 2 * M + M * vocabulary
    forward = 2 * B * T * (12 * layers * M * M + M * vocabulary) + 4 * layers * B * T * T * M
    kept = 4 * layers * B * H * T * T
    return parameters, 3 * forward, 16 * parameters, 32 * parameters, kept
""")
wrong("step_costs", "products of all heads counted with M features each", r"counted H times", """
def step_costs(vocabulary, layers, B, T, M, H):
    attention = 4 * (M * M + M)
    perceptron = 2 * 4 * M * M + 4 * M + M
    norms = 2 * 2 * M
    parameters = vocabulary * M + T * M
    parameters += layers * (attention + perceptron + norms) + 2 * M + M * vocabulary
    tokens = B * T
    forward = layers * 2 * tokens * 12 * M * M
    forward += layers * B * H * (2 * T * T * M + 2 * T * T * M)  # scores, weights times values
    forward += 2 * tokens * M * vocabulary
    state = 4 * 4 * parameters
    update = 4 * (4 + 3) * parameters
    kept = layers * B * H * T * T * 4
    return parameters, 3 * forward, state, update, kept
""")
wrong("sum_over_ranks", "passes on the running total round the ring, not what came in", r"sums travel", """
def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        x = xs[comm.rank]
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        total = x
        for _ in range(comm.size - 1):
            comm.send(total, right)
            total = total + comm.recv(left)
        return total

    return run(on_rank, len(xs))
""")
wrong("sum_over_ranks", "sums in place into its own input, so that xs changes", r"xs in place", """
def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        x = xs[comm.rank]
        others = [r for r in range(comm.size) if r != comm.rank]
        for r in others:
            comm.send(x.copy(), r)
        for r in others:
            x += comm.recv(r)
        return x

    return run(on_rank, len(xs))
""")
wrong("squares_over_ranks", "only its own dy: the losses of the other ranks are forgotten", r"all-reduce was forgotten", """
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            return 2 * x * dy

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback
""")
wrong("squares_over_ranks", "sums x · dy over ranks: every rank gets the same gradient", r"2 · x is inside the sum", """
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            return comm.all_reduce(2 * x * dy)

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback
""")
wrong("head_parallel", "each rank adds the bias before the sum over ranks", r"adds the bias before", """
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        d = w_q.shape[1] // num_heads
        cols = slice(own.start * d, own.stop * d)
        y = attention_of_heads(
            x, w_q[:, cols], w_k[:, cols], w_v[:, cols], w_o[cols], own.stop - own.start
        )
        return comm.all_reduce(y + b_o)

    return run(on_rank, ranks)
""")
wrong("head_parallel", "width of a head taken as M / H", r"D is not M // H", """
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        d = x.shape[1] // num_heads
        cols = slice(own.start * d, own.stop * d)
        heads = own.stop - own.start
        part = attention_of_heads(x, w_q[:, cols], w_k[:, cols], w_v[:, cols], w_o[cols], heads)
        return comm.all_reduce(part) + b_o

    return run(on_rank, ranks)
""")
wrong("ring_of_ranks", "wrong owner of the keys after some steps (rank + step)", r"as those of another rank", """
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        right, left, n = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, len(query)
        out, lse = attend(query, key, value, 0)
        for step in range(1, comm.size):
            comm.send(key, right)
            comm.send(value, right)
            key, value = comm.recv(left), comm.recv(left)
            owner = (comm.rank + step) % comm.size
            new_out, new_lse = attend(query, key, value, (comm.rank - owner) * n)
            both = np.logaddexp(lse, new_lse)
            out = np.exp(lse - both)[:, None] * out + np.exp(new_lse - both)[:, None] * new_out
            lse = both
        return out

    return run(on_rank, len(queries))
""")
wrong("ring_of_ranks", "plain average of the partial outputs, lse ignored", r"the parts are averaged", """
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        right, left, n = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, len(query)
        total = np.zeros((n, value.shape[1]))
        count = 0
        for step in range(comm.size):
            source = (comm.rank - step) % comm.size
            out, lse = attend(query, key, value, (comm.rank - source) * n)
            if not np.isinf(lse).all():
                total = total + out
                count += 1
            if step < comm.size - 1:
                comm.send(key, right)
                comm.send(value, right)
                key = comm.recv(left)
                value = comm.recv(left)
        return total / count

    return run(on_rank, len(queries))
""")
