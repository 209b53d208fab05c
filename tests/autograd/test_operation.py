"""User-defined operations: a value and its pullback, lifted to Tensors."""

import numpy as np
import pytest

import minimha as mh


def make():
    @mh.operation
    def scaled_sum(a, b=None, *, factor=2.0, wanted):
        """y = factor · Σ (a + b)."""
        asked.append(wanted)
        y = factor * (a if b is None else a + b).sum()
        return y, lambda dy: (
            np.full(a.shape, factor) * dy,
            None if b is None else np.full((5, 3), factor) * dy,
        )

    asked = []
    return scaled_sum, asked


def test_arrays_give_arrays_and_tensors_give_tensors():
    make()
    scaled_sum, _ = make()  # defined again, as in a notebook
    assert scaled_sum(np.ones(3)) == 6
    a, b = (mh.Tensor(np.ones(shape), requires_grad=True) for shape in ((5, 3), (5, 1)))
    y = scaled_sum(a, b=b, factor=3.0)
    assert isinstance(y, mh.Tensor)
    y.backward()
    np.testing.assert_array_equal(a.grad, np.full((5, 3), 3.0))
    np.testing.assert_array_equal(b.grad, np.full((5, 1), 9.0))


def test_with_pullback_undoes_broadcasting_and_returns_one_gradient_for_each_array():
    scaled_sum, _ = make()
    a, b = np.ones((5, 3)), np.ones((5, 1))
    _, pullback = scaled_sum.with_pullback(a, b)
    np.testing.assert_array_equal(pullback(1.0)[1], np.full((5, 1), 6.0))
    mh.gradcheck(scaled_sum, a, b)
    integers = np.ones(3, dtype=int)
    y, pullback = mh.ops.concat.with_pullback(integers, integers)
    assert pullback(y) == (None, None)


def test_an_operation_learns_which_gradients_are_needed():
    scaled_sum, asked = make()
    a, b = mh.Tensor(np.ones((5, 3))), mh.Tensor(np.ones((5, 1)), requires_grad=True)
    scaled_sum(a, b)
    scaled_sum(a.data)
    scaled_sum.with_pullback(a.data, b.data)
    with mh.no_grad():
        scaled_sum(a, b)
    assert asked == [(False, True), (False, False), (True, True), (False, False)]


def test_the_wanted_gradients_have_the_names_of_the_arrays():
    scaled_sum, asked = make()
    scaled_sum(np.ones(3))
    scaled_sum(b=mh.Tensor(np.ones(3), requires_grad=True), a=np.ones(3))
    assert [(w.a, w.b) for w in asked] == [(False, False), (False, True)]
    assert scaled_sum.wanted(b=True) == scaled_sum.wanted(False, True) == (False, True)

    @mh.operation
    def of_any_number(*xs, wanted):
        asked.append(wanted)
        return xs[0], lambda dy: (dy, *(None for _ in xs[1:]))

    of_any_number.with_pullback(np.ones(3), np.ones(3), wanted=(True, False))
    assert asked[-1] == (True, False)


def test_help_shows_the_arguments_of_the_caller():
    scaled_sum, _ = make()
    assert scaled_sum.__doc__ == "y = factor · Σ (a + b)."
    assert scaled_sum.__name__ == "scaled_sum"
    assert str(scaled_sum.__signature__) == "(a, b=None, *, factor=2.0)"


def test_float32_is_never_promoted_to_float64():
    x = mh.Tensor(np.ones(3, dtype="float32"), requires_grad=True)
    with pytest.raises(TypeError, match="float32 went in and float64 came out"):
        x * np.array([1, 2, 3])
    y = mh.functional.layer_norm(x, x, x, eps=np.float64(1e-5))
    assert y.dtype == np.float32


