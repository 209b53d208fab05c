"""The kernel of linear attention and the gated delta rule agrees with the reference."""

from importlib.util import find_spec

import numpy as np
import pytest

import minimha as mh
from minimha.functional import implementations
from minimha.kernels import threads

pytest.importorskip("numba")
pytestmark = [
    pytest.mark.thorough,  # compiles for some seconds
    pytest.mark.skipif(
        not (find_spec("scipy") and find_spec("threadpoolctl")),
        reason="scipy and threadpoolctl are not installed",
    ),
]
H, D, DV = 3, 7, 5
RULES = pytest.mark.parametrize("rule", [mh.linear_attention, mh.gated_delta_rule])
BAR = {"float64": 1e-12, "float32": 3e-6}


def inputs(rule, length, dtype="float64", log_decay=-0.5):
    rng = np.random.default_rng(length)
    key = rng.standard_normal((2, H, length, D))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value, query = rng.standard_normal((2, H, length, DV)), rng.standard_normal(key.shape)
    beta = [rng.random((2, H, length))] * (rule is mh.gated_delta_rule)
    decay, state = log_decay * rng.random((2, H, length)), rng.standard_normal((2, H, D, DV))
    return [x.astype(dtype) for x in (query, key, value, *beta, decay, state)]


def both(rule, arrays, **form):
    """Values and gradients by the reference, and by the kernel."""
    results = []
    for implementation in ("reference", "fused"):
        with mh.implementation(implementation), np.errstate(all="ignore"):
            values, pull = rule.with_pullback(*arrays, **form)
            rng = np.random.default_rng(3)
            drawn = [rng.standard_normal(y.shape).astype(y.dtype) for y in values]
            results.append([*values, *pull(*drawn)])
    return results


def agree(reference, kernel, bar):
    for one, two in zip(reference, kernel, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            assert abs(one - two).max(initial=0) <= bar * abs(one).max(initial=0)


@pytest.fixture
def answers(monkeypatch):
    """Whether each call of the kernel returned a result."""
    found, fast = [], implementations.named("chunked", "kernel")

    def noted(*arrays, **settings):
        result = fast.function(*arrays, **settings)
        found.append(result is not None)
        return result

    known = implementations.implementations("chunked")
    monkeypatch.setitem(known, "kernel", implementations.Candidate(noted))
    return found


@RULES
@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize(("length", "chunk"), [(150, 64), (128, 64), (13, 5), (4, 3)])
def test_it_agrees_with_the_reference(rule, dtype, length, chunk, answers):
    for log_decay in (-0.5, -30.0, -2000.0):
        arrays = inputs(rule, length, dtype, log_decay)
        agree(*both(rule, arrays, chunk=chunk), BAR[dtype])
    agree(*both(rule, [*arrays[:-2], None, None], chunk=chunk), BAR[dtype])
    assert answers == [True] * 4  # otherwise the reference was compared with itself


@RULES
def test_any_number_of_threads_gives_the_same_bits(rule):
    arrays, results = inputs(rule, 4000, "float32"), []
    for number in (1, 2):
        with threads.limit(number):
            results.append(both(rule, arrays)[1])
    agree(*results, 0.0)


@RULES
def test_other_strides_and_empty_arrays_give_the_same(rule):
    arrays = inputs(rule, 70)
    strided = [np.asfortranarray(np.repeat(x, 2, axis=0))[::2] for x in arrays]
    strided[-2] = np.broadcast_to(strided[-2][..., :1], strided[-2].shape)
    agree(*both(rule, strided), BAR["float64"])
    agree(*both(rule, [x[:0] for x in arrays]), 0.0)


@RULES
def test_a_nan_reaches_the_same_entries_as_in_the_reference(rule):
    for name in range(4):
        arrays = inputs(rule, 70)
        arrays[name][0, 1, 40] = np.nan
        for one, two in zip(*both(rule, arrays), strict=True):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(two))
