"""Correct gradients of awkward functions pass, and the same ones damaged fail.

Inputs of all sizes, in float64 and float32: where differences need small steps, where they need
large ones, where an output dwarfs its derivative, where rounding is all there is.
"""

import numpy as np
import pytest

import minimha as mh
from minimha import functional, ops

R = np.random.default_rng(11)


def n(*shape):
    return R.standard_normal(shape)


def chain(x):
    """Eight layers of tanh."""
    ys = [x]
    for _ in range(8):
        ys.append(np.tanh(1.5 * ys[-1]) + 0.1 * ys[-1])

    def pullback(dy):
        for y in reversed(ys[:-1]):
            dy = dy * (1.5 * (1 - np.tanh(1.5 * y) ** 2) + 0.1)
        return (dy,)

    return ys[-1], pullback


def size(x):
    """|x|, which is not analytic."""
    return np.abs(x), lambda dy: (dy * np.sign(x),)


AWKWARD = {
    "attention, tiny": (functional.attention, 1e-4 * n(2, 3, 4), 1e-4 * n(2, 5, 4), n(2, 5, 3)),
    "attention, large scores": (functional.attention, 6 * n(2, 3, 4), 3 * n(2, 5, 4), n(2, 5, 3)),
    "layer norm, tiny": (functional.layer_norm, 1e-3 * n(3, 6), n(6), n(6)),
    "layer norm, far from zero": (functional.layer_norm, 1e3 + n(3, 6), n(6), n(6)),
    "layer norm, huge": (functional.layer_norm, 1e6 * n(3, 6), n(6), n(6)),
    "log, tiny": (ops.log, 1e-6 * (0.5 + R.random(5))),
    "log, of all sizes": (ops.log, np.array([100.0, 0.01])),
    "sqrt, of all sizes": (ops.sqrt, np.array([100.0, 0.01])),
    "tanh, flat and steep": (ops.tanh, np.array([1e3, 1.0])),
    "divide, by tiny": (ops.divide, n(5), 1e-6 * (0.5 + R.random(5))),
    "pow, tiny": (ops.pow, 1e-6 * (0.5 + R.random(5)), n(5)),
    "max, tiny": (ops.max, 1e-6 * n(5)),
    "add, to large": (ops.add, 1e5 * n(8, 4), n(4)),
    "gelu, far below zero": (functional.gelu, R.uniform(-6, -5, 4)),
    "chain": (chain, n(6)),
    "size": (size, n(6)),
    "size, tiny": (size, 1e-6 * n(6)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", AWKWARD.values(), ids=AWKWARD)
def test_correct_passes_and_damaged_fails(case, dtype):
    f, *inputs = case
    inputs = [x.astype(dtype) for x in inputs]
    call = getattr(f, "with_pullback", f)
    for seed in range(3):
        mh.gradcheck(f, *inputs, rng=seed)
    for damaged in range(len(inputs)):
        for factor in (0, 2):

            def wrong(*arrays):
                value, pullback = call(*arrays)
                return value, lambda *dy: tuple(
                    dx * arrays[k].dtype.type(factor) if k == damaged else dx  # noqa: B023
                    for k, dx in enumerate(pullback(*dy))
                )

            with pytest.raises(mh.GradcheckError, match=f"of input {damaged} is wrong"):
                mh.gradcheck(wrong, *inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: functional.softmax(x + 1e3),
        lambda x: functional.softmax(x).sum() - 3.0,
        lambda x: ops.log(functional.softmax(x).sum(axis=-1)),
        lambda x: functional.softmax(20.0 * x),
        lambda x: 1.0 + 0.0 * x,
    ],
)
def test_rounding_against_rounding_raises_no_alarm(f, dtype):
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((3, 5)).astype(dtype)
        mh.gradcheck(f, mh.Tensor(x), rng=seed)


@pytest.mark.parametrize("power", [2, 3])
def test_a_flat_point_is_a_zero(power):
    report = mh.gradcheck(ops.pow, np.zeros(3), power)
    assert {row.note for row in report.rows} == {"structural zero"}


def test_a_bias_of_minus_infinity_can_be_checked(rng):
    bias = np.where(rng.random((3, 5)) < 0.4, -np.inf, 0.5)
    shapes = [(2, 3, 4), (2, 5, 4), (2, 5, 3)]
    mh.gradcheck(functional.attention, *(rng.standard_normal(s) for s in shapes), bias)


def test_what_noise_leaves_open_is_said():
    """In float32, a million away from zero, layer norm has hardly a digit left."""
    x = (1e6 + np.random.default_rng(0).standard_normal((3, 6))).astype("float32")
    weight, bias = np.ones((2, 6), dtype="float32")
    report = mh.gradcheck(functional.layer_norm, x, weight, bias)
    assert {row.note for row in report.rows if row.input == "x"} == {"lost in rounding"}
