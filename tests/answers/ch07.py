"""Chapter 07: multi-head attention."""

# fmt: off
from . import right, wrong
from .ch04 import SLICE, SWAP

merged = right("merge_heads", """
def merge_heads(x):
    *front, H, T, D = x.shape
    y = x.swapaxes(-3, -2).reshape(*front, T, H * D)

    def pullback(dy):
        return (dy.reshape(*front, T, H, D).swapaxes(-3, -2),)

    return y, pullback
""")
beside = right("merge_heads", """
def merge_heads(x):
    H, D = x.shape[-3], x.shape[-1]
    y = np.concatenate([x[..., h, :, :] for h in range(H)], axis=-1)
    def pullback(dy):
        return (np.stack([dy[..., h * D : (h + 1) * D] for h in range(H)], axis=-3),)
    return y, pullback
""")
right("merge_heads", """
def merge_heads(x):
    z = np.moveaxis(x, -3, -2)
    return z.reshape(*z.shape[:-2], -1), lambda dy: (np.moveaxis(dy.reshape(z.shape), -2, -3),)
""")
right("merge_heads", """
def merge_heads(x):
    z = np.einsum("...htd->...thd", x)
    y = np.reshape(z, z.shape[:-2] + (z.shape[-2] * z.shape[-1],))
    def pullback(dy):
        return (np.einsum("...thd->...htd", np.reshape(dy, z.shape)),)
    return y, pullback
""")
right("merge_heads", """
def merge_heads(x):
    *front, H, T, D = x.shape
    y = np.zeros((*front, T, H * D), x.dtype)
    for h in range(H):
        y[..., D * h : D * h + D] = x[..., h, :, :]
    def pullback(dy):
        dx = np.empty((*front, H, T, D), dtype=dy.dtype)
        for h, part in enumerate(np.split(dy, H, axis=-1)):
            dx[..., h, :, :] = part
        return (dx,)
    return y, pullback
""")
wrong("merge_heads", "a reshape alone", SWAP, merged, ".swapaxes(-3, -2).reshape(*front, T", ".reshape(*front, T")
wrong("merge_heads", "a reshape alone in the backward", SWAP,
      merged, "dy.reshape(*front, T, H, D).swapaxes(-3, -2)", "dy.reshape(*front, H, T, D)")
wrong("merge_heads", "columns of the heads alternate", r"interleav|alternat|block|side by side|h·D", """
def merge_heads(x):
    *front, H, T, D = x.shape
    y = np.moveaxis(x, -3, -1).reshape(*front, T, D * H)
    return y, lambda dy: (np.moveaxis(dy.reshape(*front, T, D, H), -1, -3),)
""")
wrong("merge_heads", "PyTorch's contiguous and view", r"reshape|ascontiguous",
      merged, ".swapaxes(-3, -2).reshape(*front, T, H * D)", ".swapaxes(-3, -2).contiguous().view(*front, T, H * D)")
wrong("merge_heads", "the mean over the heads", r"mean|average|side by side", """
def merge_heads(x):
    H = x.shape[-3]
    y = np.concatenate([x.mean(axis=-3)] * H, axis=-1)
    return y, lambda dy: (np.stack(np.split(dy, H, axis=-1), axis=-3) / H,)
""")

