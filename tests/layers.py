"""Layers with weights far from their initial values, and their gradients along random directions:
four evaluations per input, so that every setting of a large model can be checked."""

import copy

import numpy as np
import pytest
from attention_paths import BARS

import minimha as mh

STEP = 3e-4


def drawn(rng, settings=(), d_model=12, num_heads=4, dtype="float64"):
    """Multi-head attention with random parameters, so that none is zero."""
    return far(
        mh.MultiHeadAttention(d_model, num_heads, rng=rng, dtype=dtype, **dict(settings)), rng
    )


def far(module, rng):
    """The module with parameters far from their initial values, so that none is zero."""
    for p in module.parameters():
        p.data = (p.data + 0.3 * rng.standard_normal(p.shape)).astype(p.data.dtype)
    return module


def same_bits(one, other):
    """Both dictionaries hold the same arrays, bit for bit."""
    assert one.keys() == other.keys()
    for name, x in one.items():
        y = other[name]
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name


def same_up_to_rounding(one, other):
    """Two outputs of one model agree to the bar of attention, relative to their largest entry.

    The weights of the two models may lie in memory in different orders, and a CPU may then add up
    the terms of a product in different orders.
    """
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert abs(one - other).max() <= BARS[str(one.dtype)] * abs(other).max()


def close(ours, theirs, bound, least=0.0):
    """An array is torch's Tensor, to bound relative to its largest entry, or to least."""
    theirs = theirs.detach().numpy()
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert abs(ours - theirs).max() <= bound * max(abs(theirs).max(), least)


def of_gradients(module):
    """A copy of a module with its gradients in place of its weights."""
    copied = copy.deepcopy(module)
    for p in copied.parameters():
        p.data = p.grad
    return copied


def reasons(call, *arguments, match=": ", **settings):
    """The list of faults in a ValueError."""
    with pytest.raises(ValueError, match=match) as failure:
        call(*arguments, **settings)
    return str(failure.value).partition(": ")[2].split("; ")


def outcome(mha, *inputs, **settings):
    """The output and the gradients of the inputs; the module keeps those of the weights."""
    mha.zero_grad()
    leaves = [mh.Tensor(x, requires_grad=True) for x in inputs]
    y = mha(*leaves, **settings)
    y.backward(np.random.default_rng(3).standard_normal(y.shape))
    return [y.data, *(leaf.grad for leaf in leaves)]


def assert_gradients(f, inputs, module, rng, bound=1e-9):
    """The gradients of L = Σ c · f(*inputs) by the inputs and by each parameter of module.

    For a random direction v of unit length, ⟨gradient, v⟩ is the slope of L along v, computed by
    fourth-order differences. bound is relative to the norm of the gradient, or, if that is small
    (b_k's is zero), to a thousandth of the largest norm.
    """
    leaves = [mh.Tensor(x, requires_grad=True) for x in inputs]
    named = {f"input {k}": leaf for k, leaf in enumerate(leaves)} | dict(module.named_parameters())
    y = f(*leaves)
    c = rng.standard_normal(y.shape)
    (y * c).sum().backward()
    longest = max(np.linalg.norm(p.grad) for p in named.values())
    for name, p in named.items():
        v, x = rng.standard_normal(p.shape), p.data
        v /= np.linalg.norm(v)

        def loss(h):
            p.data = x + h * v  # noqa: B023
            with mh.no_grad():
                return (f(*leaves).data * c).sum()

        slope = (8 * (loss(STEP) - loss(-STEP)) - (loss(2 * STEP) - loss(-2 * STEP))) / (12 * STEP)
        p.data = x
        error = abs((p.grad * v).sum() - slope)
        assert error <= bound * max(np.linalg.norm(p.grad), longest / 1000), name