@pytest.mark.parametrize(("result", "message"), [
    (lambda x: 2 * x, r"wrong: an operation must return \(value, pullback\)"),
    (lambda x: [x, x], r"must return \(value, pullback\)"),
    (lambda x: (2 * x, None), r"must return \(value, pullback\)"),
    (lambda x: ([x, x], lambda a, b: (a,)), "several values as a tuple, not as a list"),
    (lambda x: (mh.Tensor(x), lambda dy: (dy,)), "a Tensor is not a NumPy array"),
    (lambda x: (2 * x, lambda dy: (2.0,)), r"wrong.*shape \(\) for an argument of \(2, 3\)"),
    (lambda x: (2 * x, lambda dy: (mh.Tensor(dy),)), "a Tensor is not a NumPy array"),
    (lambda x: (2 * x, lambda dy: (dy.T,)), r"wrong.*x: .*shape \(3, 2\) for .* of \(2, 3\)"),
    (lambda x: (2 * x, lambda dy: (dy.astype("f8"),)), "gradient of float64 for .* of float32"),
    (lambda x: (2 * x, lambda dy: ("dy",)), "wrong.*expected numbers"),
    (lambda x: (2 * x, lambda dy: [dy]), "wrong: .*a tuple of 1, .* of x, not a list"),
    (lambda x: (2 * x, lambda dy: (dy, dy)), "a tuple of 1, .* of x, not a tuple of 2"),
])  # fmt: skip
def test_results_of_the_wrong_type_are_named(result, message):
    @mh.operation
    def wrong(x):
        return result(x)

    x = mh.Tensor(np.ones((2, 3), dtype="float32"), requires_grad=True)
    with pytest.raises((TypeError, ValueError), match=message):
        wrong(x).sum().backward()


def test_a_pullback_with_too_few_gradients_is_refused():
    @mh.operation
    def product(a, b):
        return a * b, lambda dy: (dy * b,)

    @mh.operation
    def total(*arrays):
        return sum(arrays), lambda dy: (dy,)

    x = mh.Tensor([1.0], requires_grad=True)
    for function, names in ((product, "a, b"), (total, "array 0, array 1")):
        with pytest.raises(TypeError, match=f"one gradient for each of {names}, not a tuple of 1"):
            function(x, x).backward()


class MineError(ValueError):
    """An error class of the user's own."""


class ShapeError(ValueError):
    """An error whose constructor does not take the message."""

    def __init__(self, shape):
        super().__init__(f"bad shape {shape}")


def raises(error):
    raise error


@pytest.mark.parametrize(("function", "error", "message"), [
    (lambda x: raises(MineError("no")), MineError, r"odd: no \(x is numpy.ndarray \(3,\)"),
    (lambda x: raises(RuntimeError("no")), RuntimeError, "odd: no"),
    (lambda x: raises(ShapeError((2, 3))), ValueError, r"^odd: bad shape \(2, 3\) \(x is"),
    (lambda x: np.linalg.cholesky(x), np.linalg.LinAlgError, "odd: 1-dimensional array given"),
    (lambda x: 10**400 * x, OverflowError, "odd: int too large"),
    (lambda x: [0 for _, _ in x.reshape(1, 3)], ValueError, r"odd: too many values to unpack"),
])  # fmt: skip
def test_errors_inside_an_operation_keep_their_class(function, error, message):
    @mh.operation
    def odd(x):
        return function(x), lambda dy: (dy,)

    for x in (np.zeros(3), mh.Tensor(np.zeros(3), requires_grad=True)):
        with pytest.raises(error, match=message) as caught:
            odd(x)
        assert type(caught.value) is error


def test_an_operation_may_accept_any_keyword_arguments():
    @mh.operation
    def scaled(x, **settings):
        return x * settings["factor"], lambda dy: (dy * settings["factor"],)

    x = mh.Tensor([1.0, 2.0], requires_grad=True)
    scaled(x, factor=3.0).sum().backward()
    np.testing.assert_array_equal(x.grad, 3)
    with pytest.raises(TypeError, match="got 2 arguments by position"):
        scaled(x, 3.0)
