"""Right answers in unusual styles: loops over rows, pairs or blocks, recursion, other orders of
summation, other precisions, Jacobians, transposed tiles, messages in other orders.
"""

# fmt: off
from . import right

right("standardise", """
# the variance from the mean square, one pass
def standardise(x):
    M = x.shape[-1]
    flat = x.reshape(-1, M)
    first = flat @ np.full((M, 1), 1 / M, x.dtype)
    second = (flat * flat) @ np.full((M, 1), 1 / M, x.dtype)
    return ((flat - first) / np.sqrt(second - first * first)).reshape(x.shape)
""")

right("broadcast_shape", """
# recursion over strings of lengths, popped from the end
def broadcast_shape(a, b):
    a, b, out = list(a), list(b), []
    while a or b:
        m, n = (a.pop() if a else 1), (b.pop() if b else 1)
        if m == 1:
            m = n
        if n == 1:
            n = m
        if m != n:
            raise ValueError(f"{m} against {n}")
        out.insert(0, m)
    return tuple(out)
""")

right("unbroadcast", """
# each entry of dy is added where it came from
def unbroadcast(dy, shape):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    origin = np.broadcast_to(numbers, dy.shape)
    dx = np.zeros(numbers.size, dy.dtype)
    np.add.at(dx, origin.ravel(), dy.ravel())
    return dx.reshape(shape)
""")

right("multiply", """
# einsum over the axes that were not broadcast
def multiply(a, b):
    def pullback(dy):
        letters = "abcdefghijkl"[: dy.ndim]

        def own(x):
            named = letters[dy.ndim - x.ndim :]
            kept = "".join(c for c, n in zip(named, x.shape) if n > 1)
            return kept, x.reshape([n for n in x.shape if n > 1])

        (of_a, short_a), (of_b, short_b) = own(a), own(b)
        da = np.einsum(f"{letters},{of_b}->{of_a}", dy, short_b)
        db = np.einsum(f"{letters},{of_a}->{of_b}", dy, short_a)
        return da.reshape(a.shape), db.reshape(b.shape)

    return a * b, pullback
""", """
# a Python loop over the entries
class Multiply:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __call__(self, dy):
        da, db = np.zeros(self.a.shape, dy.dtype), np.zeros(self.b.shape, dy.dtype)
        for index in np.ndindex(dy.shape):
            at_a, at_b = self.origin(index, da.shape), self.origin(index, db.shape)
            da[at_a] += dy[index] * self.b[at_b]
            db[at_b] += dy[index] * self.a[at_a]
        return da, db

    @staticmethod
    def origin(index, shape):
        last = index[len(index) - len(shape) :]
        return tuple(0 if n == 1 else i for i, n in zip(last, shape))


def multiply(a, b):
    return a * b, Multiply(a, b)
""")

right("matmul", """
# a sum of outer products
def matmul(a, b):
    def outer(column, row):
        return column[..., :, None] * row[..., None, :]

    def product(a, b):
        return sum(outer(a[..., :, i], b[..., i, :]) for i in range(a.shape[-1]))

    def sum_to(x, shape):
        x = x.sum(axis=tuple(range(x.ndim - len(shape))))
        return x.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)

    def pullback(dy):
        da = product(dy, np.moveaxis(b, -1, -2))
        db = product(np.moveaxis(a, -1, -2), dy)
        return sum_to(da, a.shape), sum_to(db, b.shape)

    return product(a, b), pullback
""", """
# sums over three indices, entry by entry
from itertools import product


def matmul(a, b):
    y = a @ b

    def pullback(dy):
        da, db = np.zeros(dy.shape[:-1] + a.shape[-1:]), np.zeros(dy.shape[:-2] + b.shape[-2:])
        A, B = np.broadcast_to(a, da.shape), np.broadcast_to(b, db.shape)
        for stack in np.ndindex(dy.shape[:-2]):
            n, k, m = *A.shape[-2:], B.shape[-1]
            for i, j, l in product(range(n), range(m), range(k)):
                da[stack][i, l] += dy[stack][i, j] * B[stack][l, j]
                db[stack][l, j] += A[stack][i, l] * dy[stack][i, j]
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)

    return y, pullback
""")

right("topological_order", """
# depth first with a stack of iterators; the argument is only read
def topological_order(parents):
    order, state = [], {}
    for root in parents:
        stack = [(root, iter(parents[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            for p in rest:
                if p not in state:
                    state[p] = 1
                    stack.append((p, iter(parents[p])))
                    break
            else:
                order.append(name)
                stack.pop()
    return order
""")

right("backward", """
# a priority queue of the nodes reached
import heapq


def backward(nodes, gradient):
    gradients = [None] * len(nodes)
    gradients[-1] = gradient
    queue = [-(len(nodes) - 1)]
    while queue:
        node = -heapq.heappop(queue)
        parents, pullback = nodes[node]
        if pullback is None:
            continue
        for parent, more in zip(parents, pullback(gradients[node])):
            if gradients[parent] is None:
                gradients[parent] = more
                heapq.heappush(queue, -parent)
            else:
                gradients[parent] = gradients[parent] + more
    return gradients
""")

