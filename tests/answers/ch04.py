"""Chapter 04: projections."""

# fmt: off
from . import right, wrong

SLICE = r"slice|all of x|whole x|all (the )?columns of x|part of x|every column of x|columns of x"
SWAP = r"swapaxes|transpos|moveaxis|swap|mix"

rows = right("linear", """
def linear(x, weight):
    def pullback(dy):
        dx = dy @ weight.T
        dweight = x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])
        return dx, dweight

    return x @ weight, pullback
""")
right("linear", """
def linear(x, weight):
    y = np.einsum("...tm,mn->...tn", x, weight)
    flat = lambda z: z.reshape(-1, z.shape[-1])
    def pullback(dy):
        return np.einsum("...tn,mn->...tm", dy, weight), np.einsum("rm,rn->mn", flat(x), flat(dy))
    return y, pullback
""")
right("linear", """
def linear(x, weight):
    axes = list(range(x.ndim - 1))
    def pullback(dy):
        return np.tensordot(dy, weight, axes=(-1, 1)), np.tensordot(x, dy, axes=(axes, axes))
    return np.tensordot(x, weight, axes=1), pullback
""")
stack = right("linear", """
def linear(x, weight):
    y = np.matmul(x, weight)
    def pullback(dy):
        dweight = x.mT @ dy
        dweight = dweight.sum(axis=tuple(range(dweight.ndim - 2)))
        return dy @ weight.mT, dweight
    return y, pullback
""")
right("linear", """
def linear(x, weight):
    def pullback(dy):
        dw = 0
        for i in np.ndindex(x.shape[:-1]):
            dw = dw + np.outer(x[i], dy[i])
        return dy.dot(weight.T), dw
    return x.dot(weight), pullback
""")
wrong("linear", "dweight is not summed over the batch", r"sum|batch|leading|in front",
      stack, "        dweight = dweight.sum(axis=tuple(range(dweight.ndim - 2)))\n", "")
wrong("linear", "dweight is transposed", r"transpos|\.T\b|\.mT",
      rows, "x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])",
      "dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])")
wrong("linear", "dx without a transpose", r"transpos|\.T\b|\.mT",
      rows, "weight.T", "weight")
wrong("linear", "a mean over the batch", r"mean|average",
      stack, "dweight.sum", "dweight.mean")
wrong("linear", "sums the first axis alone", r"every axis|all (the )?(leading )?axes|in front|leading|any number",
      stack, "axis=tuple(range(dweight.ndim - 2))", "axis=0")
wrong("linear", "the weight of torch.nn.Linear", r"transpos|\.T\b|\(M, N\)|PyTorch",
      rows, "return x @ weight,", "return x @ weight.T,")

heads = right("split_heads", """
def split_heads(x, num_heads):
    *front, t, hd = x.shape
    return x.reshape(*front, t, num_heads, hd // num_heads).swapaxes(-3, -2)
""")
right("split_heads", """
def split_heads(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=-3)
""")
right("split_heads", """
def split_heads(x, num_heads):
    d = x.shape[-1] // num_heads
    out = np.empty((*x.shape[:-2], num_heads, x.shape[-2], d), dtype=x.dtype)
    for h in range(num_heads):
        out[..., h, :, :] = x[..., h * d : (h + 1) * d]
    return out
""")
right("split_heads", """
def split_heads(x, num_heads):
    z = x.reshape(x.shape[:-1] + (num_heads, -1))
    return np.moveaxis(z, -2, -3)
""")
right("split_heads", """
def split_heads(x, num_heads):
    z = x.mT  # (..., H*D, T)
    z = z.reshape(*x.shape[:-2], num_heads, -1, x.shape[-2])
    return np.ascontiguousarray(np.swapaxes(z, -1, -2))
""")
right("split_heads", """
def split_heads(x, num_heads):
    z = np.reshape(x, (*x.shape[:-1], num_heads, -1))
    return np.einsum("...thd->...htd", z)
""")
wrong("split_heads", "one reshape to (H, T, D)", SWAP,
      heads, "t, num_heads, hd // num_heads).swapaxes(-3, -2)", "num_heads, t, hd // num_heads)")
wrong("split_heads", "every H-th column", r"interleav|block|side by side|every H|columns 0 to",
      heads, "num_heads, hd // num_heads).swapaxes(-3, -2)", "hd // num_heads, num_heads).mT.swapaxes(-3, -2)")
wrong("split_heads", "the axes stay (T, H, D)", r"swapaxes|transpos|moveaxis|swap|order of (the )?axes",
      heads, ".swapaxes(-3, -2)", "")
