"""Tasks of chapter 04: the linear maps to Q, K and V, head by head and all at once."""

import numpy as np

from ..checks.comparisons import named, same, same_operation, value_of
from ..checks.task import task


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
    x, weight = rng.standard_normal((2, 4)), rng.standard_normal((4, 3))
    large = rng.standard_normal((5, 20000)), rng.standard_normal((20000, 5))
    same_operation(yours, linear, x, weight, large=large, axes=["row in", "in out"])


@linear.check
def gradients_with_batch_axes(yours, rng):
    for axes, shape, large, width in (
        ("batch row in", (2, 3, 2), (2, 3, 18000), 18000),
        ("outer batch row in", (3, 4, 1, 2), (2, 1, 3, 7), 7),
    ):
        inputs = rng.standard_normal(shape), rng.standard_normal((2, 5))
        others = rng.standard_normal(large), rng.standard_normal((width, 5))
        same_operation(yours, linear, *inputs, large=others, axes=[axes, "in out"])


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


def _same_heads(yours, rng, axes, *shape):
    """Compare the projections of an x of this shape to 3 heads."""
    x, weights = rng.standard_normal(shape), rng.standard_normal((3, shape[-1], 2))
    expected = np.einsum("...tm,hmd->...htd", x, weights)
    same(yours(x, weights), expected, "heads", axes)


per_head.case("each head has its own matrix", _same_heads, ("head query width", 4, 6))
per_head.case("batch axes stay in front", _same_heads, ("batch head query width", 2, 4, 5))


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


def _same_as_loop(yours, rng, axes, *shape):
    def per_head(x, weights):
        return yours(x, np.concatenate(weights, axis=-1), 3)

    _same_heads(per_head, rng, axes, *shape)


stacked.case("equal to the loop over heads", _same_as_loop, ("head query width", 4, 6))
stacked.case(
    "batch axes stay in front of the heads", _same_as_loop, ("batch head query width", 2, 4, 5)
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


@fused.check
def q_k_and_v_have_the_right_shape(yours, rng):
    x, weight = rng.standard_normal((2, 5, 4)), rng.standard_normal((4, 24))
    expected = np.moveaxis((x @ weight).reshape(2, 5, 3, 2, 4), 1, 3)  # (B, 3, H, T, D)
    for k, (name, array) in enumerate(named(yours(x, weight, 2), "qkv").items()):
        _shaped(array, expected[:, k], name, "B H T D")


@fused.check
def columns_are_ordered_by_role_then_by_head(yours, rng):
    x, weight = rng.standard_normal((2, 5, 7)), rng.standard_normal((7, 18))
    blocks = np.split(weight, 9, axis=-1)  # q of heads 0, 1, 2, then k of heads 0, 1, 2, then v
    heads = [np.stack([x @ w for w in blocks[r : r + 3]], axis=-3) for r in (0, 3, 6)]
    right = dict(zip("qkv", heads, strict=True))
    for name, array in named(yours(x, weight, 3), "qkv").items():
        for other in "qkv".replace(name, ""):
            assert not np.allclose(array, right[other]), (
                f"{name} is what {other} should be: the columns of weight are [W^Q W^K W^V]"
            )
        same(array, right[name], name, "batch head query width")


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
