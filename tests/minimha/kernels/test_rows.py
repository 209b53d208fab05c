"""What kernels do to a row of numbers, NaN of either sign and infinities among them."""

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")
rows = pytest.importorskip("minimha.kernels.cpu.rows")
exponential = pytest.importorskip("minimha.kernels.cpu.exp")
lanes = pytest.importorskip("minimha.kernels.cpu.lanes")
LENGTHS = 1, 2, 3, 7, 8, 16, 17, 33, 100
WRONG = math.nan, math.copysign(math.nan, -1), math.inf, -math.inf
both = pytest.mark.parametrize("dtype", ["float32", "float64"])


def with_one(number, dtype, *others):
    """Rows of every length with that number in every place."""
    for length in LENGTHS:
        for place in range(length):
            row = np.resize(np.asarray([*others], dtype), length)
            row[place] = number
            yield row


@both
def test_what_is_not_finite_is_seen_in_any_place(dtype, rng):
    assert all(rows.is_finite(rng.standard_normal(n).astype(dtype)) for n in (0, *LENGTHS))
    ends = np.finfo(dtype)
    assert rows.is_finite(np.asarray([ends.max, ends.min, ends.smallest_subnormal, -0.0], dtype))
    for number in WRONG:
        assert not any(rows.is_finite(row) for row in with_one(number, dtype, 1, -2, 0))


@both
def test_the_largest_entry_of_any_sign(dtype, rng):
    for length in LENGTHS:
        for shift in (-5, 0, 5):
            row = (rng.standard_normal(length) + shift).astype(dtype)
            assert rows.largest(row) == row.max()
    for row in with_one(math.inf, dtype, 1, -math.inf, -2):
        assert rows.largest(row) == math.inf
    for row in with_one(-1e-30, dtype, -1, -math.inf, -2):
        assert rows.largest(row) == row.max()
    assert rows.largest(np.full(9, -math.inf, dtype)) == -math.inf
    assert rows.largest(np.asarray([-0.0, -1], dtype)) == 0


@both
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("others", [(1, -2), (-math.inf,), (math.inf, 0), (-math.inf, 3)])
def test_nan_is_left_by_exp_of_what_is_less_than_the_largest(dtype, sign, others):
    for row in with_one(math.copysign(math.nan, sign), dtype, *others):
        nan = np.isnan(row)
        peak = rows.largest(row)
        assert peak != -math.inf  # which would stand for a row that sees nothing
        if sign > 0:
            assert np.isnan(peak)
        assert np.isnan(rows.exp_less(row, peak))
        assert np.isnan(row[nan]).all()


@both
def test_exp_of_what_is_less_than_the_largest_and_its_sum(dtype, rng):
    eps = np.finfo(dtype).eps
    for length in LENGTHS:
        row = (30 * rng.standard_normal(length)).astype(dtype)
        peak = row.max()
        expected = np.exp(row.astype(np.longdouble) - peak)
        total = rows.exp_less(row, peak)
        # row - peak is off by half an eps of itself, of at most 128 here, and e^x by as much
        assert (abs(row - expected) <= 66 * eps * expected + 2.0**-126).all()
        assert abs(total - expected.sum()) <= (length + 4) * eps * expected.sum()
    for far in (-math.inf, -1e30, -800):
        row = np.asarray([far, 0], dtype)
        assert rows.exp_less(row, row.dtype.type(0)) == 1
        assert row[0] == 0
    row = np.asarray([3, -math.inf], dtype)
    assert rows.exp_less(row, row.dtype.type(math.inf)) == 0  # lse of who sees nothing


def test_e_to_a_power():
    exp, kind = exponential.exp32, np.float32
    x = np.linspace(-87.6, 88, 40_001, dtype=kind)
    y = np.asarray([exp(v) for v in x], float)
    # the polynomial and its rounding; and ln 2 as a float32 is off by 2^-23 / 62, n times
    bound = (1.2 + abs(x) / (62 * math.log(2))) * 2.0**-23
    if lanes.slow() or numba.config.DISABLE_JIT:  # n ln 2 is rounded before x loses it
        bound += abs(x) * 2.0**-24
    assert (abs(y / np.exp(x.astype(float)) - 1) <= bound).all()
    assert exp(kind(0)) == 1
    assert [exp(kind(v)) for v in (-88, -1e30, -3e38, -math.inf)] == [0] * 4
    assert all(math.isnan(exp(kind(math.copysign(math.nan, sign)))) for sign in (1, -1))


@both
def test_first_and_last_keys_of_several_queries(dtype):
    first, last = np.asarray([5, 3, 9]), np.asarray([6, 2, 4])
    assert rows.bounds(first, last) == (3, 6)
    assert rows.bounds(first, np.asarray([0, -2, 1])) == (3, 3)
