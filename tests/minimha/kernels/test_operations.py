"""Kernels of `accelerated` operations agree with their references and are as accurate."""

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
from minimha.functional import implementations
from minimha.kernels import threads

pytest.importorskip("numba")
registers = pytest.importorskip("minimha.kernels.cpu.registers")
BAR = {"float64": 1e-12, "float32": 2e-6}  # of the largest entry, as for all paths of attention
SIDES = st.integers(1, 7)


def numbers(dtype, shape):
    """Arrays whose entries differ and are not too large for float32 to distinguish."""
    bound = 30 if dtype == "float64" else 8
    seeds = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, bound]))
    return seeds.map(
        lambda s: np.asarray(np.random.default_rng(s[0]).uniform(-s[1], s[1], shape), dtype)
    )


def shaped(dtype, least=0):
    """Arrays of up to three axes; the last axis sometimes spans several vectors."""
    leading = st.lists(SIDES, min_size=max(0, least - 1), max_size=2)
    return st.tuples(leading, SIDES | st.integers(8, 70)).flatmap(
        lambda s: numbers(dtype, (*s[0], s[1]))
    )


def array(draw, dtype, least=0):
    return (draw(shaped(dtype, least)),), {}


def gate(draw, dtype):
    x = draw(shaped(dtype))
    return (x, draw(numbers(dtype, x.shape))) if draw(st.booleans()) else (x,), {}


def norm(draw, dtype, parameters):
    x = draw(shaped(dtype, least=1))
    return (x, *(draw(numbers(dtype, x.shape[-1:])) for _ in range(parameters))), {"eps": 1.0}


def cross_entropy(draw, dtype):
    x = draw(shaped(dtype, least=1))
    kind = draw(st.sampled_from(["int64", "int32", "uint8"]))
    targets = drawn.arrays(kind, x.shape[:-1], elements=st.integers(0, x.shape[-1] - 1))
    return (x, draw(targets)), {}


def embedding(draw, dtype):
    table = draw(numbers(dtype, draw(st.tuples(SIDES, SIDES))))
    shape = drawn.array_shapes(min_dims=1, max_dims=3, max_side=5)
    indices = drawn.arrays("int64", shape, elements=st.integers(0, len(table) - 1))
    return (table, draw(indices)), {}


def dropout(draw, dtype):
    x = draw(shaped(dtype))
    return (x, draw(drawn.arrays(bool, x.shape))), {"p": draw(st.floats(0, 0.9))}


def rope(draw, dtype):
    shape = (*draw(st.lists(SIDES, max_size=2)), draw(SIDES), 2 * draw(SIDES))
    settings = {"width": st.sampled_from([None, 2]), "interleaved": st.booleans()}
    settings["offset"] = st.integers(0, 9)
    return (draw(numbers(dtype, shape)),), draw(st.fixed_dictionaries(settings))


def linear(draw, dtype):
    rows = draw(st.sampled_from([(4, 7), (25,), (2, 3, 8), (3,)]))
    depth, width = draw(SIDES), draw(SIDES | st.integers(30, 70))
    x, w = (draw(numbers(dtype, shape)) for shape in ((*rows, depth), (depth, width)))
    b = draw(st.none() | numbers(dtype, width))
    return (x, w) if b is None else (x, w, b), {}


DRAWS = {
    "softmax": partial(array, least=1), "gelu": gate, "silu": gate,
    "layer_norm": partial(norm, parameters=2), "rms_norm": partial(norm, parameters=1),
    "cross_entropy": cross_entropy, "embedding": embedding, "dropout": dropout, "rope": rope,
}  # fmt: skip
if not registers.no_vectors():
    DRAWS["linear"] = linear


def both(operation, inputs, settings, cotangent=None):
    """Value and gradients by the reference, and by the kernel."""
    results = []
    for implementation in ("reference", "fused"):
        with mh.implementation(implementation), np.errstate(all="ignore"):
            value, pull = operation.with_pullback(*inputs, **settings)
            if cotangent is None:
                cotangent = np.random.default_rng(0).standard_normal(value.shape)
            dy = np.asarray(cotangent, value.dtype)
            results.append([value, *(dx for dx in pull(dy) if dx is not None)])
    return results


