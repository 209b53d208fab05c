"""The kernels for GPUs agree with the formula on NumPy's stand-in, forward and backward."""

from functools import partial

import numpy as np
import pytest
from attention_paths import INPUTS, MORE_MASKS, assert_exact, case_of, cases, formula, results
from hypothesis import HealthCheck, given, settings

from minimha import masks
from minimha.attention import IMPLEMENTATIONS, Arguments, scaled_dot_product_attention
from minimha.functional.dropout import Draw
from minimha.kernels import attention as ways
from minimha.kernels.gpu import numpy_tile, tiled


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles of queries and keys in a short sequence; and no help by the reference."""

    def fail(*_, **__):
        raise AssertionError("the reference was called")

    monkeypatch.setattr(ways, "attention", fail)
    monkeypatch.setattr(tiled, "tile_sizes", lambda *_: (32, 16))


simulated = partial(results, "simulated")


@pytest.mark.parametrize(
    ("dtype", "number", "bars"),
    [
        ("float64", 3, 0.1),
        *(
            pytest.param(dtype, 100, bars, marks=pytest.mark.thorough)
            for dtype, bars in (("float64", 0.1), ("float32", 1), ("float16", 1))
        ),
    ],
)
def test_kernels_agree_with_the_formula_in_long_double(dtype, number, bars):
    @settings(max_examples=number, suppress_health_check=list(HealthCheck))
    @given(
        cases(
            dtypes=(dtype,), sharpness=(1.0,), queries=(1, 7, 33, 49), keys=(1, 16, 35),
            widths=((1, 5, 17), (1, 6, 16)), leads=("no heads", (), (2,), (2, 1)),
            factors=("number",), masks=MORE_MASKS,
            biases=("full", "queries", "keys", "heads", "one"),
        )
    )  # fmt: skip
    def check(case):
        assert_exact(simulated(case), case, dtype=np.longdouble, bars=bars)

    check()


def test_missing_keys_make_an_edge_for_blocks_of_queries_only(rng):
    """backward_key does not store the rows of keys beyond the last, so it need not hide them."""
    x = tiled.laid_out(Arguments(*(rng.standard_normal((3, 1, 1, 50, 4)))))
    kernels = tiled.on_numpy().kernels
    begin, end = np.zeros((16, 1), int), np.full((16, 1), 50)
    queries = kernels.Span(0, 0, 0, 16)
    of_keys = kernels.tiles_of_keys(begin, end, queries, 50, 50, 16, False)
    ends = of_keys.first, of_keys.middle, of_keys.after, of_keys.stop
    assert [int(n) for n in ends] == [0, 0, 3, 4]
    assert x.intervals.seeing(16, 16).tolist() == [[4 * [[0, 0, 4, 4]]]]


def test_a_visible_infinity_becomes_nan_at_an_edge(rng):
    """The CPU gives an infinity: docs/gpu.md lists the difference."""
    case = case_of(rng, 37, 37, mask=masks.causal())
    case.value[..., 3, 0] = np.inf
    out, *_ = simulated(case)
    assert np.isfinite(out[..., :3, 0]).all()
    assert np.isnan(out[..., 3:16, 0]).all()


def test_tf32_has_errors_of_its_rounding_and_is_off_by_default(rng, monkeypatch):
    case = case_of(rng, 37, 35, dtype="float32")
    exact = formula(case, cotangent=None).result.out

    def error():
        return abs(simulated(case)[0] - exact).max()

    assert error() < 2e-6
    monkeypatch.setattr(tiled, "TF32", True)
    assert 1e-5 < error() < 4e-3


def test_three_products_in_tf32_keep_about_21_bits_and_one_keeps_11(rng):
    kernels = tiled.on_numpy().kernels
    x, y = (rng.standard_normal(n, "float32").view(numpy_tile.Tile) for n in ((1024, 1), (1, 1024)))
    exact = np.multiply(x, y, dtype=float)
    zero = numpy_tile.full(exact.shape, 0.0, np.float32)
    bits = {
        tf32: -np.log2(abs(kernels.product(x, y, zero, tf32) / exact - 1).max())
        for tf32 in (False, True)
    }
    assert 20.5 < bits[False] < 22
    assert 10 < bits[True] < 11.5


def test_bfloat16_is_rounded_only_between_products(rng):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    case = case_of(rng, 37, 35, dtype=dtype, mask=masks.causal(offset=3))
    arrays = "query", "key", "value", "dout"
    wide = case.but(**{name: getattr(case, name).astype("float64") for name in arrays})
    for a, b in zip(simulated(case)[:4], simulated(wide)[:4], strict=True):
        assert a.dtype == dtype
        assert abs(a.astype("float64") - b).max() <= 2**-7 * abs(b).max()  # one bit is 2**-8


def test_a_draw_is_the_same_in_the_kernels_and_as_an_array(rng):
    """The kernels count, the reference gets an array; forward and backward replay one draw."""
    case, draw = case_of(rng, 37, 35), Draw(2**32 - 5, 0.3)
    keep = draw.array(case.shape, like=case.query)
    x = Arguments(*(getattr(case, name) for name in INPUTS), keep=draw, p=0.3, return_weights=False)
    (out, _, _), pull = IMPLEMENTATIONS["simulated"].function(
        x, scaled_dot_product_attention.wanted(query=True, key=True, value=True)
    )
    counted = out, *pull(case.dout, None, None)
    for x, y in zip(counted, simulated(case.but(keep=keep, dropout=0.3)), strict=True):
        # An array of pairs makes all tiles edges, so sums are in another order.
        assert (x is y is None) or np.allclose(x, y, rtol=1e-12, atol=1e-12)


def test_a_draw_keeps_each_pair_independently():
    draws = [Draw(seed, 0.3).array((2, 3, 64, 96), like=np.zeros(0)) for seed in (0, 1, 2**31)]
    for keep in draws:
        assert abs(keep.mean() - 0.7) < 0.01
        for axis in range(4):  # each query, key and head has its own
            assert abs(keep.mean(axis=axis).std() / (0.21 / keep.shape[axis]) ** 0.5 - 1) < 0.1
    assert abs(np.corrcoef([keep.ravel() for keep in draws]) - np.eye(3)).max() < 0.02
    assert Draw(0, 0.0).array((2, 2), like=np.zeros(0)).all()
    assert not Draw(0, 1.0).array((2, 2), like=np.zeros(0)).any()
