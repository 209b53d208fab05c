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
    with pytest.raises(ValueError, match="shorter"):
        forgets(x, x).sum().backward()
    with pytest.raises(mh.GradcheckError, match="1 gradients for 2 inputs"):
        mh.gradcheck(forgets, x.data, x.data)