wrong("split_heads", "PyTorch's view", r"reshape",
      heads, "x.reshape(", "x.view(")
wrong("split_heads", "PyTorch's transpose", r"swapaxes|moveaxis|mT",
      heads, "swapaxes", "transpose")
wrong("split_heads", "three axes exactly", r"any number|x\.shape\[:-|…|\*front|axes in front|leading",
      heads, "*front, t, hd = x.shape", "b, t, hd = x.shape", "*front", "b")

each = right("per_head", """
def per_head(x, weights):
    return np.stack([x @ w for w in weights], axis=-3)
""")
right("per_head", """
def per_head(x, weights):
    out = []
    for h in range(len(weights)):
        out.append(np.matmul(x, weights[h]))
    return np.moveaxis(np.array(out), 0, -3)
""")
filled = right("per_head", """
def per_head(x, weights):
    H, M, D = weights.shape
    y = np.empty((*x.shape[:-2], H, x.shape[-2], D))
    for h in range(H):
        y[..., h, :, :] = x @ weights[h]
    return y
""")
right("per_head", """
def per_head(x, weights):
    return np.concatenate([(x @ w)[..., None, :, :] for w in weights], axis=-3)
""")
right("per_head", """
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
wrong("per_head", "heads in front of the batch", r"axis|in front of",
      each, "axis=-3", "axis=0")
wrong("per_head", "the first matrix for all heads", r"first (head|matrix|weight)|same (matrix|weight)|weights\[0\]|every head",
      filled, "weights[h]", "weights[0]")
wrong("per_head", "heads side by side instead of stacked", r"stack|concat|side by side",
      each, "np.stack([x @ w for w in weights], axis=-3)", "np.concatenate([x @ w for w in weights], -1)")

beside = right("stack_weights", """
def stack_weights(weights):
    return np.concatenate(list(weights), axis=1)
""")
right("stack_weights", """
def stack_weights(weights):
    return np.hstack([w for w in weights])
""")
moved = right("stack_weights", """
def stack_weights(weights):
    h, m, d = weights.shape
    return weights.transpose(1, 0, 2).reshape(m, h * d)
""")
right("stack_weights", """
def stack_weights(weights):
    H, M, D = weights.shape
    one = np.empty((M, H * D), weights.dtype)
    for h in range(H):
        one[:, D * h : D * h + D] = weights[h]
    return one
""")
right("stack_weights", """
def stack_weights(weights):
    return np.array([weights[:, m].ravel() for m in range(weights.shape[1])])
""")
right("stack_weights", """
def stack_weights(weights):
    return np.block([[w for w in weights]])
""")
wrong("stack_weights", "one reshape", SWAP + r"|concatenat",
      moved, ".transpose(1, 0, 2)", "")
wrong("stack_weights", "one below the other", r"below|under|on top|axis|vstack",
      beside, "axis=1", "axis=0")
wrong("stack_weights", "columns of the heads alternate", r"interleav|alternat|block|side by side",
      moved, "transpose(1, 0, 2)", "transpose(1, 2, 0)")

one = right("stacked", """
def stacked(x, weight, num_heads):
    y = x @ weight
    y = y.reshape(*y.shape[:-1], num_heads, -1)
    return y.swapaxes(-2, -3)
""")
right("stacked", """
def stacked(x, weight, num_heads):
    return np.stack(np.split(x @ weight, num_heads, axis=-1), axis=-3)
""")
right("stacked", """
def stacked(x, weight, num_heads):
    w = weight.reshape(len(weight), num_heads, -1)
    return np.einsum("...tm,mhd->...htd", x, w)
""")
right("stacked", """
def stacked(x, weight, num_heads):
    w = weight.reshape(weight.shape[0], num_heads, -1).transpose(1, 0, 2)
    return x[..., None, :, :] @ w
""")
right("stacked", """
def stacked(x, weight, num_heads):
    def split(z):
        D = z.shape[-1] // num_heads
        return np.moveaxis(z.reshape(z.shape[:-1] + (num_heads, D)), -2, -3)
    return split(np.matmul(x, weight))
""")
wrong("stacked", "one reshape to (H, T, D)", SWAP, """
def stacked(x, weight, num_heads):
    *front, t, _ = x.shape
    return (x @ weight).reshape(*front, num_heads, t, -1)
""")
wrong("stacked", "a slice of x for each head", SLICE, """
def stacked(x, weight, num_heads):
    M, D = x.shape[-1] // num_heads, weight.shape[1] // num_heads
    return np.stack([x[..., h * M : h * M + M] @ weight[h * M : h * M + M, h * D : h * D + D]
                     for h in range(num_heads)], axis=-3)
""")
wrong("stacked", "the weight reshaped to (H, M, D)", r"mix|swap|transpos|side by side|reshape",
      "\ndef stacked(x, weight, num_heads):\n"
      "    return x[..., None, :, :] @ weight.reshape(num_heads, x.shape[-1], -1)\n")
wrong("stacked", "every H-th column", r"interleav|block|side by side|every H",
      one, "num_heads, -1)", "-1, num_heads).mT")

roles = right("fused", """
def fused(x, weight, num_heads):
    q, k, v = np.split(x @ weight, 3, axis=-1)
    return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)
