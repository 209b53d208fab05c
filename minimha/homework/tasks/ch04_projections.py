"""Tasks of chapter 04: the linear maps of Q, K and V, head by head and all at once."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, value_of
from ..task import task


@task(chapter=4, difficulty=2, minutes=10, hints=(
    "It is the pullback of a matrix product, chapter 02: dx = dy Wᵀ and dW = xᵀ dy. What is "
    "new are the axes in front: the same W serves them all.",
    "A weight that is used in many places gets the sum of its gradients from all of them. A "
    "position is a row, whichever batch it is in: make one long matrix of rows of x, another "
    "of dy.",
    "rows = x.reshape(-1, x.shape[-1]), likewise drows of dy; then dx = dy @ weight.T and "
    "dweight = rows.T @ drows.",
))  # fmt: skip
def linear(x, weight):
    """A linear map along the last axis, and its pullback.

    x       (…, T, M), with any number of axes in front of these two
    weight  (M, N)
    Returns y (…, T, N) with y = x W, and the function that takes dy (…, T, N) to a tuple with two
    gradients, (dx, dweight), of the shapes of x and of weight.
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
def gradients_with_axes_in_front(yours, rng):
    for axes, shape in (("batch row", (2, 3)), ("outer batch row", (3, 2, 4))):
        x, weight = rng.standard_normal((*shape, 5)), rng.standard_normal((5, 6))
        same(value_of(yours(x, weight), "linear"), x @ weight, f"y for x of shape {x.shape}")
        gradcheck(yours, x, weight, axes=[f"{axes} in", "in out"])


@task(chapter=4, difficulty=2, minutes=8, hints=(
    "Two steps, and neither can be left out: split the last axis into two, then swap two axes. "
    "Write the shape after each.",
    "(…, T, H·D) -> (…, T, H, D) by reshape: neighbours stay neighbours, so the D columns of a "
    "head stay together. Then T and H, the axes −3 and −2, are swapped.",
    "x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)",
))  # fmt: skip
def split_heads(x, num_heads):
    """Split heads that stand side by side, as blocks of columns, into arrays of their own.

    x  (…, T, H·D): columns 0 to D−1 belong to head 0, the next D to head 1, and so on
    Returns (…, H, T, D), where H is num_heads.
    """
    # BEGIN SOLUTION: return the heads
    heads = x.reshape(*x.shape[:-1], num_heads, -1)  # (…, T, H, D)
    return heads.swapaxes(-3, -2)
    # END SOLUTION


@split_heads.check
def a_head_is_a_block_of_columns(yours, rng):
    x = 10.0 * np.arange(4)[:, None] + np.arange(6)  # an entry says its row and its column
    expected = np.stack([x[:, :2], x[:, 2:4], x[:, 4:]])
    found = yours(x, 3)
    advice = _looks_like(found, _scrambled(x, 3, 2)) or (
        "x has the entries 10 · row + column: print x and what you return"
    )
    same(found, expected, "heads", "head query width", advice=advice)


@split_heads.check
def axes_in_front_stay_in_front(yours, rng):
    x = rng.standard_normal((2, 3, 5, 8))
    expected = np.stack([x[..., 2 * h : 2 * h + 2] for h in range(4)], axis=-3)
    advice = "count the axes from the end: T and H are −3 and −2"
    same(yours(x, 4), expected, "heads", "outer batch head query width", advice=advice)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "This is the picture in the paper: every head has its own matrix, and its result does not "
    "depend on the other heads.",
    "A loop over the weights gives a list of H arrays (…, T, D); np.stack makes one array of "
    "them. Along which axis?",
    "np.stack([x @ w for w in weights], axis=-3)",
))  # fmt: skip
def per_head(x, weights):
    """The projection of x by each head, in a loop over the heads.

    x        (…, T, M)
    weights  (H, M, D), a matrix for each head
    Returns (…, H, T, D).
    """
    # BEGIN SOLUTION: return the projections, stacked
    return np.stack([x @ w for w in weights], axis=-3)
    # END SOLUTION


@per_head.check
def each_head_has_a_matrix_of_its_own(yours, rng):
    x, weights = rng.standard_normal((4, 5)), rng.standard_normal((3, 5, 2))
    expected = np.einsum("tm,hmd->htd", x, weights)
    same(yours(x, weights), expected, "heads", "head query width")


@per_head.check
def axes_in_front_of_x_stay_in_front(yours, rng):
    x, weights = rng.standard_normal((2, 4, 5)), rng.standard_normal((3, 5, 2))
    expected = np.einsum("btm,hmd->bhtd", x, weights)
    same(yours(x, weights), expected, "heads", "batch head query width")


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "The block-matrix identity: x [W₀ W₁ …] = [xW₀ xW₁ …].",
    "The result has the columns of W₀ first, then all those of W₁, and so on: whole matrices "
    "next to each other. Try it on two matrices of which one is all zeros, the other all ones.",
    "np.concatenate(weights, axis=-1), or weights.transpose(1, 0, 2) and only then reshape.",
))  # fmt: skip
def stack_weights(weights):
    """The matrices of all heads side by side, as one.

    weights  (H, M, D)
    Returns (M, H·D): [W₀ W₁ …], columns 0 to D−1 are those of head 0.
    """
    # BEGIN SOLUTION: return one matrix
    return np.concatenate(weights, axis=-1)
    # END SOLUTION


