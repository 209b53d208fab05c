"""Kernels of attention, forward and backward, agree with the formula across the borders of tiles,
vectors, slabs and threads. Here the reference is disabled, so that it cannot replace a kernel."""

import contextlib
import ctypes
import math

import numpy as np
import pytest
from attention_paths import MORE_MASKS, assert_exact, case_of, cases, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimha import masks, scaled_dot_product_attention
from minimha.kernels import attention as ways
from minimha.kernels import threads
from minimha.kernels.attention import layout, tiled

pytest.importorskip("numba")
TILED = "tiled", "microkernel"
KERNELS = "fused", *TILED
T = 1, 7, 49, 97, 2 * tiled._height(tiled._IN_CACHE) + 5
S = 1, 13, 97, tiled.BACKWARD + 3, max(tiled._IN_CACHE, tiled.FORWARD) + 37
EVERY_MASK = MORE_MASKS | {
    "prefix": lambda _, __, shape: masks.prefix(shape[-1] // 2),
    "documents, in pieces": lambda rng, batch, shape: masks.documents(
        *(rng.integers(0, 3, (*batch, n)) for n in shape[-2:])
    ),
    "window | prefix": lambda *_: masks.sliding_window(20, 0, offset=30) | masks.prefix(5),
    "holes in a causal mask": lambda rng, batch, shape: (
        masks.causal(offset=2) & masks.keys(rng.random((*batch, shape[-1])) < 0.8)
    ),
}


@pytest.fixture(autouse=True)
def reference_out_of_order(monkeypatch):
    """Kernels that fall back to the reference fail."""

    def fail(*_, **__):
        raise AssertionError("the reference was called")

    monkeypatch.setattr(ways, "attention", fail)


@contextlib.contextmanager
def small_tiles():
    """Many tiles, operands, threads and slabs, each with little work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "_height", lambda keys: 24)
        for name, size in {"FORWARD": 96, "BACKWARD": 64, "_IN_CACHE": 80}.items():
            patch.setattr(tiled, name, size)
        sizes = {"_MASK_ENTRIES": 1, "_MASK_QUERIES": 32, "_THREADS_PAY": 1, "_PIECE": 1}
        for name, size in sizes.items():
            patch.setattr(layout, name, size)
        yield


def same(name, case):
    """The results of an implementation, which agree with the formula in float64."""
    found = results(name, case)
    assert_exact(found, case)
    return found


def kernel_cases(name, dtype, longest=math.inf):
    """Cases across the borders of tiles; some arrays have the memory layout of projections."""
    drawn = cases(
        dtypes=(dtype,), without=("sink", "softcap", "dropout") if name == "fused" else (),
        sharpness=(1.0,), queries=[n for n in T if n <= longest],
        keys=[n for n in S if n <= longest], widths=((1, 5, 8, 33), (1, 6, 16, 35)),
        leads=("no heads", (), (2,), (2, 1)), factors=("number",), masks=EVERY_MASK,
        biases=("full", "queries", "keys", "heads", "one"),
    )  # fmt: skip
    return st.builds(laid_out, drawn, st.sets(st.sampled_from(ARRAYS)))


ARRAYS = "query", "key", "value", "dout"


def laid_out(case, split):
    """The same case with read-only arrays; those in `names` have the memory layout (…, T, H, D)."""
    arrays = {name: getattr(case, name) for name in ARRAYS}
    for name, x in arrays.items():
        if name in split and x.ndim > 2:
            arrays[name] = x.swapaxes(-3, -2).copy().swapaxes(-3, -2)
        arrays[name].flags.writeable = False
    return case.but(**arrays)


FEW = settings(report_multiple_bugs=False, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_agree_with_the_formula_for_sizes_beyond_a_tile(name, dtype):
    @FEW
    @given(kernel_cases(name, dtype))
    def check(case):
        same(name, case)

    check()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_agree_with_the_formula_in_small_tiles_and_several_threads(name, dtype):
    """Results agree for every number of threads, and are bitwise equal for equal numbers."""

    @FEW
    @given(kernel_cases(name, dtype, longest=400), st.sampled_from([1, 2, 3, 8]))
    def check(case, number):
        with small_tiles(), threads.limit(number):
            for one, again in zip(same(name, case), results(name, case), strict=True):
                assert one is again is None or np.array_equal(one, again)

    check()


def large(rng, t=200, s=300, **more):
    """A case that exceeds every kind of small tile."""
    return case_of(rng, t, s, **{"batch": (2,), "heads": (2, 2), "dtype": "float32", **more})


@pytest.mark.parametrize("kind", EVERY_MASK)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_agree_with_the_formula_for_every_mask(name, kind, rng):
    case = large(rng, mask=EVERY_MASK[kind](rng, (2,), (2, 2, 200, 300)))
    with small_tiles(), threads.limit(3):
        same(name, case)


@pytest.mark.parametrize("name", KERNELS)
def test_a_bias_may_be_shared_along_any_axis(name, rng):
    scores = 2, 1, 3, 9, 11
    for kept in range(2 ** len(scores)):
        for ndim in range(len(scores) + 1):
            if ndim < len(scores) and not kept >> ndim & 1:
                continue  # of the first axis only: more examples would test the others
            axes = [n if kept >> k & 1 else 1 for k, n in enumerate(scores)][-ndim or len(scores) :]
            bias = np.asarray(rng.standard_normal(axes))
            case = large(rng, 9, 11, dtype="float64", batch=(2, 1), heads=(3, 3), bias=bias)
            same(name, case)
            if name != "fused":
                keep = np.asarray(rng.random(axes) < 0.6)
                same(name, case.but(keep=keep, dropout=0.4))


@pytest.mark.parametrize("name", TILED)
def test_a_sink_may_be_shared_along_any_axis(name, rng):
    for shape in [(), (2,), (1,), (2, 2), (2, 1), (1, 2)]:
        sink = np.asarray(rng.standard_normal(shape))
        same(name, large(rng, 9, 11, dtype="float64", sink=sink))


@pytest.mark.parametrize("name", KERNELS)
def test_queries_that_see_nothing_get_zeros(name, rng):
    """No query of the first tile sees a key, and no query sees the last keys."""
    visible = np.ones((200, 300), bool)
    visible[:100], visible[150], visible[:, 200:] = False, False, False
    for mask in (masks.dense(visible), masks.padding([0, 0]), masks.causal(offset=-400)):
        for sink in (None, np.ones(2, "float32"))[: 1 + (name != "fused")]:
            with small_tiles():
                out, dq, dk, dv, *_ = results(name, large(rng, mask=mask, sink=sink))
            for x in (out, dq):
                assert not x[..., [*range(100), 150], :].any()
            for x in (dk, dv):
                assert not x[..., 200:, :].any()
            same(name, large(rng, mask=mask, sink=sink))


@pytest.mark.parametrize("name", [*TILED, "simulated"])
def test_lse_without_a_key_is_kept_as_infinity_and_returned_as_minus_infinity(name, monkeypatch):
    kept = []
    log_sums = ways._log_sums
    monkeypatch.setattr(ways, "_log_sums", lambda lse, x: kept.append(lse) or log_sums(lse, x))
    x = np.zeros((1, 1, 2, 16), "float32")
    _, lse = scaled_dot_product_attention(
        x, x, x, masks.dense([[False, False], [True, True]]), return_lse=True, implementation=name
    )
    np.testing.assert_allclose(kept[0].ravel(), [math.inf, math.log(2)], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), [-math.inf, math.log(2)], rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "fused"])
def test_lse_of_a_query_without_a_key_is_its_sink(name):
    x = np.zeros((1, 1, 2, 16), "float32")
    mask = masks.dense([[False, False], [True, True]])
    _, lse = scaled_dot_product_attention(
        x, x, x, mask, sink=np.asarray([0.5], "float32"), return_lse=True, implementation=name
    )
    expected = [0.5, math.log(math.exp(0.5) + 2)]
    np.testing.assert_allclose(lse.ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e15])
def test_large_scores_give_finite_and_correct_results(name, size, rng):
    for dtype in ("float64", "float32"):
        case = large(rng, dtype=dtype, d=1, mask=masks.causal(align="bottom-right"))
        q, k = (np.sign(x) * np.asarray(size, dtype) for x in (case.query, case.key))
        k = k * rng.integers(1, 9, k.shape).astype(dtype)  # exact products
        with small_tiles():
            same(name, case.but(query=q, key=k))


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_uninitialised_memory_is_never_read(name, rng):
    """With NaN in new memory from malloc, the results are bitwise equal."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if not mallopt:
        pytest.skip("malloc has no such option")
    more = {} if name == "fused" else {"sink": np.ones(2, "float32"), "softcap": 5.0}
    for t, s, d in [(200, 300, 8), (5, 7, 3), (97, 1600, 7)]:
        keep = rng.random((t, s)) < 0.6
        more |= {} if name == "fused" else {"keep": keep, "dropout": 0.4}
        case = large(rng, t, s, d=d, mask=masks.causal(offset=s - t - 3), **more)
        for tile in (contextlib.nullcontext(), small_tiles()):
            with tile, threads.limit(1):
                clean = results(name, case)
                mallopt(-6, 256)  # M_PERTURB: malloc fills memory with the complement of this byte
                try:
                    if not np.isnan(np.empty(50_000)).all():
                        pytest.skip("malloc does not listen")
                    poisoned = results(name, case)
                finally:
                    mallopt(-6, 0)
            for one, other in zip(clean, poisoned, strict=True):
                assert one is other is None or np.array_equal(one, other)


@pytest.mark.parametrize("name", KERNELS)
def test_every_memory_layout_is_accepted(name, rng):
    case = large(rng, 9, 11, dtype="float64", d=4)
    plain = results(name, case)
    buffer = np.empty(case.key.nbytes + 1, "uint8")
    unaligned = np.frombuffer(buffer[1:], "float64").reshape(case.key.shape)
    unaligned[...] = case.key
    strange = case.but(
        query=np.repeat(case.query, 2, axis=-1)[..., ::2], key=unaligned,
        value=case.value[..., ::-1].copy()[..., ::-1],
        dout=np.asfortranarray(case.dout),
    )  # fmt: skip
    # "fused" calls NumPy's matmul, which may add up the terms of strided arrays in another order
    bound = 1e-14 if name == "fused" else 0
    for x, y in zip(plain, results(name, strange), strict=True):
        assert x is y is None or np.allclose(x, y, rtol=0, atol=bound)
    same(name, case.but(dout=np.broadcast_to(case.dout[:1, :1], case.dout.shape)))
    for array in ARRAYS:
        same(name, laid_out(case, {array}))


@pytest.mark.parametrize("name", TILED)
def test_layouts_and_options_need_no_new_compilation(name, rng):
    """One compiled variant for each dtype and direction, since each takes seconds."""
    from minimha.kernels.cpu import attention_tiles as compiled

    case = large(rng, 9, 11)
    results(name, case)
    before = [len(kernel.signatures) for kernel in (compiled.forward, compiled.backward)]
    bias, keep = rng.standard_normal((11, 9)).astype("float32").T, rng.random((9, 11)) < 0.6
    keep.flags.writeable = bias.flags.writeable = False
    holes = masks.keys(rng.random((2, 11)) < 0.6) & masks.causal(offset=3)
    for one in (
        case.but(query=case.query[..., ::-1], key=case.key[..., ::-1], dout=case.dout[:, ::-1]),
        case.but(bias=bias, keep=keep, dropout=0.4, mask=holes, softcap=3, scale=2),
        case.but(sink=np.float32(1) * np.ones((2, 1), "float32"), mask=masks.sliding_window(2, 0, offset=0)),
    ):  # fmt: skip
        results(name, one)
    after = [len(kernel.signatures) for kernel in (compiled.forward, compiled.backward)]
    assert before == after


@pytest.mark.parametrize("name", KERNELS)
def test_half_precision_is_computed_in_single_precision(name, rng):
    case = large(rng, dtype="float16", mask=masks.causal(offset=100))
    wide = case.but(**{k: getattr(case, k).astype("float32") for k in ARRAYS})
    for x, y in zip(results(name, case)[:4], results(name, wide)[:4], strict=True):
        assert x.dtype == np.float16
        assert np.array_equal(x, y.astype("float16"))