""")
axes = right("fused", """
def fused(x, weight, num_heads):
    y = x @ weight
    y = y.reshape(*y.shape[:-1], 3, num_heads, -1)  # (..., T, 3, H, D)
    return tuple(y[..., i, :, :].swapaxes(-3, -2) for i in range(3))
""")
right("fused", """
def fused(x, weight, num_heads):
    w = weight.reshape(weight.shape[0], 3, num_heads, -1)
    return tuple(np.einsum("...tm,mrhd->r...htd", x, w))
""")
right("fused", """
def fused(x, weight, num_heads):
    y, n = x @ weight, weight.shape[1] // 3
    return tuple(split_heads(y[..., n * r : n * (r + 1)], num_heads) for r in (0, 1, 2))
""")
right("fused", """
def fused(x, weight, num_heads):
    every = split_heads(x @ weight, 3 * num_heads)  # (..., 3H, T, D)
    H = num_heads
    return every[..., :H, :, :], every[..., H : 2 * H, :, :], every[..., 2 * H :, :, :]
""")
wrong("fused", "heads first, then roles", r"role|\[W\^Q|3, H|H, 3|head by head|per head|q₀ k₀ v₀",
      axes, "3, num_heads, -1)", "num_heads, 3, -1)", "y[..., i, :, :]", "y[..., i, :]")
wrong("fused", "keys and values exchanged", r"swap|exchang|order|interchang",
      roles, "q, k, v = ", "q, v, k = ")
wrong("fused", "the heads are not split", r"split",
      roles, "return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)",
      "return q, k, v")
wrong("fused", "the axes stay (T, H, D)", r"swapaxes|transpos|moveaxis|swap",
      axes, ".swapaxes(-3, -2)", "")

product = right("double", """
def double(first, weights):
    return first @ weights
""")
right("double", """
def double(first, weights):
    return np.stack([first @ w for w in weights])
""")
letters = right("double", """
def double(first, weights):
    return np.einsum("mn,hnd->hmd", first, weights)
""")
right("double", """
def double(first, weights):
    return np.tensordot(first, weights, axes=(1, 1)).swapaxes(0, 1)
""")
right("double", """
def double(first, weights):
    H, N, D = weights.shape
    out = np.zeros((H, first.shape[0], D))
    for h, w in enumerate(weights):
        out[h] = np.dot(first, w)
    return out
""")
wrong("double", "the matrices in the wrong order", r"order|first @|left|side",
      product, "first @ weights", "weights @ first")
wrong("double", "summed over the heads", r"sum|each head|H axis|axis",
      letters, "->hmd", "->md")
wrong("double", "the first one transposed", r"transpos|\.T\b|\.mT",
      product, "first @", "first.T @")
wrong("double", "the heads in the middle", r"axis|axes|order",
      letters, "->hmd", "->mhd")

scored = right("bilinear", """
def bilinear(w_q, w_k):
    return w_q @ w_k.mT
""")
right("bilinear", """
def bilinear(w_q, w_k):
    return np.einsum("hmd,hnd->hmn", w_q, w_k)
""")
right("bilinear", """
def bilinear(w_q, w_k):
    return np.array([q @ k.T for q, k in zip(w_q, w_k)])
""")
right("bilinear", """
def bilinear(w_q, w_k):
    return np.matmul(w_q, w_k.transpose(0, 2, 1))
""")
right("bilinear", """
def bilinear(w_q, w_k):
    return (w_q[:, :, None, :] * w_k[:, None, :, :]).sum(axis=-1)
