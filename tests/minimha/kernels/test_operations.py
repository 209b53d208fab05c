"""The kernels of `accelerated` operations answer as their references do, and are as right."""

import os
import subprocess
import sys
from functools import partial

import hypothesis
import hypothesis.extra.numpy as drawn
import numpy as np
import pytest
from hypothesis import strategies as st

import minimha as mh
from minimha import functional
from minimha.functional import acceleration
from minimha.kernels import threads

pytest.importorskip("numba")
operations = pytest.importorskip("minimha.kernels.cpu.operations")
lanes = pytest.importorskip("minimha.kernels.cpu.lanes")
BAR = {"float64": 1e-12, "float32": 2e-6}  # of the largest entry, as for all paths of attention
SIDES = st.integers(1, 7)


def softmax(data, dtype):
    x = data.draw(shaped(dtype, least=1))
    mask = data.draw(
        st.none() | drawn.arrays(bool, st.sampled_from([x.shape, x.shape[-1:], (*x.shape[:-1], 1)]))
    )
    return functional.softmax, (x,), {"mask": mask}


def layer_norm(data, dtype):
    x = data.draw(shaped(dtype, least=1))
    rows = partial(numbers, dtype, x.shape[-1:])
    return functional.layer_norm, (x, data.draw(rows()), data.draw(rows())), {"eps": 1.0}


def rms_norm(data, dtype):
    x = data.draw(shaped(dtype, least=1))
    return functional.rms_norm, (x, data.draw(numbers(dtype, x.shape[-1:]))), {"eps": 1.0}


def gelu(data, dtype):
    return functional.gelu, (data.draw(shaped(dtype)),), {}


def silu(data, dtype):
    return functional.silu, (data.draw(shaped(dtype)),), {}


def cross_entropy(data, dtype):
    x = data.draw(shaped(dtype, least=1))
    kind = data.draw(st.sampled_from(["int64", "int32", "uint8"]))
    targets = drawn.arrays(kind, x.shape[:-1], elements=st.integers(0, x.shape[-1] - 1))
    return functional.cross_entropy, (x, data.draw(targets)), {}


def embedding(data, dtype):
    table = data.draw(numbers(dtype, data.draw(st.tuples(SIDES, SIDES))))
    shape = drawn.array_shapes(min_dims=1, max_dims=3, max_side=5)
    indices = drawn.arrays("int64", shape, elements=st.integers(0, len(table) - 1))
    return functional.embedding, (table, data.draw(indices)), {}


def dropout(data, dtype):
    x = data.draw(shaped(dtype))
    return functional.dropout, (x, data.draw(drawn.arrays(bool, x.shape))), {"p": data.draw(SHARES)}


def rope(data, dtype):
    shape = (*data.draw(st.lists(SIDES, max_size=2)), data.draw(SIDES), 2 * data.draw(SIDES))
    settings = {
        "width": data.draw(st.sampled_from([None, 2])),
        "interleaved": data.draw(st.booleans()),
        "offset": data.draw(st.integers(0, 9)),
    }
    return functional.rope, (data.draw(numbers(dtype, shape)),), settings


def linear(data, dtype):
    rows = data.draw(st.sampled_from([(4, 7), (25,), (2, 3, 8), (3,)]))
    depth, width = data.draw(SIDES), data.draw(SIDES | st.integers(30, 70))
    b = data.draw(st.none() | numbers(dtype, width))
    x, w = (data.draw(numbers(dtype, shape)) for shape in ((*rows, depth), (depth, width)))
    return functional.linear, (x, w) if b is None else (x, w, b), {}


SHARES = st.floats(0, 0.9)
DRAWS = {
    f.__name__: f
    for f in (
        softmax, layer_norm, rms_norm, gelu, silu, cross_entropy, embedding, dropout, rope, linear,
    )
    if f is not linear or not lanes.slow()
}  # fmt: skip


def numbers(dtype, shape):
    """Arrays whose entries are neither alike nor so large that float32 cannot tell them apart."""
    bound = 30 if dtype == "float64" else 8
    seeds = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, bound]))
    return seeds.map(
        lambda s: np.asarray(np.random.default_rng(s[0]).uniform(-s[1], s[1], shape), dtype)
    )


