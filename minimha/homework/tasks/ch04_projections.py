"""Tasks of chapter 04: the linear maps to Q, K and V, head by head and all at once."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, value_of
from ..task import task


def _shaped(yours, expected, name, axes):
    """Refuse an array of another shape; another check is about the entries."""
    if np.shape(yours) != expected.shape:
        same(yours, expected, name, axes)


@task(chapter=4, difficulty=2, minutes=10, hints=(
    "This is the pullback of a matrix product from chapter 02: dx = dy Wᵀ and dW = xᵀ dy. Only "
    "the axes in front are new: all of them share the same W.",
    "A weight that is used in several places gets the sum of the gradients from all of them. Every "
    "position of every sequence is a row: reshape x into one long matrix of rows, and dy into "
    "another.",
    "rows = x.reshape(-1, x.shape[-1]), drows likewise from dy; then dx = dy @ weight.T and "
    "dweight = rows.T @ drows.",
))  # fmt: skip
def linear(x, weight):
    """A linear map along the last axis, and its pullback.

    x       (…, T, M), with any number of axes in front of these two
    weight  (M, N)
    Returns y = x W (…, T, N), and a function that takes dy (…, T, N) and returns a tuple of two
    gradients, (dx, dweight), with the shapes of x and of weight.
    """
    # BEGIN SOLUTION: return y and the pullback

    def pullback(dy):
        rows, drows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return dy @ weight.T, rows.T @ drows

    return x @ weight, pullback
    # END SOLUTION


@linear.check
def values(yours, rng):
    x, weight = rng.standard_normal((3, 5)), rng.standard_normal((5, 4))
    same(value_of(yours(x, weight), "linear"), x @ weight, axes="row column")


@linear.check
def gradients_of_two_matrices(yours, rng):
    x, weight = rng.standard_normal((3, 5)), rng.standard_normal((5, 4))
    gradcheck(yours, x, weight, axes=["row in", "in out"])
    same(value_of(yours(x, weight), "linear"), x @ weight, axes="row column")


@linear.check
def gradients_with_batch_axes(yours, rng):
    for axes, shape in (("batch row", (2, 3)), ("outer batch row", (3, 2, 4))):
        x, weight = rng.standard_normal((*shape, 5)), rng.standard_normal((5, 6))
        same(value_of(yours(x, weight), "linear"), x @ weight, f"y for x of shape {x.shape}")
        gradcheck(yours, x, weight, axes=[f"{axes} in", "in out"])


_GRADIENTS = "return dy @ weight.T, rows.T @ drows"
linear.mistake(
    "x @ weight, pullback",
    "x @ weight.T, pullback",
    "weight is transposed; it is (M, N), and y = x W is x @ weight (PyTorch's nn.Linear stores Wᵀ)",
)
for _row in (0, -1):
    linear.mistake(
        _GRADIENTS,
        f"return dy @ weight.T, np.outer(rows[{_row}], drows[{_row}])",
        "dweight comes from one row alone; W is used in every row, so its gradient is the sum: "
        "add them up, +=, or use rows.T @ drows",
    )
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.T, np.outer(rows.sum(axis=0), drows.sum(axis=0))",
    "x and dy are summed over the rows before the product, so that each row of x meets every row "
    "of dy: in einsum, both need the same letter for the row",
)
for _gradient in ("x.mT @ dy", "np.einsum('...tm,...tn->...mn', x, dy)"):
    linear.mistake(
        _GRADIENTS,
        f"return dy @ weight.T, {_gradient}",
        "dweight has one matrix for each sequence of the batch; all share one W, whose gradient is "
        "the sum over the batch axes too: make one matrix of all rows, with x.reshape(-1, "
        "x.shape[-1])",
    )
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.T, (x.mT @ dy).sum(axis=0)",
    "dweight is summed over one axis, whether or not x has one in front: sum over all axes in "
    "front, and over none if x is a matrix",
)
linear.mistake(
    _GRADIENTS,
    "dw = x.mT @ dy; return dy @ weight.T, dw.sum(axis=0) if x.ndim > 2 else dw",
    "dweight is summed over one axis in front; there can be several: sum over all of them",
)
linear.mistake(
    _GRADIENTS,
    "dw = x.mT @ dy; return dy @ weight.T, dw.mean(axis=tuple(range(x.ndim - 2)))",
    "dweight is a mean over the batch; every sequence uses W, so its gradient is the sum",
)
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.T, rows.T @ drows / len(rows)",
    "dweight is a mean over the rows; every row uses W, so its gradient is the sum",
)
linear.mistake(
    _GRADIENTS,
    "return rows.T @ drows, dy @ weight.T",
    "the gradients are in the order (dweight, dx): return (dx, dweight)",
)
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.T, drows.T @ rows",
    "this is dyᵀ x, the transpose of dweight: dW (M, N) = xᵀ (M, T) dy (T, N)",
)
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.reshape(weight.shape[::-1]), rows.T @ drows",
    "a reshape to (N, M) is not a transpose; it only cuts the same numbers into different rows: "
    "weight.T",
)
linear.mistake(
    _GRADIENTS,
    "return dy @ weight.T, rows.reshape(rows.shape[::-1]) @ drows",
    "a reshape is not a transpose; it only cuts the same numbers into different rows: rows.T",
)
for _new in ("x.T @ dy", "rows.T @ dy", "x.T @ drows"):
    linear.mistake(
        _GRADIENTS,
        f"return dy @ weight.T, {_new}",
        "this is xᵀ dy for one matrix; with batch axes make one matrix of all rows, of x and of "
        "dy: x.reshape(-1, x.shape[-1])",
    )
for _new in (
    "dy @ weight, rows.T @ drows",
    "weight @ dy, rows.T @ drows",
    "dy @ weight.T, x @ dy",
    "dy @ weight.T, dy @ x.mT",
):
    linear.mistake(
        _GRADIENTS,
        f"return {_new}",
        "a matrix is not transposed, or on the wrong side: dx (…, T, M) = dy (…, T, N) Wᵀ (N, M), "
        "dW (M, N) = xᵀ (M, T) dy (T, N)",
    )


@task(chapter=4, difficulty=2, minutes=8, hints=(
    "It takes two steps: split the last axis into two, then swap two axes. Write down the shape "
    "after each.",
    "First a reshape, (…, T, H·D) -> (…, T, H, D), which keeps the D columns of a head together. "
    "Then swap T and H, the axes −3 and −2.",
    "x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)",
))  # fmt: skip
def split_heads(x, num_heads):
    """Split blocks of columns, one for each head, into an axis of heads.

    x  (…, T, H·D); columns 0 to D−1 belong to head 0, the next D to head 1, and so on
    Returns (…, H, T, D), where H is num_heads.
    """
    # BEGIN SOLUTION: return the heads
    heads = x.reshape(*x.shape[:-1], num_heads, -1)  # (…, T, H, D)
    return heads.swapaxes(-3, -2)
    # END SOLUTION


@split_heads.check
def a_head_is_a_block_of_columns(yours, rng):
    x = 10.0 * np.arange(4)[:, None] + np.arange(6)  # an entry shows its row and its column
    expected = np.stack([x[:, :2], x[:, 2:4], x[:, 4:]])
    advice = "print x and what you return: the entries of x are 10 · row + column"
    same(yours(x, 3), expected, "heads", "head query width", advice=advice)


@split_heads.check
def axes_in_front_stay_in_front(yours, rng):
    x = rng.standard_normal((2, 3, 5, 8))
    expected = np.stack([x[..., 2 * h : 2 * h + 2] for h in range(4)], axis=-3)
    same(yours(x, 4), expected, "heads", "outer batch head query width")


_SPLIT = "heads = x.reshape(*x.shape[:-1], num_heads, -1)  # (…, T, H, D)\n"
split_heads.mistake(
    _SPLIT,
    "return x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)\n",
    "a reshape straight to (H, T, D) mixes positions with heads: reshape to (T, H, D), then swap T "
    "and H",
)
split_heads.mistake(
    "return heads.swapaxes(-3, -2)",
    "return heads",
    "this is (…, T, H, D): T and H still have to be swapped",
)
for _new in (
    "heads = x.reshape(*x.shape[:-1], -1, num_heads).swapaxes(-1, -2)",
    "return x.reshape(*x.shape[:-1], -1, num_heads).swapaxes(-1, -3).swapaxes(-1, -2)",
):
    split_heads.mistake(
        _SPLIT,
        f"{_new}\n",
        "the heads are interleaved: head 0 has the columns 0, H, 2H …; its columns are 0 to D−1, "
        "so reshape to (T, H, D), not (T, D, H)",
    )
split_heads.mistake(
    _SPLIT,
    "return x.reshape(*x.shape[:-1], -1, num_heads).swapaxes(-1, -3)\n",
    "this is (…, H, D, T), with interleaved heads: reshape to (T, H, D), then swap T and H",
)
split_heads.mistake(
    "return heads.swapaxes(-3, -2)",
    "return heads.swapaxes(-3, -2).swapaxes(-1, -2)",
    "this is (…, H, D, T): the result is (…, H, T, D)",
)
split_heads.mistake(
    _SPLIT,
    "heads = x.reshape(*x.shape[:-1], -1, num_heads)\n",
    "this is (…, D, T, H): split the last axis into (H, D), not (D, H)",
)
split_heads.mistake(
    "return heads.swapaxes(-3, -2)",
    "return np.moveaxis(heads, -2, 0)",
    "the axis of heads is in front of the batch axes; it comes right before T and D, at −3",
)
split_heads.mistake(
    "return heads.swapaxes(-3, -2)",
    "return heads.swapaxes(0, 1)",
    "the axes are counted from the front, where batch axes can be: T and H are the axes −3 and −2",
)
split_heads.mistake(
    "return heads.swapaxes(-3, -2)",
    "return heads.swapaxes(1, 2) if x.ndim > 2 else heads.swapaxes(0, 1)",
    "the axes are counted from the front, and axes 1 and 2 are T and H only with one batch axis: "
    "T and H are −3 and −2",
)
for _new in (
    "heads.transpose(0, 2, 1, 3) if x.ndim > 2 else heads.swapaxes(0, 1)",
    "heads.transpose(1, 0, 2)",
):
    split_heads.mistake(
        "return heads.swapaxes(-3, -2)",
        f"return {_new}",
        "transpose has to list every axis, but the number of axes varies: heads.swapaxes(-3, -2) "
        "swaps T and H whatever comes before them",
    )


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "This is how the paper writes it: every head multiplies all of x by its own matrix.",
    "A loop over the weights gives a list of H arrays (…, T, D), and np.stack joins them into one "
    "array. Along which axis?",
    "np.stack([x @ w for w in weights], axis=-3)",
))  # fmt: skip
def per_head(x, weights):
    """The projection of x to each head, in a loop over the heads.

    x        (…, T, M)
    weights  (H, M, D), one matrix for each head
    Returns the heads (…, H, T, D).
    """
    # BEGIN SOLUTION: return the projections, stacked
    return np.stack([x @ w for w in weights], axis=-3)
    # END SOLUTION


@per_head.check
def each_head_has_its_own_matrix(yours, rng):
    x, weights = rng.standard_normal((4, 6)), rng.standard_normal((3, 6, 2))
    expected = np.einsum("tm,hmd->htd", x, weights)
    same(yours(x, weights), expected, "heads", "head query width")


@per_head.check
def batch_axes_stay_in_front(yours, rng):
    x, weights = rng.standard_normal((2, 4, 5)), rng.standard_normal((3, 5, 2))
    expected = np.einsum("btm,hmd->bhtd", x, weights)
    same(yours(x, weights), expected, "heads", "batch head query width")


_LOOP = "return np.stack([x @ w for w in weights], axis=-3)"
_NOT_X = (
    "what is multiplied by w is not x itself, but a slice, or an x changed before: every head "
    "projects all of x with its own matrix, x @ w (chapter 04)"
)
for _new in (
    "np.stack([x[..., h * 2 : h * 2 + 2] @ w for h, w in enumerate(weights)], axis=-3)",
    "np.stack([s @ w for s, w in zip(np.split(x, 3, axis=-1), weights)], axis=-3)",
    "x.reshape(*x.shape[:-1], len(weights), -1).swapaxes(-3, -2) @ weights",
):
    per_head.mistake(_LOOP, f"return {_new}", _NOT_X)
_SLICE = (
    "each head gets only a slice of the columns of x; every head projects all of x with its own "
    "matrix, x @ w, so that it can use any column (chapter 04)"
)
for _new in (
    "np.stack([x[..., 2 * h : 2 * h + 2] @ w[2 * h : 2 * h + 2] "
    "for h, w in enumerate(weights)], axis=-3)",
    "np.stack([x[..., h * 2 : h * 2 + 2] @ w[:2] for h, w in enumerate(weights)], axis=-3)",
):
    per_head.mistake(_LOOP, f"return {_new}", _SLICE)
per_head.mistake(
    _LOOP,
    "h, m, d = weights.shape; y = x @ weights.reshape(m, -1); "
    "return y.reshape(*y.shape[:-1], h, d).swapaxes(-3, -2)",
    "a reshape of weights (H, M, D) to (M, H·D) cuts through the matrices: multiply x by each",
)
per_head.mistake(
    _LOOP,
    "return np.stack([x @ weights[0] for w in weights], axis=-3)",
    "all heads use the matrix weights[0]; head h has its own, weights[h]",
)
per_head.mistake(
    _LOOP,
    "return np.stack([x @ w.T for w in weights], axis=-3)",
    "the weights are transposed; each is (M, D), and x (…, T, M) times it is x @ w",
)
per_head.mistake(
    _LOOP,
    "return sum(x @ w for w in weights)",
    "the heads are added; np.stack makes an axis of heads",
)
per_head.mistake(
    _LOOP,
    "return np.stack([x @ w for w in weights], axis=0)",
    "the axis of heads is in front of the batch axes; it comes right before T and D: axis=-3",
)
per_head.mistake(
    _LOOP,
    "return np.stack([x @ w for w in weights], axis=-2)",
    "this is (…, T, H, D); the axis of heads comes before T: axis=-3",
)
per_head.mistake(
    _LOOP,
    "return np.stack([x @ w for w in weights], axis=-1)",
    "this is (…, T, D, H); the axis of heads comes before T: axis=-3",
)
per_head.mistake(
    _LOOP,
    "return np.concatenate([x @ w for w in weights], axis=-1)",
    "the heads are side by side in one array (…, T, H·D); np.stack makes an axis of heads",
)
per_head.mistake(
    _LOOP,
    "return np.concatenate([x @ w for w in weights], axis=-2)",
    "the heads are one below the other in a single array (…, H·T, D); np.stack makes an axis "
    "of heads",
)
per_head.mistake(
    _LOOP,
    "return x @ weights",
    "x @ weights broadcasts the batch axes of x against the axis of heads: give x an axis for the "
    "heads, x[..., None, :, :] @ weights, or stack x @ w for each head",
)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "The block-matrix identity: x [W₀ W₁ …] = [xW₀ xW₁ …].",
    "The result has the columns of W₀ first, then the columns of W₁, and so on. Try it on two "
    "matrices, one all zeros and the other all ones.",
    "np.concatenate(weights, axis=-1), or weights.transpose(1, 0, 2) followed by a reshape.",
))  # fmt: skip
def stack_weights(weights):
    """The matrices of all heads side by side, as one matrix.

    weights  (H, M, D), one matrix for each head
    Returns [W₀ W₁ …] (M, H·D): columns 0 to D−1 are those of head 0, and so on.
    """
    # BEGIN SOLUTION: return one matrix
    return np.concatenate(weights, axis=-1)
    # END SOLUTION


@stack_weights.check
def the_result_is_one_matrix(yours, rng):
    weights = rng.standard_normal((2, 4, 3))
    name = "the matrix of 2 heads (4, 3)"
    _shaped(yours(weights), np.block(list(weights)), name, "M H·D")


@stack_weights.check
def the_matrices_stand_side_by_side(yours, rng):
    h, m, d = np.ogrid[:3, :4, :2]
    weights = 100.0 * h + 10 * m + d  # an entry shows its head, its row and its column
    advice = "print what you return: an entry is 100 · head + 10 · row + column"
    same(yours(weights), np.block(list(weights)), "the result", "in column", advice=advice)


_SIDE_BY_SIDE = "np.concatenate(weights, axis=-1)"
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "np.concatenate(weights, axis=0)",
    "the matrices are one below the other, (H·M, D); axis=-1 puts them side by side",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights.reshape(weights.shape[1], -1)",
    "a reshape of (H, M, D) fills the first rows with head 0 alone: swap H and M before it, to "
    "(M, H, D)",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights.transpose(1, 2, 0).reshape(weights.shape[1], -1)",
    "a reshape of (M, D, H) interleaves the heads: reshape (M, H, D), from transpose(1, 0, 2)",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights.reshape(-1, weights.shape[1]).T",
    "a reshape of (H, M, D) cuts through the matrices: swap H and M before it, to (M, H, D)",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "np.stack(weights, axis=-1)",
    "np.stack makes an axis of heads, (M, D, H); np.concatenate joins the columns into one matrix",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights",
    "this is still the stack of matrices, (H, M, D): join their columns to one matrix (M, H·D)",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights.swapaxes(0, 1)",
    "this is (M, H, D); a reshape to (M, H·D) is still missing",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "np.concatenate(weights[::-1], axis=-1)",
    "the heads are in reverse order: columns 0 to D−1 are those of head 0",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "np.concatenate([np.concatenate([w if h == k else 0 * w for k in range(len(weights))], axis=-1)"
    " for h, w in enumerate(weights)])",
    "the matrices are blocks on a diagonal, so that each head sees a part of x only; they stand "
    "side by side, (M, H·D)",
)
stack_weights.mistake(
    _SIDE_BY_SIDE,
    "weights.sum(axis=0)",
    "the matrices are added; put them side by side, [W₀ W₁ …] (M, H·D)",
)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "One matmul gives the columns of all heads, (…, T, H·D). Then split them into heads, as in "
    "split_heads.",
    "y = x @ weight, then (…, T, H·D) -> (…, T, H, D) -> (…, H, T, D): a reshape and a swap.",
    "y.reshape(*y.shape[:-1], num_heads, -1).swapaxes(-3, -2)",
))  # fmt: skip
def stacked(x, weight, num_heads):
    """The projections of x to all heads, with one matmul instead of a loop.

    x       (…, T, M)
    weight  (M, H·D), the matrices of the heads side by side: [W₀ W₁ …]
    Returns the heads (…, H, T, D), where H is num_heads, as a loop over the heads would.
    """
    # BEGIN SOLUTION: one matmul, then the heads
    y = x @ weight  # (…, T, H·D)
    y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)
    return y.swapaxes(-3, -2)
    # END SOLUTION


@stacked.check
def equal_to_the_loop_over_heads(yours, rng):
    x, weight = rng.standard_normal((4, 6)), rng.standard_normal((6, 6))
    expected = np.stack([x @ w for w in np.split(weight, 3, axis=-1)])
    same(yours(x, weight, 3), expected, "heads", "head query width")


@stacked.check
def batch_axes_stay_in_front_of_the_heads(yours, rng):
    x, weight = rng.standard_normal((2, 4, 5)), rng.standard_normal((5, 6))
    expected = np.stack([x @ w for w in np.split(weight, 3, axis=-1)], axis=-3)
    same(yours(x, weight, 3), expected, "heads", "batch head query width")


_PROJECTED = "y = x @ weight  # (…, T, H·D)\n"
_HEADS = "y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)\n"
_SWAPPED = "return y.swapaxes(-3, -2)"
for _new in (
    "return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2) @ weight",
    "return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)"
    " @ np.stack(np.split(weight, num_heads, axis=-1))",
    "d = x.shape[-1] // num_heads; return np.stack([x[..., h * d : h * d + d] @ "
    "weight[h * d : h * d + d, h * d : h * d + d] for h in range(num_heads)], axis=-3)",
    "d = x.shape[-1] // num_heads; return np.stack([x[..., h * d : h * d + d] @ "
    "weight[h * d : h * d + d] for h in range(num_heads)], axis=-3)",
):
    stacked.mistake(_PROJECTED, f"{_new}\n", _SLICE.replace("matrix, x @ w,", "columns of weight,"))
stacked.mistake(
    _PROJECTED,
    "y = x @ weight.T\n",
    "weight is transposed; it is (M, H·D), so y = x @ weight (PyTorch's nn.Linear stores Wᵀ)",
)
stacked.mistake(
    _HEADS,
    "return y.reshape(*y.shape[:-2], num_heads, y.shape[-2], -1)\n",
    "a reshape straight to (H, T, D) mixes positions with heads: reshape to (T, H, D), then swap T "
    "and H",
)
stacked.mistake(
    _SWAPPED,
    "return y",
    "this is (…, T, H, D): T and H still have to be swapped",
)
stacked.mistake(
    _HEADS + "    " + _SWAPPED,
    "return y",
    "this is (…, T, H·D), the columns of all heads: split them into heads, as split_heads does",
)
stacked.mistake(
    _HEADS,
    "y = y.reshape(*y.shape[:-1], -1, num_heads).swapaxes(-1, -2)\n",
    "the heads are interleaved: head 0 has the columns 0, H, 2H …; its columns are 0 to D−1, so "
    "reshape to (T, H, D), not (T, D, H)",
)
stacked.mistake(
    _SWAPPED,
    "return np.moveaxis(y, -2, 0)",
    "the axis of heads is in front of the batch axes; it comes right before T and D, at −3",
)
stacked.mistake(
    _PROJECTED,
    "return x[..., None, :, :] @ weight.reshape(num_heads, weight.shape[0], -1)\n",
    "a reshape of weight to (H, M, D) cuts through its rows; the matrices are blocks of columns: "
    "split the columns of x @ weight instead",
)
stacked.mistake(
    _SWAPPED,
    "return y.swapaxes(0, 1)",
    "the axes are counted from the front, where batch axes can be: T and H are the axes −3 and −2",
)
stacked.mistake(
    _SWAPPED,
    "return y.transpose(1, 0, 2)",
    "transpose has to list every axis, but the number of axes varies: y.swapaxes(-3, -2) swaps T "
    "and H whatever comes before them",
)


@task(chapter=4, difficulty=2, minutes=8, given=(split_heads,), hints=(
    "The same identity holds here: x [W^Q W^K W^V] = [Q K V]. So the columns of the product are "
    "those of Q, then those of K, then those of V, each ordered by head.",
    "Split the product into three equal parts along the last axis (np.split), then split each "
    "part into its heads.",
    "tuple(split_heads(part, num_heads) for part in np.split(x @ weight, 3, axis=-1))",
))  # fmt: skip
def fused(x, weight, num_heads):
    """The queries, keys and values of all heads, with one matmul.

    x       (…, T, M)
    weight  (M, 3·H·D), the three matrices side by side: [W^Q W^K W^V], each of them [W₀ W₁ …]
    Returns a tuple (q, k, v) of three arrays (…, H, T, D), where H is num_heads.
    """
    # BEGIN SOLUTION: return (q, k, v)
    parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)
    return tuple(split_heads(part, num_heads) for part in parts)
    # END SOLUTION


def _three(returned):
    """The three arrays that should be q, k and v."""
    if isinstance(returned, tuple | list | np.ndarray) and len(returned) == 3:
        return returned
    many = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
    what = f"a {type(returned).__name__}{many}"
    raise AssertionError(f"fused should return three arrays, (q, k, v), not {what}")


@fused.check
def q_k_and_v_have_the_right_shape(yours, rng):
    x, weight = rng.standard_normal((2, 5, 4)), rng.standard_normal((4, 24))
    expected = np.moveaxis((x @ weight).reshape(2, 5, 3, 2, 4), 1, 3)  # (B, 3, H, T, D)
    for name, array, right in zip(
        "qkv", _three(yours(x, weight, 2)), expected.swapaxes(0, 1), strict=True
    ):
        _shaped(array, right, name, "B H T D")


@fused.check
def columns_are_ordered_by_role_then_by_head(yours, rng):
    x, weight = rng.standard_normal((2, 5, 7)), rng.standard_normal((7, 18))
    blocks = np.split(weight, 9, axis=-1)  # q of heads 0, 1, 2, then k of heads 0, 1, 2, then v
    heads = [np.stack([x @ w for w in blocks[r : r + 3]], axis=-3) for r in (0, 3, 6)]
    right = dict(zip("qkv", heads, strict=True))
    for name, array in zip("qkv", _three(yours(x, weight, 3)), strict=True):
        for other in set("qkv") - {name}:
            assert not np.allclose(array, right[other]), (
                f"{name} is what {other} should be: the columns of weight are [W^Q W^K W^V]"
            )
        same(array, right[name], name, "batch head query width")


_PARTS = "parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)\n"
_TUPLE = "return tuple(split_heads(part, num_heads) for part in parts)"
for _new in (
    "return tuple(split_heads(x, num_heads) @ w for w in np.split(weight, 3, axis=-1))",
    "return split_heads(x, num_heads) @ weight",
):
    fused.mistake(_PARTS, f"{_new}\n", _SLICE.replace("matrix, x @ w,", "columns of weight,"))
fused.mistake(
    _PARTS + "    " + _TUPLE,
    "return tuple(np.split(split_heads(x @ weight, num_heads), 3, axis=-1))",
    "the columns are split into heads first, as if they were [q₀ k₀ v₀ q₁ …]; they are "
    "[q₀ q₁ … k₀ k₁ … v₀ v₁ …]: split into q, k, v first",
)
fused.mistake(
    _PARTS,
    "parts = np.moveaxis((x @ weight).reshape(*x.shape[:-1], -1, 3), -1, 0)\n",
    "every third column goes to q; the columns of q are the first H·D: np.split(x @ weight, 3, "
    "axis=-1)",
)
fused.mistake(
    _PARTS,
    "m = x.shape[-1]; parts = [(x @ weight)[..., k * m : k * m + m] for k in range(3)]\n",
    "the columns are cut at M, the width of x; q, k and v have H·D columns each, a third of all",
)
fused.mistake(
    _TUPLE,
    "return tuple(parts)",
    "q, k and v are not split into heads: each is (…, T, H·D) and should be (…, H, T, D)",
)
fused.mistake(
    _TUPLE,
    "return tuple(p.reshape(*p.shape[:-1], num_heads, -1) for p in parts)",
    "q, k and v are (…, T, H, D): T and H still have to be swapped",
)
fused.mistake(
    _TUPLE,
    "return tuple(p.reshape(*p.shape[:-2], num_heads, p.shape[-2], -1) for p in parts)",
    "a reshape straight to (H, T, D) mixes positions with heads: use split_heads",
)
fused.mistake(
    _TUPLE,
    "q, k, v = (split_heads(part, num_heads) for part in parts); return q, v, k",
    "k and v are swapped: the columns of weight are [W^Q W^K W^V]",
)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "Where else can you put the brackets in (x W) Wᵢ?",
    "(x W) Wᵢ = x (W Wᵢ), so the one matrix of head i is W Wᵢ. You need no loop over the heads: "
    "what does @ do with a stack of matrices?",
    "first @ weights: @ broadcasts over the heads.",
))  # fmt: skip
def double(first, weights):
    """The one matrix of each head that replaces two successive linear maps, x → (x W) Wᵢ.

    first    W (M, N), shared by all heads
    weights  Wᵢ (H, N, D), a second matrix for each head
    Returns (H, M, D): for any x, x times the matrix of head i equals (x W) Wᵢ.
    """
    # BEGIN SOLUTION: return a matrix for each head
    return first @ weights
    # END SOLUTION


@double.check
def each_head_has_one_matrix(yours, rng):
    first, weights = rng.standard_normal((4, 5)), rng.standard_normal((3, 5, 2))
    name = "the result, for W (4, 5) and 3 heads (5, 2),"
    _shaped(yours(first, weights), first @ weights, name, "H M D")


@double.check
def one_matrix_replaces_two(yours, rng):
    x, first, weights = (rng.standard_normal(s) for s in [(6, 4), (4, 4), (3, 4, 4)])
    two_in_a_row = np.stack([x @ first @ w for w in weights])
    same(x @ yours(first, weights), two_in_a_row, "x times yours", "head query width")


for _new in ("weights @ first", "first.T @ weights", "first @ weights.mT"):
    double.mistake(
        "return first @ weights",
        f"return {_new}",
        "a matrix is transposed, or on the wrong side: (x W) Wᵢ = x (W Wᵢ), so the matrix of head "
        "i (M, D) is W (M, N) Wᵢ (N, D)",
    )
double.mistake(
    "return first @ weights",
    "return first @ weights.sum(axis=0)",
    "the heads are summed; each head has a matrix of its own",
)
double.mistake(
    "return first @ weights",
    "return (first @ weights).mT",
    "each matrix is transposed: W Wᵢ is (M, D)",
)
double.mistake(
    "return first @ weights",
    "return np.concatenate([first @ w for w in weights])",
    "the matrices are one below the other in a single array; return them as a stack (H, M, D)",
)
double.mistake(
    "return first @ weights",
    "return np.concatenate([first @ w for w in weights], axis=-1)",
    "the matrices are joined side by side into one; return them as a stack (H, M, D)",
)
double.mistake(
    "return first @ weights",
    "return np.stack([first @ w for w in weights], axis=-2)",
    "this is (M, H, D); the axis of heads comes first: (H, M, D)",
)


@task(chapter=4, difficulty=2, minutes=7, hints=(
    "The scores of a head are q kᵀ. Substitute q = x W^Q and k = x W^K: what is between x and xᵀ?",
    "(x W^K)ᵀ = W^Kᵀ xᵀ, so W = W^Q W^Kᵀ for each head: transpose only the last two axes.",
    "w_q @ w_k.swapaxes(-1, -2): @ broadcasts over the heads.",
))  # fmt: skip
def bilinear(w_q, w_k):
    """The one matrix of each head that gives its scores: x W xᵀ = (x W^Q) (x W^K)ᵀ.

    w_q  (H, M, D), a matrix W^Q for each head
    w_k  (H, M, D), a matrix W^K for each head
    Returns a matrix W for each head (H, M, M).
    """
    # BEGIN SOLUTION: return a matrix for each head
    return w_q @ w_k.swapaxes(-1, -2)
    # END SOLUTION


@bilinear.check
def each_head_has_a_square_matrix(yours, rng):
    w_q, w_k = rng.standard_normal((2, 3, 5, 2))
    _shaped(yours(w_q, w_k), w_q @ w_k.mT, "W, for 3 heads with M = 5 and D = 2,", "H M M")


@bilinear.check
def scores_equal_those_of_q_and_k(yours, rng):
    w_q, w_k, x = (rng.standard_normal(shape) for shape in [(3, 5, 2), (3, 5, 2), (4, 5)])
    q, k = x @ w_q, x @ w_k  # (H, T, D)
    scores, w = q @ k.mT, yours(w_q, w_k)
    same(x @ w @ x.T, scores, "x W xᵀ", "head query key")


bilinear.mistake(
    "w_q @ w_k.swapaxes(-1, -2)",
    "w_k @ w_q.swapaxes(-1, -2)",
    "this is W^K W^Qᵀ, which gives the transposed scores: queries are on the left, W = W^Q W^Kᵀ",
)
bilinear.mistake(
    "w_q @ w_k.swapaxes(-1, -2)",
    "w_q.swapaxes(-1, -2) @ w_k",
    "this is W^Qᵀ W^K (H, D, D), in the inner dimension; (x W^K)ᵀ = W^Kᵀ xᵀ, so W = W^Q W^Kᵀ",
)
for _new in ("w_q @ w_q.mT", "w_k @ w_k.mT"):
    bilinear.mistake(
        "w_q @ w_k.swapaxes(-1, -2)",
        f"{_new}",
        "one of w_q and w_k is used twice and the other not at all: W = W^Q W^Kᵀ",
    )
for _new in ("w_q @ w_k", "w_q @ w_k.T"):
    bilinear.mistake(
        "w_q @ w_k.swapaxes(-1, -2)",
        _new,
        "W = W^Q W^Kᵀ needs each W^K transposed: w_k.swapaxes(-1, -2) (.T reverses all three axes)",
    )
bilinear.mistake(
    "w_q @ w_k.swapaxes(-1, -2)",
    "w_q @ w_k.reshape(w_k.shape[0], w_k.shape[2], w_k.shape[1])",
    "a reshape is not a transpose; it only cuts the same numbers into different rows: "
    "w_k.swapaxes(-1, -2)",
)
bilinear.mistake(
    "w_q @ w_k.swapaxes(-1, -2)",
    "w_q @ w_k.swapaxes(-1, -2) / np.sqrt(w_q.shape[-1])",
    "W is divided by √D; here the scores are q kᵀ, without a scale",
)