right("backward", """
# lists of contributions, added when the node is reached
def backward(nodes, gradient):
    arrived = [[] for _ in nodes]
    arrived[len(nodes) - 1].append(gradient)
    total = [None] * len(nodes)
    k = len(nodes)
    while k:
        k -= 1
        if not arrived[k]:
            continue
        total[k] = arrived[k][0]
        for more in arrived[k][1:]:
            total[k] = total[k] + more
        parents, pull = nodes[k]
        if pull is not None:
            for p, g in zip(parents, pull(total[k])):
                arrived[p].append(g)
    return total
""")

right("central_difference", """
# x is moved in a copy, and restored
def central_difference(f, x, h):
    z, out = np.array(x, dtype=float), []
    flat = z.reshape(-1)
    for k in range(flat.size):
        old = flat[k]
        flat[k] = old + h
        up = f(z)
        flat[k] = old - h
        out.append((up - f(z)) / (h + h))
        flat[k] = old
    return np.array(out).reshape(x.shape)
""")

right("complex_step", """
# a vectorised function of the index
def complex_step(f, x):
    def entry(k):
        return f(x + 1e-20j * (numbers == k)).imag / 1e-20

    numbers = np.arange(x.size).reshape(x.shape)
    return np.vectorize(entry, otypes=[float])(numbers)
""")

right("linear", """
# a loop over the columns of the weight
def linear(x, weight):
    inputs, outputs = weight.shape
    y = np.stack([(x * weight[:, n]).sum(axis=-1) for n in range(outputs)], axis=-1)
    front = tuple(range(x.ndim - 1))

    def pullback(dy):
        dx = sum(dy[..., n : n + 1] * weight[:, n] for n in range(outputs))
        columns = [(x * dy[..., n : n + 1]).sum(axis=front) for n in range(outputs)]
        return dx, np.array(columns).T

    return y, pullback
""", """
# halves of the sum, each by recursion
def linear(x, weight):
    rows = weight.shape[0]
    if rows <= 16:
        columns = [x[..., i : i + 1] * weight[i] for i in range(rows)]

        def pullback(dy):
            dx = np.stack([(dy * row).sum(axis=-1) for row in weight], axis=-1)
            every = [(x[..., i : i + 1] * dy).reshape(-1, dy.shape[-1]) for i in range(rows)]
            return dx, np.array([terms.sum(axis=0) for terms in every])

        return sum(columns), pullback
    half = rows // 2
    left, left_back = linear(x[..., :half], weight[:half])
    right, right_back = linear(x[..., half:], weight[half:])

    def pullback(dy):
        (dx, dw), (dx2, dw2) = left_back(dy), right_back(dy)
        return np.concatenate([dx, dx2], axis=-1), np.concatenate([dw, dw2])

    return left + right, pullback
""")

right("fused", """
# one einsum over named axes, in a class that is called like a function
class Fused:
    def __call__(self, x, weight, num_heads):
        w = weight.reshape(len(weight), 3, num_heads, -1)
        return tuple(np.einsum("...tm,mrhd->r...htd", x, w))

fused = Fused()
""")

right("double", """
# a matmul vectorised by its signature
def double(first, weights):
    return np.vectorize(np.dot, signature="(m,n),(n,d)->(m,d)")(first, weights)
""")

right("bilinear", """
# a sum over the columns of outer products
def bilinear(w_q, w_k):
    columns = zip(np.moveaxis(w_q, -1, 0), np.moveaxis(w_k, -1, 0))
    return sum(q[:, :, None] * k[:, None, :] for q, k in columns)
""")

right("scores", """
# Python loops over all pairs
def scores(query, key):
    root = np.sqrt(query.shape[-1]).astype(query.real.dtype)
    y = np.empty((*query.shape[:-1], key.shape[-2]), np.result_type(query, key))
    pairs = list(np.ndindex(y.shape))
    for *front, t, s in pairs:
        y[*front, t, s] = (query[*front, t] * key[*front, s]).sum() / root

    def pullback(dy):
        dquery, dkey = np.zeros_like(query), np.zeros_like(key)
        for *front, t, s in pairs:
            dquery[*front, t] += dy[*front, t, s] * key[*front, s] / root
            dkey[*front, s] += dy[*front, t, s] * query[*front, t] / root
        return dquery, dkey

    return y, pullback
""", """
# both factors scaled, and the pullback a partial
from functools import partial


def transposed(x):
    return np.moveaxis(x, -1, -2)


def scores_backward(query, key, scale, dy):
    return scale * np.matmul(dy, key), scale * np.matmul(transposed(dy), query)


def scores(query, key):
    share = query.shape[-1] ** -0.25
    query, key = share * query, share * key
    return query @ transposed(key), partial(scores_backward, query, key, share)
""", """
# double precision inside, rounded at the end
def scores(query, key):
    def rounded(x, dtype):
        return x.astype(dtype, copy=False)

    wide = np.result_type(query, key, np.float64)
    q, k = query.astype(wide), key.astype(wide) / np.sqrt(key.shape[-1])

    def pullback(dy):
        dk = np.swapaxes(dy, -1, -2) @ q / np.sqrt(key.shape[-1])
        return rounded(dy @ k, query.dtype), rounded(dk, key.dtype)

    return rounded(q @ np.swapaxes(k, -1, -2), np.result_type(query, key)), pullback
""")

