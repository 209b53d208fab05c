"""Wrong answers to the tasks of chapter 04."""

from wrong_answers import Wrong

SPLIT = "heads = x.reshape(*x.shape[:-1], num_heads, -1)  # (…, T, H, D)"

WRONG = {
    "linear": [
        Wrong("no pullback", "return x @ weight, pullback", "return x @ weight", "values", "should return two things"),
        Wrong("the weight is taken for (N, M)", "x @ weight, pullback", "x @ weight.reshape(weight.shape[::-1]).T, pullback", "values", "ratio"),
        Wrong("the gradients in each other's place", "dy @ weight.T, rows.T @ drows", "rows.T @ drows, dy @ weight.T", "gradients of two matrices", "shape"),
        Wrong("the mean over the rows", "rows.T @ drows", "rows.T @ drows / len(rows)", "gradients of two matrices", "ratio"),
        Wrong("reshaped in place of transposed", "dy @ weight.T", "dy @ weight.reshape(weight.shape[::-1])", "gradients of two matrices", "the gradient of x is wrong; that of weight is right"),
        Wrong("no sum over the batch", "rows.T @ drows", "np.swapaxes(x, -1, -2) @ dy", "gradients with axes in front", "shape"),
        Wrong("one axis in front and no more", "rows.T @ drows", "np.swapaxes(x, -1, -2) @ dy if x.ndim < 3 else (np.swapaxes(x, -1, -2) @ dy).sum(0)", "gradients with axes in front", "the gradient of weight is wrong; that of x is right"),
    ],
    "split_heads": [
        Wrong("straight to (H, T, D)", SPLIT, "return x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)", "a head is a block of columns", "(T, H, D) first, then swap"),
        Wrong("no swap", "heads.swapaxes(-3, -2)", "heads", "a head is a block of columns", "wrong shape"),
        Wrong("interleaved heads", SPLIT, "heads = x.reshape(*x.shape[:-1], -1, num_heads).swapaxes(-1, -2)", "a head is a block of columns", "interleaves the heads"),
        Wrong("axes counted from the front", "heads.swapaxes(-3, -2)", "heads.swapaxes(0, 1)", "axes in front stay in front", "count the axes from the end"),
        Wrong("a batch and no more", "heads.swapaxes(-3, -2)", "heads.transpose(0, 2, 1, 3) if x.ndim > 2 else heads.swapaxes(0, 1)", "axes in front stay in front", "axes don't match array"),
    ],
    "per_head": [
        Wrong("one matrix for all heads", "[x @ w for w in weights]", "[x @ weights[0] for w in weights]", "each head has a matrix of its own", "worst entry"),
        Wrong("side by side", "np.stack([x @ w for w in weights], axis=-3)", "np.concatenate([x @ w for w in weights], axis=-1)", "each head has a matrix of its own", "wrong shape"),
        Wrong("heads in front of the batch", "axis=-3", "axis=0", "axes in front of x stay in front", "(batch, head, query, width)"),
    ],
    "stack_weights": [
        Wrong("below each other", "axis=-1", "axis=0", "it is one matrix", "not (8, 3)"),
        Wrong("a list", "np.concatenate(weights, axis=-1)", "list(weights)", "it is one matrix", "not a list"),
        Wrong("a reshape alone", "np.concatenate(weights, axis=-1)", "weights.reshape(weights.shape[1], -1)", "the matrices stand side by side", "swap H and M before"),
        Wrong("stored with heads last", "np.concatenate(weights, axis=-1)", "weights.transpose(1, 2, 0).reshape(weights.shape[1], -1)", "the matrices stand side by side", "the heads are interleaved"),
    ],
    "stacked": [
        Wrong("straight to (H, T, D)", "y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)", "return y.reshape(*y.shape[:-2], num_heads, y.shape[-2], -1)", "it is what the loop over heads gives", "mixes time with heads"),
        Wrong("no swap", "y.swapaxes(-3, -2)", "y", "it is what the loop over heads gives", "wrong shape"),
        Wrong("heads last", "y = y.reshape(*y.shape[:-1], num_heads, -1)", "y = y.reshape(*y.shape[:-1], -1, num_heads).swapaxes(-1, -2)", "it is what the loop over heads gives", "interleaves the heads"),
        Wrong("axes counted from the front", "y.swapaxes(-3, -2)", "y.swapaxes(0, 1)", "axes in front do not matter", "wrong shape"),
    ],
    "fused": [
        Wrong("an array and no tuple of heads", "return tuple(split_heads(part, num_heads) for part in parts)", "return parts", "it returns three arrays of heads", "q should be (B, H, T, D)"),
        Wrong("queries and keys only", "for part in parts)", "for part in parts[:2])", "it returns three arrays of heads", "not a tuple of 2"),
        Wrong("heads before roles", "parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)\n    return tuple(split_heads(part, num_heads) for part in parts)", "heads = split_heads(x @ weight, num_heads)\n    return tuple(np.split(heads, 3, axis=-1))", "roles come before heads", "the columns are [q₀ q₁ q₂ k₀"),
        Wrong("keys and values in each other's place", "parts = np.split(x @ weight, 3, axis=-1)", "parts = [np.split(x @ weight, 3, axis=-1)[r] for r in (0, 2, 1)]", "roles come before heads", "k is wrong"),
    ],
    "double": [
        Wrong("the second matrix first", "first @ weights", "weights.mT @ first.mT", "each head has one matrix", "not (3, 2, 4)"),
        Wrong("the sum over the heads", "first @ weights", 'np.einsum("mn,hnd->md", first, weights)', "each head has one matrix", "not (4, 2)"),
        Wrong("the first transposed", "first @ weights", "(first.T if len(first) == first.shape[1] else first) @ weights", "one does what two in a row do", "x times yours is wrong"),
    ],
    "bilinear": [
        Wrong("the sum over the heads", "w_q @ w_k.swapaxes(-1, -2)", 'np.einsum("hmd,hnd->mn", w_q, w_k)', "each head has a square matrix", "not (5, 5)"),
        Wrong("the other way round", "w_q @ w_k.swapaxes(-1, -2)", "w_q.swapaxes(-1, -2) @ w_k", "each head has a square matrix", "not (3, 2, 2)"),
        Wrong("keys on the left", "w_q @ w_k.swapaxes(-1, -2)", "w_k @ w_q.swapaxes(-1, -2)", "the scores are those of q and k", "your scores are transposed"),
        Wrong("divided by √D, which comes later", "w_q @ w_k.swapaxes(-1, -2)", "w_q @ w_k.swapaxes(-1, -2) / np.sqrt(w_q.shape[-1])", "the scores are those of q and k", "the same in every entry"),
    ],
}  # fmt: skip
