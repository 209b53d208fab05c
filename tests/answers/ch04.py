"""Chapter 04: projections."""

# fmt: off
from . import right, wrong

SLICE = r"slice|all of x|whole x|all (the )?columns of x|part of x|every column of x|columns of x"
SWAP = r"swapaxes|transpos|moveaxis|swap|mix"

rows, stack, *_ = right("linear", """
def linear(x, weight):
    def pullback(dy):
        dx = dy @ weight.T
        dweight = x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])
        return dx, dweight

    return x @ weight, pullback
""", """
def linear(x, weight):
    y = np.matmul(x, weight)
    def pullback(dy):
        dweight = x.mT @ dy
        dweight = dweight.sum(axis=tuple(range(dweight.ndim - 2)))
        return dy @ weight.mT, dweight
    return y, pullback
""", """
def linear(x, weight):
    y = np.einsum("...tm,mn->...tn", x, weight)
    flat = lambda z: z.reshape(-1, z.shape[-1])
    def pullback(dy):
        return np.einsum("...tn,mn->...tm", dy, weight), np.einsum("rm,rn->mn", flat(x), flat(dy))
    return y, pullback
""", """
def linear(x, weight):
    axes = list(range(x.ndim - 1))
    def pullback(dy):
        return np.tensordot(dy, weight, axes=(-1, 1)), np.tensordot(x, dy, axes=(axes, axes))
    return np.tensordot(x, weight, axes=1), pullback
""", """
def linear(x, weight):
    def pullback(dy):
        dw = 0
        for i in np.ndindex(x.shape[:-1]):
            dw = dw + np.outer(x[i], dy[i])
        return dy.dot(weight.T), dw
    return x.dot(weight), pullback
""")
stack.wrong("dweight is not summed over the batch", r"sum|batch|leading|in front",
    "        dweight = dweight.sum(axis=tuple(range(dweight.ndim - 2)))\n", "")
rows.wrong("dweight is transposed", r"transpos|\.T\b|\.mT",
    "x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])",
    "dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])")
rows.wrong("dx without a transpose", r"transpos|\.T\b|\.mT", "weight.T", "weight")
stack.wrong("a mean over the batch", r"mean|average", "dweight.sum", "dweight.mean")
stack.wrong("sums the first axis alone", r"every axis|all (the )?(leading )?axes|in front|leading|any number",
    "axis=tuple(range(dweight.ndim - 2))", "axis=0")
rows.wrong("the weight of torch.nn.Linear", r"transpos|\.T\b|\(M, N\)|PyTorch", "x @ weight", "x @ weight.T")

rows.wrong("dx comes out transposed", r"transpos|axes|swapaxes|mT|order", "dy @ weight.T", "weight @ dy.mT")
rows.wrong("the gradients in the wrong order", r"swap|exchang|order|interchang", "return dx, dweight", "return dweight, dx")
stack.wrong("dweight of the first sequence", r"sum|only|first|batch|\[0\]", "dweight.sum(axis=tuple(range(dweight.ndim - 2)))", "dweight.reshape(-1, *weight.shape)[0]")
rows.wrong("no pullback", r"should return two things", "x @ weight, pullback", "x @ weight")
wrong("linear", "dweight as an outer product of the sums", r"row|sum|einsum|letter", """
def linear(x, weight):
    def pullback(dy):
        return dy @ weight.T, np.einsum("...tm,...sn->mn", x, dy)

    return x @ weight, pullback
""")
wrong("linear", "dx and dweight from the same product", r"transpos|side|weight", """
def linear(x, weight):
    def pullback(dy):
        rows, drows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return dy @ weight.T, (drows.T @ rows)

    return x @ weight, pullback
""")
wrong("linear", "dx by the transposed dy", r"transpos|side", """
def linear(x, weight):
    def pullback(dy):
        rows, drows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return weight @ dy.mT, rows.T @ drows

    return x @ weight, pullback
""")