right("softmax", """
# Python numbers, entry by entry
from cmath import exp


def softmax(x):
    def row(x):
        largest = max(entry.real for entry in x)
        e = [exp(entry - largest) for entry in x]
        total = sum(e)
        return [entry / total for entry in e]

    y = np.reshape([row(r.tolist()) for r in x.reshape(-1, x.shape[-1])], x.shape)
    y = y if np.iscomplexobj(x) else y.real

    def pullback(dy):
        dx = np.empty_like(y)
        for where in np.ndindex(y.shape[:-1]):
            p, dp = y[where].tolist(), dy[where].tolist()
            mean = sum(a * b for a, b in zip(p, dp))
            dx[where] = [a * (b - mean) for a, b in zip(p, dp)]
        return (dx,)

    return y, pullback
""", """
# through the logarithm, computed again in the pullback
def log_softmax(x):
    shifted = x - x.real.max(-1)[..., None]
    return shifted - np.log(np.exp(shifted).sum(-1))[..., None]


def softmax(x):
    def pullback(dy):
        y = np.exp(log_softmax(x))
        dlog = y * dy
        return (dlog - y * np.einsum("...s->...", dlog)[..., None],)

    return np.exp(log_softmax(x)), pullback
""", """
# blocks of columns, with a running sum
def softmax(x, width=3):
    def blocks(*arrays):
        for start in range(0, x.shape[-1], width):
            yield tuple(a[..., start : start + width] for a in arrays)

    peak, total = np.full((*x.shape[:-1], 1), -np.inf), 0
    for (block,) in blocks(x):
        new = np.maximum(peak, block.real.max(axis=-1, keepdims=True))
        total = total * np.exp(peak - new) + np.exp(block - new).sum(axis=-1, keepdims=True)
        peak = new
    y = np.concatenate([np.exp(block - peak) / total for (block,) in blocks(x)], axis=-1)

    def pullback(dy):
        mean = sum((p * dp).sum(axis=-1, keepdims=True) for p, dp in blocks(y, dy))
        return (np.concatenate([p * (dp - mean) for p, dp in blocks(y, dy)], axis=-1),)

    return y, pullback
""", """
# the Jacobian, one output after another
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / np.add.reduce(e, axis=-1, keepdims=True)

    def pullback(dy):
        dx = np.zeros_like(y)
        for j in range(y.shape[-1]):  # dy_j / dx_i is y_j (1 - y_j) for i = j, otherwise -y_j y_i
            share = dy[..., j] * y[..., j]
            dx -= share[..., None] * y
            dx[..., j] += share
        return (dx,)

    return y, pullback
""", """
# recursion, and each row again in the pullback
def softmax(x):
    if x.ndim > 1:

        def pullback(dy):
            return (np.array([softmax(part)[1](d)[0] for part, d in zip(x, dy)]),)

        return np.array([softmax(part)[0] for part in x]), pullback
    e = np.exp(x - x.real.max())
    y = e / e.sum()
    return y, lambda dy: (y * (dy - y @ dy),)
""")

right("softmax", """
# the Jacobian of each row, written out
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        rows, dys = y.reshape(-1, y.shape[-1]), dy.reshape(-1, y.shape[-1])
        dx = np.array([(np.diag(r) - np.outer(r, r)) @ d for r, d in zip(rows, dys)])
        return (dx.reshape(y.shape),)

    return y, pullback
""")