@stack_weights.check
def it_is_one_matrix(yours, rng):
    stacked = yours(rng.standard_normal((2, 4, 3)))
    assert isinstance(stacked, np.ndarray), (
        f"the result should be one array, not a {type(stacked).__name__}"
    )
    assert stacked.shape == (4, 6), (
        f"H = 2 matrices (M, D) = (4, 3) side by side have the shape (4, 6),\nnot {stacked.shape}"
    )


@stack_weights.check
def the_matrices_stand_side_by_side(yours, rng):
    h, m, d = np.ogrid[:3, :4, :2]
    weights = 100.0 * h + 10 * m + d  # an entry says its head, its row and its column
    found = yours(weights)
    wrong = {
        "swap H and M before the reshape, which alone fills rows with rows of one head": (
            weights.reshape(4, 6)
        ),
        "(M, H, D) before the reshape: from (M, D, H) the heads are interleaved": (
            weights.transpose(1, 2, 0).reshape(4, 6)
        ),
    }
    advice = _looks_like(found, wrong) or (
        "an entry is 100 · head + 10 · row + column: print what you return"
    )
    same(found, np.block(list(weights)), "the result", "in column", advice=advice)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "One matmul gives the columns of all heads, (…, T, H·D). What remains is to split them "
    "into heads, as in split_heads.",
    "y = x @ weight, then (…, T, H·D) -> (…, T, H, D) -> (…, H, T, D): a reshape and a swap.",
    "y.reshape(*y.shape[:-1], num_heads, -1).swapaxes(-3, -2)",
))  # fmt: skip
def stacked(x, weight, num_heads):
    """The projections of x by all heads, by one matmul and without a loop.

    x       (…, T, M)
    weight  (M, H·D), the matrices of the heads side by side: [W₀ W₁ …]
    Returns (…, H, T, D), where H is num_heads: the same as a loop over the heads.
    """
    # BEGIN SOLUTION: one matmul, then the heads
    y = x @ weight  # (…, T, H·D)
    y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)
    return y.swapaxes(-3, -2)
    # END SOLUTION


@stacked.check
def it_is_what_the_loop_over_heads_gives(yours, rng):
    x, weight = rng.standard_normal((4, 5)), rng.standard_normal((5, 6))
    expected = np.stack([x @ w for w in np.split(weight, 3, axis=-1)])
    found = yours(x, weight, 3)
    advice = _looks_like(found, _scrambled(x @ weight, 3, 2))
    same(found, expected, "heads", "head query width", advice=advice)


@stacked.check
def axes_in_front_do_not_matter(yours, rng):
    x, weight = rng.standard_normal((2, 4, 5)), rng.standard_normal((5, 6))
    expected = np.stack([x @ w for w in np.split(weight, 3, axis=-1)], axis=-3)
    same(yours(x, weight, 3), expected, "heads", "batch head query width")


@task(chapter=4, difficulty=2, minutes=8, given=(split_heads,), hints=(
    "By the same identity: x [W^Q W^K W^V] = [Q K V]. So the columns of the product belong "
    "first to a role, and within that to a head.",
    "Cut the product into three equal parts along the last axis (np.split), and split each "
    "into its heads.",
    "tuple(split_heads(part, num_heads) for part in np.split(x @ weight, 3, axis=-1))",
))  # fmt: skip
def fused(x, weight, num_heads):
    """Queries, keys and values of all heads, by one matmul.

    x       (…, T, M)
    weight  (M, 3·H·D), the matrices of the roles side by side: [W^Q W^K W^V], each [W₀ W₁ …]
    Returns a tuple of three arrays (…, H, T, D), (q, k, v), where H is num_heads.
    """
    # BEGIN SOLUTION: return (q, k, v)
    parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)
    return tuple(split_heads(part, num_heads) for part in parts)
    # END SOLUTION


@fused.check
def it_returns_three_arrays_of_heads(yours, rng):
    x, weight = rng.standard_normal((2, 5, 4)), rng.standard_normal((4, 24))
    for name, array in zip("qkv", _three(yours(x, weight, 2)), strict=True):
        assert np.shape(array) == (2, 2, 5, 4), (
            f"{name} should be (B, H, T, D) = (2, 2, 5, 4), not {np.shape(array)}"
        )