heads, parted, *_ = right("split_heads", """
def split_heads(x, num_heads):
    *front, t, hd = x.shape
    return x.reshape(*front, t, num_heads, hd // num_heads).swapaxes(-3, -2)
""", """
def split_heads(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=-3)
""", """
def split_heads(x, num_heads):
    d = x.shape[-1] // num_heads
    out = np.empty((*x.shape[:-2], num_heads, x.shape[-2], d), dtype=x.dtype)
    for h in range(num_heads):
        out[..., h, :, :] = x[..., h * d : (h + 1) * d]
    return out
""", """
def split_heads(x, num_heads):
    z = x.reshape(x.shape[:-1] + (num_heads, -1))
    return np.moveaxis(z, -2, -3)
""", """
def split_heads(x, num_heads):
    z = x.mT  # (..., H*D, T)
    z = z.reshape(*x.shape[:-2], num_heads, -1, x.shape[-2])
    return np.ascontiguousarray(np.swapaxes(z, -1, -2))
""", """
def split_heads(x, num_heads):
    z = np.reshape(x, (*x.shape[:-1], num_heads, -1))
    return np.einsum("...thd->...htd", z)
""")
heads.wrong("one reshape to (H, T, D)", SWAP,
    "t, num_heads, hd // num_heads).swapaxes(-3, -2)", "num_heads, t, hd // num_heads)")
heads.wrong("every H-th column", r"interleav|block|side by side|every H|columns 0 to",
    "num_heads, hd // num_heads).swapaxes(-3, -2)", "hd // num_heads, num_heads).mT.swapaxes(-3, -2)")
heads.wrong("the axes stay (T, H, D)", r"swapaxes|transpos|moveaxis|swap|order of (the )?axes",
    ".swapaxes(-3, -2)", "")
heads.wrong("PyTorch's view", r"reshape", "x.reshape(", "x.view(")
heads.wrong("PyTorch's transpose", r"swapaxes|moveaxis|mT", "swapaxes", "transpose")
heads.wrong("three axes exactly", r"any number|x\.shape\[:-|…|\*front|axes in front|leading",
    "*front, t, hd = x.shape", "b, t, hd = x.shape", "*front", "b")
heads.wrong("num_heads for the width", r"num_heads|\(D, H\)|number of heads|exchang|swap", "num_heads, hd // num_heads", "hd // num_heads, num_heads")
heads.wrong("the last two axes swapped", r"swapaxes|transpos|axes", "swapaxes(-3, -2)", "swapaxes(-2, -1)")
parted.wrong("heads in front of the batch", r"axis|in front|axes", ", axis=-3)", ")")
wrong("split_heads", "a batch axis for the heads", r"front|any number|−3|axes", """
def split_heads(x, num_heads):
    d = x.shape[-1] // num_heads
    return np.stack([x[..., i * d : (i + 1) * d] for i in range(num_heads)])
""")
wrong("split_heads", "the heads last", r"order|axes|T, D, H|T, H, D|swap|interleav", """
def split_heads(x, num_heads):
    d = x.shape[-1] // num_heads
    return np.stack([x[..., i * d : (i + 1) * d] for i in range(num_heads)], axis=-1)
""")
wrong("split_heads", "chunks by np.split, joined in front", r"in front|order|−3", """
def split_heads(x, num_heads):
    return np.array(np.split(x, num_heads, axis=-1))
""")