right("attention", """
# one query after another
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ np.swapaxes(key, -1, -2) / root)
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))

    def pullback(dout):
        dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
        dweights, dscores = np.zeros_like(weights), np.zeros_like(scores)
        for *front, t in np.ndindex(query.shape[:-1]):
            front = tuple(front)
            row = (*front, t)
            p = weights[row]
            dvalue[front] += np.outer(p, dout[row])
            dweights[row] = dp = value[front] @ dout[row]
            dscores[row] = ds = p * dp - p * np.dot(p, dp)
            dquery[row] = ds @ key[front] / root
            dkey[front] += np.outer(ds, query[row]) / root
        return dquery, dkey, dvalue, {"weights": dweights, "scores": dscores}

    return weights @ value, pullback
""", """
# a quotient of two sums over the keys
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    total = e.sum(axis=-1, keepdims=True)
    weights = tap("weights", e / total)
    out = weights @ value

    def pullback(dout):
        dweights = dout @ value.mT
        dtotal = -(dweights * e).sum(axis=-1, keepdims=True) / total**2
        dscores = (dweights / total + dtotal) * e
        steps = {"weights": dweights, "scores": dscores}
        return dscores @ key / root, dscores.mT @ (query / root), weights.mT @ dout, steps

    return out, pullback
""", """
# keys in front, one key after another
def attention(query, key, value, *, tap=lambda name, x: x):
    def flipped(x):
        return np.moveaxis(x, -2, -1)

    root = query.shape[-1] ** 0.5
    keys = range(key.shape[-2])
    scores = np.stack([(query * key[..., s, None, :]).sum(-1) / root for s in keys], axis=-1)
    scores = tap("scores", scores)
    e = np.exp(scores - scores.real.max(axis=-1)[..., None])
    weights = tap("weights", e / e.sum(axis=-1)[..., None])
    out = sum(weights[..., s, None] * value[..., s, None, :] for s in keys)

    def pullback(dout):
        dweights = np.stack([(dout * value[..., s, None, :]).sum(-1) for s in keys], axis=-1)
        mean = np.einsum("...ts,...ts->...t", weights, dweights)
        dscores = weights * (dweights - mean[..., None])
        dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
        for s in keys:
            dvalue[..., s, :] = np.einsum("...t,...tv->...v", weights[..., s], dout)
            dkey[..., s, :] = np.einsum("...t,...td->...d", dscores[..., s], query) / root
            dquery += dscores[..., s, None] * key[..., s, None, :] / root
        return dquery, dkey, dvalue, {"weights": dweights, "scores": dscores}

    return out, pullback
""", """
# double precision inside, rounded at the end
def attention(query, key, value, *, tap=lambda name, x: x):
    own = np.result_type(query, key, value)
    wide = np.result_type(own, np.float64)
    q, k, v = (x.astype(wide) for x in (query, key, value))
    scale = 1 / np.sqrt(q.shape[-1])
    scores = tap("scores", (scale * q @ k.mT).astype(own)).astype(wide)
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = tap("weights", (e / e.sum(axis=-1, keepdims=True)).astype(own)).astype(wide)

    def pullback(dout):
        dweights = dout @ v.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        found = scale * dscores @ k, scale * dscores.mT @ q, weights.mT @ dout
        steps = {"weights": dweights.astype(own), "scores": dscores.astype(own)}
        return *(x.astype(own) for x in found), steps

    return (weights @ v).astype(own), pullback
""", """
# Python loops over the pairs
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    w = tap("weights", softmax_rows(scores))

    def pullback(dout):
        dq, dk, dv, dw, ds = map(np.zeros_like, (query, key, value, w, w))
        for *f, t, s in np.ndindex(w.shape):
            dw[*f, t, s] = dout[*f, t] @ value[*f, s]
            dv[*f, s] += w[*f, t, s] * dout[*f, t]
        for *f, t, s in np.ndindex(w.shape):
            ds[*f, t, s] = w[*f, t, s] * (dw[*f, t, s] - w[*f, t] @ dw[*f, t])
            dq[*f, t] += ds[*f, t, s] * key[*f, s] / root
            dk[*f, s] += ds[*f, t, s] * query[*f, t] / root
        return dq, dk, dv, {"weights": dw, "scores": ds}

    return w @ value, pullback
""")

right("masked_softmax", """
# NumPy's masked arrays
def masked_softmax(x, mask):
    seen = np.ma.array(x, mask=~np.broadcast_to(mask, x.shape))
    largest = np.ma.max(seen.real, axis=-1, keepdims=True)
    e = np.ma.exp(seen - largest)
    y = (e / e.sum(axis=-1, keepdims=True)).filled(0)

    def pullback(dy):
        inner = y * np.where(mask, dy, 0)
        return (inner - y * inner.sum(axis=-1, keepdims=True),)

    return y, pullback
""", """
# Python numbers, pair by pair
from cmath import exp


def masked_softmax(x, mask):
    mask = np.broadcast_to(mask, x.shape)
    y = np.zeros(x.shape, x.dtype)
    for row in np.ndindex(x.shape[:-1]):
        seen = [s for s in range(x.shape[-1]) if mask[row][s]]
        if not seen:
            continue
        largest = max(x[row][s].real for s in seen)
        e = [exp(x[row][s] - largest) for s in seen]
        total = sum(e)
        for s, part in zip(seen, e):
            y[row][s] = part / total if np.iscomplexobj(y) else (part / total).real

    def pullback(dy):
        dx = np.zeros_like(y)
        for row in np.ndindex(y.shape[:-1]):
            seen = np.flatnonzero(mask[row])
            mean = sum(y[row][s] * dy[row][s] for s in seen)
            for s in seen:
                dx[row][s] = y[row][s] * (dy[row][s] - mean)
        return (dx,)

    return y, pullback
""", """
# recursion, and each row again in the pullback
def masked_softmax(x, mask):
    mask = np.broadcast_to(mask, x.shape)
    if x.ndim > 1:

        def pullback(dy):
            return (np.array([masked_softmax(p, m)[1](d)[0] for p, m, d in zip(x, mask, dy)]),)

        return np.array([masked_softmax(p, m)[0] for p, m in zip(x, mask)]), pullback
    y = np.zeros_like(x)
    if mask.any():
        e = np.exp(x[mask] - x[mask].real.max())
        y[mask] = e / e.sum()

    def pullback(dy):
        d = np.where(mask, dy, 0)
        return (y * (d - y @ d),)

    return y, pullback
""")

right("masked_softmax", """
# the arguments are copied and the copies changed in place
def masked_softmax(x, mask):
    visible = np.broadcast_to(mask, x.shape)
    e = np.zeros(x.shape, x.dtype)
    top = np.max(x.real, axis=-1, keepdims=True, where=visible, initial=-np.inf)
    np.subtract(x, top, out=e, where=visible)
    np.exp(e, out=e, where=visible)
    total = e.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    e /= total

    def pullback(dy):
        d = np.zeros(e.shape, e.dtype)
        np.multiply(dy, e, out=d, where=visible)
        d -= e * d.sum(axis=-1, keepdims=True)
        return (d,)

    return e, pullback
""")