def agree(results, bar, floor=0.0):
    """Entries differ by at most bar times the largest one, or bar times floor if that is larger."""
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
    """A lower bound on the size of the terms of a gradient that may cancel."""
    if "norm" in name:  # with eps = 1, dy up to 3 and x to 0.1 at least
        return 3 * max(np.max(np.abs(inputs[1])), 0.1)
    return 3.0 if name == "softmax" else 0.0


@pytest.fixture
def answered(monkeypatch):
    """The names of the kernels that returned a result."""
    names = set()

    def kernel(name, size):
        fast = find(name, size)

        def noted(*arrays, **settings):
            result = fast(*arrays, **settings)
            if result is not None:
                names.add(name)
            return result

        return fast and noted

    find = implementations.kernel
    monkeypatch.setattr(implementations, "kernel", kernel)
    return names


@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize("name", DRAWS)
def test_kernels_agree_with_their_references(name, dtype, answered):
    @hypothesis.given(st.data())
    def check(data):
        inputs, settings = DRAWS[name](data.draw, dtype)
        operation = getattr(functional, name)
        agree(both(operation, inputs, settings), BAR[dtype], terms(name, inputs))

    check()
    kernel = {"rope": "rotate", "linear": "linear_maps"}.get(name, name)
    assert answered == {kernel}  # otherwise the reference was compared with itself


@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize("name", DRAWS)
def test_nan_and_infinity_spread_as_in_the_reference(name, dtype):
    odd = st.sampled_from([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0])

    @hypothesis.given(st.data())
    def check(data):
        operation = getattr(functional, name)
        (x, *others), settings = DRAWS[name](data.draw, dtype)
        places = st.lists(st.tuples(st.integers(0, x.size - 1), odd), min_size=1, max_size=4)
        for k, value in data.draw(places):
            x.reshape(-1)[k] = value
        floor = terms(name, (x, *others))
        agree(both(operation, (x, *others), settings), BAR[dtype], floor)
        calm = np.zeros_like(x) + 0.5
        dy = np.random.default_rng(1).standard_normal(operation(calm, *others, **settings).shape)
        if dy.size:
            for k, value in data.draw(places):
                dy.reshape(-1)[k % dy.size] = value
        agree(both(operation, (calm, *others), settings, dy), BAR[dtype], floor)

    check()


@pytest.mark.parametrize("dtype", BAR)
def test_large_logits_are_equally_accurate(dtype, rng):
    x = (rng.standard_normal((4, 33)) * 1e4).astype(dtype)
    agree(both(functional.softmax, (x,), {}), BAR[dtype])
    agree(both(functional.softmax, (np.full((2, 5), -np.inf, dtype),), {}), BAR[dtype])
    agree(both(functional.cross_entropy, (x, rng.integers(33, size=4)), {}), BAR[dtype])
    extreme = np.array([-3e38, -1e5, -104, -89, -88, -80, -11, -10, 10, 80, 1e5, 3e38], dtype)
    for gate in (functional.gelu, functional.silu):
        agree(both(gate, (extreme,), {}), BAR[dtype])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
@pytest.mark.parametrize("name", ["softmax", "gelu", "silu"])
def test_empty_arrays_stay_empty(shape, name):
    with mh.implementation("fused"):
        y, pull = getattr(functional, name).with_pullback(np.zeros(shape, "float32"))
        assert y.shape == pull(y)[0].shape == shape


def test_strided_and_read_only_arrays_give_the_same_results(rng):
    wide = rng.standard_normal((6, 5, 8)).astype("float32")
    row = rng.standard_normal(8).astype("float32")[::2]
    read_only = wide[:3, :, :4].copy()
    read_only.flags.writeable = False
    for x in (wide[::2, :, ::2], wide[:3, :, :4].transpose(1, 0, 2), read_only):
        before = x.copy()
        dy = np.broadcast_to(rng.standard_normal(x.shape[-1]), x.shape)  # read-only, stride 0
        more = {"layer_norm": (row, row), "rms_norm": (row,)}
        for name in ("softmax", "gelu", "rope", *more):
            others = more.get(name, ())
            agree(both(getattr(functional, name), (x, *others), {}, dy), BAR["float32"])
        np.testing.assert_array_equal(x, before)