""")
wrong("bilinear", "queries and keys exchanged", r"transpos|exchang|swap|interchang|order",
      scored, "w_q @ w_k.mT", "w_k @ w_q.mT")
wrong("bilinear", ".T of three axes", r"\.T\b|mT|swapaxes|last two",
      scored, "mT", "T")
wrong("bilinear", "divided by √D", r"√ ?D|sqrt|scal",
      scored, "w_k.mT", "w_k.mT / np.sqrt(w_q.shape[-1])")
wrong("bilinear", "the products of columns, (D, D)", r"transpos|mT|D, D|D × D|w_q @",
      scored, "w_q @ w_k.mT", "w_q.mT @ w_k")

wrong("linear", "dx comes out transposed", r"transpos|axes|swapaxes|mT|order", rows, "dy @ weight.T", "weight @ dy.mT")
wrong("linear", "the gradients in the wrong order", r"swap|exchang|order|interchang", rows, "return dx, dweight", "return dweight, dx")
wrong("linear", "dweight of the first sequence", r"sum|only|first|batch|\[0\]", stack, "dweight.sum(axis=tuple(range(dweight.ndim - 2)))", "dweight.reshape(-1, *weight.shape)[0]")
wrong("split_heads", "num_heads for the width", r"num_heads|\(D, H\)|number of heads|exchang|swap", heads, "num_heads, hd // num_heads", "hd // num_heads, num_heads")
wrong("split_heads", "the last two axes swapped", r"swapaxes|transpos|axes", heads, "swapaxes(-3, -2)", "swapaxes(-2, -1)")
wrong("split_heads", "heads in front of the batch", r"axis|in front|axes", """
def split_heads(x, num_heads):
    return np.array(np.split(x, num_heads, axis=-1))
""")
wrong("per_head", "np.dot with all matrices", r"axes|swap|axis|order", """
def per_head(x, weights):
    return np.dot(x, weights)
""")
wrong("per_head", "no axis for the heads", r"None|new axis|broadcast|expand", """
def per_head(x, weights):
    return x @ weights
""")
wrong("per_head", "the last head forgotten", r"last head|never computed|0 that should|range", filled, "np.empty", "np.zeros", "range(H)", "range(H - 1)")
wrong("stack_weights", "the sum", r"\bsum|side by side|concatenat", beside, "np.concatenate(list(weights), axis=1)", "sum(weights)")
wrong("stack_weights", "stacked along a new axis", r"reshape|only the shape|side by side|concatenat", beside, "np.concatenate(", "np.stack(")
wrong("stack_weights", "transposed", r"transpos|\.T\b|axes|order", beside, "axis=1)", "axis=1).T")
wrong("stacked", "the axes stay (T, H, D)", r"swap|axes|transpos", one, ".swapaxes(-2, -3)", "")
wrong("stacked", "PyTorch's view", r"reshape", one, "y.reshape(", "y.view(")
wrong("stacked", "num_heads for the width", r"num_heads|interleav|every H|H and D|number of heads|swap|exchang", one, "num_heads, -1)", "-1, num_heads)")
wrong("fused", "heads first, each cut into roles", r"role|head by head|W\^Q|heads first", """
def fused(x, weight, num_heads):
    return tuple(np.split(split_heads(x @ weight, num_heads), 3, axis=-1))
""")
wrong("fused", "the queries three times", r"same|quer|what q should be", axes, "y[..., i, :, :]", "y[..., 0, :, :]")
wrong("double", "the second transposed", r"transpos|\.T\b|\.mT", product, "@ weights", "@ weights.mT")
wrong("double", "the result transposed", r"transpos|axes|order", letters, "->hmd", "->hdm")
wrong("bilinear", "a reshape for the transpose", r"reshape|transpos|swapaxes|mT", scored, "w_k.mT", "w_k.reshape(len(w_k), w_k.shape[2], -1)")
wrong("bilinear", "entry by entry", r"@|elementwise|entry by entry|matrix product|not summed", scored, "w_q @ w_k.mT", "w_q * w_k")
wrong("bilinear", "every head with every head", r"each head|own|pairs|every head|other heads", scored, "w_q @ w_k.mT", "np.tensordot(w_q, w_k, (-1, -1))")
wrong("linear", "no pullback", r"should return two things", rows, "x @ weight, pullback", "x @ weight")
wrong("stack_weights", "a list", r"not a list", beside, "np.concatenate(list(weights), axis=1)", "list(weights)")
wrong("stacked", "heads in front of the batch", r"in front|batch", one, "y.swapaxes(-2, -3)", "np.moveaxis(y, -2, 0)")
wrong("fused", "queries and keys", r"q, k, v, not 2", axes, "range(3))", "range(2))")
wrong("double", "the heads in reverse", r"order|revers|are the right", letters, "hmd\", first, weights", "hmd\", first, weights[::-1]")