def shaped(dtype, least=0):
    """Arrays of up to three axes, with a last axis of several vectors at times."""
    leading = st.lists(SIDES, min_size=max(0, least - 1), max_size=2)
    return st.tuples(leading, SIDES | st.integers(8, 70)).flatmap(
        lambda s: numbers(dtype, (*s[0], s[1]))
    )


def both(operation, inputs, settings, cotangent=None):
    """Value and gradients by the reference, and by the kernel, which must be what ran."""
    results = []
    for wish in ("reference", "fused"):
        with mh.implementation(wish), np.errstate(all="ignore"):
            value, pull = operation.with_pullback(*inputs, **settings)
            if cotangent is None:
                cotangent = np.random.default_rng(0).standard_normal(value.shape)
            dy = np.asarray(cotangent, value.dtype)
            results.append([value, *(dx for dx in pull(dy) if dx is not None)])
    return results


def agree(results, bar, floor=0.0):
    """Entries differ by bar times the largest at most, or times floor where that is larger."""
    for reference, kernel in zip(*results, strict=True):
        assert (kernel.dtype, kernel.shape) == (reference.dtype, reference.shape)
        np.testing.assert_array_equal(np.isnan(kernel), np.isnan(reference))
        np.testing.assert_array_equal(np.isposinf(kernel), np.isposinf(reference))
        np.testing.assert_array_equal(np.isneginf(kernel), np.isneginf(reference))
        finite = np.isfinite(reference)
        scale = np.max(np.abs(reference[finite]), initial=floor)
        error = np.max(np.abs(kernel[finite] - reference[finite]), initial=0)
        assert error <= bar * scale, (error, scale)


def terms(name, inputs):
    """How large the terms are of which a gradient is made, at least, where they may cancel."""
    if "norm" in name:  # with eps = 1, dy up to 3 and x to 0.1 at least
        return 3 * max(np.max(np.abs(inputs[1])), 0.1)
    return 3.0 if name == "softmax" else 0.0


@pytest.fixture
def took(monkeypatch):
    """The names of the kernels that gave an answer."""
    answered = set()

    def kernel(name, size):
        fast = load(name, size)

        def noted(*arrays, **settings):
            made = fast(*arrays, **settings)
            if made is not None:
                answered.add(name)
            return made

        return fast and noted

    load = acceleration.kernel
    monkeypatch.setattr(acceleration, "kernel", kernel)
    return answered


@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize("name", DRAWS)
def test_kernels_give_what_their_references_give(name, dtype, took):
    @hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
    @hypothesis.given(st.data())
    def check(data):
        operation, inputs, settings = DRAWS[name](data, dtype)
        agree(both(operation, inputs, settings), BAR[dtype], terms(name, inputs))

    check()
    kernel = "rotate" if name == "rope" else name
    assert took == {kernel}  # or the reference was compared with itself


@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize("name", DRAWS)
def test_nan_and_infinity_go_where_the_reference_lets_them_go(name, dtype):
    @hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
    @hypothesis.given(st.data())
    def check(data):
        operation, (x, *others), settings = DRAWS[name](data, dtype)
        odd = st.sampled_from([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0])
        places = st.lists(st.tuples(st.integers(0, x.size - 1), odd), min_size=1, max_size=4)
        for k, value in data.draw(places):
            x.reshape(-1)[k] = value
        floor = terms(name, (x, *others))
        agree(both(operation, (x, *others), settings), BAR[dtype], floor)
        calm = np.zeros_like(x)
        with np.errstate(all="ignore"):
            shape = operation(calm, *others, **settings).shape
        dy = np.random.default_rng(1).standard_normal(shape)
        if dy.size:
            for k, value in data.draw(places):
                dy.reshape(-1)[k % dy.size] = value
        agree(both(operation, (calm + 0.5, *others), settings, dy), BAR[dtype], floor)

    check()