right("merge_heads", """
# the head and the column of each column
def merge_heads(x):
    head, column = np.divmod(np.arange(x.shape[-3] * x.shape[-1]), x.shape[-1])

    def pullback(dy):
        dx = np.empty(x.shape, dy.dtype)
        dx[..., head, :, column] = np.moveaxis(dy, -1, 0)
        return (dx,)

    return np.moveaxis(x[..., head, :, column], 0, -1), pullback
""")

right("repeat_heads", """
# repeated slices, and a sum over every rep-th head
def repeat_heads(x, rep):
    def pullback(dy):
        return (sum(dy[..., first::rep, :, :] for first in range(rep)),)

    heads = [x[..., g : g + 1, :, :] for g in range(x.shape[-3]) for _ in range(rep)]
    return np.concatenate(heads, axis=-3), pullback
""")

right("multi_head_attention", """
# weights of three axes and einsum throughout
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    def by_head(w):
        return w.reshape(len(w), num_heads, -1)  # (M, H, D)

    q, k, v = (
        tap(name, np.einsum("...tm,mhd->...htd", x, by_head(w)))
        for name, w in (("query", w_q), ("key", w_k), ("value", w_v))
    )
    scale = q.shape[-1] ** -0.5
    scores = scale * np.einsum("...htd,...hsd->...hts", q, k)
    scores = scores - scores.real.max(axis=-1, keepdims=True)
    p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    heads = tap("heads", np.einsum("...hts,...hsd->...htd", p, v))
    merged = tap("merged", np.concatenate(np.moveaxis(heads, -3, 0), axis=-1))

    def pullback(dy):
        dmerged = np.einsum("...tm,nm->...tn", dy, w_o)
        dheads = np.stack(np.split(dmerged, num_heads, axis=-1), axis=-3)
        dp = np.einsum("...htd,...hsd->...hts", dheads, v)
        ds = p * (dp - np.einsum("...hts,...hts->...ht", p, dp)[..., None]) * scale
        dq = np.einsum("...hts,...hsd->...htd", ds, k)
        dk = np.einsum("...hts,...htd->...hsd", ds, q)
        dv = np.einsum("...hts,...htd->...hsd", p, dheads)
        dx = sum(
            np.einsum("...htd,mhd->...tm", d, by_head(w))
            for d, w in ((dq, w_q), (dk, w_k), (dv, w_v))
        )
        dws = [np.einsum("...tm,...htd->...mhd", x, d) for d in (dq, dk, dv)]
        dws.append(np.einsum("...tn,...tm->...nm", merged, dy))
        dws = [
            dw.reshape(-1, *w.shape).sum(axis=0) for dw, w in zip(dws, (w_q, w_k, w_v, w_o))
        ]
        steps = {"query": dq, "key": dk, "value": dv, "heads": dheads, "merged": dmerged}
        return dx, *dws, steps

    return merged @ w_o, pullback
""", """
# head by head
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    def by_head(w, axis):
        return np.split(w, num_heads, axis)

    def flat(x):
        return x.reshape(-1, x.shape[-1])

    def projected(name, w):
        return tap(name, np.stack([x @ own for own in by_head(w, 1)], axis=-3))

    weights = w_q, w_k, w_v
    parts = [projected(*of) for of in zip(("query", "key", "value"), weights)]
    each = [attention(*(p[..., h, :, :] for p in parts)) for h in range(num_heads)]
    heads = tap("heads", np.stack([out for out, _ in each], axis=-3))
    merged = tap("merged", np.concatenate(list(np.moveaxis(heads, -3, 0)), axis=-1))

    def pullback(dy):
        dmerged = dy @ w_o.T
        dheads = by_head(dmerged, -1)
        of_heads = [back(d) for (_, back), d in zip(each, dheads)]
        steps = {"merged": dmerged, "heads": np.stack(dheads, axis=-3)}
        dx, dweights = np.zeros_like(x), []
        for name, w, ds in zip(("query", "key", "value"), weights, zip(*of_heads)):
            steps[name] = np.stack(ds, axis=-3)
            dx += sum(d @ own.T for d, own in zip(ds, by_head(w, 1)))
            dweights.append(np.hstack([flat(x).T @ flat(d) for d in ds]))
        return dx, *dweights, flat(merged).T @ flat(dy), steps

    return merged @ w_o, pullback
""")

right("rotate_pairs", """
# a block-diagonal matrix for each position
def rotate_pairs(x, angles):
    width = x.shape[-1]
    turns = np.zeros((len(angles), width, width))
    first, second = np.arange(0, width, 2), np.arange(1, width, 2)
    turns[:, first, first] = turns[:, second, second] = np.cos(angles)
    turns[:, second, first] = np.sin(angles)
    turns[:, first, second] = -np.sin(angles)

    def pullback(dy):
        return (np.einsum("tij,...ti->...tj", turns, dy),)

    return np.einsum("tij,...tj->...ti", turns, x), pullback
""")

right("attend_with_cache", """
# the cache is rotated back to position 0, and then everything at once
def attend_with_cache(query, key, value, cached_key, cached_value):
    earlier = np.arange(cached_key.shape[-2])
    here = np.arange(len(earlier), len(earlier) + query.shape[-2])
    everywhere = np.r_[earlier, here]
    keys = rotate(np.concatenate([rotate(cached_key, -earlier), key], -2), everywhere)
    values = np.concatenate([cached_value, value], -2)
    seen = np.less_equal.outer(everywhere, here).T
    return masked_attention(rotate(query, here), keys, values, seen), keys, values
""")

