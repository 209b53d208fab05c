"""Kernels of attention, forward and backward, against the reference where tiles, vectors, slabs and
threads have their borders. The reference cannot help: here it is out of order."""

import contextlib
import ctypes
import math
from types import SimpleNamespace

import numpy as np
import pytest
from attention_paths import BARS, MASKS, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minimha as mh
from minimha import masks
from minimha.attention import IMPLEMENTATIONS, attention
from minimha.kernels import attention as ways
from minimha.kernels import threads
from minimha.kernels.attention import layout, tiled

pytest.importorskip("numba")
TILED = "tiled", "microkernel"
KERNELS = "fused", *TILED
T = 1, 7, 49, 97, 2 * max(tiled.FORWARD[0], tiled.BACKWARD[0]) + 5
S = 1, 13, 97, tiled.BACKWARD[1] + 3, max(tiled._IN_CACHE, tiled.FORWARD[1]) + 37
MORE_MASKS = MASKS | {
    "window": lambda *_: (masks.sliding_window(3, 40, align="bottom-right"), None),
    "prefix": lambda rng, batch, shape: (masks.prefix(shape[-1] // 2), None),
    "documents": lambda rng, batch, shape: (
        masks.documents(*(np.sort(rng.integers(0, 4, (*batch, n)), axis=-1) for n in shape[-2:])),
        None,
    ),
    "documents, in pieces": lambda rng, batch, shape: (
        masks.documents(*(rng.integers(0, 3, (*batch, n)) for n in shape[-2:])),
        None,
    ),
    "window | prefix": lambda rng, batch, shape: (
        masks.sliding_window(20, 0, offset=30) | masks.prefix(5),
        None,
    ),
    "holes in a causal mask": lambda rng, batch, shape: (
        masks.causal(offset=2) & masks.keys(rng.random((*batch, shape[-1])) < 0.8),
        None,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def reference_out_of_order(monkeypatch):
    """Kernels that hand over fail."""

    def fail(*_, **__):
        raise AssertionError("the reference was asked")

    monkeypatch.setattr(ways, "attention", SimpleNamespace(with_pullback=fail))


@contextlib.contextmanager
def changed(module, **names):
    """Within it, these names of a module stand for something else."""
    with pytest.MonkeyPatch.context() as patch:
        for name, x in names.items():
            patch.setattr(module, name, x)
        yield


@contextlib.contextmanager
def small_tiles():
    """Many tiles, operands, threads and slabs, of little work."""
    with (
        changed(tiled, FORWARD=(24, 96), BACKWARD=(24, 64), _IN_CACHE=80),
        changed(layout, _MASK_ENTRIES=1, _MASK_QUERIES=32, _THREADS_PAY=1, _PIECE=1),
    ):
        yield


def arrays_of(case):
    return case.query, case.key, case.value, case.bias, case.sink, case.scale, case.softcap


def told(name, case, *, dtype=None):
    """The output and the gradients of an implementation, or of the reference."""
    operation = attention if name == "reference" else IMPLEMENTATIONS[name]
    mask = case.mask
    if name == "reference":
        mask = masks.resolve(mask, case.query, case.key)
    x = [
        a if dtype is None or not hasattr(a, "dtype") else a.astype(dtype) for a in arrays_of(case)
    ]
    out, pull = operation.with_pullback(
        *x, mask=mask, keep=case.keep, p=case.dropout, return_weights=False
    )
    return [out, *pull(case.dout.astype(out.dtype))]


def terms(case):
    """The largest score, and the largest entry of each result with its terms taken positive: what
    rounding is relative to."""
    q, k, v, dout = (np.asarray(x, float) for x in (case.query, case.key, case.value, case.dout))
    group = 1 if q.ndim == 2 else q.shape[-3] // k.shape[-3]
    if group > 1:
        k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    visible = masks.resolve(case.mask, case.query, case.key)
    with_weights = attention(
        *(x.astype(float) if hasattr(x, "dtype") else x for x in arrays_of(case)), mask=visible
    )
    scale = 1 / math.sqrt(q.shape[-1]) if case.scale is None else abs(case.scale)
    scores = scale * (q @ k.mT)
    kept = 1.0
    if case.keep is not None:
        kept = case.keep * (0 if case.dropout == 1 else 1 / (1 - case.dropout))
    weights = with_weights[1]
    dweights = kept * (abs(dout) @ abs(v).mT)
    means = (weights * dweights).sum(axis=-1, keepdims=True)
    ds = weights * (dweights + means)
    sizes = [
        (kept * weights) @ abs(v), scale * ds @ abs(k), scale * ds.mT @ abs(q),
        (kept * weights).mT @ abs(dout), ds, means,
    ]  # fmt: skip
    shown = 0.0 if visible is None else np.where(visible, 0, -math.inf)
    visible_scores = abs(scores) * (shown == 0)
    return visible_scores.max(), [group * x.max() for x in sizes]


def same(name, case):
    """An implementation tells what the reference does in float64, within the bars."""
    expected = told("reference", case, dtype=float)
    answers = told(name, case)
    largest_score, sizes = terms(case)
    bar = BARS[str(case.dtype)] * max(1, largest_score / 8)
    of = "out", "query", "key", "value", "bias", "sink"
    for what, x, y, size in zip(of, answers[:6], expected[:6], sizes, strict=True):
        assert (x is None) == (y is None), what
        if x is not None:
            assert (x.shape, x.dtype) == (y.shape, case.dtype), what
            off = abs(x - y).max() / (bar * size or 1)
            assert off <= 1, f"{name}: {what} is {off:.3g} bars off"
    return answers


@st.composite
def cases(draw, dtype, plain, longest=math.inf, leads=("no heads", (), (2,), (2, 1))):
    """plain: without what the one pass does not do."""
    lead = draw(st.sampled_from(leads))
    g, r = draw(st.sampled_from([(1, 1), (3, 1), (1, 2), (2, 3)]))
    t, s = (draw(st.sampled_from([n for n in ns if n <= longest])) for ns in (T, S))
    d, dv = draw(st.sampled_from([1, 5, 8, 33])), draw(st.sampled_from([1, 6, 16, 35]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    batch = () if lead == "no heads" else lead
    heads, grouped = ((), ()) if lead == "no heads" else ((*lead, g * r), (*lead, g))
    scores = (*heads, t, s)
    if draw(st.booleans()) and heads:  # split from a row of all heads
        query = np.swapaxes(normal(*lead, t, g * r, d), -3, -2)
        key, value = (np.swapaxes(normal(*lead, s, g, n), -3, -2) for n in (d, dv))
    else:
        query, key, value = normal(*heads, t, d), normal(*grouped, s, d), normal(*grouped, s, dv)
    dout = np.swapaxes(normal(*heads, dv, t), -2, -1)
    made = {}
    if kind := draw(st.sampled_from([None, *MORE_MASKS])):
        made["mask"] = MORE_MASKS[kind](rng, batch, scores)[0]
    if kind := draw(st.sampled_from([None, "full", "queries", "keys", "heads", "one"])):
        shape = {
            "full": scores, "queries": (t, 1), "keys": (s,), "heads": (*heads[-1:], 1, s),
            "one": (),
        }[kind]  # fmt: skip
        bias = normal(*shape)
        made["bias"] = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.2])), -np.inf, bias)
        made["bias"] = made["bias"].astype(dtype)
    if not plain:
        if draw(st.booleans()):
            made["sink"] = normal(*(heads if draw(st.booleans()) else heads[-1:]))
            made["sink"][rng.random(made["sink"].shape) < 0.2] = -np.inf
        made["softcap"] = draw(st.sampled_from([None, 1.5, 30.0]))
        if p := draw(st.sampled_from([None, 0.3, 1.0])):
            made["dropout"] = p
            made["keep"] = rng.random(scores if draw(st.booleans()) else (t, s)) < 1 - p
    made["scale"] = draw(st.sampled_from([None, -0.3, 1.0]))
    case = Case(query, key, value, dout, np.zeros(0), **made)
    for x in (query, key, value, dout):
        x.flags.writeable = False
    return case


FEW = settings(report_multiple_bugs=False, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_beyond_the_borders_of_tiles(name, dtype):
    @FEW
    @given(cases(dtype, name == "fused"))
    def check(case):
        same(name, case)

    check()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_in_small_tiles_for_several_threads_and_slabs(name, dtype):
    """The same answer for each number of threads, to the bit where that is the same."""

    @FEW
    @given(cases(dtype, name == "fused", longest=400), st.sampled_from([1, 2, 3]))
    def check(case, number):
        with small_tiles(), threads.limit(number):
            for one, again in zip(same(name, case), told(name, case), strict=True):
                assert one is again is None or np.array_equal(one, again)

    check()


def large(rng, t=200, s=300, *, dtype="float32", heads=(2, 2), d=5, **more):
    """A case beyond a tile of every kind, in small tiles."""
    q, k, v, dout = (
        rng.standard_normal((*heads, n, m)).astype(dtype)
        for n, m in [(t, d), (s, d), (s, 5), (t, 5)]
    )
    return Case(q, k, v, dout, np.zeros(0), **more)


@pytest.mark.parametrize("kind", MORE_MASKS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_mask(name, kind, rng):
    case = large(rng, mask=MORE_MASKS[kind](rng, (2,), (2, 2, 200, 300))[0])
    with small_tiles(), threads.limit(3):
        same(name, case)


@pytest.mark.parametrize("name", TILED)
def test_the_number_of_threads_is_no_matter(name, rng):
    case = large(rng, mask=masks.causal(align="bottom-right"), sink=np.ones(2, "float32"))
    with small_tiles():
        for number in (1, 2, 3, 8):
            with threads.limit(number):
                same(name, case)


@pytest.mark.parametrize("name", KERNELS)
def test_a_bias_may_be_shared_along_any_axis(name, rng):
    shape = 2, 1, 3
    scores = (*shape, 9, 11)
    for kept in range(2 ** len(scores)):
        for ndim in range(len(scores) + 1):
            if ndim < len(scores) and not kept >> ndim & 1:
                continue  # the first axis left: others are found with more
            axes = [n if kept >> k & 1 else 1 for k, n in enumerate(scores)][-ndim or len(scores) :]
            bias = np.asarray(rng.standard_normal(axes))
            case = large(rng, 9, 11, dtype="float64", heads=shape, d=3, bias=bias)
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
    """The first tile of queries is empty, and so are the last keys; a sink changes nothing."""
    visible = np.ones((200, 300), bool)
    visible[:100], visible[150], visible[:, 200:] = False, False, False
    for mask in (masks.dense(visible), masks.padding([0, 0]), masks.causal(offset=-400)):
        for sink in (None, np.ones(2, "float32"))[: 1 + (name != "fused")]:
            with small_tiles():
                out, dq, dk, dv, *_ = told(name, large(rng, mask=mask, sink=sink))
            for x in (out, dq):
                assert not x[..., [*range(100), 150], :].any()
            for x in (dk, dv):
                assert not x[..., 200:, :].any()
            same(name, large(rng, mask=mask, sink=sink))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e15])
def test_large_scores_are_finite_and_right(name, size, rng):
    for dtype in ("float64", "float32"):
        case = large(rng, dtype=dtype, d=1, mask=masks.causal(align="bottom-right"))
        q, k = (np.sign(x) * np.asarray(size, dtype) for x in (case.query, case.key))
        k = k * rng.integers(1, 9, k.shape).astype(dtype)  # exact products
        with small_tiles():
            same(name, case.but(query=q, key=k))


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_memory_that_nobody_wrote_to_is_not_read(name, rng):
    """With NaN in what malloc hands out; the answer is the same to the bit."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if not mallopt:
        pytest.skip("malloc cannot be told so")
    more = {} if name == "fused" else {"sink": np.ones(2, "float32"), "softcap": 5.0}
    for t, s, d in [(200, 300, 8), (5, 7, 3), (97, 1600, 7)]:
        keep = rng.random((t, s)) < 0.6
        more |= {} if name == "fused" else {"keep": keep, "dropout": 0.4}
        case = large(rng, t, s, d=d, mask=masks.causal(offset=s - t - 3), **more)
        for tile in (contextlib.nullcontext(), small_tiles()):
            with tile, threads.limit(1):
                clean = told(name, case)
                mallopt(-6, 256)  # M_PERTURB: memory is handed out full of this number's bytes, ~
                try:
                    if not np.isnan(np.empty(50_000)).all():
                        pytest.skip("malloc does not listen")
                    poisoned = told(name, case)
                finally:
                    mallopt(-6, 0)
            for one, other in zip(clean, poisoned, strict=True):
                assert one is other is None or np.array_equal(one, other)


@pytest.mark.parametrize("name", KERNELS)
def test_its_gradients_are_those_of_its_own_forward(name, rng, monkeypatch):
    """By differences of real numbers, through the kernel, beyond a tile; nothing else is asked."""
    calls = []
    how = ways.fused if name == "fused" else ways.tiled
    monkeypatch.setattr(how, "forward", lambda x, f=how.forward: calls.append(x) or f(x))
    t, s = 30, 131
    case = large(
        rng, t, s, dtype="float64", heads=(2,), d=3, mask=masks.causal(align="bottom-right")
    )
    extra = [rng.standard_normal((t, s))]
    if name != "fused":
        extra.append(rng.standard_normal(2))
    more = {} if name == "fused" else {"keep": rng.random((t, s)) < 0.7, "p": 0.3}

    def f(query, key, value, bias, *sink):
        cap = 2.5 if sink else None
        return IMPLEMENTATIONS[name](
            query, key, value, bias, *sink, softcap=cap, mask=case.mask, return_weights=False,
            **more,
        )  # fmt: skip

    inputs = [mh.Tensor(x, requires_grad=True) for x in (case.query, case.key, case.value, *extra)]
    with small_tiles():
        mh.gradcheck(f, *inputs, method="adjoint")
    assert len(calls) > 20
    assert all(x.query.dtype == np.float64 for x in calls)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_each_entry(name, rng):
    case = large(rng, 7, 10, dtype="float64", heads=(2,), d=3, mask=masks.causal(offset=3))

    def f(query, key, value):
        return IMPLEMENTATIONS[name](query, key, value, mask=case.mask, return_weights=False)

    inputs = [mh.Tensor(x, requires_grad=True) for x in (case.query, case.key, case.value)]
    mh.gradcheck(f, *inputs, method="richardson")


@pytest.mark.parametrize("name", KERNELS)
def test_no_layout_of_memory_is_refused(name, rng):
    case = large(rng, 9, 11, dtype="float64", d=4)
    plain = told(name, case)
    buffer = np.empty(case.key.nbytes + 1, "uint8")
    unaligned = np.frombuffer(buffer[1:], "float64").reshape(case.key.shape)
    unaligned[...] = case.key
    strange = case.but(
        query=np.repeat(case.query, 2, axis=-1)[..., ::2], key=unaligned,
        value=case.value[..., ::-1].copy()[..., ::-1],
        dout=np.asfortranarray(case.dout),
    )  # fmt: skip
    for x, y in zip(plain, told(name, strange), strict=True):
        assert x is y is None or np.array_equal(x, y)
    same_for_all = case.but(dout=np.broadcast_to(case.dout[:1, :1], case.dout.shape))
    same(name, same_for_all)


@pytest.mark.parametrize("name", TILED)
def test_no_layout_nor_option_is_compiled_anew(name, rng):
    """One variant a type and a way, forward and backward: each takes seconds."""
    from minimha.kernels.cpu import attention_tiles as compiled

    case = large(rng, 9, 11)
    told(name, case)
    before = [len(kernel.signatures) for kernel in (compiled.forward, compiled.backward)]
    bias, keep = rng.standard_normal((11, 9)).astype("float32").T, rng.random((9, 11)) < 0.6
    keep.flags.writeable = bias.flags.writeable = False
    holes = masks.keys(rng.random((2, 11)) < 0.6) & masks.causal(offset=3)
    for one in (
        case.but(query=case.query[..., ::-1], key=case.key[..., ::-1], dout=case.dout[:, ::-1]),
        case.but(bias=bias, keep=keep, dropout=0.4, mask=holes, softcap=3, scale=2),
        case.but(sink=np.float32(1) * np.ones((2, 1), "float32"), mask=masks.sliding_window(2, 0, offset=0)),
    ):  # fmt: skip
        told(name, one)
    after = [len(kernel.signatures) for kernel in (compiled.forward, compiled.backward)]
    assert before == after


@pytest.mark.parametrize("name", KERNELS)
def test_half_precision_is_computed_in_single(name, rng):
    case = large(rng, dtype="float16", mask=masks.causal(offset=100))
    out, *gradients = told(name, case)
    assert {x.dtype for x in (out, *gradients[:3])} == {np.dtype("float16")}
    wide = told(name, large_as(case, "float32"))
    for x, y in zip((out, *gradients[:3]), wide[:4], strict=True):
        assert np.array_equal(x, y.astype("float16"))


def large_as(case, dtype):
    return case.but(
        **{k: getattr(case, k).astype(dtype) for k in ("query", "key", "value", "dout")}
    )