shared = right("repeat_heads", """
def repeat_heads(x, rep):
    *front, G, S, D = x.shape

    def pullback(dy):
        return (dy.reshape(*front, G, rep, S, D).sum(axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
""")
right("repeat_heads", """
def repeat_heads(x, rep):
    G = x.shape[-3]
    y = np.stack([x[..., h // rep, :, :] for h in range(G * rep)], axis=-3)
    def pullback(dy):
        dx = np.zeros_like(x, dtype=dy.dtype)
        for h in range(G * rep):
            dx[..., h // rep, :, :] += dy[..., h, :, :]
        return (dx,)
    return y, pullback
""")
right("repeat_heads", """
def repeat_heads(x, rep):
    one = x[..., :, None, :, :]
    shape = (*x.shape[:-2], rep, *x.shape[-2:])
    y = np.broadcast_to(one, shape).reshape(*x.shape[:-3], -1, *x.shape[-2:])
    return y, lambda dy: (np.einsum("...grsd->...gsd", dy.reshape(shape)),)
""")
right("repeat_heads", """
def repeat_heads(x, rep):
    owner = np.arange(x.shape[-3] * rep) // rep
    y = np.take(x, owner, axis=-3)
    chosen = np.eye(x.shape[-3])[owner]  # (H, G)
    return y, lambda dy: (np.einsum("hg,...hsd->...gsd", chosen, dy),)
""")
right("repeat_heads", """
def repeat_heads(x, rep):
    def pullback(dy):
        starts = range(0, dy.shape[-3], rep)
        return (np.add.reduceat(dy, list(starts), axis=-3),)
    return x.repeat(rep, -3), pullback
""")
wrong("repeat_heads", "tile: head h is head h % G", r"tile|order|h // rep|%|next to|neighbour|0, 0, 1",
      shared, "np.repeat(x, rep, axis=-3)", "np.concatenate([x] * rep, axis=-3)")
wrong("repeat_heads", "the mean in the backward", r"mean|average|divided",
      shared, ".sum(axis=-3)", ".mean(axis=-3)")
wrong("repeat_heads", "one copy in the backward", r"sum|add|all copies|every copy|one copy|first",
      shared, ".sum(axis=-3)", "[..., 0, :, :]")
wrong("repeat_heads", "the backward adds heads that lie apart", r"order|neighbour|next to|adjacent|apart|consecutive",
      shared, "G, rep, S, D).sum(axis=-3)", "rep, G, S, D).sum(axis=-4)")
wrong("repeat_heads", "PyTorch's repeat_interleave", r"np\.repeat|\brepeat\b",
      shared, "np.repeat(x, rep, axis=-3)", "x.repeat_interleave(rep, dim=-3)")

each = right("head_contributions", """
def head_contributions(heads, w_o):
    H, _, D = heads.shape[-3:]
    return heads @ w_o.reshape(H, D, -1)
""")
right("head_contributions", """
def head_contributions(heads, w_o):
    D = heads.shape[-1]
    parts = [heads[..., h, :, :] @ w_o[h * D : (h + 1) * D] for h in range(heads.shape[-3])]
    return np.stack(parts, axis=-3)
""")
right("head_contributions", """
def head_contributions(heads, w_o):
    w = np.stack(np.split(w_o, heads.shape[-3], axis=0))
    return np.einsum("...htd,hdm->...htm", heads, w)
""")
right("head_contributions", """
def head_contributions(heads, w_o):
    *front, H, T, D = heads.shape
    out = np.empty((*front, H, T, w_o.shape[1]))
    for h in range(H):
        alone = np.zeros((*front, T, H * D))
        alone[..., h * D : h * D + D] = heads[..., h, :, :]
        out[..., h, :, :] = alone @ w_o
    return out
""")
right("head_contributions", """
def head_contributions(heads, w_o):
    rows = np.array_split(w_o, heads.shape[-3])
    split = [np.dot(part, w) for part, w in zip(np.moveaxis(heads, -3, 0), rows)]
    return np.moveaxis(np.array(split), 0, -3)
""")
wrong("head_contributions", "every H-th row of w_o", r"interleav|block|rows|every H",
      each, "w_o.reshape(H, D, -1)", "w_o.reshape(D, H, -1).swapaxes(0, 1)")
wrong("head_contributions", "the first rows of w_o for all heads", r"own rows|rows|each head|same (rows|block)|first",
      each, "w_o.reshape(H, D, -1)", "w_o[:D]")
wrong("head_contributions", "the output divided among the heads", r"divid|share|/ ?H|same for|equal|own rows|each head", """
def head_contributions(heads, w_o):
    H = heads.shape[-3]
    both = heads.swapaxes(-3, -2)
    out = both.reshape(*both.shape[:-2], -1) @ w_o
    return np.stack([out / H] * H, axis=-3)
""")
wrong("head_contributions", "already summed", r"sum|each head|H axis|head axis",
      each, "heads @ w_o.reshape(H, D, -1)", "(heads @ w_o.reshape(H, D, -1)).sum(axis=-3)")

