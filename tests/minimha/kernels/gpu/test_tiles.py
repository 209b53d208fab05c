"""The kernels for GPUs agree with the formula on NumPy's stand-in, forward and backward."""

import numpy as np
import pytest
from attention_paths import INPUTS, MASKS, Case, cases, computed, excess, formula
from hypothesis import HealthCheck, given, settings

import minimha as mh
from minimha import masks
from minimha.attention import IMPLEMENTATIONS, Arguments
from minimha.functional.dropout import Draw
from minimha.kernels import attention as ways
from minimha.kernels.gpu import tiled

MORE_MASKS = MASKS | {
    "window": lambda *_: (masks.sliding_window(3, 20, align="bottom-right"), None),
    "documents": lambda rng, batch, shape: (
        masks.documents(*(np.sort(rng.integers(0, 4, (*batch, n)), axis=-1) for n in shape[-2:])),
        None,
    ),
}
BARS = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles of queries and keys in a short sequence; and no help by the reference."""

    def fail(*_, **__):
        raise AssertionError("the reference was called")

    monkeypatch.setattr(ways, "attention", fail)
    monkeypatch.setattr(tiled, "tile_sizes", lambda *_: (32, 16))


def simulated(case):
    """The output and the gradients."""
    inputs = (getattr(case, x) for x in INPUTS)
    out, pull = computed("simulated", *inputs, mask=case.mask, keep=case.keep, p=case.dropout)
    return [out, *pull(case.dout)]


def assert_exact(case):
    """The kernels agree with the formula in long double to within rounding."""
    if case.mask is not None:
        case = case.but(allowed=masks.resolve(case.mask, case.query, case.key))
    exact = formula(case, cotangent=None)
    expected = {"out": exact.result.out, **exact.result.gradients}
    for what, x in zip(("out", *INPUTS), simulated(case), strict=True):
        assert (x is None) == (what not in expected), what
        if x is not None:
            assert x.dtype == case.dtype, what
            off = excess(x, expected[what], case.dtype, exact.largest_score, exact.sizes[what])
            off *= {"float64": 10}.get(str(case.dtype), 1)  # its bar is 1e-13
            assert off <= 1, f"{what} is {off:.3g} bars off"


def drawn(dtype):
    return cases(
        dtypes=(dtype,), sharpness=(1.0,), queries=(1, 7, 33, 49), keys=(1, 16, 35),
        widths=((1, 5, 17), (1, 6, 16)), leads=("no heads", (), (2,), (2, 1)),
        factors=("number",), masks=MORE_MASKS, biases=("full", "queries", "keys", "heads", "one"),
    )  # fmt: skip


def check_cases(dtype, number):
    @settings(max_examples=number, suppress_health_check=list(HealthCheck))
    @given(drawn(dtype))
    def check(case):
        assert_exact(case)

    check()


def test_kernels_agree_with_the_formula():
    check_cases("float64", 3)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_kernels_agree_with_the_formula_in_many_cases(dtype):
    check_cases(dtype, 500)


def case_of(rng, t=37, s=35, heads=(4, 2), dtype="float64", **more):
    """A case with ragged sizes; by default there are several tiles of queries and keys."""
    h, g = heads
    shapes = (1, h, t, 5), (1, g, s, 5), (1, g, s, 3), (1, h, t, 3)
    return Case(*(rng.standard_normal(x).astype(dtype) for x in shapes), np.zeros(0), **more)


@pytest.mark.parametrize(
    "sizes", [(2, 3, (1, 1)), pytest.param((37, 35, (4, 2)), marks=pytest.mark.thorough)]
)
def test_gradients_of_the_kernels_pass_gradcheck(sizes, rng):
    """All options at once, by differences of the kernel itself."""
    case, mask = case_of(rng, *sizes), masks.causal(align="bottom-right")
    *_, h, t, s = case.shape
    bias, sink = rng.standard_normal((h, t, s)), rng.standard_normal(h)
    keep = rng.random((t, s)) < 0.7

    def f(*inputs):
        return mh.scaled_dot_product_attention(
            *inputs[:3], mask, *inputs[3:], softcap=2.5, keep=keep, dropout=0.3,
            implementation="simulated",
        )  # fmt: skip

    inputs = [case.query, case.key, case.value, bias, sink]
    mh.gradcheck(f, *(mh.Tensor(x, requires_grad=True) for x in inputs), method="adjoint")


def test_tf32_has_errors_of_its_rounding_and_is_off_by_default(rng, monkeypatch):
    case = case_of(rng, dtype="float32")
    exact = formula(case, cotangent=None).result.out

    def error():
        return abs(simulated(case)[0] - exact).max()

    assert error() < 2e-6
    monkeypatch.setattr(tiled, "TF32", True)
    assert 1e-5 < error() < 4e-3


def test_bfloat16_is_rounded_only_between_products(rng):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    case = case_of(rng, dtype=dtype, mask=masks.causal(offset=3))
    wide = case.but(
        **{
            name: getattr(case, name).astype("float64")
            for name in ("query", "key", "value", "dout")
        }
    )
    for a, b in zip(simulated(case)[:4], simulated(wide)[:4], strict=True):
        assert a.dtype == dtype
        assert abs(a.astype("float64") - b).max() <= 2**-7 * abs(b).max()  # one bit is 2**-8


def test_a_draw_is_the_same_in_the_kernels_and_as_an_array(rng):
    """The kernels count, the reference gets an array; forward and backward replay one draw."""
    case, draw = case_of(rng), Draw(2**32 - 5, 0.3)
    keep = draw.array(case.shape, like=case.query)
    x = Arguments(*(getattr(case, name) for name in INPUTS), keep=draw, p=0.3, return_weights=False)
    (out, _, _), pull = IMPLEMENTATIONS["simulated"].function(x, (True,) * 3 + (False,) * 4)
    counted = out, *pull(case.dout, None, None)
    for x, y in zip(counted, simulated(case.but(keep=keep, dropout=0.3)), strict=True):
        assert (x is y is None) or np.array_equal(x, y)


def test_a_draw_keeps_each_pair_independently():
    draws = [Draw(seed, 0.3).array((2, 3, 64, 96), like=np.zeros(0)) for seed in (0, 1, 2**31)]
    for keep in draws:
        assert abs(keep.mean() - 0.7) < 0.01
        for axis in range(4):  # each query, key and head has its own
            assert abs(keep.mean(axis=axis).std() / (0.21 / keep.shape[axis]) ** 0.5 - 1) < 0.1
    assert abs(np.corrcoef([keep.ravel() for keep in draws]) - np.eye(3)).max() < 0.02
    assert Draw(0, 0.0).array((2, 2), like=np.zeros(0)).all()
    assert not Draw(0, 1.0).array((2, 2), like=np.zeros(0)).any()
