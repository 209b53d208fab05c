"""Functions for networks: tests beyond the values and gradients of the records."""

import math
import sys

import numpy as np
import pytest

import minimha as mh
from minimha.functional import linear, rms_norm, rope
from minimha_autograd import backend

B, M = 2, 8


def test_rms_norm_of_a_row_of_zeros_has_a_finite_gradient():
    y, pull = rms_norm.with_pullback(np.zeros((1, M)), np.ones(M))
    dx, dweight = pull(np.ones((1, M)))
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_allclose(dx, 1e3, rtol=1e-12)  # 1/√eps
    np.testing.assert_array_equal(dweight, 0)


def test_the_module_uses_its_weight_and_eps(rng):
    norm = mh.RMSNorm(M, eps=0.5, dtype="float64")
    norm.weight.data[:] = rng.standard_normal(M)
    x = rng.standard_normal((B, M))
    np.testing.assert_array_equal(norm(x).data, rms_norm(x, norm.weight.data, eps=0.5))
    assert mh.RMSNorm(M).weight.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("f", "settings"),
    [(rms_norm, {}), (rope, {"offset": 4097}), (rope, {"offset": 4097, "interleaved": True})],
)
def test_half_precision_is_computed_in_float32_and_rounded_once(f, settings, dtype, rng, place):
    """300² is too large for float16, and 3000 terms of a gradient are too many for bfloat16."""
    if not hasattr(place.xp, dtype):
        pytest.skip(f"no {dtype} there")
    xp, half = place.xp, getattr(place.xp, dtype)
    arrays = [300 * rng.standard_normal((3000, M)), rng.random(M)][: 1 if f is rope else 2]
    dy, *inputs = (xp.astype(place(a), half) for a in (1 + rng.random((3000, M)), *arrays))
    y, pull = f.with_pullback(*inputs, **settings)
    wide, pull_wide = f.with_pullback(*(xp.astype(a, xp.float32) for a in inputs), **settings)
    results = [wide, *pull_wide(xp.astype(dy, xp.float32))]
    for one, other in zip([y, *pull(dy)], results, strict=True):
        assert one.dtype == half
        rounded = backend.to_numpy(xp.astype(other, half))
        np.testing.assert_array_equal(backend.to_numpy(one), rounded)
    assert np.isfinite(backend.to_numpy(y)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_matrix_is_multiplied_as_a_wide_one(dtype, rng, monkeypatch):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    module = sys.modules["minimha.functional.linear"]  # the name is that of the function, too
    monkeypatch.setattr(module, "_BLOCK", 20)  # two columns at a time
    x, dy = rng.standard_normal((B, 3, M)), rng.standard_normal((B, 3, 5))
    w = rng.standard_normal((M, 5)).astype(dtype)
    narrow, wide = (linear.with_pullback(x, a) for a in (w, w.astype("float64")))
    np.testing.assert_allclose(narrow[0], wide[0], rtol=1e-13)
    (dx, dw), (wide_dx, wide_dw) = narrow[1](dy)[:2], wide[1](dy)[:2]
    assert dx.dtype == "float64"
    assert dw.dtype == dtype
    np.testing.assert_allclose(dx, wide_dx, rtol=1e-13)
    rounding = 2**-8 if dtype == "bfloat16" else 2**-11
    np.testing.assert_allclose(dw.astype(float), wide_dw, rtol=rounding)
    with pytest.raises(TypeError, match="nothing is converted silently"):
        linear(x, w.astype("float32"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_is_accurate_far_from_zero(dtype):
    """1 + tanh u loses its digits where tanh u is close to −1."""
    x = np.array([-5.0, -1e30, 1e30, 0.0], dtype=dtype)
    y, pull = mh.functional.gelu.with_pullback(x)
    u = math.sqrt(2 / math.pi) * (-5 - 0.044715 * 125)
    expected = [-5 / (1 + math.exp(-2 * u)), 0, 1e30, 0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(pull(np.ones_like(x))[0][1:], [0, 1, 0.5], atol=1e-12)


def test_each_row_of_the_gradient_of_cross_entropy_sums_to_0_and_no_entry_exceeds_1_over_n(rng):
    N, V = 7, 5
    for size in (0.1, 10.0, 1000.0):
        logits, targets = size * rng.standard_normal((N, V)), rng.integers(V, size=N)
        _, pullback = mh.functional.cross_entropy.with_pullback(logits, targets)
        dlogits, _ = pullback(1.0)
        np.testing.assert_allclose(dlogits.sum(axis=1), 0, atol=1e-15)
        assert abs(dlogits).max() <= 1 / N


def test_an_infinite_loss_may_have_a_finite_gradient_and_that_of_nan_is_nan():
    targets = np.array([1, 0])
    infinite = np.array([[0, -np.inf], [0, 0]])
    loss, pullback = mh.functional.cross_entropy.with_pullback(infinite, targets)
    assert loss == np.inf
    np.testing.assert_array_equal(pullback(1.0)[0], [[0.5, -0.5], [-0.25, 0.25]])
    logits = np.array([[0, np.nan], [0, 0]])
    loss, pullback = mh.functional.cross_entropy.with_pullback(logits, targets)
    assert np.isnan(loss)
    assert np.isnan(pullback(1.0)[0][0]).all()


def test_layer_norm_ignores_a_shift_and_without_eps_a_scale_of_each_row(rng):
    x, weight, bias = rng.standard_normal((3, 5)), rng.standard_normal(5), rng.standard_normal(5)
    y, pullback = mh.functional.layer_norm.with_pullback(x, weight, bias, eps=0.0)
    moved = mh.functional.layer_norm(3 * x + 2, weight, bias, eps=0.0)
    np.testing.assert_allclose(moved, y, rtol=0, atol=1e-13)
    dx, *_ = pullback(rng.standard_normal((3, 5)))
    x_hat = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    np.testing.assert_allclose(dx.sum(axis=1), 0, atol=1e-13)
    np.testing.assert_allclose((dx * x_hat).sum(axis=1), 0, atol=1e-13)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_layer_norm_refuses_another_width_and_no_axis(shape):
    with pytest.raises(ValueError, match="weight and bias must have the width of x"):
        mh.functional.layer_norm(np.ones(shape), np.ones(4))


def test_gates_of_large_negative_numbers_are_those_of_the_last_one_that_counts():
    for gate, last, bound in (
        (mh.functional.gelu, -10.0, 1e-36),
        (mh.functional.silu, -80.0, 1e-32),
    ):
        y = gate(np.array([last, 2 * last, -np.inf]))
        assert abs(y[0]) < bound
        np.testing.assert_array_equal(y, y[0])


def test_the_derivatives_of_the_mean_and_the_deviation_that_chapter_09_uses(rng):
    M, h = 5, 1e-30
    x, j = rng.standard_normal(M), 3
    moved = x + 1j * h * (np.arange(M) == j)
    mu, sigma = moved.mean(), np.sqrt(((moved - moved.mean()) ** 2).mean() + 0.1)
    delta = (np.arange(M) == j) - 1 / M
    assert mu.imag / h == pytest.approx(1 / M)
    of_square = 2 * sigma.real * sigma.imag / h
    assert of_square == pytest.approx(2 / M * ((x - x.mean()) * delta).sum())
    assert of_square == pytest.approx(2 / M * (x[j] - x.mean()))


def test_targets_of_a_narrow_dtype_work_with_more_classes_than_it_can_count(rng):
    logits, targets = rng.standard_normal((4, 300)), np.array([1, 255, 7, 250])
    wide = mh.functional.cross_entropy(logits, targets)
    assert mh.functional.cross_entropy(logits, targets.astype("uint8")) == wide
    table = rng.standard_normal((300, 2))
    rows = mh.functional.embedding(table, targets.astype("uint8"))
    np.testing.assert_array_equal(rows, table[targets])


def test_a_mask_may_have_no_axes():
    x = np.arange(3.0)
    for seen in (True, False):
        expected = mh.functional.softmax(x) if seen else np.zeros(3)
        np.testing.assert_array_equal(mh.functional.softmax(x, mask=np.asarray(seen)), expected)