whole = right("multi_head_attention", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    q, back_q = linear(x, w_q)
    k, back_k = linear(x, w_k)
    v, back_v = linear(x, w_v)
    query = tap("query", split(q, num_heads))
    key = tap("key", split(k, num_heads))
    value = tap("value", split(v, num_heads))
    heads, back_attention = attention(query, key, value)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    y, back_o = linear(merged, w_o)

    def pullback(dy):
        dmerged, dw_o = back_o(dy)
        dheads = split(dmerged, num_heads)
        dquery, dkey, dvalue = back_attention(dheads)
        dx_q, dw_q = back_q(merge(dquery))
        dx_k, dw_k = back_k(merge(dkey))
        dx_v, dw_v = back_v(merge(dvalue))
        dx = dx_q + dx_k + dx_v
        steps = {"query": dquery, "key": dkey, "value": dvalue, "heads": dheads, "merged": dmerged}
        return dx, dw_q, dw_k, dw_v, dw_o, steps

    return y, pullback
""")
right("multi_head_attention", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    names, maps = ("query", "key", "value"), []
    roles = []
    for name, w in zip(names, (w_q, w_k, w_v)):
        y, back = linear(x, w)
        maps.append(back)
        roles.append(tap(name, split(y, num_heads)))
    heads, back_heads = attention(*roles)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    out, back_out = linear(merged, w_o)
    def pullback(dy):
        steps = {}
        steps["merged"], dw_o = back_out(dy)
        steps["heads"] = split(steps["merged"], num_heads)
        steps.update(zip(names, back_heads(steps["heads"])))
        pairs = [back(merge(steps[n])) for n, back in zip(names, maps)]
        return (sum(dx for dx, _ in pairs), *[dw for _, dw in pairs], dw_o, steps)
    return out, pullback
""")
right("multi_head_attention", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    H = num_heads
    cut = lambda w: w.reshape(w.shape[0], H, -1)
    Q = tap("query", np.einsum("...tm,mhd->...htd", x, cut(w_q)))
    K = tap("key", np.einsum("...tm,mhd->...htd", x, cut(w_k)))
    V = tap("value", np.einsum("...tm,mhd->...htd", x, cut(w_v)))
    O, pull = attention(Q, K, V)
    O = tap("heads", O)
    Z = tap("merged", np.concatenate([O[..., h, :, :] for h in range(H)], axis=-1))
    def grads(dy):
        dZ = np.einsum("...tm,nm->...tn", dy, w_o)
        dO = np.stack(np.split(dZ, H, axis=-1), axis=-3)
        dQ, dK, dV = pull(dO)
        dx = 0
        for d, w in ((dQ, w_q), (dK, w_k), (dV, w_v)):
            dx = dx + np.einsum("...htd,mhd->...tm", d, cut(w))
        rows = lambda z: z.reshape(-1, z.shape[-1])
        dw = [rows(x).T @ rows(np.einsum("...htd->...thd", d).reshape(*x.shape[:-1], -1)) for d in (dQ, dK, dV)]
        return dx, *dw, rows(Z).T @ rows(dy), dict(query=dQ, key=dK, value=dV, heads=dO, merged=dZ)
    return np.einsum("...tn,nm->...tm", Z, w_o), grads
""")
right("multi_head_attention", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    sizes = np.cumsum([w_q.shape[1], w_k.shape[1]])
    weight = np.concatenate([w_q, w_k, w_v], axis=1)
    all_three, back_in = linear(x, weight)
    q, k, v = [split(z, num_heads) for z in np.split(all_three, sizes, axis=-1)]
    q, k, v = tap("query", q), tap("key", k), tap("value", v)
    heads, back_attention = attention(q, k, v)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    y, back_out = linear(merged, w_o)
    def pullback(dy):
        dmerged, dw_o = back_out(dy)
        dheads = split(dmerged, num_heads)
        dq, dk, dv = back_attention(dheads)
        dx, dweight = back_in(np.concatenate([merge(dq), merge(dk), merge(dv)], axis=-1))
        steps = dict(query=dq, key=dk, value=dv, heads=dheads, merged=dmerged)
        return (dx, *np.split(dweight, sizes, axis=1), dw_o, steps)
    return y, pullback
""")
right("multi_head_attention", """
class MultiHead:
    def __init__(self, x, w_q, w_k, w_v, w_o, h, tap):
        self.x, self.w, self.w_o, self.h = x, (w_q, w_k, w_v), w_o, h
        roles = [tap(n, split(x @ w, h)) for n, w in zip(("query", "key", "value"), self.w)]
        heads, self.back = attention(*roles)
        self.merged = tap("merged", merge(tap("heads", heads)))
        self.y = self.merged @ w_o
    @staticmethod
    def flat(z):
        return z.reshape(-1, z.shape[-1])
    def __call__(self, dy):
        dmerged = dy @ self.w_o.T
        dheads = split(dmerged, self.h)
        d = self.back(dheads)
        cols = [merge(z) for z in d]
        dx = sum(c @ w.T for c, w in zip(cols, self.w))
        dw = [self.flat(self.x).T @ self.flat(c) for c in cols]
        dw_o = self.flat(self.merged).T @ self.flat(dy)
        return dx, *dw, dw_o, {"query": d[0], "key": d[1], "value": d[2], "heads": dheads, "merged": dmerged}

def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    layer = MultiHead(x, w_q, w_k, w_v, w_o, num_heads, tap)
    return layer.y, layer
""")
wrong("multi_head_attention", "a slice of x for each head", SLICE, """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    H, M = num_heads, x.shape[-1]
    def diagonal(w):
        mask = np.zeros_like(w)
        for h in range(H):
            mask[h * M // H : (h + 1) * M // H, h * w.shape[1] // H : (h + 1) * w.shape[1] // H] = 1
        return mask
    keep = [diagonal(w) for w in (w_q, w_k, w_v)]
    (q, back_q), (k, back_k), (v, back_v) = [linear(x, w * m) for w, m in zip((w_q, w_k, w_v), keep)]
    query, key, value = tap("query", split(q, H)), tap("key", split(k, H)), tap("value", split(v, H))
    heads, back = attention(query, key, value)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    y, back_o = linear(merged, w_o)
    def pullback(dy):
        dmerged, dw_o = back_o(dy)
        dheads = split(dmerged, H)
        dq, dk, dv = back(dheads)
        (a, dw_q), (b, dw_k), (c, dw_v) = back_q(merge(dq)), back_k(merge(dk)), back_v(merge(dv))
        steps = {"query": dq, "key": dk, "value": dv, "heads": dheads, "merged": dmerged}
        return a + b + c, dw_q * keep[0], dw_k * keep[1], dw_v * keep[2], dw_o, steps
    return y, pullback
""")
wrong("multi_head_attention", "dx from the queries alone", r"sum|three|keys? and values?",
      whole, "dx_q + dx_k + dx_v", "dx_q")