@pytest.mark.parametrize("name", DRAWS)
def test_their_gradients_are_those_of_their_values(name, rng):
    x, row = rng.standard_normal((3, 5, 6)), rng.standard_normal(6)
    inputs, settings = {
        "softmax": ((x,), {"mask": rng.random((5, 6)) < 0.7}),
        "layer_norm": ((x, row, rng.standard_normal(6)), {}),
        "rms_norm": ((x, row), {}),
        "gelu": ((x,), {}),
        "silu": ((x,), {}),
        "cross_entropy": ((x,), {"targets": rng.integers(6, size=(3, 5))}),
        "embedding": ((x[0],), {"indices": rng.integers(5, size=(2, 4))}),
        "dropout": ((x,), {"keep": rng.random(x.shape) < 0.7, "p": 0.3}),
        "rope": ((x,), {"offset": 3}),
        "linear": ((rng.standard_normal((2, 13, 5)), rng.standard_normal((5, 6)), row), {}),
    }[name]
    operation = getattr(functional, name)

    def value_and_pullback(*arrays):
        named = dict(settings)
        held = [named.pop(k) for k in ("targets", "indices", "keep") if k in named]
        value, pull = operation.with_pullback(*arrays, *held, **named)
        return value, lambda dy: pull(dy)[: len(arrays)]

    with mh.implementation("fused"):
        mh.gradcheck(value_and_pullback, *inputs, method="central")


@pytest.mark.parametrize("dtype", BAR)
def test_large_logits_are_as_exact(dtype, rng):
    x = (rng.standard_normal((4, 33)) * 1e4).astype(dtype)
    agree(both(functional.softmax, (x,), {}), BAR[dtype])
    agree(both(functional.cross_entropy, (x, rng.integers(33, size=4)), {}), BAR[dtype])
    extreme = np.array([-3e38, -1e5, -104, -89, -88, -80, -11, -10, 10, 80, 1e5, 3e38], dtype)
    for gate in (functional.gelu, functional.silu):
        agree(both(gate, (extreme,), {}), BAR[dtype])


def test_a_row_that_sees_nothing_gives_zeros(rng):
    mask = np.array([[False] * 5, [True] * 5])
    with mh.implementation("fused"):
        y, pull = functional.softmax.with_pullback(rng.standard_normal((2, 5)), mask=mask)
        (dx,) = pull(np.full((2, 5), np.nan))
    assert not y[0].any()
    assert not dx[0].any()
    assert np.isnan(dx[1]).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_empty_arrays_stay_empty(shape):
    x = np.zeros(shape, "float32")
    row = x[..., :0].reshape(-1)[:0] if shape[-1] == 0 else np.ones(shape[-1], "float32")
    with mh.implementation("fused"):
        for operation, others in (
            (functional.softmax, ()),
            (functional.gelu, ()),
            (functional.silu, ()),
        ):
            y, pull = operation.with_pullback(x, *others)
            assert y.shape == pull(y)[0].shape == shape
        if shape[-1]:
            y, pull = functional.layer_norm.with_pullback(x, row, row)
            assert [dx.shape for dx in pull(y)] == [shape, row.shape, row.shape]
            assert not pull(y)[1].any()


def test_strided_and_read_only_arrays_are_taken_as_they_are(rng):
    wide = rng.standard_normal((6, 5, 8)).astype("float32")
    row = rng.standard_normal(8).astype("float32")[::2]
    for x in (wide[::2, :, ::2], wide[:3, :, :4].transpose(1, 0, 2), locked(wide[:3, :, :4])):
        before = x.copy()
        dy = np.broadcast_to(
            rng.standard_normal(x.shape[-1]), x.shape
        )  # read-only, without strides
        for operation, others in (
            (functional.softmax, ()), (functional.gelu, ()), (functional.silu, ()), (functional.layer_norm, (row, row)),
            (functional.rms_norm, (row,)), (functional.rope, ()),
        ):  # fmt: skip
            agree(both(operation, (x, *others), {}, dy), BAR["float32"])
        np.testing.assert_array_equal(x, before)


