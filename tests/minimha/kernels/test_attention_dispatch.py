"""Dispatch: the chosen implementation computes attention, or the reference does instead."""

import itertools

import attention_paths
import numpy as np
import pytest
from processes import output_of

import minimha as mh
from minimha.attention import IMPLEMENTATIONS
from minimha.attention.reference import attention
from minimha.functional.implementations import Candidate
from minimha.kernels import attention as ways
from minimha.kernels import threads
from minimha.kernels.attention import layout

KERNELS = "fused", "tiled", "microkernel"
LARGE = (1, 2, 96, 64)


def normal(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def asked(monkeypatch):
    """The number of calls of the reference."""
    calls = []

    def counted(x, wanted):
        calls.append(x)
        return attention(x, wanted)

    monkeypatch.setattr(ways, "attention", counted)
    monkeypatch.setitem(IMPLEMENTATIONS, "reference", Candidate(counted))
    return calls


def computed(name, *inputs, dout=None, **settings):
    """The output and the gradients of an implementation."""
    with np.errstate(all="ignore"):
        out, pull = attention_paths.computed(name, *inputs, **settings)
        return [out, *pull(np.ones_like(out) if dout is None else dout)]


def as_the_reference(name, *inputs, **settings):
    """Bitwise equal, NaN included."""
    both = (computed(which, *inputs, **settings) for which in (name, "reference"))
    return all(x is y is None or np.array_equal(x, y, equal_nan=True) for x, y in zip(*both))  # noqa: B905


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_without_the_reference(name, dtype, asked, rng):
    pytest.importorskip("numba")
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    computed(name, *(normal(rng, 2, 2, 5, 3, dtype=dtype) for _ in "qkv"), mask=mh.masks.causal())
    assert not asked


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", KERNELS)
def test_infinite_and_nan_inputs_fall_back_to_the_reference(name, number, asked, rng):
    for place, dtype in itertools.product(range(4), ("float32", "float64")):
        *inputs, dout = arrays = [normal(rng, 1, 2, 6, 3, dtype=dtype) for _ in "qkvo"]
        arrays[place][0, 1, 2] = number
        for mask in (None, np.tri(6, dtype=bool), np.tri(6, k=-1, dtype=bool).T):
            del asked[:]
            exact = as_the_reference(name, *inputs, dout=dout, mask=mask)
            assert exact or place == 3  # the kernel computed the output
            assert asked


@pytest.mark.parametrize("name", ["tiled", "microkernel"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_sink_that_is_not_finite_counts_as_in_the_reference(name, number, rng):
    q, k, v = (normal(rng, 1, 2, 6, 3) for _ in "qkv")
    sink = np.array([number, 1.0], q.dtype)
    for mask in (None, np.tri(6, k=-1, dtype=bool)):
        results = [computed(which, q, k, v, mask=mask, sink=sink) for which in (name, "reference")]
        for one, other in zip(*results, strict=True):
            if one is not None:
                np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_query_that_sees_only_a_nan_key_gets_nan(name, sign, rng):
    """In the order of bits, a NaN with a sign is less than −∞, the score of the other keys."""
    pytest.importorskip("numba")
    for dtype in ("float32", "float64"):
        q, k, v = (normal(rng, 1, 2, 6, 3, dtype=dtype) for _ in "qkv")
        k[0, 0, 3] = np.copysign(np.nan, sign)
        visible = np.ones((6, 6), bool)
        visible[:, 3], visible[2] = False, [False, False, False, True, False, False]
        bias = np.where(visible, 0, -np.inf).astype(dtype)
        out = computed(name, q, k, v, bias)[0]
        assert np.isnan(out[0, 0, 2]).all()
        assert np.isfinite(out[0, 0, [0, 1, 3, 4, 5]]).all()
        assert np.isfinite(out[0, 1]).all()


@pytest.mark.parametrize("name", KERNELS)
def test_hidden_nan_stays_hidden_in_every_thread(name, rng, monkeypatch):
    monkeypatch.setattr(layout, "_THREADS_PAY", 1)
    monkeypatch.setattr(layout, "_PIECE", 1)
    q, k, v, dout = (normal(rng, 1, 4, 9, 3) for _ in "qkvo")
    hidden = np.tri(9, k=-1, dtype=bool)  # query 0 sees nothing; key 8 is hidden from all
    for head in range(4):
        for x, place in ((q, 0), (k, 8), (v, 8), (dout, 0)):
            kept = x[0, head, place].copy()
            x[0, head, place] = np.nan
            with threads.limit(4):
                results = computed(name, q, k, v, mask=hidden, dout=dout)
            assert all(np.isfinite(y).all() for y in results if y is not None)
            x[0, head, place] = kept


@pytest.mark.parametrize("name", ["tiled", "microkernel"])
def test_a_nan_cotangent_of_a_fully_masked_query_does_not_reach_the_sink(name, rng):
    t = 96
    q, k, v, dout = (normal(rng, 1, 2, t, 3) for _ in "qkvo")
    sink, visible = normal(rng, 2), np.ones((t, t), bool)
    visible[: t // 2] = False  # tiles that are skipped
    dout[:, :, : t // 2] = np.nan
    gradients = computed(name, q, k, v, None, sink, mask=visible, dout=dout)[1:]
    assert all(np.isfinite(x).all() for x in gradients if x is not None)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("change", [
    lambda q, k, v: (q + 0j, k, v),
    lambda q, k, v: (q, k, v, np.zeros((6, 6), complex)),
    lambda q, k, v: (q, k, v, None, None, 0.3 + 1e-20j),
    lambda q, k, v: (q, k, v, None, None, np.asarray(0.3)),
    lambda q, k, v: (q, k, v, None, None, None, np.asarray(2.0)),
    lambda q, k, v: (*(x.astype("float32") for x in (q, k, v)), *[None] * 3, 1e-60),  # is 0
    lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]),
    lambda q, k, v: (q[:, :, :0], k, v),
])  # fmt: skip
def test_unsupported_arguments_fall_back_to_the_reference(change, name, asked, rng):
    inputs = change(*(normal(rng, 1, 2, 6, 3, dtype="float64") for _ in "qkv"))
    if any(np.iscomplexobj(x) for x in inputs):  # which has no gradients
        call = mh.scaled_dot_product_attention
        inputs = *inputs[:3], None, *inputs[3:]
        outs = (call(*inputs, implementation=n) for n in (name, "reference"))
        assert np.array_equal(*outs)
    else:
        assert as_the_reference(name, *inputs)
    assert asked


@pytest.mark.parametrize("name", KERNELS)
def test_arrays_of_another_library_fall_back_to_the_reference(name, asked, place, rng):
    q, k, v = (normal(rng, 1, 2, 6, 3) for _ in "qkv")
    exact, out = (
        mh.scaled_dot_product_attention(*map(move, (q, k, v)), implementation=by)
        for move, by in ((np.asarray, "loop"), (place, name))
    )
    assert abs(mh.backend.to_numpy(out) - exact).max() < 1e-6
    own = place.name == "numpy" or (place.name == "cupy" and name in {"fused", "tiled"})
    assert bool(asked) == (not own or bool(ways.unavailable()))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_operation_refuses_mismatched_shapes_and_dtypes(name, rng):
    """Otherwise kernels would read past the end of an array."""
    q, k, v = (normal(rng, 1, 2, 6, 3) for _ in "qkv")
    for inputs, settings, error in [
        ((q, k[..., :2], v), {}, ValueError),
        ((q, k, v[:, :, :4]), {}, ValueError),
        ((q, k[:, :1], v), {}, ValueError),
        ((q, normal(rng, 1, 4, 6, 3), normal(rng, 1, 4, 6, 3)), {}, ValueError),
        ((q, normal(rng, 3, 2, 6, 3), v), {}, ValueError),
        ((q, k, v, normal(rng, 5, 6)), {}, ValueError),
        ((q, k, v, None, normal(rng, 3)), {}, ValueError),
        ((q, k, v, None, None, None, -2.0), {}, ValueError),
        ((q, k, v), {"mask": np.ones((6, 5), bool)}, ValueError),
        ((q, k, v), {"keep": np.ones((5, 6), bool), "p": 0.5}, ValueError),
        ((q, k, v), {"keep": np.ones((6, 6)), "p": 0.5}, TypeError),
        ((q, k, v), {"keep": np.ones((6, 6), bool), "p": 1.5}, ValueError),
        ((q, k.astype("float64"), v), {}, TypeError),
    ]:
        with pytest.raises(error):
            computed(name, *inputs, **settings)
    _, pull = attention_paths.computed(name, q, k, v)
    with pytest.raises(ValueError, match=r"mismatch|broadcast"):
        pull(normal(rng, 1, 2, 4, 3))


def test_auto_chooses_by_sizes_and_options(rng):
    large = [normal(rng, *LARGE) for _ in "qkv"]
    if why := ways.unavailable():
        assert why in repr(mh.explain_dispatch(*large))
    else:
        best = "tiled" if ways._slow_registers() else "microkernel"
        few = [np.tile(x[..., :32, :], (3, 1, 1, 1)) for x in large]
        assert mh.explain_dispatch(*few).implementation == "fused"
        for heads in (16, 1):  # a step of decoding
            q, k = normal(rng, 16, 1, 64), normal(rng, heads, 99, 64)
            assert mh.explain_dispatch(q, k, k).implementation == "fused"
        assert mh.explain_dispatch(*few, softcap=2.0).implementation == best
        assert mh.explain_dispatch(*large).implementation == best
        assert set(mh.explain_dispatch(*large).reasons) == set(IMPLEMENTATIONS)
    numbers = mh.explain_dispatch(*(x[..., :5, :] for x in large))
    assert "few numbers" in numbers.reasons["reference"]
    assert numbers.implementation == "reference"


@pytest.mark.parametrize("implementation", ["auto", *IMPLEMENTATIONS])
def test_explain_dispatch_names_the_implementation_that_runs(implementation, rng, monkeypatch):
    large = [normal(rng, *LARGE) for _ in "qkv"]
    computed_by = []
    for name, known in IMPLEMENTATIONS.items():

        def watched(*x, name=name, f=known.function):
            return computed_by.append(name) or f(*x)

        monkeypatch.setitem(IMPLEMENTATIONS, name, known._replace(function=watched))
    for more in (
        {}, {"mask": mh.masks.causal()}, {"sink": normal(rng, 2)}, {"softcap": 2.0},
        {"dropout": 0.3, "keep": rng.random((96, 96)) < 0.7}, {"return_weights": True},
        {"scale": np.asarray(2, "float32")}, {"dropout": 0.3, "rng": rng},
    ):  # fmt: skip
        state = rng.bit_generator.state
        explained = mh.explain_dispatch(*large, **more, implementation=implementation)
        assert rng.bit_generator.state == state  # nothing is drawn
        tensors = map(mh.Tensor, large)
        assert explained == mh.explain_dispatch(*tensors, **more, implementation=implementation)
        mh.scaled_dot_product_attention(*large, **more, implementation=implementation)
        assert explained.implementation == computed_by.pop()
        assert str(explained).startswith(f"{explained.implementation} computes it\n")
        assert all(name in str(explained) for name in explained.reasons)


@pytest.mark.parametrize("more", [{"sink": np.ones(2, "f4")}, {"softcap": 2.0}, {"dropout": 0.3}])
def test_explain_dispatch_says_what_fused_does_not_support(more, rng):
    pytest.importorskip("numba")
    large = [normal(rng, *LARGE) for _ in "qkv"]
    explained = mh.explain_dispatch(*large, **more, implementation="fused")
    assert explained.implementation == "reference"
    assert next(iter(more)) in explained.reasons["fused"]
    assert mh.explain_dispatch(*large, implementation="fused").implementation == "fused"


def test_explain_dispatch_knows_the_promise_of_batch_invariant(rng):
    few = normal(rng, 1, 2, 8, 64), *(normal(rng, 1, 2, 512, 64) for _ in range(2))
    assert mh.explain_dispatch(*few).implementation != "microkernel"
    with mh.batch_invariant():
        assert mh.explain_dispatch(*few).implementation == "microkernel"
        for call in (mh.explain_dispatch, mh.scaled_dot_product_attention):
            with pytest.raises(TypeError, match="sink"):
                call(*few, sink=np.zeros(2, np.float32))


def test_an_implementation_argument_overrides_the_context(rng):
    large = [normal(rng, *LARGE) for _ in "qkv"]
    with mh.implementation("loop"):
        assert mh.explain_dispatch(*large).implementation == "loop"
        assert mh.explain_dispatch(*large, implementation="reference").implementation == "reference"


def words(code, **environment):
    """What this code prints about 96 positions of width 64."""
    setup = "import sys, numpy as np, minimha as mh\nx = np.ones((1, 2, 96, 64), 'f4')\n"
    return output_of(setup + code, **environment).split()


def test_small_inputs_do_not_load_the_compiler():
    code = (
        "y = [mh.Tensor(x[..., :8, :8], requires_grad=True) for _ in 'qkv']\n"
        "mh.scaled_dot_product_attention(*y, mh.masks.causal()).sum().backward()\n"
        "print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    )
    assert words(code) == ["False", "False"]


def test_the_environment_names_an_implementation():
    tell = "print(mh.explain_dispatch(x, x, x).implementation)"
    code = f"{tell}\nwith mh.implementation('loop'): {tell}"
    assert words(code, MINIMHA_IMPLEMENTATION="reference") == ["reference", "loop"]
    wrong = "try: mh.explain_dispatch(x, x, x)\nexcept ValueError as error: print('quick' in str(error))"
    assert words(wrong, MINIMHA_IMPLEMENTATION="quick") == ["True"]


def test_without_a_compiler_the_reference_computes():
    code = (
        "print(mh.explain_dispatch(x, x, x, implementation='tiled'))\n"
        "y = [mh.scaled_dot_product_attention(x, x, x, implementation=n)"
        " for n in ('auto', 'fused', 'tiled', 'microkernel', 'reference')]\n"
        "print(all(np.array_equal(z, y[-1]) for z in y), 'numba' in sys.modules)"
    )
    first, *reasons, equal, loaded = words(code, NUMBA_DISABLE_JIT="1")
    assert (first, equal, loaded) == ("reference", "True", "False")
    assert "NUMBA_DISABLE_JIT" in reasons
