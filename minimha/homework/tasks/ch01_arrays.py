"""Tasks of chapter 01: arrays, shapes, broadcasting."""

import numpy as np

from ..comparisons import same
from ..task import task


@task(chapter=1, difficulty=1, minutes=5, hints=(
    "Which axis does a mean over one token run along? Count it from the back, as -1; then any "
    "number of axes may stand in front.",
    "x.mean(axis=-1) has one axis fewer than x. With keepdims=True it keeps an axis of length 1, "
    "which broadcasts against the rows of x.",
    "(x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)",
))  # fmt: skip
def standardise(x):
    """Give every row mean 0 and standard deviation 1.

    x  (…, M), any number of axes: a row runs along the last one
    Returns (x − mean) / deviation, of the shape and dtype of x, with the mean and the standard
    deviation √(mean of (x − mean)²) of each row. No row is constant.
    """
    # BEGIN SOLUTION
    mean = x.mean(axis=-1, keepdims=True)
    deviation = x.std(axis=-1, keepdims=True)
    return (x - mean) / deviation
    # END SOLUTION


@standardise.check
def every_row_has_mean_0_and_deviation_1(yours, rng):
    x = 3 + 2 * rng.standard_normal((3, 5))
    same(yours(x), standardise(x), axes="row column")


@standardise.check
def square_arrays_are_no_exception(yours, rng):
    x = 3 + 2 * rng.standard_normal((4, 4))
    advice = "subtract from each row its own mean; look at how (4, 4) and (4,) broadcast"
    same(yours(x), standardise(x), axes="row column", advice=advice)


@standardise.check
def any_number_of_axes(yours, rng):
    for shape in ((5,), (2, 3, 5), (2, 4, 3, 5)):
        x = 3 + 2 * rng.standard_normal(shape)
        same(yours(x), standardise(x), f"the result for x of shape {shape}")


@standardise.check
def float32_stays_float32(yours, rng):
    x = rng.standard_normal((3, 5)).astype("float32")
    found = yours(x)
    same(found, standardise(x), axes="row column", tolerance=1e-5)
    assert found.dtype == x.dtype, (
        f"x is float32, the result {found.dtype}: was it cast, created without its\n"
        "dtype, or scaled by a NumPy number? np.sqrt(8) is a float64; 8**0.5 changes no dtype"
    )


standardise.mistake(
    "x.std(axis=-1, keepdims=True)",
    "x.std(axis=-1, keepdims=True, ddof=1)",
    "ddof=1 divides by M − 1; the task divides by M, as x.std(axis=-1) does",
)


@task(chapter=1, difficulty=2, minutes=10, hints=(
    "Write one shape below the other, aligned at the right, and find one rule for each column.",
    "Put ones in front of the shorter shape until both have the same length. Two lengths fit if "
    "they are equal or one of them is 1; the result has the other one.",
    "For n, m of the two: if n == 1 it is m; if m is 1 or n it is n; else raise ValueError. "
    "(max(n, m) would be wrong for one case: which?)",
))  # fmt: skip
def broadcast_shape(a, b):
    """The shape of x + y for x of shape a and y of shape b. Do it without NumPy.

    a, b  tuples of integers, not always of the same length
    Returns the shape as a tuple. Raises ValueError where the shapes do not fit.
    """
    # BEGIN SOLUTION
    ndim = max(len(a), len(b))
    a = (1,) * (ndim - len(a)) + a
    b = (1,) * (ndim - len(b)) + b
    shape = []
    for n, m in zip(a, b, strict=True):
        if n != m and 1 not in (n, m):
            raise ValueError(f"lengths {n} and {m} do not fit")
        shape.append(m if n == 1 else n)
    return tuple(shape)
    # END SOLUTION


def _broadcasts(yours, *pairs):
    for a, b in pairs:
        expected, found = np.broadcast_shapes(a, b), yours(a, b)
        if not isinstance(found, tuple) or found != expected:
            advice = ": a tuple, not a list" if found == list(expected) else ""
            raise AssertionError(f"shapes {a} and {b} make {expected}, not {found!r:.40}{advice}")