@fused.check
def roles_come_before_heads(yours, rng):
    x, weight = rng.standard_normal((2, 5, 7)), rng.standard_normal((7, 18))
    blocks = np.split(weight, 9, axis=-1)  # q of heads 0, 1, 2, then k of heads 0, 1, 2, then v
    advice = "the columns are [q₀ q₁ q₂ k₀ k₁ k₂ v₀ v₁ v₂], not [q₀ k₀ v₀ q₁ …]"
    for r, array in enumerate(_three(yours(x, weight, 3))):
        expected = np.stack([x @ w for w in blocks[3 * r : 3 * r + 3]], axis=-3)
        same(array, expected, "qkv"[r], "batch head query width", advice=advice)


@task(chapter=4, difficulty=1, minutes=5, hints=(
    "(x W) Wᵢ: where may the brackets stand as well?",
    "(x W) Wᵢ = x (W Wᵢ), so the one matrix of head i is W Wᵢ. For all heads it takes no loop: "
    "what does @ do with an array of matrices?",
    "first @ weights; @ goes over the heads by itself",
))  # fmt: skip
def double(first, weights):
    """The one matrix of each head that does what two in a row do: x → (x W) Wᵢ.

    first    W (M, N), which all heads share
    weights  Wᵢ (H, N, D), a second matrix for each head
    Returns (H, M, D): x times the matrix of head i is (x W) Wᵢ, for any x.
    """
    # BEGIN SOLUTION: return a matrix for each head
    return first @ weights
    # END SOLUTION


@double.check
def each_head_has_one_matrix(yours, rng):
    one = yours(rng.standard_normal((4, 5)), rng.standard_normal((3, 5, 2)))
    assert np.shape(one) == (3, 4, 2), (
        "for W (M, N) = (4, 5) and H = 3 matrices (N, D) = (5, 2) the result should be\n"
        f"(H, M, D) = (3, 4, 2), not {np.shape(one)}"
    )


@double.check
def one_does_what_two_in_a_row_do(yours, rng):
    x, first, weights = (rng.standard_normal(s) for s in [(6, 4), (4, 4), (3, 4, 4)])
    two_in_a_row = np.stack([x @ first @ w for w in weights])
    same(x @ yours(first, weights), two_in_a_row, "x times yours", "head query width")


@task(chapter=4, difficulty=2, minutes=7, hints=(
    "The scores of a head are q kᵀ. Put q = x W^Q and k = x W^K in, and see what stands "
    "between x and xᵀ.",
    "(x W^K)ᵀ = W^Kᵀ xᵀ, so W = W^Q W^Kᵀ for each head: a transpose of the last two axes only.",
    "w_q @ w_k.swapaxes(-1, -2); @ goes over the heads by itself",
))  # fmt: skip
def bilinear(w_q, w_k):
    """The one matrix of each head that gives its scores: x W xᵀ = (x W^Q) (x W^K)ᵀ.

    w_q  (H, M, D)
    w_k  (H, M, D)
    Returns W (H, M, M).
    """
    # BEGIN SOLUTION: return a matrix for each head
    return w_q @ w_k.swapaxes(-1, -2)
    # END SOLUTION


@bilinear.check
def each_head_has_a_square_matrix(yours, rng):
    w = yours(rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 5, 2)))
    assert np.shape(w) == (3, 5, 5), (
        f"for H = 3, M = 5, D = 2 W should be (H, M, M) = (3, 5, 5), not {np.shape(w)}"
    )


@bilinear.check
def the_scores_are_those_of_q_and_k(yours, rng):
    w_q, w_k, x = (rng.standard_normal(shape) for shape in [(3, 5, 2), (3, 5, 2), (4, 5)])
    q, k = x @ w_q, x @ w_k  # (H, T, D)
    scores, w = q @ k.mT, yours(w_q, w_k)
    advice = _looks_like(
        x @ w @ x.T, {"W^Q on the left, for queries: your scores are transposed": scores.mT}
    )
    same(x @ w @ x.T, scores, "x W xᵀ", "head query key", advice=advice)


def _three(returned):
    """What should be q, k and v."""
    if isinstance(returned, tuple | list | np.ndarray) and len(returned) == 3:
        return returned
    many = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
    what = f"a {type(returned).__name__}{many}"
    raise AssertionError(f"fused should return three arrays, (q, k, v), not {what}")


def _scrambled(y, heads, width):
    """What is often made of y (T, H·D) in place of its heads, by what to do about it."""
    t = len(y)
    return {
        "(T, H, D) first, then swap T and H: straight to (H, T, D) mixes time with heads": (
            y.reshape(heads, t, width)
        ),
        "this is (T, H, D): now swap T and H": y.reshape(t, heads, width),
        "(T, H, D) and not (T, D, H), which interleaves the heads": (
            y.reshape(t, width, heads).transpose(2, 0, 1)
        ),
    }


def _looks_like(found, candidates):
    """What to do about a result that is one of the candidates."""
    for advice, wrong in candidates.items():
        if np.shape(found) == wrong.shape and np.allclose(found, wrong):
            return advice
    return ""
