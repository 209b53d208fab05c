"""Positions: rotations, embeddings that are added, and biases that depend only on the distance."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

import minimha as mh
from minimha.functional import rope
from minimha_autograd import backend

B, H, T, S, D, M = 2, 3, 5, 7, 6, 8

both_orders = pytest.mark.parametrize("interleaved", [False, True])


@pytest.fixture
def x(rng):
    return rng.standard_normal((B, H, T, D))


@both_orders
def test_scores_depend_only_on_the_distance(rng, interleaved):
    q, k = rng.standard_normal((2, D))
    turn = mh.positions.Rope(interleaved=interleaved)

    def score(t, s):
        return (turn(q[None], offset=t) @ turn(k[None], offset=s).T).item()

    near, far = score(9, 4), score(1009, 1004)
    assert abs(near - far) <= 1e-11  # the error of the angle at position 1000 is 1000 · 2⁻⁵³
    assert abs(near - score(8, 4)) > 1e-3


@both_orders
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rotating_a_slice_with_its_offset_equals_slicing_the_rotated_whole(
    rng, place, dtype, interleaved
):
    """cos and sin of a slice may be one unit off those of the whole; three roundings follow."""
    bound = 4 * np.finfo(dtype).eps
    for width, n, end in [(2, 1, 37), (6, 3, 4), (10, 13, 14), (64, 8, 37)]:
        q = place(rng.standard_normal((H, 37, width)).astype(dtype))
        whole = rope(q, interleaved=interleaved, offset=1000)[..., n:end, :]
        part = rope(q[..., n:end, :], interleaved=interleaved, offset=1000 + n)
        off = abs(backend.to_numpy(part) - backend.to_numpy(whole)).max()
        assert off <= bound * 2 * abs(backend.to_numpy(q)).max()  # |a cos| + |b sin|


def exact_angle(t, exponent, base=10000):
    """t · base^exponent modulo whole turns, to 50 digits."""
    with localcontext() as context:
        context.prec = 60
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        return float(t * Decimal(base) ** Decimal(exponent) % (2 * pi))


@pytest.mark.parametrize("t", [100_000, 2**24])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_positions_are_accurate(place, dtype, t):
    """float32 angles would be off by t · 6e-8, and 2²⁴ + 1 is no float32."""
    bound = 1e-15 * t + (2e-7 if dtype == "float32" else 0)
    for column in (0, 3):  # whose θ is 10000^(−2·column/16)
        x = np.eye(16, dtype=dtype)[[column, column]]
        y = backend.to_numpy(rope(place(x), offset=t))
        for row in range(2):
            angle = exact_angle(t + row, Decimal(-2 * column) / 16)
            expected = [math.cos(angle), math.sin(angle)]
            np.testing.assert_allclose(y[row, [column, column + 8]], expected, rtol=0, atol=bound)


def test_positions_may_be_an_array_a_tensor_or_a_list(x, place):
    positions = np.array([[0, 1, 2, 3, 4], [0, 0, 0, 7, 8]])  # the second is padded on the left
    y = rope(x, positions=positions)
    for same in (positions[:, None], place(positions), mh.Tensor(positions), positions.tolist()):
        found = backend.to_numpy(rope(place(x), positions=same))
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-15)


def test_rope_settings_are_immutable(x):
    turn = mh.positions.Rope(base=50.0, width=4, interleaved=True)
    expected = rope(x, offset=3, base=50.0, width=4, interleaved=True)
    np.testing.assert_array_equal(turn(x, 3), expected)
    with pytest.raises(AttributeError):
        turn.base = 1.0


def test_sinusoidal_positions_follow_the_paper():
    """PE(pos, 2i) = sin(pos / 10000^(2i/M)), PE(pos, 2i + 1) = cos of the same."""
    table = mh.positions.sinusoidal(T, M, offset=2, dtype="float64")
    expected = [
        [(math.sin, math.cos)[c % 2](t / 10000 ** ((c - c % 2) / M)) for c in range(M)]
        for t in range(2, 2 + T)
    ]
    np.testing.assert_allclose(table, expected, rtol=0, atol=1e-15)
    assert mh.positions.sinusoidal(T, M).dtype == np.float32
    assert mh.positions.sinusoidal(0, M).shape == (0, M)


def test_learned_positions_are_rows_of_a_table(library, xp):
    learned = mh.positions.Learned(9, M, rng=3, dtype="float64")
    table = learned.table.data
    learned.to(library)
    rows = learned(4, offset=5)
    assert backend.namespace(rows.data) is xp
    np.testing.assert_array_equal(backend.to_numpy(rows.data), table[5:9])
    rows.sum().backward()
    got = backend.to_numpy(learned.table.grad)
    np.testing.assert_array_equal(got, np.repeat([0.0, 1.0], [5, 4])[:, None] * np.ones(M))
    assert mh.positions.Learned(400, 50, std=0.02).table.data.std() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (6, [2, 4, 6, 8, 1, 3]),  # the slopes of 4 heads, then the first, third … of 8
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_alibi_slopes_follow_the_paper(num_heads, exponents):
    np.testing.assert_array_equal(mh.positions.alibi_slopes(num_heads), [2**-e for e in exponents])


@pytest.mark.parametrize(("settings", "offset"), [
    ({"offset": 3}, 3),
    ({"offset": np.int32(-1)}, -1),
    ({"align": "top-left"}, 0),
    ({"align": "bottom-right"}, S - T),
])  # fmt: skip
def test_alibi_decreases_with_the_distance(settings, offset):
    bias = mh.positions.alibi(H, T, S, **settings)
    assert bias.dtype == np.float32
    distance = abs(np.arange(T)[:, None] + offset - np.arange(S))
    slopes = np.array([2**-4, 2**-8, 2**-2])
    np.testing.assert_array_equal(bias, -slopes[:, None, None] * distance)
    assert not np.signbit(bias[bias == 0]).any()
    assert mh.positions.alibi(H, 0, S, **settings).shape == (H, 0, S)


def test_alibi_is_created_on_the_device_of_the_queries(place, rng):
    q = place(rng.standard_normal((B, H, T, D)).astype("float32"))
    for like in (q, mh.Tensor(q)):
        bias = mh.positions.alibi(H, T, T, like=like)
        assert backend.namespace(bias) is place.xp
        assert (bias.device, bias.dtype) == (q.device, q.dtype)
        np.testing.assert_array_equal(backend.to_numpy(bias), mh.positions.alibi(H, T, T))


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: mh.positions.sinusoidal(T, 7), ValueError, "width = 7 must be even"),
    (lambda: mh.positions.sinusoidal(T, 0), ValueError, "width = 0 must be at least 2"),
    (lambda: mh.positions.sinusoidal(-1, M), ValueError, "count = -1 must be at least 0"),
    (lambda: mh.positions.sinusoidal(2.5, M), TypeError, "count must be an integer, not 2.5"),
    (lambda: mh.positions.sinusoidal(T, M, base=-1.0), ValueError, "base must be a positive"),
    (lambda: mh.positions.sinusoidal(T, M, dtype="int7"), TypeError, "no dtype 'int7'"),
    (lambda: mh.positions.sinusoidal(T, M, dtype="int32"), TypeError, "must be of floating-point"),
    (lambda: mh.positions.Learned(0, M), ValueError, "context = 0 must be at least 1"),
    (lambda: mh.positions.Learned(T, M)(4, 2), ValueError, "4 positions from 2 on .* context of 5"),
    (lambda: mh.positions.Learned(T, M)(1, -1), ValueError, "offset = -1 must be at least 0"),
    (lambda: mh.positions.Learned(T, M)(np.arange(3)), TypeError, "count must be an integer"),
    (lambda: mh.positions.alibi_slopes(0), ValueError, "num_heads = 0 must be at least 1"),
    (lambda: mh.positions.alibi(H, T, S), ValueError, "alibi: with T = 5 .* S = 7 .*offset=….*align="),
    (lambda: mh.positions.alibi(H, T, S, offset=1, align="top-left"), ValueError, "not both"),
    (lambda: mh.positions.alibi(H, T, S, align="left"), ValueError, "not 'left'"),
    (lambda: mh.positions.alibi(H, T, S, offset=0.5), TypeError, "offset must be an integer"),
    (lambda: mh.positions.alibi(H, -1, S, offset=0), ValueError, "t = -1 must be at least 0"),
    (lambda: mh.positions.alibi(H, T, T, like=np.arange(3)), TypeError, "like must .* not int64"),
    (lambda: mh.positions.alibi(H, T, T, like=[1.0]), TypeError, "like must .* not list"),
])  # fmt: skip
def test_invalid_arguments_raise_an_error_with_the_reason(make, error, message):
    with pytest.raises(error, match=message):
        make()