each, filled, *_ = right("per_head", """
def per_head(x, weights):
    return np.stack([x @ w for w in weights], axis=-3)
""", """
def per_head(x, weights):
    H, M, D = weights.shape
    y = np.empty((*x.shape[:-2], H, x.shape[-2], D))
    for h in range(H):
        y[..., h, :, :] = x @ weights[h]
    return y
""", """
def per_head(x, weights):
    out = []
    for h in range(len(weights)):
        out.append(np.matmul(x, weights[h]))
    return np.moveaxis(np.array(out), 0, -3)
""", """
def per_head(x, weights):
    return np.concatenate([(x @ w)[..., None, :, :] for w in weights], axis=-3)
""", """
def per_head(x, weights):
    project = lambda w: np.einsum("...tm,md->...td", x, w)
    return np.stack(list(map(project, weights)), axis=x.ndim - 2)
""")
wrong("per_head", "a slice of x for each head", SLICE, """
def per_head(x, weights):
    H = weights.shape[0]
    D = x.shape[-1] // H
    return np.stack([x[..., h * D : (h + 1) * D] @ weights[h][h * D : (h + 1) * D] for h in range(H)], -3)
""")
each.wrong("heads in front of the batch", r"axis|in front of", "axis=-3", "axis=0")
filled.wrong("the first matrix for all heads", r"first (head|matrix|weight)|same (matrix|weight)|weights\[0\]|every head",
    "weights[h]", "weights[0]")
each.wrong("heads side by side instead of stacked", r"stack|concat|side by side",
    "np.stack([x @ w for w in weights], axis=-3)", "np.concatenate([x @ w for w in weights], -1)")
each.wrong("np.dot with all matrices", r"axes|swap|axis|order",
    "np.stack([x @ w for w in weights], axis=-3)", "np.dot(x, weights)")
each.wrong("no axis for the heads", r"None|new axis|broadcast|expand",
    "np.stack([x @ w for w in weights], axis=-3)", "x @ weights")
filled.wrong("the last head forgotten", r"last head|never computed|0 that should|range", "np.empty", "np.zeros", "range(H)", "range(H - 1)")
wrong("per_head", "the sum over the heads", r"sum|one axis|axis of heads|stay", """
def per_head(x, weights):
    return np.einsum("...tm,hmd->...td", x, weights)
""")
wrong("per_head", "the heads at the end", r"order|axes|stack|axis", """
def per_head(x, weights):
    return np.einsum("...tm,hmd->...tdh", x, weights)
""")

beside, moved, *_ = right("stack_weights", """
def stack_weights(weights):
    return np.concatenate(list(weights), axis=1)
""", """
def stack_weights(weights):
    h, m, d = weights.shape
    return weights.transpose(1, 0, 2).reshape(m, h * d)
""", """
def stack_weights(weights):
    return np.hstack([w for w in weights])
""", """
def stack_weights(weights):
    H, M, D = weights.shape
    one = np.empty((M, H * D), weights.dtype)
    for h in range(H):
        one[:, D * h : D * h + D] = weights[h]
    return one
""", """
def stack_weights(weights):
    return np.array([weights[:, m].ravel() for m in range(weights.shape[1])])
""", """
def stack_weights(weights):
    return np.block([[w for w in weights]])
""")
moved.wrong("one reshape", SWAP + r"|concatenat", ".transpose(1, 0, 2)", "")
beside.wrong("one below the other", r"below|under|on top|axis|vstack", "axis=1", "axis=0")
moved.wrong("columns of the heads alternate", r"interleav|alternat|block|side by side", "1, 0, 2", "1, 2, 0")
beside.wrong("the sum", r"\bsum|side by side|concatenat", "np.concatenate(list(weights), axis=1)", "sum(weights)")
beside.wrong("stacked along a new axis", r"reshape|only the shape|side by side|concatenat", "np.concatenate(", "np.stack(")
beside.wrong("transposed", r"transpos|\.T\b|axes|order", "axis=1)", "axis=1).T")
beside.wrong("a list", r"is a list", "np.concatenate(list(weights), axis=1)", "list(weights)")
wrong("stack_weights", "every second column of a head", r"interleav", """
def stack_weights(weights):
    H, M, D = weights.shape
    out = np.empty((M, H * D))
    for h in range(H):
        out[:, h::H] = weights[h]
    return out
""")

