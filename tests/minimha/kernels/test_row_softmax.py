"""The steps of softmax on a row, with NaN of either sign and infinities."""

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")
steps = pytest.importorskip("minimha.kernels.cpu.row_softmax")
exponential = pytest.importorskip("minimha.kernels.cpu.exp")
registers = pytest.importorskip("minimha.kernels.cpu.registers")
LENGTHS = 1, 2, 3, 7, 8, 16, 17, 33, 100
NONFINITE = math.nan, math.copysign(math.nan, -1), math.inf, -math.inf
both_types = pytest.mark.parametrize("dtype", ["float32", "float64"])


def with_one(number, dtype, *others):
    """Rows of every length with this number at every position."""
    for length in LENGTHS:
        for place in range(length):
            row = np.resize(np.asarray([*others], dtype), length)
            row[place] = number
            yield row


@both_types
def test_nan_and_infinity_are_found_at_any_position(dtype, rng):
    assert all(steps.is_finite(rng.standard_normal(n).astype(dtype)) for n in (0, *LENGTHS))
    ends = np.finfo(dtype)
    assert steps.is_finite(np.asarray([ends.max, ends.min, ends.smallest_subnormal, -0.0], dtype))
    for number in NONFINITE:
        assert not any(steps.is_finite(row) for row in with_one(number, dtype, 1, -2, 0))


@both_types
def test_the_maximum_is_found_for_entries_of_any_sign(dtype):
    rows = [[-math.inf] * 9, [-0.0, -1]]
    for largest in (math.inf, 3, -1e-30):
        rows += with_one(largest, dtype, -1, -math.inf, -2)
    for row in rows:
        assert steps.row_max(np.asarray(row, dtype)) == max(row)


@both_types
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("others", [(1, -2), (-math.inf,), (math.inf, 0), (-math.inf, 3)])
def test_nan_survives_the_maximum_and_the_exponential(dtype, sign, others):
    for row in with_one(math.copysign(math.nan, sign), dtype, *others):
        nan, peak = np.isnan(row), steps.row_max(row)
        assert np.isnan(peak) if sign > 0 else peak != -math.inf  # else all keys would seem hidden
        assert np.isnan(steps.exp_minus(row, peak))
        assert np.isnan(row[nan]).all()


def test_the_sum_of_a_row_has_a_fixed_order_which_is_not_that_of_its_keys():
    tiles = pytest.importorskip("minimha.kernels.cpu.attention_tiles")
    row = np.full(2048, -17.5, "float32")
    row[0] = 0
    e = np.exp(row)
    key_by_key = np.float32(0)
    for term in e:
        key_by_key += term
    assert key_by_key == 1  # each small term is rounded away
    total = tiles.exp_minus_in_order(row.copy(), np.float32(0))
    partial_sums = registers.VECTORS * registers.BYTES // row.itemsize  # 8 to 32: 2 vectors
    lost = (len(row) // partial_sums - 1) * e[1]  # the other terms of the partial sum with a 1
    np.testing.assert_allclose(total, e.sum(dtype="float64") - lost, rtol=5e-7)
    hidden = np.pad(row, (0, 2048), constant_values=-math.inf)
    assert tiles.exp_minus_in_order(hidden, np.float32(0)) == total


@both_types
def test_the_exponentials_of_a_row_and_their_sum_are_accurate(dtype, rng):
    eps = np.finfo(dtype).eps
    for length in LENGTHS:
        row = (30 * rng.standard_normal(length)).astype(dtype)
        peak = row.max()
        expected = np.exp(row.astype(np.longdouble) - peak)
        total = steps.exp_minus(row, peak)
        # row - peak, at most 128 here, has a relative error of eps / 2, and e^x amplifies it
        assert (abs(row - expected) <= 66 * eps * expected + 2.0**-126).all()
        assert abs(total - expected.sum()) <= (length + 4) * eps * expected.sum()
    for far in (-math.inf, -1e30, -800):
        row = np.asarray([far, 0], dtype)
        assert (steps.exp_minus(row, row.dtype.type(0)), row[0]) == (1, 0)
    row = np.asarray([3, -math.inf], dtype)
    assert steps.exp_minus(row, row.dtype.type(math.inf)) == 0  # the lse of a query without keys


def test_exp_is_accurate():
    exp, kind = exponential.exp32, np.float32
    x = np.linspace(-87.6, 88, 4_001, dtype=kind)
    y = np.asarray([exp(v) for v in x], float)
    # the polynomial and its rounding, and n times the error of ln 2 as a float32, 2^-23 / 62
    bound = (1.2 + abs(x) / (62 * math.log(2))) * 2.0**-23
    if registers.no_vectors():  # n ln 2 is rounded before it is subtracted from x
        bound += abs(x) * 2.0**-24
    assert (abs(y / np.exp(x.astype(float)) - 1) <= bound).all()
    assert [exp(kind(v)) for v in (0, -87.7, -1e30, -3e38, -math.inf)] == [1, 0, 0, 0, 0]
    assert all(math.isnan(exp(kind(math.copysign(math.nan, sign)))) for sign in (1, -1))