right("cross_entropy", """
# logarithms of sums, two columns at a time
from functools import reduce


def log_of_sum(a, b):
    largest = np.maximum(a.real, b.real)
    return largest + np.log(np.exp(a - largest) + np.exp(b - largest))


def cross_entropy(logits, targets):
    lse = reduce(log_of_sum, np.moveaxis(logits, -1, 0))
    count = np.size(targets)
    chosen = sum(logits[*at, target] for at, target in np.ndenumerate(targets))

    def pullback(dy):
        dlogits = np.exp(logits - lse[..., None])
        for at, target in np.ndenumerate(targets):
            dlogits[*at, target] -= 1
        return (dlogits * (dy / count),)

    return (np.sum(lse) - chosen) / count, pullback
""", """
# composed of log-softmax and a choice
class LogSoftmax:
    def __init__(self, x):
        shifted = x - x.real.max(axis=-1, keepdims=True)
        self.y = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    def __call__(self, dy):
        return dy - np.exp(self.y) * dy.sum(axis=-1, keepdims=True)


def cross_entropy(logits, targets):
    logs = LogSoftmax(logits)
    at = (*np.indices(targets.shape), targets)

    def pullback(dy):
        dlogs = np.zeros(logits.shape)
        dlogs[at] = -dy / targets.size
        return (logs(dlogs),)

    return -logs.y[at].mean(), pullback
""")

right("layer_norm", """
# the length of the centred row
def layer_norm(x, weight, bias, eps=1e-5):
    width = x.shape[-1]

    def centred(x):
        return x - (x @ np.ones((width, 1))) / width

    c = centred(x)
    length = np.sqrt((c * c).sum(axis=-1, keepdims=True) + width * eps)
    direction = c / length

    def pullback(dy):
        g = dy * weight
        along = (g * direction).sum(axis=-1, keepdims=True)
        dx = np.sqrt(width) / length * centred(g - along * direction)
        by_row = np.stack([dy * direction * np.sqrt(width), dy]).reshape(2, -1, width)
        return dx, *by_row.sum(axis=1)

    return np.sqrt(width) * direction * weight + bias, pullback
""", """
# computed again in the pullback, row by row
def normal(row, eps):
    centred = row - sum(row) / len(row)
    return centred / (sum(centred**2) / len(row) + eps) ** 0.5


def layer_norm(x, weight, bias, eps=1e-5):
    def rows(x):
        return x.reshape(-1, len(weight))

    def pullback(dy):
        dx, dweight, dbias = [], np.zeros_like(weight), np.zeros_like(bias)
        for row, d in zip(rows(x), rows(dy)):
            n, g = normal(row, eps), d * weight
            inner = g - (g @ n) * n / len(n)
            dx.append((inner - inner.mean()) / np.sqrt(row.var() + eps))
            dweight += d * n
            dbias += d
        return np.reshape(dx, x.shape), dweight, dbias

    y = [normal(row, eps) * weight + bias for row in rows(x)]
    return np.reshape(y, x.shape), pullback
""", """
# recursion, and each row again in the pullback
def layer_norm(x, weight, bias, eps=1e-5):
    if x.ndim > 1:

        def pullback(dy):
            parts = [layer_norm(p, weight, bias, eps)[1](d) for p, d in zip(x, dy)]
            dxs, dws, dbs = zip(*parts)
            return np.array(dxs), sum(dws), sum(dbs)

        return np.array([layer_norm(p, weight, bias, eps)[0] for p in x]), pullback
    c = x - x.mean()
    s = np.sqrt((c * c).mean() + eps)
    n = c / s

    def pullback(dy):
        g = dy * weight
        return (g - g.mean() - n * (g * n).mean()) / s, dy * n, dy

    return n * weight + bias, pullback
""")

right("layer_norm", """
# the Jacobian of the normalisation as a matrix for each row
def layer_norm(x, weight, bias, eps=1e-5):
    M = x.shape[-1]
    centre = np.eye(M) - 1 / M
    c = x @ centre
    s = ((c * c) @ np.full((M, 1), 1 / M) + eps) ** 0.5
    n = c / s

    def pullback(dy):
        flat_n, flat_dy, flat_s = n.reshape(-1, M), dy.reshape(-1, M), s.reshape(-1)
        dx = np.stack([
            ((centre - np.outer(a, a) / M) / b) @ (weight * d)
            for a, d, b in zip(flat_n, flat_dy, flat_s)
        ])
        return dx.reshape(x.shape), np.einsum("nm,nm->m", flat_dy, flat_n), flat_dy.sum(0)

    return n * weight + bias, pullback
""")

right("adamw_step", """
# corrections in the step size and in eps
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (np.square(g) - v)
    root = np.sqrt(1 - beta2**t)
    step = lr * root / (1 - beta1**t)
    return (1 - lr * weight_decay) * p - step * m / (np.sqrt(v) + eps * root), m, v
""")

right("adamw_step", """
# works in place in copies of its own
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    p, m, v = np.copy(p), np.copy(m), np.copy(v)
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (np.square(g) - v)
    step = np.sqrt(v / (1 - beta2**t))
    step += eps
    np.divide(m / (1 - beta1**t), step, out=step)
    p *= 1 - lr * weight_decay
    p -= lr * step
    return p, m, v
""")