one, *_ = right("stacked", """
def stacked(x, weight, num_heads):
    y = x @ weight
    y = y.reshape(*y.shape[:-1], num_heads, -1)
    return y.swapaxes(-2, -3)
""", """
def stacked(x, weight, num_heads):
    return np.stack(np.split(x @ weight, num_heads, axis=-1), axis=-3)
""", """
def stacked(x, weight, num_heads):
    w = weight.reshape(len(weight), num_heads, -1)
    return np.einsum("...tm,mhd->...htd", x, w)
""", """
def stacked(x, weight, num_heads):
    w = weight.reshape(weight.shape[0], num_heads, -1).transpose(1, 0, 2)
    return x[..., None, :, :] @ w
""", """
def stacked(x, weight, num_heads):
    def split(z):
        D = z.shape[-1] // num_heads
        return np.moveaxis(z.reshape(z.shape[:-1] + (num_heads, D)), -2, -3)
    return split(np.matmul(x, weight))
""")
one.wrong("one reshape to (H, T, D)", SWAP,
    "*y.shape[:-1], num_heads", "*y.shape[:-2], num_heads, y.shape[-2]", ".swapaxes(-2, -3)", "")
wrong("stacked", "a slice of x for each head", SLICE, """
def stacked(x, weight, num_heads):
    M, D = x.shape[-1] // num_heads, weight.shape[1] // num_heads
    return np.stack([x[..., h * M : h * M + M] @ weight[h * M : h * M + M, h * D : h * D + D]
                     for h in range(num_heads)], axis=-3)
""")
wrong("stacked", "the weight reshaped to (H, M, D)", r"mix|swap|transpos|side by side|reshape",
      "\ndef stacked(x, weight, num_heads):\n"
      "    return x[..., None, :, :] @ weight.reshape(num_heads, x.shape[-1], -1)\n")
one.wrong("every H-th column", r"interleav|block|side by side|every H", "num_heads, -1)", "-1, num_heads).mT")
one.wrong("the axes stay (T, H, D)", r"swap|axes|transpos", ".swapaxes(-2, -3)", "")
one.wrong("PyTorch's view", r"reshape", "y.reshape(", "y.view(")
one.wrong("num_heads for the width", r"num_heads|interleav|every H|\(D, H\)|number of heads|swap|exchang", "num_heads, -1)", "-1, num_heads)")
one.wrong("heads in front of the batch", r"in front|batch", "y.swapaxes(-2, -3)", "np.moveaxis(y, -2, 0)")
wrong("stacked", "D from the width of x", r"width of x|D is|M // H|from M", """
def stacked(x, weight, num_heads):
    D = x.shape[-1] // num_heads
    y = x @ weight
    return y.reshape(*y.shape[:-1], num_heads, D).swapaxes(-3, -2)
""")
wrong("stacked", "slices of the width M // H", r"width of x|D is|M // H|from M", """
def stacked(x, weight, num_heads):
    D = x.shape[-1] // num_heads
    y = x @ weight
    return np.stack([y[..., i * D : i * D + D] for i in range(num_heads)], axis=-3)
""")
wrong("stacked", "weight reshaped to (M, D, H)", r"interleav|\(D, H\)|\(T, D, H\)", """
def stacked(x, weight, num_heads):
    m, d = weight.shape[0], weight.shape[1] // num_heads
    return np.einsum("...tm,mdh->...htd", x, weight.reshape(m, d, num_heads))
""")
wrong("stacked", "D and H exchanged, then the swap", r"interleav|\(D, H\)|D, T, H", """
def stacked(x, weight, num_heads):
    y = x @ weight
    d = y.shape[-1] // num_heads
    return y.reshape(*y.shape[:-1], d, num_heads).swapaxes(-3, -2)
""")
wrong("stacked", "the product summed over the heads", r"sum|mean|shape", """
def stacked(x, weight, num_heads):
    M = weight.shape[0]
    w = weight.reshape(M, num_heads, -1)
    return np.einsum("...tm,mhd->...td", x, w)
""")

