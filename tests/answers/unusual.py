"""Right answers in unusual styles: loops over entries and pairs, recursion, other orders of summation,
classes in place of functions, masked arrays, transposed tiles, messages in other orders.

Each does something that no other right answer does and that a check could wrongly refuse: it is the
slowest or the least exact one of its task, or returns another kind of array, number or pullback.
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
""")

right("attention", """
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
""")

right("squares_over_ranks", """
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
