"""Chapter 07: multi-head attention."""

# fmt: off
from . import right, wrong
from .ch04 import SLICE, SWAP

merged, beside, *_ = right("merge_heads", """
def merge_heads(x):
    *front, H, T, D = x.shape
    y = x.swapaxes(-3, -2).reshape(*front, T, H * D)

    def pullback(dy):
        return (dy.reshape(*front, T, H, D).swapaxes(-3, -2),)

    return y, pullback
""", """
def merge_heads(x):
    H, D = x.shape[-3], x.shape[-1]
    y = np.concatenate([x[..., h, :, :] for h in range(H)], axis=-1)
    def pullback(dy):
        return (np.stack([dy[..., h * D : (h + 1) * D] for h in range(H)], axis=-3),)
    return y, pullback
""", """
def merge_heads(x):
    z = np.moveaxis(x, -3, -2)
    return z.reshape(*z.shape[:-2], -1), lambda dy: (np.moveaxis(dy.reshape(z.shape), -2, -3),)
""", """
def merge_heads(x):
    z = np.einsum("...htd->...thd", x)
    y = np.reshape(z, z.shape[:-2] + (z.shape[-2] * z.shape[-1],))
    def pullback(dy):
        return (np.einsum("...thd->...htd", np.reshape(dy, z.shape)),)
    return y, pullback
""", """
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
merged.wrong("a reshape alone", SWAP, ".swapaxes(-3, -2).reshape(*front, T", ".reshape(*front, T")
merged.wrong("a reshape alone in the backward", SWAP,
    "dy.reshape(*front, T, H, D).swapaxes(-3, -2)", "dy.reshape(*front, H, T, D)")
merged.wrong("columns of the heads alternate", r"interleav|alternat|block|side by side|h·D",
    "x.swapaxes(-3, -2)", "np.moveaxis(x, -3, -1)", "dy.reshape(*front, T, H, D).swapaxes(-3, -2)",
    "np.moveaxis(dy.reshape(*front, T, D, H), -1, -3)")
merged.wrong("PyTorch's contiguous and view", r"reshape|ascontiguous",
    ".swapaxes(-3, -2).reshape(*front, T, H * D)", ".swapaxes(-3, -2).contiguous().view(*front, T, H * D)")
wrong("merge_heads", "the mean over the heads", r"mean|average|side by side", """
def merge_heads(x):
    H = x.shape[-3]
    y = np.concatenate([x.mean(axis=-3)] * H, axis=-1)
    return y, lambda dy: (np.stack(np.split(dy, H, axis=-1), axis=-3) / H,)
""")

merged.wrong("no swap in the backward", r"swap|axes|transpos", "T, H, D).swapaxes(-3, -2)", "T, H, D)")
merged.wrong("dy is returned", r"split|reshape|only the shape|undo|merged", "dy.reshape(*front, T, H, D).swapaxes(-3, -2)", "dy")
beside.wrong("the heads added up", r"\bsum|side by side|concatenat|add", "np.concatenate([x[..., h, :, :] for h in range(H)], axis=-1)", "x.sum(axis=-3)")
merged.wrong("axes counted from the front", r"front|any number|−3", "x.swapaxes(-3, -2)", "x.swapaxes(1, 2)")
merged.wrong("an array and no tuple", r"tuple", "(dy.reshape(*front, T, H, D).swapaxes(-3, -2),)", "dy.reshape(*front, T, H, D).swapaxes(-3, -2)")
wrong("merge_heads", "the sum over the heads", r"sum|side|concaten|mean over", """
def merge_heads(x):
    def pullback(dy):
        return (np.broadcast_to(dy[..., None, :, :], x.shape),)

    return x.sum(axis=-3), pullback
""")
wrong("merge_heads", "interleaved", r"interleav|order|h·D|swap|wrong places|axes", """
def merge_heads(x):
    *front, H, T, D = x.shape

    def pullback(dy):
        return (np.moveaxis(dy.reshape(*front, T, D, H), -1, -3),)

    return np.moveaxis(x, -3, -1).reshape(*front, T, D * H), pullback
""")
wrong("merge_heads", "the right shape by reshape", r"swap|reshape|mix", """
def merge_heads(x):
    *front, H, T, D = x.shape

    def pullback(dy):
        return (dy.reshape(x.shape),)

    return x.reshape(*front, T, H * D), pullback
""")
wrong("merge_heads", "dx is not split by head", r"swap|axes|transpos|reshape", """
def merge_heads(x):
    *front, H, T, D = x.shape

    def pullback(dy):
        return (dy.reshape(x.shape),)

    return np.moveaxis(x, -3, -2).reshape(*front, T, H * D), pullback
""")

shared, *_ = right("repeat_heads", """
def repeat_heads(x, rep):
    *front, G, S, D = x.shape

    def pullback(dy):
        return (dy.reshape(*front, G, rep, S, D).sum(axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
""", """
def repeat_heads(x, rep):
    G = x.shape[-3]
    y = np.stack([x[..., h // rep, :, :] for h in range(G * rep)], axis=-3)
    def pullback(dy):
        dx = np.zeros_like(x, dtype=dy.dtype)
        for h in range(G * rep):
            dx[..., h // rep, :, :] += dy[..., h, :, :]
        return (dx,)
    return y, pullback
""", """
def repeat_heads(x, rep):
    one = x[..., :, None, :, :]
    shape = (*x.shape[:-2], rep, *x.shape[-2:])
    y = np.broadcast_to(one, shape).reshape(*x.shape[:-3], -1, *x.shape[-2:])
    return y, lambda dy: (np.einsum("...grsd->...gsd", dy.reshape(shape)),)
""", """
def repeat_heads(x, rep):
    owner = np.arange(x.shape[-3] * rep) // rep
    y = np.take(x, owner, axis=-3)
    chosen = np.eye(x.shape[-3])[owner]  # (H, G)
    return y, lambda dy: (np.einsum("hg,...hsd->...gsd", chosen, dy),)
""", """
def repeat_heads(x, rep):
    def pullback(dy):
        starts = range(0, dy.shape[-3], rep)
        return (np.add.reduceat(dy, list(starts), axis=-3),)
    return x.repeat(rep, -3), pullback
""")
shared.wrong("tile: head h is head h % G", r"tile|order|h // rep|%|next to|neighbour|0, 0, 1",
    "np.repeat(x, rep, axis=-3)", "np.concatenate([x] * rep, axis=-3)")
shared.wrong("the mean in the backward", r"mean|average|divided", ".sum(axis=-3)", ".mean(axis=-3)")
shared.wrong("one copy in the backward", r"sum|add|all copies|every copy|one copy|first",
    ".sum(axis=-3)", "[..., 0, :, :]")
shared.wrong("the backward adds heads that lie apart", r"order|neighbour|next to|adjacent|apart|consecutive",
    "G, rep, S, D).sum(axis=-3)", "rep, G, S, D).sum(axis=-4)")
shared.wrong("PyTorch's repeat_interleave", r"np\.repeat|\brepeat\b",
    "np.repeat(x, rep, axis=-3)", "x.repeat_interleave(rep, dim=-3)")
shared.wrong("repeats positions", r"axis|heads|positions", "np.repeat(x, rep, axis=-3)", "np.repeat(x, rep, axis=-2)")
shared.wrong("adds up the groups", r"axis|rep\b|group|copies|sum", "sum(axis=-3)", "sum(axis=-4)")
shared.wrong("the gradient of every rep-th head", r"sum|add|all copies|every copy|one copy|first|only", "dy.reshape(*front, G, rep, S, D).sum(axis=-3)", "dy[..., ::rep, :, :]")
shared.wrong("a single head is not repeated", r"repeat|rep\b|heads", "x.shape\n", "x.shape\n    if G == 1:\n        return x, lambda dy: (dy,)\n")
wrong("repeat_heads", "one gradient of each group", r"sum|group|all (of )?|add", """
def repeat_heads(x, rep):
    def pullback(dy):
        return (dy[..., ::rep, :, :],)

    return np.repeat(x, rep, axis=-3), pullback
""")
wrong("repeat_heads", "tiled", r"tile|order|interleav|h // rep|h % G|adjacent|are the right", """
def repeat_heads(x, rep):
    G = x.shape[-3]

    def pullback(dy):
        return (sum(dy[..., r * G : (r + 1) * G, :, :] for r in range(rep)),)

    return np.concatenate([x] * rep, axis=-3), pullback
""")
wrong("repeat_heads", "the mean over the group", r"mean|sum|1/", """
def repeat_heads(x, rep):
    *front, G, S, D = x.shape

    def pullback(dy):
        return (dy.reshape(*front, G, rep, S, D).mean(axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
""")
wrong("repeat_heads", "groups that overlap", r"g · rep", """
def repeat_heads(x, rep):
    G = x.shape[-3]

    def pullback(dy):
        return (np.stack([dy[..., g : g + rep, :, :].sum(axis=-3) for g in range(G)], axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
""")

each, listed, *_ = right("head_contributions", """
def head_contributions(heads, w_o):
    H, _, D = heads.shape[-3:]
    return heads @ w_o.reshape(H, D, -1)
""", """
def head_contributions(heads, w_o):
    D = heads.shape[-1]
    parts = [heads[..., h, :, :] @ w_o[h * D : (h + 1) * D] for h in range(heads.shape[-3])]
    return np.stack(parts, axis=-3)
""", """
def head_contributions(heads, w_o):
    w = np.stack(np.split(w_o, heads.shape[-3], axis=0))
    return np.einsum("...htd,hdm->...htm", heads, w)
""", """
def head_contributions(heads, w_o):
    *front, H, T, D = heads.shape
    out = np.empty((*front, H, T, w_o.shape[1]))
    for h in range(H):
        alone = np.zeros((*front, T, H * D))
        alone[..., h * D : h * D + D] = heads[..., h, :, :]
        out[..., h, :, :] = alone @ w_o
    return out
""", """
def head_contributions(heads, w_o):
    rows = np.array_split(w_o, heads.shape[-3])
    split = [np.dot(part, w) for part, w in zip(np.moveaxis(heads, -3, 0), rows)]
    return np.moveaxis(np.array(split), 0, -3)
""")
each.wrong("every H-th row of w_o", r"interleav|block|rows|every H",
    "w_o.reshape(H, D, -1)", "w_o.reshape(D, H, -1).swapaxes(0, 1)")
each.wrong("the first rows of w_o for all heads", r"own rows|rows|each head|same (rows|block)|first",
    "w_o.reshape(H, D, -1)", "w_o[:D]")
wrong("head_contributions", "the output divided among the heads", r"divid|share|/ ?H|same for|equal|own rows|each head", """
def head_contributions(heads, w_o):
    H = heads.shape[-3]
    both = heads.swapaxes(-3, -2)
    out = both.reshape(*both.shape[:-2], -1) @ w_o
    return np.stack([out / H] * H, axis=-3)
""")
each.wrong("already summed", r"sum|each head|H axis|head axis",
    "heads @ w_o.reshape(H, D, -1)", "(heads @ w_o.reshape(H, D, -1)).sum(axis=-3)")
each.wrong("w_o transposed", r"transpos|\.T\b|rows|columns", "w_o.reshape", "w_o.T.reshape")
listed.wrong("heads in front of the batch", r"axis|in front|axes", "(parts, axis=-3)", "(parts)")
wrong("head_contributions", "every head gets all of w_o divided", r"own|rows|head|block", """
def head_contributions(heads, w_o):
    H, T, D = heads.shape[-3:]
    merged = heads.swapaxes(-3, -2).reshape(*heads.shape[:-3], T, H * D)
    y = merged @ w_o
    return np.stack([y / H] * H, axis=-3)
""")
wrong("head_contributions", "columns of w_o", r"rows|columns|reshape|H, D|mismatch|core dim", """
def head_contributions(heads, w_o):
    H = heads.shape[-3]
    blocks = np.split(w_o, H, axis=1)
    return np.stack([heads[..., h, :, :] @ blocks[h] for h in range(H)], axis=-3)
""")
wrong("head_contributions", "the whole w_o reshaped to columns", r"rows|block|own|columns|reshape", """
def head_contributions(heads, w_o):
    H, D = heads.shape[-3], heads.shape[-1]
    w = w_o.reshape(D, H, -1).swapaxes(0, 1)
    return heads @ w
""")
wrong("head_contributions", "the sum over the heads", r"sum", """
def head_contributions(heads, w_o):
    H, D = heads.shape[-3], heads.shape[-1]
    return sum(heads[..., h, :, :] @ w_o[h * D : h * D + D] for h in range(H))
""")

whole, *_ = right("multi_head_attention", """
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
""", """
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
""", """
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
""", """
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
""", """
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
whole.wrong("a slice of x for each head", SLICE,
    "    q, back_q =",
    "    own = lambda w: np.kron(np.eye(num_heads), np.ones(np.array(w.shape) // num_heads))\n"
    "    w_q, w_k, w_v = (w * own(w) for w in (w_q, w_k, w_v))\n    q, back_q =",
    "dx, dw_q, dw_k, dw_v,", "dx, dw_q * own(w_q), dw_k * own(w_k), dw_v * own(w_v),")
whole.wrong("dx from the queries alone", r"sum|three|keys? and values?", "dx_q + dx_k + dx_v", "dx_q")
whole.wrong("dx is a mean", r"mean|average|three|/ 3", "dx_q + dx_k + dx_v", "(dx_q + dx_k + dx_v) / 3")
whole.wrong("heads by reshape alone", SWAP,
    "split(q, num_heads)", "q.reshape(*q.shape[:-2], num_heads, q.shape[-2], -1)",
    "split(k, num_heads)", "k.reshape(*k.shape[:-2], num_heads, k.shape[-2], -1)",
    "split(v, num_heads)", "v.reshape(*v.shape[:-2], num_heads, v.shape[-2], -1)")
whole.wrong("no output projection", r"w_o|output projection|W\^O", "y, pullback", "merged, pullback")
whole.wrong("merged by reshape alone", SWAP,
    "merge(heads))", "heads.reshape(*heads.shape[:-3], heads.shape[-2], -1))")
whole.wrong("the gradient split by reshape alone", SWAP,
    "dheads = split(dmerged, num_heads)", "dheads = dmerged.reshape(heads.shape)")
whole.wrong("keys and values exchanged", r"swap|exchang|interchang|order|keys? and values?",
    "attention(query, key, value)", "attention(query, value, key)")
whole.wrong("the gradients of w_q and w_k exchanged", r"swap|exchang|interchang|order",
    "return dx, dw_q, dw_k,", "return dx, dw_k, dw_q,")
whole.wrong("one head over all columns", r"one head|1 head|num_heads|split",
    "split(q, num_heads)", "split(q, 1)", "split(k, num_heads)", "split(k, 1)",
    "split(v, num_heads)", "split(v, 1)", "split(dmerged, num_heads)", "split(dmerged, 1)")
whole.wrong("dx without the values", r"sum|three|values?|missing", "dx_q + dx_k + dx_v", "dx_q + dx_k")
whole.wrong("dquery copied for dkey", r"\bd?key|w_k|copy", "merge(dkey)", "merge(dquery)")
whole.wrong("values projected by w_k", r"w_v|value", "linear(x, w_v)", "linear(x, w_k)")
whole.wrong("a residual connection", r"residual|x is added|\+ x|adds? x", "return y, pullback", "return x + y, pullback")
whole.wrong("heads not merged before w_o", r"merge", "tap(\"merged\", merge(heads))", "tap(\"merged\", heads)")
whole.wrong("the result of tap ignored", r"heads = tap", "heads = tap(\"heads\", heads)", "tap(\"heads\", heads)")
whole.wrong("a step without tap", r"not pass merged", "tap(\"merged\", merge(heads))", "merge(heads)")
whole.wrong("no pullback", r"should return two things", "return y, pullback", "return y")
whole.wrong("no steps", r"a dictionary of query, key, value, heads, merged", "dw_o, steps", "dw_o")
whole.wrong("two steps exchanged", r"dictionary", "\"heads\": dheads, \"merged\": dmerged", "\"heads\": dmerged, \"merged\": dheads")
wrong("multi_head_attention", "dx from the queries alone", r"dx|sum|add|three|keys", """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    q, pull_q = linear(x, w_q)
    k, pull_k = linear(x, w_k)
    v, pull_v = linear(x, w_v)
    query, key, value = (tap(n, split(a, num_heads)) for n, a in (("query", q), ("key", k), ("value", v)))
    heads, pull_attention = attention(query, key, value)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    y, pull_o = linear(merged, w_o)

    def pullback(dy):
        dmerged, dw_o = pull_o(dy)
        dheads = split(dmerged, num_heads)
        dquery, dkey, dvalue = pull_attention(dheads)
        dx, dw_q = pull_q(merge(dquery))
        _, dw_k = pull_k(merge(dkey))
        _, dw_v = pull_v(merge(dvalue))
        return dx, dw_q, dw_k, dw_v, dw_o, {"query": dquery, "key": dkey, "value": dvalue, "heads": dheads, "merged": dmerged}

    return y, pullback
""")