roles, axes, *_ = right("fused", """
def fused(x, weight, num_heads):
    q, k, v = np.split(x @ weight, 3, axis=-1)
    return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)
""", """
def fused(x, weight, num_heads):
    y = x @ weight
    y = y.reshape(*y.shape[:-1], 3, num_heads, -1)  # (..., T, 3, H, D)
    return tuple(y[..., i, :, :].swapaxes(-3, -2) for i in range(3))
""", """
def fused(x, weight, num_heads):
    w = weight.reshape(weight.shape[0], 3, num_heads, -1)
    return tuple(np.einsum("...tm,mrhd->r...htd", x, w))
""", """
def fused(x, weight, num_heads):
    y, n = x @ weight, weight.shape[1] // 3
    return tuple(split_heads(y[..., n * r : n * (r + 1)], num_heads) for r in (0, 1, 2))
""", """
def fused(x, weight, num_heads):
    every = split_heads(x @ weight, 3 * num_heads)  # (..., 3H, T, D)
    H = num_heads
    return every[..., :H, :, :], every[..., H : 2 * H, :, :], every[..., 2 * H :, :, :]
""")
axes.wrong("heads first, then roles", r"role|\[W\^Q|3, H|H, 3|head by head|per head|q₀ k₀ v₀",
    "3, num_heads, -1)", "num_heads, 3, -1)", "y[..., i, :, :]", "y[..., i, :]")
roles.wrong("keys and values exchanged", r"swap|exchang|order|interchang", "q, k, v = ", "q, v, k = ")
roles.wrong("the heads are not split", r"split",
    "return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)",
    "return q, k, v")
axes.wrong("the axes stay (T, H, D)", r"swapaxes|transpos|moveaxis|swap", ".swapaxes(-3, -2)", "")
wrong("fused", "heads first, each cut into roles", r"role|head by head|W\^Q|heads first", """
def fused(x, weight, num_heads):
    return tuple(np.split(split_heads(x @ weight, num_heads), 3, axis=-1))
""")
axes.wrong("the queries three times", r"same|quer|what q should be", "y[..., i, :, :]", "y[..., 0, :, :]")
axes.wrong("queries and keys", r"should return q, k, v", "range(3))", "range(2))")
wrong("fused", "D from the width of x", r"width of x|D is|M // H|from M", """
def fused(x, weight, num_heads):
    D = x.shape[-1] // num_heads
    parts = np.split(x @ weight, 3, axis=-1)
    return tuple(y.reshape(*y.shape[:-1], num_heads, D).swapaxes(-3, -2) for y in parts)
""")
wrong("fused", "one reshape, D from the width of x", r"width of x|D is|M // H|from M", """
def fused(x, weight, num_heads):
    y = (x @ weight).reshape(*x.shape[:-1], 3, num_heads, x.shape[-1] // num_heads)
    return tuple(y[..., k, :, :].swapaxes(-3, -2) for k in range(3))
""")
wrong("fused", "weight reshaped to (M, 3, D, H)", r"interleav|\(D, H\)|\(T, D, H\)", """
def fused(x, weight, num_heads):
    w = weight.reshape(weight.shape[0], 3, -1, num_heads)
    return tuple(np.einsum("...tm,mdh->...htd", x, w[:, k]) for k in range(3))
""")
wrong("fused", "the heads first, then the roles", r"heads first|q₀ k₀ v₀|split into q, k, v first|is what . should be|order", """
def fused(x, weight, num_heads):
    y = x @ weight
    y = y.reshape(*y.shape[:-1], num_heads, 3, -1)
    return tuple(y[..., k, :].swapaxes(-3, -2) for k in range(3))
""")
wrong("fused", "v before k", r"what k should|what v should|swapped", """
def fused(x, weight, num_heads):
    q, v, k = np.split(x @ weight, 3, axis=-1)
    return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)
""")