right("top_p", """
# tokens are removed from the smallest up while the rest has enough
def top_p(probabilities, p):
    kept = probabilities.copy()
    for k in np.argsort(probabilities):
        rest = kept.copy()
        rest[k] = 0
        if rest.sum() < p:
            break
        kept = rest
    return kept / kept.sum()
""")

right("online_softmax", """
# logarithms of sums, and averages
def online_softmax(peak, total, acc, scores, value):
    def known(x):
        return np.where(np.isneginf(x), 0, x)

    lse = known(peak) + np.log(total, where=total > 0, out=np.full(peak.shape, -np.inf))
    every = np.logaddexp(lse, np.logaddexp.reduce(scores, axis=1))
    largest = np.max([peak, *scores.T], axis=0)
    total = np.exp(every - known(largest))
    new = acc * np.exp(peak - known(largest))[:, None]
    new += total[:, None] * (np.exp(scores - known(every)[:, None]) @ value)
    return largest, total, new
""")

right("attention_costs", """
# counts the entries of arrays, and the tiles one by one
def attention_costs(H, T, S, D, Dv, block):
    def entries(*shapes):
        return sum(np.prod(shape, dtype=int) for shape in shapes)

    q, k, v, out = np.array([[T, D], [S, D], [S, Dv], [T, Dv]])
    pairs = T, S
    steps = [(q, k, pairs), (pairs, pairs), (pairs,), (pairs, pairs)]
    steps += [(pairs, pairs), (pairs,), (pairs, pairs), (pairs, v, out)]
    widths = {"forward": [D, Dv], "backward": [D, Dv, Dv, D, D]}
    flops = {way: sum(2 * T * S * width for width in ws) for way, ws in widths.items()}
    tiles = [(block, D), *[k, v] * 1, (block, Dv)]
    result = [
        flops["forward"], flops["backward"], 4 * sum(entries(*step) for step in steps),
        4 * sum(entries(*tiles) for _ in range(0, T, block)), 4 * T * S, 4 * T,
    ]
    return tuple(np.multiply(H, result))
""")

right("tiled_forward", """
# the parts of all tiles, added up at the end
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    def tiles(count):
        return [np.arange(count)[i : i + block] for i in range(0, count, block)]

    def part(i, j):
        seen = (first[i, None] <= j) & (j <= last[i, None])
        if not seen.any():
            return np.full(len(i), -np.inf), np.zeros(len(i)), np.zeros((len(i), value.shape[1]))
        scores = np.where(seen, tap("scores", scale * query[i] @ key[j].T), -np.inf)
        peak = scores.max(axis=1)
        e = np.exp(scores - np.where(seen.any(axis=1), peak, 0)[:, None])
        return peak, e.sum(axis=1), e @ value[j]

    outs, lses = [], []
    for i in tiles(len(query)):
        peaks, totals, sums = map(np.array, zip(*(part(i, j) for j in tiles(len(key)))))
        peak = peaks.max(axis=0)
        share = np.exp(peaks - np.where(np.isneginf(peak), 0, peak))
        total = (share * totals).sum(axis=0)
        outs.append(np.einsum("jt,jtv->tv", share, sums) / np.where(total == 0, 1, total)[:, None])
        with np.errstate(divide="ignore"):
            lses.append(peak + np.log(total))
    return np.concatenate(outs), np.concatenate(lses)
""")

right("tiled_backward", """
# keys outside, tiles transposed
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    dquery, dkeys, dvalues = np.zeros_like(query), [], []
    delta = np.einsum("tv,tv->t", dout, out)
    finite = np.where(np.isfinite(lse), lse, 0)
    for j in range(0, len(key), block):
        k, v = key[j : j + block], value[j : j + block]
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        at = j + np.arange(len(k))[:, None]
        for i in range(0, len(query), block):
            rows = slice(i, i + block)
            seen = (at >= first[rows]) & (at <= last[rows])
            if np.any(seen):
                scores = np.where(seen, scale * (k @ query[rows].T), -np.inf)
                p = tap("weights", np.exp(scores - finite[rows]).T).T  # (keys, queries)
                ds = tap("dscores", (p * (v @ dout[rows].T - delta[rows])).T).T
                dv += p @ dout[rows]
                dk += scale * ds @ query[rows]
                dquery[rows] += scale * ds.T @ k
        dkeys.append(dk)
        dvalues.append(dv)
    return dquery, np.concatenate(dkeys), np.concatenate(dvalues)
""")

