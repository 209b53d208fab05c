"""The kernels of operations for GPUs, compiled for the CPU.

They agree with the formulas, write only to their own arrays, and are the only kernels that run.
Broken versions of them are caught.
"""

import contextlib
import functools
import math

import cuda_on_cpu
import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import functional
from minimha.functional.linear import WantedOfMaps, linear_maps
from minimha.functional.rope import Llama3
from minimha.kernels import shared
from minimha.kernels.gpu import cuda, embedding, norms, sums
from minimha_autograd import backend, ops, unbroadcast

WHY = cuda_on_cpu.unavailable()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
BAR = {"float64": 1e-13, "float32": 2e-6}  # of the largest entry
WIDTHS = 1, 31, 33, 257, 1000
ROWS = 1, 5, 40
SOURCES = {path.stem: cuda.text(path) for path in cuda.COMMON.parent.glob("*.cu")}


@contextlib.contextmanager
def on_cpu(**sources):
    """Run these sources in place of the right ones, with so few blocks and threads that each
    computes several rows or entries. Yields the counts of launches."""
    made = []

    @functools.cache
    def kernel(source, name, dtype):
        text = sources.get(source.stem, SOURCES[source.stem])
        return cupy_on_numpy.raw_kernel(text, name, (f"-Dreal={cuda.REALS[str(dtype)]}",))

    def empty(shape, like):
        """An array of NaN, with entries before and after it that must not change."""
        size = math.prod(shape)
        around = np.full(size + 128, 7, like.dtype)
        around[64:-64] = np.nan
        made.append(around)
        return cupy_on_numpy.ndarray(around[64:-64].reshape(shape))

    def empty_laid_out_like(x, width):
        """An array of NaN: memory that was used before may hold the right numbers."""
        y = shared.empty_laid_out_like(x, width)
        y._numpy[...] = np.nan  # not counted as a launch
        return y

    with (
        cupy_on_numpy.installed(),
        mh.implementation("tiled"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(cuda, "kernel", kernel)
        patch.setattr(cuda, "empty", empty)
        patch.setattr(embedding, "empty_laid_out_like", empty_laid_out_like)
        patch.setattr(cuda, "BLOCKS", 3)
        patch.setattr(cuda, "THREADS", 96)
        patch.setattr(norms, "_BLOCKS", 3)
        patch.setattr(sums, "_HEIGHT", 128)
        yield cupy_on_numpy.launches
        for around in made:
            assert np.all(around[:64] == 7), "a kernel wrote before the beginning of an array"
            assert np.all(around[-64:] == 7), "a kernel wrote beyond the end of an array"


def moved(x, layout):
    """x on the device. In memory it is stored by rows, by columns, or in every second entry."""
    if not isinstance(x, np.ndarray):
        return x
    there = cupy_on_numpy.asarray
    if layout == "columns":
        return there(np.ascontiguousarray(x.T)).T
    if layout == "every second" and x.ndim:
        return there(np.repeat(x, 2, axis=-1))[..., ::2]
    return there(x)


class Case:
    """A call of an operation, and how often forward and backward launch each kernel."""

    def __init__(self, operation, *inputs, launches, **settings):
        self.operation = operation
        self.inputs = inputs
        self.launches = launches
        self.settings = settings

    def computed(self, dtype, move=lambda x: x):
        """The values and the gradients, for inputs that are converted to this dtype and moved; and
        the kernels that were launched."""

        def given(x):
            is_float = isinstance(x, np.ndarray) and x.dtype.kind == "f"
            return move(x.astype(dtype)) if is_float else move(x)

        inputs = [given(x) for x in self.inputs]
        settings = {name: given(x) for name, x in self.settings.items()}
        before = [backend.to_numpy(x).copy() for x in inputs if backend.is_array(x)]
        cupy_on_numpy.launches.clear()
        values, pullback = self.operation.with_pullback(*inputs, **settings)
        values = values if isinstance(values, tuple) else (values,)
        rng = np.random.default_rng(0)
        gradients = pullback(*(given(rng.standard_normal(y.shape)) for y in values))
        launched = dict(+cupy_on_numpy.launches)
        after = [backend.to_numpy(x) for x in inputs if backend.is_array(x)]
        for x, y in zip(before, after, strict=True):
            assert np.array_equal(x, y, equal_nan=True), "an input has changed"
        return [backend.to_numpy(x) for x in (*values, *gradients) if x is not None], launched

    def rounded(self, dtype):
        """The same case with inputs that the dtype can represent."""
        inputs = [
            x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
            for x in self.inputs
        ]
        return Case(self.operation, *inputs, launches=self.launches, **self.settings)


def agrees(case, dtype, layout="rows"):
    """The results agree with the reference in float64 up to rounding, with NaN and infinities in the
    same places."""
    case = case.rounded(dtype)
    with mh.implementation("reference"), np.errstate(all="ignore"):
        expected, _ = case.computed("float64")
    found, launched = case.computed(dtype, lambda x: moved(x, layout))
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, dtype)
        assert np.array_equal(np.isnan(x), np.isnan(y))
        assert np.array_equal(np.isposinf(x), np.isposinf(y))
        assert np.array_equal(np.isneginf(x), np.isneginf(y))
        finite = np.isfinite(y)
        scale = np.max(np.abs(y[finite]), initial=1)
        error = np.max(np.abs(x[finite] - y[finite]), initial=0)
        assert error <= BAR[dtype] * scale, (case.operation.__name__, error / scale)
    if layout == "rows":
        assert launched == case.launches


def normed(rng):
    counts = {"normalise": 1, "normalise_backward": 1, "normalise_totals": 1}
    for rows in ROWS:
        for width in WIDTHS:
            x = rng.uniform(-3, 3, (rows, width))
            weight, bias = rng.uniform(-3, 3, (2, width))
            yield Case(functional.layer_norm, x, weight, bias, launches=counts, eps=0.1)
            yield Case(functional.layer_norm, x[None], weight, launches=counts, eps=0.1)
            yield Case(functional.rms_norm, x, weight, launches=counts, eps=0.1)


def gated(rng):
    counts = {"gate": 1, "gate_backward": 1}
    for shape in ((1,), (7, 31), (2, 3, 257)):
        x, times = 5 * rng.standard_normal((2, *shape))
        x.flat[0], x.flat[-1] = 200, -200
        for operation in (functional.gelu, functional.silu):
            yield Case(operation, x, launches=counts)
            yield Case(operation, x, times, launches=counts)
    keep = rng.random((3, 50)) < 0.6
    yield Case(functional.dropout, rng.random((3, 50)), keep, p=0.3, launches={"dropout": 2})


def classified(rng):
    counts = {"softmax": 1, "softmax_backward": 1}
    for rows in ROWS:
        for width in WIDTHS:
            x = rng.uniform(-8, 8, (rows, width))
            targets = rng.integers(0, width, rows).astype("int32")
            yield Case(functional.softmax, x, launches=counts)
            yield Case(
                functional.cross_entropy, x, targets,
                launches={"astype": 1, "cross_entropy": 1, "mean": 1, "cross_entropy_backward": 1},
            )  # fmt: skip
    x = rng.uniform(-300, 300, (4, 5, 70))
    yield Case(functional.softmax, x, launches=counts)
    x = x.copy()
    x[1, 2] = -math.inf  # a row without entries
    x[0, 1, :35] = -math.inf
    yield Case(functional.softmax, x, launches=counts)


SCALING = Llama3(8.0, 1.0, 4.0, 40)


def placed(rng):
    for width in WIDTHS:
        indices = rng.integers(0, 7, (3, 5)).astype("int16")
        counts = {"astype": 1, "embedding": 1, "zeros": 1, "at": 1}
        yield Case(functional.embedding, rng.random((7, width)), indices, launches=counts)

    by_offset = {"arange": 1, "rotations": 1, "rotate": 2}
    given = {"rotations": 1, "rotate": 2}
    many_axes = {**given, "reshape": 2}
    t = 6
    for lead, settings, counts in (
        ((), {"offset": 3}, by_offset),
        ((), {"base": 500.0, "scaling": SCALING}, by_offset),
        ((3,), {"positions": rng.integers(0, 100, (3, t))}, given),
        ((2, 3), {"positions": rng.integers(-9, 9, (2, t))}, given),
        ((2, 3), {"positions": rng.integers(-9, 9, (1, 3, t))}, given),
        ((2, 3), {"positions": rng.integers(-9, 9, t)}, given),
        ((2, 2, 3), {"positions": rng.integers(0, 9, (1, 2, 1, t))}, many_axes),
    ):
        for columns, width in ((2, 2), (10, 4), (66, 66)):
            x = rng.standard_normal((*lead, t, columns))
            for interleaved in (False, True):
                settings |= {"width": width, "interleaved": interleaved}
                yield Case(functional.rope, x, launches=counts, **settings)


def summed(rng):
    for shape, axis, parts in (
        ((1, 5), 0, 1), ((5, 1000), 0, 1), ((300, 9), 0, 2), ((3, 100, 33), (0, 1), 2),
        ((7, 6, 31), 1, 1), ((2, 130, 3, 4), (1, -2), 2), ((17000, 2), 0, 3), ((9, 257), -2, 1),
    ):  # fmt: skip
        x = rng.standard_normal(shape)
        for keepdims in (False, True):
            given = {"axis": axis, "keepdims": keepdims}
            counts = {"sum_over_rows": parts}
            yield Case(ops.sum, x, launches=counts, **given)
            yield Case(ops.mean, x, launches={**counts, "truediv": 2}, **given)


class LinearMaps:
    """`linear_maps` called like an operation, with x, the matrices and then the biases, if any."""

    __name__ = "linear_maps"

    @staticmethod
    def with_pullback(x, *parts, count):
        ws, bs = parts[:count], parts[count:] or (None,) * count
        wanted = WantedOfMaps(True, (True,) * count, tuple(b is not None for b in bs))
        values, pullback = linear_maps(x, ws, bs, wanted=wanted)
        return tuple(values), pullback


def mapped(rng):
    for rows, depth, widths in ((1, 3, (2, 3)), (7, 9, (8, 4, 4)), (30, 5, (33, 1, 31, 2))):
        x, ws = rng.standard_normal((2, rows, depth)), [rng.random((depth, n)) for n in widths]
        counts = {"matmul": 3, "side_by_side": 3}
        yield Case(LinearMaps, x, *ws, count=len(widths), launches=counts)
        bs = [rng.random(n) for n in widths]
        counts = {"matmul": 3, "side_by_side": 5, "add in place": 1, "sum_over_rows": 1}
        yield Case(LinearMaps, x, *ws, *bs, count=len(widths), launches=counts)


CASES = {
    "norms": normed, "elementwise": gated, "softmax": classified, "embedding": placed,
    "sums": summed, "linear": mapped,
}  # fmt: skip


@pytest.mark.parametrize("dtype", BAR)
@pytest.mark.parametrize("source", CASES)
def test_kernels_agree_with_the_formulas_and_no_others_run(rng, source, dtype):
    with on_cpu():
        for case in CASES[source](rng):
            agrees(case, dtype)


@pytest.mark.parametrize("layout", ["columns", "every second"])
@pytest.mark.parametrize("source", CASES)
def test_arrays_may_have_any_layout_in_memory(rng, source, layout):
    with on_cpu():
        for case in list(CASES[source](rng))[:: 1 if source == "linear" else 4]:
            agrees(case, "float64", layout)


def test_heads_of_a_projection_are_rotated_without_a_copy(rng):
    """Queries from a projection have the shape (B, H, T, D), but are stored as (B, T, H, D)."""
    with on_cpu() as launches:
        xp = backend.library("cupy")
        x = xp.asarray(rng.random((2, 5, 3, 8)))
        launches.clear()
        y, pull = functional.rope.with_pullback(xp.permute_dims(x, (0, 2, 1, 3)))
        (dx,) = pull(y)
        assert dict(+launches) == {"arange": 1, "rotations": 1, "rotate": 2}
        assert y.strides == dx.strides == (5 * 3 * 8 * 8, 8 * 8, 3 * 8 * 8, 8)
    expected = functional.rope(x.get().transpose(0, 2, 1, 3))
    np.testing.assert_allclose(y.get(), expected, atol=1e-14)


def with_odd_entries(case, rng):
    """The same case, with NaN and infinities in its first input."""
    x = case.inputs[0].copy()
    for number in 3 * (np.nan, np.inf, -np.inf, 0.0):
        x.reshape(-1)[rng.integers(x.size)] = number
    return Case(case.operation, x, *case.inputs[1:], launches=case.launches, **case.settings)


@pytest.mark.parametrize("source", CASES)
def test_nan_and_infinity_spread_as_in_the_reference(rng, source):
    with on_cpu():
        for case in CASES[source](rng):
            agrees(with_odd_entries(case, rng), "float64")


def targets_out_of_range_give_nan(rng):
    x = cupy_on_numpy.asarray(rng.random((4, 3)))
    for odd in (3, -1):
        targets = cupy_on_numpy.asarray(np.array([2, odd, 1, 0]))
        y, pull = functional.cross_entropy.with_pullback(x, targets)
        dx, _ = pull(cupy_on_numpy.asarray(np.ones(())))
        assert np.isnan(y.get())
        assert np.all(np.isfinite(dx.get()))


def indices_out_of_range_give_nan_there(rng):
    table = cupy_on_numpy.asarray(rng.random((9, 3)))[2:6]
    rows = functional.embedding(table, cupy_on_numpy.asarray(np.array([3, 4, -1])))
    assert np.isnan(rows.get()).any(1).tolist() == [False, True, True]


def test_targets_and_indices_out_of_range_give_nan_there(rng):
    with on_cpu():
        targets_out_of_range_give_nan(rng)
        indices_out_of_range_give_nan_there(rng)


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_the_reference_computes_what_no_kernel_supports(rng, dtype):
    with on_cpu() as launches:
        xp = backend.library("cupy")
        x = xp.asarray(np.arange(12).reshape(4, 3).astype(dtype))
        assert ops.sum(x, axis=0).get().tolist() == [18, 22, 26]
        assert ops.sum(xp.asarray(np.ones((0, 3))), axis=0).get().tolist() == [0, 0, 0]
        empty = functional.layer_norm(xp.zeros((0, 3)), xp.ones((3,)))
        assert empty.shape == (0, 3)
        assert not set(launches) & {"sum_over_rows", "normalise"} or dtype == "float16"


def test_in_16_bits_norms_are_converted_while_embeddings_and_linear_maps_use_no_kernel(rng):
    with on_cpu() as launches:
        xp = backend.library("cupy")
        x, w = (xp.asarray(rng.random((4, 3)).astype("float16")) for _ in range(2))
        launches.clear()
        functional.embedding(x, xp.asarray(np.array([1, 2])))
        wanted = WantedOfMaps(True, (True, True), (False, False))
        linear_maps(x, (w.mT, w.mT), (None, None), wanted=wanted)
        assert not set(launches) & {"embedding", "side_by_side"}
        functional.layer_norm(x, xp.ones(3, dtype=xp.float16))
        assert launches["normalise"] == 1


def test_a_sum_over_many_rows_is_about_as_accurate_as_pairwise_summation(rng):
    """NumPy adds up this axis row by row and loses three digits; the kernel loses one."""
    x = rng.random((2**15, 8)).astype("float32")
    exact = x.astype("float64").sum(axis=0)
    with cupy_on_numpy.installed(), mh.implementation("tiled"):
        y = backend.total(backend.library("cupy").asarray(x), 0).get()
    assert np.max(np.abs(y - exact)) <= 4e-7 * np.max(exact)


def test_an_array_that_was_broadcast_gets_its_gradient_from_one_kernel(rng):
    with on_cpu() as launches:
        xp = backend.library("cupy")
        dy = xp.asarray(rng.random((3, 4, 5)).astype("float32"))
        launches.clear()
        gradients = {shape: unbroadcast(dy, shape) for shape in ((5,), (4, 5), (3, 1, 5), (1, 5))}
        assert dict(+launches) == {"sum_over_rows": 4}
        for shape, dx in gradients.items():
            np.testing.assert_allclose(dx.get(), unbroadcast(dy.get(), shape), rtol=1e-6)


BROKEN = {
    "norms": {
        "the mean is not subtracted": ("(of_row[j] - mean) * inverse * weight", "of_row[j] * inverse * weight"),
        "variance about 0": ("(of_row[j] - mean) * (of_row[j] - mean)", "of_row[j] * of_row[j]"),
        "without eps": (" + real(eps)", ""),
        "without the bias": ("bias ? normed + bias[j] : normed", "normed"),
        "a mean without layer norm": ("if (centred) {", "{"),
        "rows skipped": ("row += gridDim.x) {\n        const real* of_row = x + row * width;\n\n", "row += gridDim.x + 1) {\n        const real* of_row = x + row * width;\n\n"),
        "threads start at 0": ("long long j = threadIdx.x; j < width; j += blockDim.x) {\n            const real normed = (of_row[j] - mean) * inverse * weight", "long long j = threadIdx.x; j + 1 < width; j += blockDim.x) {\n            const real normed = (of_row[j] - mean) * inverse * weight"),
        "the backward without mean(g)": ("centred ? over_block(mean_g, sum) / width : 0", "0"),
        "the backward without mean(g x)": (" - normed * mean_gx", ""),
        "dx without 1/σ": ("normed * mean_gx) * inverse", "normed * mean_gx)"),
        "dweight of the last row only": ("(first ? 0 : dweights[k])", "0"),
        "dbias of the last row only": ("(first ? 0 : dbiases[k])", "0"),
        "dweight begins with what is there": ("(first ? 0 : dweights[k])", "dweights[k]"),
        "dweight without the norm": ("of_dy[j] * normed;", "of_dy[j];"),
        "totals over one block too few": ("sum_of_column(parts, 0, blocks,", "sum_of_column(parts, 0, blocks - (blocks > 1),"),
        "totals mixed up": ("of_weight ? dweight : dbias;", "of_weight ? dbias : dweight;"),
    },
    "elementwise": {
        "without the cube": ("z * (real(c1) + real(c3) * (z * z))", "z * real(c1)"),
        "a gate that overflows": ("return x > bound ? bound : x;", "return x;"),
        "NaN becomes the bound": ("x < bound ? bound : x", "x >= bound ? x : bound"),
        "without the second factor": ("times ? gated * times[i] : gated", "gated"),
        "the derivative of the gate is forgotten": ("(g + z * dg)", "g"),
        "the derivative of the cube": ("3 * real(c3)", "real(c3)"),
        "dx without the second factor": ("(times ? dy[i] * times[i] : dy[i])", "dy[i]"),
        "dtimes without the gate": ("(at_least(x[i], -real(bound)) * g)", "x[i]"),
        "threads skip entries": ("i += all_threads()) {", "i += all_threads() + 1) {"),
        "dropout without scaling": ("x[i] / real(probability)", "x[i]"),
        "dropout multiplies NaN by 0": ("keep[i] ? x[i] / real(probability) : 0", "x[i] / real(probability) * keep[i]"),
    },
    "softmax": {
        "the peak is not subtracted": ("total += exp(of_row[j] - peak);\n        total = over_block(total, sum);\n        if", "total += exp(of_row[j]);\n        total = over_block(total, sum);\n        if"),
        "a row without entries": ("if (peak == -INFINITY) peak = 0;", ""),
        "a row without entries divides by 0": ("if (total == 0) total = 1;", ""),
        "the backward without the mean": ("(of_dy[j] - mean)", "of_dy[j]"),
        "only the first warp counts": ("warp < blockDim.x / 32", "warp < 1"),
        "the loss without the peak": ("(of_row[target] - peak)", "of_row[target]"),
        "no check of targets": ("target < 0 || target >= width", "target < 0"),
        "the mean of all but one": ("i < n; i += blockDim.x) total += x[i]", "i < n - 1; i += blockDim.x) total += x[i]"),
        "a sum in place of the mean": ("*y = total / n", "*y = total"),
        "without the one-hot": ("(probability - (j == target))", "probability"),
        "dy is forgotten": ("*dy * (probability", "(probability"),
        "not divided by the rows": (" / rows;", ";"),
        "the statistics of another row": ("peak = statistics[2 * row], total", "peak = statistics[0], total"),
    },
    "embedding": {
        "negative indices": ("index >= 0 && ", ""),
        "another row": ("table[index * width + j]", "table[index * width]"),
        "the exponent without its sign": ("/ -double(2 * half)", "/ double(2 * half)"),
        "positions mixed up": ("cosines[k] = cos(double(positions[k / half])", "cosines[k] = cos(double(positions[k % half])"),
        "without the scaling": ("if (context)", "if (false)"),
        "the scaling without its limits": ("g = g < 0 ? 0 : g > 1 ? 1 : g;", ""),
        "the rotation in the other direction": ("other * (direction * of_sin[i])", "other * of_sin[i]"),
        "halves taken for neighbours": ("const long long i = interleaved ? j / 2 : j % half", "const long long i = j % half"),
        "the partner of the wrong side": ("second ? of_x[j - distance] : -of_x[j + distance]", "second ? -of_x[j - distance] : of_x[j + distance]"),
        "columns that do not rotate": ("of_y[j] = of_x[j];\n                continue;", "continue;"),
        "the angles of another sequence": ("of_cos = cosines + b * c_b", "of_cos = cosines"),
        "heads and sequences mixed up": ("h = row / T % H, b = row / T / H", "h = row / T / H, b = row / T % H"),
    },
    "sums": {
        "one row too few": ("row < last;", "row < last - 1;"),
        "parts overlap": ("first = part * height", "first = part * (height - 1)"),
        "beyond the last row": ("first + height < rows ? first + height : rows", "first + height"),
        "columns beyond the last": ("threadIdx.x < COLUMNS && column < columns", "threadIdx.x < COLUMNS"),
        "the first of the outer axis": ("x + outer * rows * columns", "x"),
        "half of the threads": ("half = blockDim.x / 2", "half = blockDim.x / 4"),
        "sums read too early": ("        __syncthreads();\n        if (threadIdx.x < half)", "        if (threadIdx.x < half)"),
    },
    "linear": {
        "the first column of a part": ("parts.columns[k] + column;", "parts.columns[k];"),
        "the first row": ("row = i / width;", "row = 0;"),
        "never apart": ("if (apart)", "if (false)"),
    },
}  # fmt: skip


def everything(source, rng):
    for case in CASES[source](rng):
        agrees(case, "float64")
    for case in list(CASES[source](rng))[::-5]:
        agrees(with_odd_entries(case, rng), "float64")
    if source == "softmax":
        targets_out_of_range_give_nan(rng)
    if source == "embedding":
        indices_out_of_range_give_nan_there(rng)


@pytest.mark.parametrize(
    ("source", "name"), [(source, name) for source in BROKEN for name in BROKEN[source]]
)
def test_a_broken_kernel_is_caught(rng, source, name):
    old, new = BROKEN[source][name]
    assert SOURCES[source].count(old)

    def check():
        with on_cpu(**{source: SOURCES[source].replace(old, new)}):
            everything(source, rng)

    assert cuda_on_cpu.is_caught(check)