product, letters, *_ = right("double", """
def double(first, weights):
    return first @ weights
""", """
def double(first, weights):
    return np.einsum("mn,hnd->hmd", first, weights)
""", """
def double(first, weights):
    return np.stack([first @ w for w in weights])
""", """
def double(first, weights):
    return np.tensordot(first, weights, axes=(1, 1)).swapaxes(0, 1)
""", """
def double(first, weights):
    H, N, D = weights.shape
    out = np.zeros((H, first.shape[0], D))
    for h, w in enumerate(weights):
        out[h] = np.dot(first, w)
    return out
""")
product.wrong("the matrices in the wrong order", r"order|first @|left|side",
    "first @ weights", "weights @ first")
letters.wrong("summed over the heads", r"sum|each head|H axis|axis", "->hmd", "->md")
product.wrong("the first one transposed", r"transpos|\.T\b|\.mT", "first @", "first.T @")
letters.wrong("the heads in the middle", r"axis|axes|order", "->hmd", "->mhd")
product.wrong("the second transposed", r"transpos|\.T\b|\.mT", "@ weights", "@ weights.mT")
letters.wrong("the result transposed", r"transpos|axes|order", "->hmd", "->hdm")
letters.wrong("the heads in reverse", r"order|revers|are the right", "hmd\", first, weights", "hmd\", first, weights[::-1]")
wrong("double", "the second map first", r"order|side|W Wᵢ|transpos|aligned|k is", """
def double(first, weights):
    return weights @ first
""")
wrong("double", "the sum over the heads", r"sum|each head|matrix of|stay", """
def double(first, weights):
    return first @ weights.sum(axis=0)
""")

scored, *_ = right("bilinear", """
def bilinear(w_q, w_k):
    return w_q @ w_k.mT
""", """
def bilinear(w_q, w_k):
    return np.einsum("hmd,hnd->hmn", w_q, w_k)
""", """
def bilinear(w_q, w_k):
    return np.array([q @ k.T for q, k in zip(w_q, w_k)])
""", """
def bilinear(w_q, w_k):
    return np.matmul(w_q, w_k.transpose(0, 2, 1))
""", """
def bilinear(w_q, w_k):
    return (w_q[:, :, None, :] * w_k[:, None, :, :]).sum(axis=-1)
""")
scored.wrong("queries and keys exchanged", r"transpos|exchang|swap|interchang|order",
    "w_q @ w_k.mT", "w_k @ w_q.mT")
scored.wrong(".T of three axes", r"\.T\b|mT|swapaxes|last two", "mT", "T")
scored.wrong("divided by √D", r"√ ?D|sqrt|scal", "w_k.mT", "w_k.mT / np.sqrt(w_q.shape[-1])")
scored.wrong("the products of columns, (D, D)", r"transpos|mT|D, D|D × D|w_q @",
    "w_q @ w_k.mT", "w_q.mT @ w_k")
scored.wrong("a reshape for the transpose", r"reshape|transpos|swapaxes|mT", "w_k.mT", "w_k.reshape(len(w_k), w_k.shape[2], -1)")
scored.wrong("entry by entry", r"@|elementwise|entry by entry|matrix product|not summed", "w_q @ w_k.mT", "w_q * w_k")
scored.wrong("every head with every head", r"each head|own|pairs|every head|other heads", "w_q @ w_k.mT", "np.tensordot(w_q, w_k, (-1, -1))")
wrong("bilinear", "K and Q exchanged", r"exchang|transpos|W\^Q W\^Kᵀ|swap|order", """
def bilinear(w_q, w_k):
    return w_k @ w_q.mT
""")
wrong("bilinear", "the heads summed", r"sum", """
def bilinear(w_q, w_k):
    return np.einsum("hmd,hnd->mn", w_q, w_k)
""")
