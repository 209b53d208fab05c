"""Tasks of chapter 01: arrays, shapes, broadcasting."""

import numpy as np

from ..checks.comparisons import same
from ..checks.error_messages import text_of
from ..checks.shown import shown
from ..checks.task import task


@task(chapter=1, difficulty=1, minutes=5, hints=(
    "Along which axis do you average to get the mean of one row? Count the axis from the back, "
    "as -1, and your code works with any number of axes in front.",
    "x.mean(axis=-1) has one axis fewer than x. keepdims=True keeps that axis with length 1, so "
    "that the means broadcast against the rows of x.",
    "(x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)",
))  # fmt: skip
def standardise(x):
    """Give every row mean 0 and standard deviation 1.

    x  (…, M), with any number of axes; a row runs along the last axis
    Returns (x − mean) / deviation, with the shape and dtype of x. The mean and the standard
    deviation, √(mean of (x − mean)²), are those of each row. No row is constant.
    """
    # BEGIN SOLUTION
    mean = x.mean(axis=-1, keepdims=True)
    deviation = x.std(axis=-1, keepdims=True)
    return (x - mean) / deviation
    # END SOLUTION


def _same_rows(yours, rng, *shape):
    x, axes = 3 + 2 * rng.standard_normal(shape), "row column" if len(shape) == 2 else None
    same(yours(x), standardise(x), f"the result for x of shape {shape}", axes)


standardise.case("every row has mean 0 and deviation 1", _same_rows, (3, 5))
standardise.case("square arrays work too", _same_rows, (4, 4))
standardise.case("any number of axes", _same_rows, (5,), (2, 3, 5), (2, 4, 3, 5))


@standardise.check(hidden=True)
def float32_stays_float32(yours, rng):
    x = rng.standard_normal((3, 5)).astype("float32")
    found = yours(x)
    same(found, standardise(x), axes="row column", tolerance=1e-5)
    assert found.dtype == x.dtype, (
        f"the result is {found.dtype}; it should be float32, as x is: do you cast it, create an\n"
        "array without dtype=x.dtype, or scale by a NumPy number? np.sqrt(8) is float64;\n"
        "8**0.5 keeps float32"
    )


@task(chapter=1, difficulty=2, minutes=10, hints=(
    "Write one shape below the other, aligned at the right. Which rule gives the length of the "
    "result in each column?",
    "Put ones in front of the shorter shape until both have the same length. Two lengths fit if "
    "they are equal or if one of them is 1; the result then has the other length.",
    "For each pair n, m: if n == 1 the length is m; if m is 1 or m == n it is n; otherwise raise "
    "ValueError. (max(n, m) is wrong in one case. Which?)",
))  # fmt: skip
def broadcast_shape(a, b):
    """The shape of x + y, for x of shape a and y of shape b. Do not use NumPy.

    a, b  tuples of integers; one may be longer than the other
    Returns the shape as a tuple. Raises ValueError if the shapes do not broadcast.
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
            a_list = ", a tuple, not a list" if found == list(expected) else ""
            raise AssertionError(
                f"yours returns {shown(found):.40} for {a} and {b};\n"
                f"it should return {expected}{a_list}"
            )


@broadcast_shape.check
def an_axis_of_length_1_is_stretched(yours, rng):
    n, m = map(int, rng.choice(np.arange(2, 9), 2, replace=False))
    _broadcasts(yours, ((n, m), (n, m)), ((n, 1), (n, m)), ((n, m), (1, m)), ((n, 1), (1, m)))


@broadcast_shape.check
def shapes_are_aligned_at_the_right(yours, rng):
    n, m, k = map(int, rng.choice(np.arange(2, 9), 3, replace=False))
    _broadcasts(yours, ((n, m), (m,)), ((m,), (k, n, m)), ((), (n, m)), ((k, 1, m), (n, 1)))


@broadcast_shape.check
def shapes_that_do_not_fit_raise_an_error(yours, rng):
    _broadcasts(yours, ((3, 4), (3, 4)))  # an answer that always raises an error must not pass
    for a, b in (((3, 4), (3, 5)), ((2, 3), (2,)), ((4, 2), (2, 4)), ((0,), (2,))):
        try:
            shape = yours(a, b)
        except NotImplementedError:
            raise
        except Exception as error:  # an error from another process arrives as text, after its name
            found = f"{type(error).__name__}: {text_of(error)}"
            assert "ValueError" in found, (
                f"for {a} and {b}, yours raises\n{found:.60};\nit should raise a ValueError"
            )
        else:
            raise AssertionError(
                f"yours returns {shown(shape):.20} for {a} and {b}; it should raise a\n"
                "ValueError, as two lengths differ and neither is 1"
            )


@broadcast_shape.check(hidden=True)
def a_length_may_be_0(yours, rng):
    _broadcasts(yours, ((0, 3), (1, 3)), ((1,), (0,)), ((4, 0), (4, 1)), ((0,), (0,)))


@task(chapter=1, difficulty=2, minutes=12, hints=(
    "Broadcasting copies one entry of x to several entries of y. The gradient of that entry is "
    "the sum of the gradients of its copies. Along which two kinds of axes are they?",
    "First sum over the axes that x does not have: they are at the front. Then sum over each axis "
    "that has length 1 in x, and keep that axis with keepdims=True.",
    "dy = dy.sum(axis=tuple(range(dy.ndim - len(shape)))), then for each axis k with shape[k] == "
    "1: dy = dy.sum(axis=k, keepdims=True).",
))  # fmt: skip
def unbroadcast(dy, shape):
    """The gradient of broadcasting: for each entry, the sum of dy over its copies.

    dy     array, the gradient of the result of broadcasting
    shape  tuple, the shape of the array before broadcasting; it broadcasts to dy.shape
    Returns the gradient of the array before broadcasting, an array of that shape.
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


@unbroadcast.check(hidden=True)
def a_single_number_works_too(yours, rng):
    dy = rng.standard_normal((2, 4))
    same(yours(dy, ()), dy.sum(), "dx of shape () for dy (2, 4)")
    same(yours(dy[:1], (1, 4)), dy[:1], "dx of (1, 4) for dy (1, 4)")
