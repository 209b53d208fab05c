"""An operation of one's own: a value and its pullback, lifted to Tensors."""

import numpy as np
import pytest

import minimha as mh


def make():
    @mh.operation
    def scaled_sum(a, b=None, *, factor=2.0, wanted):
        """y = factor · Σ (a + b)."""
        told.append(wanted)
        y = factor * (a if b is None else a + b).sum()
        return y, lambda dy: (
            np.full(a.shape, factor) * dy,
            None if b is None else np.full((5, 3), factor) * dy,
        )

    told = []
    return scaled_sum, told


def test_arrays_give_arrays_and_tensors_give_tensors():
    scaled_sum, _ = make()
    assert scaled_sum(np.ones(3)) == 6
    x = mh.Tensor(np.ones((5, 3)), requires_grad=True)
    y = scaled_sum(x, factor=3.0)
    assert isinstance(y, mh.Tensor)
    y.backward()
    np.testing.assert_array_equal(x.grad, 3)


def test_broadcasting_is_undone_in_the_wrapper_and_on_the_tape():
    scaled_sum, _ = make()
    a, b = np.ones((5, 3)), np.ones((5, 1))
    _, pullback = scaled_sum.with_pullback(a, b)
    np.testing.assert_array_equal(pullback(1.0)[1], np.full((5, 1), 6.0))
    mh.gradcheck(scaled_sum, a, b)
    integers = np.ones(3, dtype=int)
    y, pullback = mh.ops.concat.with_pullback(integers, integers)
    assert pullback(y) == (None, None)


def test_it_is_told_which_gradients_are_wanted():
    scaled_sum, told = make()
    a, b = mh.Tensor(np.ones((5, 3))), mh.Tensor(np.ones((5, 1)), requires_grad=True)
    scaled_sum(a, b)
    scaled_sum(a.data)
    scaled_sum.with_pullback(a.data, b.data)
    with mh.no_grad():
        scaled_sum(a, b)
    assert told == [(False, True), (False, False), (True, True), (False, False)]


def test_it_may_be_defined_again_as_in_a_notebook():
    make()
    make()


def test_help_shows_what_a_caller_passes():
    scaled_sum, _ = make()
    assert scaled_sum.__doc__ == "y = factor · Σ (a + b)."
    assert scaled_sum.__name__ == "scaled_sum"
    assert str(scaled_sum.__signature__) == "(a, b=None, *, factor=2.0)"


def test_a_pullback_with_too_few_gradients_is_refused():
    @mh.operation
    def forgets(a, b):
        return a * b, lambda dy: (dy * b,)

    x = mh.Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(
        TypeError, match=r"forgets: .* one gradient for each of a, b, not a tuple of 1"
    ):
        forgets(x, x).sum().backward()


def test_a_gradient_that_no_broadcasting_explains_is_refused():
    """dyᵀ x in place of xᵀ dy: of the right size, and scrambled if it were reshaped."""

    @mh.operation
    def product(x, w):
        return x @ w, lambda dy: (dy @ w.T, dy.T @ x)

    x, w = mh.Tensor(np.ones((4, 3))), mh.Tensor(np.ones((3, 5)), requires_grad=True)
    with pytest.raises(ValueError, match=r"shape \(5, 3\) for an argument of \(3, 5\)"):
        product(x, w).sum().backward()


def test_arrays_may_be_named():
    scaled_sum, _ = make()
    b = mh.Tensor(np.ones((5, 1)), requires_grad=True)
    scaled_sum(np.ones((5, 3)), b=b).backward()
    np.testing.assert_array_equal(b.grad, np.full((5, 1), 6.0))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], "x", np.sin])
def test_what_is_no_array_is_named(wrong):
    with pytest.raises(TypeError, match="add: b must be an array, not"):
        mh.Tensor([1.0, 2.0]) + wrong


def test_no_float32_becomes_a_float64_on_the_way():
    x = mh.Tensor(np.ones(3, dtype="float32"), requires_grad=True)
    with pytest.raises(TypeError, match="float32 went in and float64 came out"):
        x * np.array([1, 2, 3])
    y = mh.functional.layer_norm(x, x, x, eps=np.float64(1e-5))
    assert y.dtype == np.float32


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: 2 * x, r"must return \(value, pullback\)"),
        (lambda x: (2 * x, None), r"must return \(value, pullback\)"),
        (lambda x: ([x, x], lambda a, b: (a,)), "several values as a tuple, not as a list"),
        (lambda x: (mh.Tensor(x), lambda dy: (dy,)), "a Tensor is not a NumPy array"),
        (lambda x: (2 * x, lambda dy: (2.0,)), r"shape \(\) for an argument of \(3,\)"),
        (lambda x: (2 * x, lambda dy: (mh.Tensor(dy),)), "a Tensor is not a NumPy array"),
    ],
)
def test_results_of_the_wrong_kind_are_named(result, message):
    @mh.operation
    def wrong(x):
        return result(x)

    x = mh.Tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises((TypeError, ValueError), match=message):
        wrong(x).sum().backward()


class MineError(ValueError):
    """An error of somebody's own."""


class ShapeError(ValueError):
    """One that is not made of its text."""

    def __init__(self, shape):
        super().__init__(f"bad shape {shape}")


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: raises(MineError("no")), MineError, r"odd: no \(x is numpy.ndarray \(3,\)"),
        (lambda x: raises(RuntimeError("no")), RuntimeError, "odd: no"),
        (lambda x: raises(ShapeError((2, 3))), ValueError, r"^odd: bad shape \(2, 3\) \(x is"),
        (lambda x: np.linalg.cholesky(x), np.linalg.LinAlgError, "odd: 1-dimensional array given"),
        (lambda x: 10**400 * x, OverflowError, "odd: int too large"),
        (lambda x: [0 for _, _ in x.reshape(1, 3)], ValueError, r"odd: too many values to unpack"),
    ],
)
def test_errors_within_keep_their_class(function, error, message):
    @mh.operation
    def odd(x):
        return function(x), lambda dy: (dy,)

    for x in (np.zeros(3), mh.Tensor(np.zeros(3), requires_grad=True)):
        with pytest.raises(error, match=message) as caught:
            odd(x)
        assert type(caught.value) is error


def test_an_operation_may_take_any_settings():
    @mh.operation
    def scaled(x, **settings):
        return x * settings["factor"], lambda dy: (dy * settings["factor"],)

    x = mh.Tensor([1.0, 2.0], requires_grad=True)
    scaled(x, factor=3.0).sum().backward()
    np.testing.assert_array_equal(x.grad, 3)
    with pytest.raises(TypeError, match="got 2 arguments by position"):
        scaled(x, 3.0)


def test_an_operation_of_many_arrays_names_them():
    @mh.operation
    def total(*arrays):
        return sum(arrays), lambda dy: (dy,)

    x = mh.Tensor([1.0], requires_grad=True)
    with pytest.raises(
        TypeError, match="one gradient for each of array 0, array 1, not a tuple of 1"
    ):
        total(x, x).backward()
    with pytest.raises(TypeError, match="forgets: an operation must return"), mh.no_grad():
        mh.operation(forgets)(x)


def forgets(x):
    return [x, x]