right("tiled_product", """
# a grid with one axis, and tiles from the last to the first
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))
    across = ct.cdiv(y.shape[1], n)

    def grid():
        return (ct.cdiv(x.shape[0], m) * across,)

    def kernel(x, y, out):
        i, j = divmod(ct.bid(0), across)
        zero = ct.PaddingMode.ZERO
        acc = ct.full((m, n), 0, ct.float64)
        for c in reversed(range(ct.cdiv(x.shape[1], k))):
            left = ct.load(x, (i, c), (m, k), padding_mode=zero)
            acc = acc + left @ ct.load(y, (c, j), (k, n), padding_mode=zero)
        ct.store(out, (i, j), acc)

    ct.launch(None, grid(), kernel, (x, y, out))
    return out
""", """
# the transposed product, in a transposed grid
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))

    def grid():
        return -(-y.shape[1] // n), -(-x.shape[0] // m)

    def kernel(x, y, out):
        j, i = ct.bid(0), ct.bid(1)
        tile = ct.full((n, m), 0.0, np.float64)
        for c in range(ct.cdiv(y.shape[0], k)):
            rows = ct.load(x, (c, i), (k, m), order="F", padding_mode=ct.PaddingMode.ZERO)
            columns = ct.load(y, (j, c), (n, k), order="F", padding_mode=ct.PaddingMode.ZERO)
            tile = ct.mma(columns, rows, tile)
        ct.store(out, (j, i), tile, order="F")

    ct.launch(None, grid(), kernel, (x, y, out))
    return out
""")

right("softmax_rows", """
# three loops, for maximum, sum and result
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros(x.shape)

    def kernel(x, out):
        def tiles():
            for j in range(ct.cdiv(x.shape[1], n)):
                index = (ct.bid(0), j)
                yield index, ct.load(x, index, (m, n), padding_mode=ct.PaddingMode.NEG_INF)

        peak, total = ct.full((m, 1), -np.inf, ct.float64), ct.full((m, 1), 0, ct.float64)
        for _, tile in tiles():
            peak = ct.maximum(peak, ct.max(tile, axis=1, keepdims=True))
        for _, tile in tiles():
            total += ct.sum(ct.exp(tile - peak), axis=1, keepdims=True)
        for index, tile in tiles():
            ct.store(out, index, ct.exp(tile - peak - ct.log(total)))

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")

right("key_gradients_in_blocks", """
# tiles of keys times queries
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct

    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        def rows(array, index, *shape, mode=ct.PaddingMode.ZERO):
            index = (index,) + (0,) * (len(shape) - 1)
            return ct.load(array, index, shape, padding_mode=mode)

        j = ct.bid(0)
        k, v = rows(key, j, n, d), rows(value, j, n, dv)
        dk, dv_tile = ct.full((n, d), 0, ct.float64), ct.full((n, dv), 0, ct.float64)
        for i in range(ct.cdiv(t, m)):
            q, g = rows(query, i, m, d), rows(dout, i, m, dv)
            logs = rows(lse, i, m, mode=ct.PaddingMode.POS_INF)
            p = ct.exp(scale * (k @ q.T) - logs)  # (n, m), 0 for queries beyond the edge
            ds = p * (v @ g.T - rows(delta, i, m))
            dv_tile = ct.mma(p, g, dv_tile)
            dk = ct.mma(ds, scale * q, dk)
        ct.store(dkey, (j, 0), dk)
        ct.store(dvalue, (j, 0), dv_tile)

    arrays = query, key, value, lse, dout, delta, dkey, dvalue
    ct.launch(None, (ct.cdiv(s, n),), kernel, arrays)
    return dkey, dvalue
""")

right("sum_over_ranks", """
# a tree, up and down again
def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        total, children = xs[comm.rank], [2 * comm.rank + 1, 2 * comm.rank + 2]
        children = [child for child in children if child < comm.size]
        for child in children:
            total = total + comm.recv(child)
        if comm.rank:
            parent = (comm.rank - 1) // 2
            comm.send(total, parent)
            total = comm.recv(parent)
        for child in children:
            comm.send(total, child)
        return total

    return run(on_rank, len(xs))
""", """
# everyone to everyone
def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        for rank in others:
            comm.send(xs[comm.rank], rank)
        return np.sum([xs[comm.rank], *map(comm.recv, others)], axis=0)

    return run(on_rank, len(xs))
""")

right("squares_over_ranks", """
# the cotangents gathered
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            return (x + x) * comm.all_gather(dy[np.newaxis]).sum(axis=0)

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback
""", """
# every rank sends its cotangent to every other
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            for rank in others:
                comm.send(dy, rank)
            return sum([2 * x * comm.recv(rank) for rank in others], 2 * x * dy)

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback
""")

right("head_parallel", """
# partial outputs gathered, then summed
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        width = w_q.shape[1] // num_heads
        y = np.zeros((len(x), w_o.shape[1]))
        for h in range(own.start, own.stop):
            d = np.arange(width) + h * width
            scores = (x @ w_q[:, d]) @ (x @ w_k[:, d]).T / np.sqrt(width)
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            y += (e / e.sum(axis=1, keepdims=True)) @ (x @ w_v[:, d]) @ w_o[d]
        return comm.all_gather(y[None]).sum(axis=0) + b_o

    return run(on_rank, ranks)
""")

right("ring_of_ranks", """
# all partial results kept, then a softmax of their lse
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        right, left, n = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, len(query)
        parts = [attend(query, key, value, 0)]
        for step in range(1, comm.size):
            for x in (key, value):
                comm.send(x, right)
            key, value = comm.recv(left), comm.recv(left)
            if step <= comm.rank:  # otherwise these are later keys, which only pass through
                parts.append(attend(query, key, value, step * n))
        outs, lses = map(np.array, zip(*parts))
        shares = np.exp(lses - lses.max(axis=0))
        shares /= shares.sum(axis=0)
        return np.einsum("rt,rtv->tv", shares, outs)

    return run(on_rank, len(queries))
""")