@broadcast_shape.check
def an_axis_of_length_1_is_stretched(yours, rng):
    n, m = map(int, rng.choice(np.arange(2, 9), 2, replace=False))
    _broadcasts(yours, ((n, m), (n, m)), ((n, 1), (n, m)), ((n, m), (1, m)), ((n, 1), (1, m)))


@broadcast_shape.check
def shapes_are_aligned_at_the_right(yours, rng):
    n, m, k = map(int, rng.choice(np.arange(2, 9), 3, replace=False))
    _broadcasts(yours, ((n, m), (m,)), ((m,), (k, n, m)), ((), (n, m)), ((k, 1, m), (n, 1)))


@broadcast_shape.check
def shapes_that_do_not_fit_are_refused(yours, rng):
    _broadcasts(yours, ((3, 4), (3, 4)))  # or all are
    for a, b in (((3, 4), (3, 5)), ((2, 3), (2,)), ((4, 2), (2, 4)), ((0,), (2,))):
        try:
            shape = yours(a, b)
        except NotImplementedError:
            raise
        except Exception as error:  # from another process it comes by its name
            found = f"{type(error).__name__}: {error}"
            assert "ValueError" in found, f"{a} and {b} should raise a ValueError, not\n{found:.80}"
        else:
            raise AssertionError(
                f"{a} and {b} do not fit: raise a ValueError, where yours returned {shape!r:.20}"
            )


@broadcast_shape.check
def a_length_of_0_is_a_length(yours, rng):
    _broadcasts(yours, ((0, 3), (1, 3)), ((1,), (0,)), ((4, 0), (4, 1)), ((0,), (0,)))


@task(chapter=1, difficulty=2, minutes=12, hints=(
    "Which entries of y = x + … does one entry of x reach? Its gradient is the sum of theirs. "
    "They run along two kinds of axes.",
    "First sum over the axes that x did not have, at the front. Then over those that have length "
    "1 in x, and keep them, with keepdims=True.",
    "dy = dy.sum(axis=tuple(range(dy.ndim - len(shape)))), then for each axis k with shape[k] == "
    "1: dy = dy.sum(axis=k, keepdims=True).",
))  # fmt: skip
def unbroadcast(dy, shape):
    """The gradient of broadcasting: sum dy over the places to which an entry was copied.

    dy     array: the gradient of the broadcast result, with its shape
    shape  tuple: the shape that the array had before; it broadcasts to that of dy
    Returns the gradient of the array before broadcasting, of that shape.
    """
    # BEGIN SOLUTION
    front = tuple(range(dy.ndim - len(shape)))
    dy = dy.sum(axis=front)
    for axis, length in enumerate(shape):
        if length == 1:
            dy = dy.sum(axis=axis, keepdims=True)
    return dy
    # END SOLUTION


@unbroadcast.check
def a_bias_gets_the_sum_over_tokens(yours, rng):
    dy = rng.standard_normal((3, 5))
    same(yours(dy, (5,)), dy.sum(axis=0), "the gradient of a bias (5,) for dy (3, 5)")


@unbroadcast.check
def axes_of_length_1_are_summed_and_kept(yours, rng):
    dy = rng.standard_normal((3, 5, 4))
    same(yours(dy, (3, 1, 4)), dy.sum(axis=1, keepdims=True), "dx of (3, 1, 4) for dy (3, 5, 4)")


@unbroadcast.check
def both_kinds_of_axes_at_once(yours, rng):
    for shape in ((1, 5), (4, 1), (1, 1), (1,), (2, 1, 5), (2, 4, 5)):
        dy = rng.standard_normal((2, 4, 5))
        expected = unbroadcast(dy, shape)
        same(yours(dy, shape), expected, f"dx of {shape} for dy (2, 4, 5)")


@unbroadcast.check
def even_a_single_number_has_a_gradient(yours, rng):
    dy = rng.standard_normal((2, 4))
    same(yours(dy, ()), dy.sum(), "dx of shape () for dy (2, 4)")
    same(yours(dy[:1], (1, 4)), dy[:1], "dx of (1, 4) for dy (1, 4)")