wrong("multi_head_attention", "dx is a mean", r"mean|average|three|/ 3",
      whole, "dx_q + dx_k + dx_v", "(dx_q + dx_k + dx_v) / 3")
wrong("multi_head_attention", "heads by reshape alone", SWAP,
      whole, "split(q, num_heads)", "q.reshape(*q.shape[:-2], num_heads, q.shape[-2], -1)",
      "split(k, num_heads)", "k.reshape(*k.shape[:-2], num_heads, k.shape[-2], -1)",
      "split(v, num_heads)", "v.reshape(*v.shape[:-2], num_heads, v.shape[-2], -1)")
wrong("multi_head_attention", "no output projection", r"w_o|output projection|W\^O",
      whole, "    return y, pullback", "    return merged, pullback")
wrong("multi_head_attention", "merged by reshape alone", SWAP,
      whole, "merge(heads))", "heads.reshape(*heads.shape[:-3], heads.shape[-2], -1))")
wrong("multi_head_attention", "the gradient split by reshape alone", SWAP,
      whole, "dheads = split(dmerged, num_heads)", "dheads = dmerged.reshape(heads.shape)")
wrong("multi_head_attention", "keys and values exchanged", r"swap|exchang|interchang|order|keys? and values?",
      whole, "attention(query, key, value)", "attention(query, value, key)")
