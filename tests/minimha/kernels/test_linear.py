"""Matrix products of any size: whole blocks, and the remaining rows, columns and depth."""

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import minimha as mh
from minimha import functional
from minimha.functional.linear import WantedOfMaps, linear_maps
from minimha.kernels import threads

pytest.importorskip("numba")
linear = pytest.importorskip("minimha.kernels.cpu.linear")
pytestmark = pytest.mark.skipif(bool(linear.no_vectors()), reason=str(linear.no_vectors()))

ALL_WANTED = WantedOfMaps(True, (True,), (True,))
AROUND = [n + k for n in (12, 32, 64, 256, 384, 512, 768, 1024) for k in (-1, 0, 1)]
SIZES = st.integers(1, 40) | st.sampled_from(AROUND)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sums_of_a_block_stay_in_registers(dtype):
    @linear.kernel
    def block(a, row, step, b, depth, c):
        width = b.shape[1]
        linear.multiply_block(a, 0, row, step, b, 0, width, depth, c, 0, width, False, None)

    x = np.ones((linear.ROWS, 64), dtype)
    block(x, 64, 1, x, 1, np.empty_like(x))
    (machine_code,) = block.inspect_asm().values()
    in_a_step = re.findall(r"\bv?fm(?:add|la)\w*", machine_code)
    assert len(in_a_step) == linear.ROWS * linear.VECTORS  # one step: unrolled, sums may not fit


def matrix(rng, rows, columns, layout, dtype):
    """A matrix, a transposed matrix, or one whose columns are not adjacent in memory."""
    if layout == "strided":
        return rng.standard_normal((rows, 2 * columns)).astype(dtype)[:, ::2]
    transposed = layout == "transposed"
    x = rng.standard_normal((columns, rows) if transposed else (rows, columns)).astype(dtype)
    return x.T if transposed else x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_agree_with_numpy(dtype):
    layouts = st.sampled_from(["contiguous", "transposed", "strided"])

    @hypothesis.settings(max_examples=4 * hypothesis.settings().max_examples)
    @hypothesis.given(SIZES, SIZES, SIZES, layouts, layouts, st.integers(1, 3), st.booleans())
    def check(m, k, n, layout_a, layout_b, workers, with_bias):
        rng = np.random.default_rng([m, k, n])
        a, b = matrix(rng, m, k, layout_a, dtype), matrix(rng, k, n, layout_b, dtype)
        bias = rng.standard_normal(n).astype(dtype) if with_bias else None
        sums = np.zeros(n, dtype) if with_bias else None
        with threads.limit(workers):
            c = linear.product(a, b, bias=bias, sums=sums)
        assert (c.dtype, c.shape) == (np.dtype(dtype), (m, n))
        a, b = a.astype("float64"), b.astype("float64")
        more = bias if with_bias else np.zeros(n)
        bound = (16 + k**0.5) * np.finfo(dtype).eps
        assert np.all(np.abs(c - (a @ b + more)) <= bound * (abs(a) @ abs(b) + abs(more)))
        if with_bias:
            assert np.all(np.abs(sums - b.sum(axis=0)) <= bound * abs(b).sum(axis=0))

    check()


@pytest.mark.parametrize("shape", [(770, 300, 40), (40, 300, 770)])
def test_threads_divide_rows_or_columns_without_overlap(shape, rng):
    m, k, n = shape
    a, b, sums = rng.standard_normal((m, k)), rng.standard_normal((k, n)), np.zeros(n)
    with threads.limit(3):
        c = linear.product(a, b, sums=sums)
    np.testing.assert_allclose(c, a @ b, atol=1e-10)
    np.testing.assert_allclose(sums, b.sum(axis=0), atol=1e-10)


def test_a_product_is_added_to_a_given_array(rng):
    """In several blocks of the depth, the last row and column blocks not full."""
    a, b, c = (rng.standard_normal(shape) for shape in ((50, 600), (600, 70), (50, 70)))
    expected = c + a @ b
    assert linear.product(a, b, to=c) is c
    np.testing.assert_allclose(c, expected, atol=1e-10)


@pytest.mark.parametrize("missing", [None, 0, 2])
def test_several_maps_of_one_input_agree_with_the_reference(missing, rng):
    """A missing cotangent counts as zero."""
    x, widths = rng.standard_normal((3, 9, 5)), (4, 7, 6)
    ws = tuple(rng.standard_normal((5, n)) for n in widths)
    bs = rng.standard_normal(4), None, rng.standard_normal(6)
    dys = [rng.standard_normal((3, 9, n)) for n in widths]
    if missing is not None:
        dys[missing] = None
    wanted = WantedOfMaps(True, (True, True, True), (True, False, True))
    results = []
    for maps in (linear.linear_maps, linear_maps):
        ys, pull = maps(x, ws, bs, wanted=wanted)
        results.append((*ys, *pull(*dys)))
    for kernel, reference in zip(*results, strict=True):
        assert (kernel is None) == (reference is None)
        if kernel is not None:
            np.testing.assert_allclose(kernel, reference, rtol=1e-10, atol=1e-12)


def test_rounding_errors_grow_slowly_with_the_depth(rng):
    """Blocks of the depth are summed separately; a running sum would be ten times less accurate."""
    x = np.abs(rng.standard_normal((24, 60_000))).astype("float32")
    ones = np.ones((60_000, 1), "float32")
    exact = x.astype("float64").sum(axis=1)
    assert np.max(np.abs(linear.product(x, ones)[:, 0] / exact - 1)) < 2e-6


def test_only_the_required_gradients_are_computed(rng):
    x, w, b = rng.standard_normal((3, 9, 5)), rng.standard_normal((5, 4)), rng.standard_normal(4)
    dy = rng.standard_normal((3, 9, 4))
    every = linear.linear_maps(x, (w,), (b,), wanted=ALL_WANTED)[1](dy)
    for k in range(7):
        wants = [bool(k >> n & 1) for n in range(3)]
        wanted = WantedOfMaps(wants[0], (wants[1],), (wants[2],))
        some = linear.linear_maps(x, (w,), (b,), wanted=wanted)[1](dy)
        assert [dx is not None for dx in some] == wants
        for dx, known in zip(some, every, strict=True):
            if dx is not None:
                np.testing.assert_allclose(dx, known, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w"), [((30, 0), (0, 5)), ((30, 4), (4, 0)), ((0, 4), (4, 5)), ((40,), (40, 5))]
)
def test_shapes_without_a_kernel_fall_back_to_the_reference(x, w, rng):
    x, w, b = (rng.standard_normal(shape) for shape in (x, w, w[1:]))
    assert linear.linear_maps(x, (w,), (b,), wanted=ALL_WANTED) is None
    with mh.implementation("microkernel"):
        y, pull = functional.linear.with_pullback(x, w, b)
        np.testing.assert_allclose(y, x @ w + b, rtol=1e-12)
        assert [dx.shape for dx in pull(y)] == [x.shape, w.shape, b.shape]
        with pytest.raises(ValueError, match="need the same M and N"):
            functional.linear(x, np.ones((41, 5)), b)