def test_rounding_errors_do_not_grow_with_the_number_of_rows(rng):
    x, dy = rng.standard_normal((2, 20_000, 3)).astype("float32")
    ones = np.ones(3, "float32")
    with mh.implementation("fused"):
        *_, dweight, dbias = functional.layer_norm.with_pullback(x, ones, ones)[1](np.abs(dy))
    with mh.implementation("reference"):
        wide = [a.astype("float64") for a in (x, ones, ones, np.abs(dy))]
        *_, exact, total = functional.layer_norm.with_pullback(*wide[:3])[1](wide[3])
    np.testing.assert_allclose(dbias, total, rtol=2e-6)
    np.testing.assert_allclose(dweight, exact, rtol=2e-6, atol=2e-6 * np.abs(total).max())


def test_results_are_bitwise_identical_for_any_number_of_threads(rng):
    x, dy = rng.standard_normal((2, 4096, 128)).astype("float32")
    row, w = rng.standard_normal(128).astype("float32"), x[:128] / 10
    every = {"gelu": (), "softmax": (), "layer_norm": (row, row), "linear": (w, row)}
    for name, others in every.items():
        results = []
        for number in (1, 2, 7):
            with threads.limit(number):
                y, pull = getattr(functional, name).with_pullback(x, *others)
                results.append([y, *pull(dy)])
        for more in results[1:]:
            for a, b in zip(results[0], more, strict=True):
                np.testing.assert_array_equal(a, b)


def test_small_arrays_and_unsupported_arguments_fall_back_to_the_reference(answered, rng):
    x = rng.standard_normal((4, 8))
    functional.gelu(x)
    with mh.implementation("reference"):
        functional.gelu(np.zeros(implementations.ENOUGH))
    with mh.implementation("fused"):
        functional.gelu(x.astype("complex128"))
        functional.softmax(x, axis=0)
        with pytest.raises(ValueError, match=r"the width of x, \(8,\)"):
            functional.layer_norm(x, x[0, :3], x[0, :3])
        with pytest.raises(ValueError, match="from 0 to 7"):
            functional.cross_entropy(x, np.array([0, 1, 8, 2]))
        with pytest.raises(IndexError, match="from 0 to 3"):
            functional.embedding(x, np.array([-1]))
    assert not answered
    functional.gelu(np.zeros(implementations.ENOUGH))
    assert answered == {"gelu"}


@pytest.mark.parametrize("dtype", BAR)
def test_adamw_follows_its_formulas(dtype, rng):
    start, moved = rng.standard_normal((3, 50)).astype(dtype), []
    for implementation in ("reference", "fused"):
        p = mh.Tensor(start.copy(), requires_grad=True)
        optimiser, rng = mh.AdamW([p], lr=0.1), np.random.default_rng(0)
        with mh.implementation(implementation):
            for _ in range(5):
                before, kept = p.data, p.data.copy()
                p.grad = rng.standard_normal(start.shape).astype(dtype)
                optimiser.step()
                np.testing.assert_array_equal(before, kept)  # a pullback may have saved it
        moved.append([p.data])
    agree(moved, BAR[dtype])


@pytest.mark.thorough
def test_no_kernel_reads_or_writes_outside_its_arrays(tmp_path):
    """Only indices are tested, so the kernels are compiled without optimisation, in half the time."""
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "MINIMHA_CACHE_DIR": str(tmp_path)}
    same = f"{__file__}::{test_kernels_agree_with_their_references.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", same],
        env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stdout


def test_sums_of_arrays_of_one_shape_have_a_kernel(answered, rng):
    """Both those of `ops.add` and those of gradients."""
    x, y = (mh.Tensor(rng.standard_normal((300, 250)), requires_grad=True) for _ in range(2))
    np.testing.assert_array_equal((x + y).data, x.data + y.data)
    assert answered == {"add"}
    answered.clear()
    dy = rng.standard_normal((300, 250))
    (x * 2.0 + x * 3.0 + x[:1]).backward(dy)
    assert answered == {"add"}
    first = np.zeros_like(dy)
    first[0] = dy.sum(axis=0)
    np.testing.assert_allclose(x.grad, 5 * dy + first, rtol=1e-12)
