"""Root mean square normalisation."""

import numpy as np
import pytest

import minimha as mh
from minimha.functional import layer_norm, rms_norm
from minimha_autograd import backend

B, T, M = 2, 3, 8


def test_by_hand():
    """√((3² + 4²)/2) = √12.5"""
    y = rms_norm(np.array([3.0, -4.0]), np.array([1.0, 10.0]), eps=0.0)
    np.testing.assert_allclose(y, [3 / 12.5**0.5, -40 / 12.5**0.5], rtol=1e-15)


def test_the_size_of_a_row_does_not_matter_but_its_sign_does(rng):
    x, weight = rng.standard_normal((B, T, M)), rng.standard_normal(M)
    y = rms_norm(x, weight, eps=0.0)
    np.testing.assert_allclose(rms_norm(1e6 * x, weight, eps=0.0), y, rtol=1e-14)
    np.testing.assert_allclose(rms_norm(-x, weight), -rms_norm(x, weight), rtol=0)


def test_the_gradient_is_at_right_angles_to_the_row(rng):
    """Since growing a row changes nothing."""
    x, weight, dy = rng.standard_normal((3, M))
    _, pull = rms_norm.with_pullback(x, weight, eps=0.0)
    dx, _ = pull(dy)
    assert abs(dx @ x) <= 1e-14 * np.linalg.norm(dx) * np.linalg.norm(x)
    assert np.linalg.norm(dx) > 0.1


def test_without_a_mean_it_is_layer_normalisation(rng):
    x, weight = rng.standard_normal((B, T, M)), rng.standard_normal(M)
    x -= x.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        rms_norm(x, weight, eps=1e-3), layer_norm(x, weight, np.zeros(M), eps=1e-3), atol=1e-14
    )
    assert abs(rms_norm(x + 1, weight) - layer_norm(x, weight, np.zeros(M))).max() > 0.1


def test_a_row_of_zeros_stays_and_its_gradient_is_finite():
    y, pull = rms_norm.with_pullback(np.zeros((1, M)), np.ones(M))
    dx, dweight = pull(np.ones((1, M)))
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_allclose(dx, 1e3, rtol=1e-12)  # 1/√eps
    np.testing.assert_array_equal(dweight, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_up_in_float32(rng, place, dtype):
    """300² is too large for float16, and 3000 terms of a gradient are too many for bfloat16."""
    if not hasattr(place.xp, dtype):
        pytest.skip(f"no {dtype} there")
    xp, half = place.xp, getattr(place.xp, dtype)
    x, dy = 300 * rng.standard_normal((3000, M)), 1 + rng.random((3000, M))
    x, dy, weight = (xp.astype(place(a), half) for a in (x, dy, rng.random(M)))
    ours, pull = rms_norm.with_pullback(x, weight)
    wide = [xp.astype(a, xp.float32) for a in (x, weight, dy)]
    theirs, pull_wide = rms_norm.with_pullback(*wide[:2])
    for one, other in zip([ours, *pull(dy)], [theirs, *pull_wide(wide[2])], strict=True):
        assert one.dtype == half
        np.testing.assert_array_equal(
            backend.to_numpy(one), backend.to_numpy(xp.astype(other, half))
        )
    assert np.isfinite(backend.to_numpy(ours)).all()


def test_the_module_holds_its_weight_and_eps(rng):
    norm = mh.RMSNorm(M, eps=0.5, dtype="float64")
    norm.weight.data[:] = rng.standard_normal(M)
    x = rng.standard_normal((B, M))
    y = norm(mh.Tensor(x))
    np.testing.assert_array_equal(y.data, rms_norm(x, norm.weight.data, eps=0.5))
    y.sum().backward()
    assert norm.weight.grad.shape == (M,)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    assert mh.RMSNorm(M).weight.dtype == np.float32