wrong("multi_head_attention", "the gradients of w_q and w_k exchanged", r"swap|exchang|interchang|order",
      whole, "return dx, dw_q, dw_k,", "return dx, dw_k, dw_q,")
wrong("multi_head_attention", "one head over all columns", r"one head|1 head|num_heads|split",
      whole, "split(q, num_heads)", "split(q, 1)", "split(k, num_heads)", "split(k, 1)",
      "split(v, num_heads)", "split(v, 1)", "split(dmerged, num_heads)", "split(dmerged, 1)")

wrong("merge_heads", "no swap in the backward", r"swap|axes|transpos", merged, "T, H, D).swapaxes(-3, -2)", "T, H, D)")
wrong("merge_heads", "dy is returned", r"split|reshape|only the shape|undo|merged", merged, "dy.reshape(*front, T, H, D).swapaxes(-3, -2)", "dy")
wrong("merge_heads", "the heads added up", r"\bsum|side by side|concatenat|add", beside, "np.concatenate([x[..., h, :, :] for h in range(H)], axis=-1)", "x.sum(axis=-3)")
wrong("repeat_heads", "repeats positions", r"axis|heads|positions", shared, "np.repeat(x, rep, axis=-3)", "np.repeat(x, rep, axis=-2)")
wrong("repeat_heads", "adds up the groups", r"axis|rep\b|group|copies|sum", shared, "sum(axis=-3)", "sum(axis=-4)")
wrong("repeat_heads", "the gradient of every rep-th head", r"sum|add|all copies|every copy|one copy|first|only", shared, "dy.reshape(*front, G, rep, S, D).sum(axis=-3)", "dy[..., ::rep, :, :]")
wrong("head_contributions", "w_o transposed", r"transpos|\.T\b|rows|columns", each, "w_o.reshape", "w_o.T.reshape")
wrong("head_contributions", "heads in front of the batch", r"axis|in front|axes", """
def head_contributions(heads, w_o):
    D = heads.shape[-1]
    return np.stack([heads[..., h, :, :] @ w_o[h * D : h * D + D] for h in range(heads.shape[-3])])
""")
wrong("multi_head_attention", "dx without the values", r"sum|three|values?|missing", whole, "dx_q + dx_k + dx_v", "dx_q + dx_k")
wrong("multi_head_attention", "dquery copied for dkey", r"\bd?key|w_k|copy", whole, "merge(dkey)", "merge(dquery)")
wrong("multi_head_attention", "values projected by w_k", r"w_v|value", whole, "linear(x, w_v)", "linear(x, w_k)")
wrong("multi_head_attention", "a residual connection", r"residual|x is added|\+ x|adds? x", whole, "return y, pullback", "return x + y, pullback")
wrong("multi_head_attention", "heads not merged before w_o", r"merge", whole, "tap(\"merged\", merge(heads))", "tap(\"merged\", heads)")
wrong("merge_heads", "axes counted from the front", r"front|any number|−3", merged, "x.swapaxes(-3, -2)", "x.swapaxes(1, 2)")
wrong("merge_heads", "an array and no tuple", r"tuple", merged, "(dy.reshape(*front, T, H, D).swapaxes(-3, -2),)", "dy.reshape(*front, T, H, D).swapaxes(-3, -2)")
wrong("repeat_heads", "a single head is not repeated", r"repeat|rep\b|heads", shared, "x.shape\n", "x.shape\n    if G == 1:\n        return x, lambda dy: (dy,)\n")
wrong("multi_head_attention", "the result of tap ignored", r"heads = tap", whole, "heads = tap(\"heads\", heads)", "tap(\"heads\", heads)")
wrong("multi_head_attention", "a step without tap", r"merged is missing", whole, "tap(\"merged\", merge(heads))", "merge(heads)")
wrong("multi_head_attention", "no pullback", r"should return two things", whole, "return y, pullback", "return y")
wrong("multi_head_attention", "no steps", r"a dictionary of query, key, value, heads, merged", whole, "dw_o, steps", "dw_o")
wrong("multi_head_attention", "two steps exchanged", r"dictionary", whole, "\"heads\": dheads, \"merged\": dmerged", "\"heads\": dmerged, \"merged\": dheads")