def locked(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def test_rounding_does_not_grow_with_the_rows(rng):
    x, dy = rng.standard_normal((2, 20_000, 3)).astype("float32")
    ones = np.ones(3, "float32")
    with mh.implementation("fused"):
        *_, dweight, dbias = functional.layer_norm.with_pullback(x, ones, ones)[1](np.abs(dy))
    with mh.implementation("reference"):
        wide = [a.astype("float64") for a in (x, ones, ones)]
        *_, exact, total = functional.layer_norm.with_pullback(*wide)[1](
            np.abs(dy).astype("float64")
        )
    np.testing.assert_allclose(dbias, total, rtol=2e-6)
    np.testing.assert_allclose(dweight, exact, rtol=2e-6, atol=2e-6 * np.abs(total).max())


def test_threads_share_large_arrays_and_change_nothing(rng, monkeypatch):
    x, dy = rng.standard_normal((2, 4096, 128)).astype("float32")
    row = rng.standard_normal(128).astype("float32")
    for operation, inputs in (
        (functional.gelu, (x,)),
        (functional.softmax, (x,)),
        (functional.layer_norm, (x, row, row)),
    ):
        first, second = (
            [y, *pull(dy)] for y, pull in (operation.with_pullback(*inputs) for _ in range(2))
        )
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
        monkeypatch.setattr(threads, "number", lambda: 1)
        y, pull = operation.with_pullback(*inputs)
        for a, b in zip(first, [y, *pull(dy)], strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6 * np.max(np.abs(a)))
        monkeypatch.undo()


def test_small_arrays_and_other_types_go_by_the_reference(took, rng):
    x = rng.standard_normal((4, 8))
    functional.gelu(x)
    with mh.implementation("reference"):
        functional.gelu(np.zeros(acceleration.ENOUGH))
    with mh.implementation("fused"):
        functional.gelu(x.astype("complex128"))
        functional.softmax(x, axis=0)
        functional.gelu(x.astype("float16"))
        with pytest.raises(ValueError, match=r"the width of x, \(8,\)"):
            functional.layer_norm(x, x[0, :3], x[0, :3])
        with pytest.raises(ValueError, match="from 0 to 7"):
            functional.cross_entropy(x, np.array([0, 1, 8, 2]))
        with pytest.raises(IndexError, match="from 0 to 3"):
            functional.embedding(x, np.array([-1]))
    assert not took
    functional.gelu(np.zeros(acceleration.ENOUGH))
    assert took == {"gelu"}


@pytest.mark.parametrize("dtype", BAR)
def test_adamw_moves_as_its_formulas_say(dtype, rng):
    start = rng.standard_normal((3, 50)).astype(dtype)
    models = {}
    for wish in ("reference", "fused"):
        p = mh.Tensor(start.copy(), requires_grad=True)
        optimiser, rng = mh.AdamW([p], lr=0.1), np.random.default_rng(0)
        with mh.implementation(wish):
            for _ in range(5):
                before, kept = p.data, p.data.copy()
                p.grad = rng.standard_normal(start.shape).astype(dtype)
                optimiser.step()
                np.testing.assert_array_equal(before, kept)  # a pullback may have saved it
        models[wish] = p.data
    assert models["fused"].dtype == dtype
    agree([[models["reference"]], [models["fused"]]], BAR[dtype])


SMALL = """
import numpy as np, minimha as mh
from minimha import functional
rng = np.random.default_rng(0)
def close(name, *inputs, **settings):
    out = []
    for way in ("reference", "fused"):
        with mh.implementation(way), np.errstate(all="ignore"):
            y, pull = getattr(functional, name).with_pullback(*inputs, **settings)
            out.append([y, *[d for d in pull(np.ones_like(y)) if d is not None]])
    for a, b in zip(*out):
        np.testing.assert_allclose(b, a, strict=True, rtol=2e-6, atol=2e-6, err_msg=name)
for shape in ((3, 5), (1, 1), (70, 2)):
    for dtype in ("float32", "float64"):
        x, row = rng.standard_normal(shape).astype(dtype), np.ones(shape[1], dtype)
        close("softmax", x), close("softmax", x, mask=rng.random(shape) < 0.5)
        close("layer_norm", x, row, row, eps=1.0), close("rms_norm", x, row, eps=1.0)
        close("gelu", x), close("silu", x), close("dropout", x, rng.random(shape) < 0.5, p=0.5)
        close("cross_entropy", x, rng.integers(shape[1], size=shape[0]))
        close("embedding", x, rng.integers(shape[0], size=4))
        close("rope", np.concatenate([x, x], 1)), close("rope", np.concatenate([x, x], 1), interleaved=True)
"""


def test_no_kernel_reaches_beyond_its_arrays(tmp_path):
    settings = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SMALL], env=settings, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
