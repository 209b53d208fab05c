"""The masked softmax for GPUs, compiled for the CPU: it agrees with the formula, reads and writes
only what it may, and broken versions of it are caught."""

import contextlib
import functools
import math

import cuda_on_cpu
import numpy as np
import pytest
from attention_paths import INPUTS, MORE_MASKS, assert_exact, case_of, cases
from hypothesis import HealthCheck, given, settings

from minimha import masks
from minimha.attention import Arguments, scaled_dot_product_attention
from minimha.kernels.gpu import cuda, fused
from minimha_autograd import unbroadcast

WHY = cuda_on_cpu.unavailable()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
SOURCE = cuda.text(fused.SOURCE)


@contextlib.contextmanager
def on_cpu(source=SOURCE):
    """Launch the kernels of a source on the CPU, with so few blocks and threads that each block has
    several rows and each thread several keys."""

    def kernel(_, name, dtype):
        return in_the_middle(cuda_on_cpu.raw_kernel(source, name, cuda.REALS[str(dtype)]))

    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(cuda, "kernel", kernel)
        patch.setattr(fused, "_BLOCKS", 3)
        patch.setattr(fused, "_THREADS", 96)
        yield


def in_the_middle(kernel):
    """The same kernel, with its scores between entries that must stay as they are."""

    def run(grid, block, arguments):
        scores = [x for x in arguments[:2] if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        around = [np.full(x.size + 128, 7, x.dtype) for x in scores]
        copies = [x[64:-64].reshape(y.shape) for x, y in zip(around, scores, strict=True)]
        for x, y in zip(copies, scores, strict=True):
            x[...] = y
        kernel(grid, block, [*copies, *arguments[len(copies) :]])
        for x, y, outside in zip(copies, scores, around, strict=True):
            y[...] = x
            assert np.all(outside[:64] == 7), "it writes before the scores"
            assert np.all(outside[-64:] == 7), "it writes after the scores"

    return run


def computed(case):
    """The output and the gradients of the first four inputs."""
    x = Arguments(*(getattr(case, name) for name in INPUTS), mask=case.mask)
    out, weights = fused.forward(x)
    saved = weights.copy()
    wanted = scaled_dot_product_attention.wanted(query=True, key=True, value=True, bias=True)
    found = fused.backward(x, out, weights, case.dout, None, wanted)
    assert np.array_equal(saved, weights, equal_nan=True), "the backward changes the weights"
    dbias = None if x.bias is None else unbroadcast(found.bias, x.bias.shape)
    return out, found.query, found.key, found.value, dbias


def agrees(case):
    assert_exact(computed(case), case)


a_case = functools.partial(case_of, batch=(2,))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_agree_with_the_formula(dtype):
    @settings(report_multiple_bugs=False, suppress_health_check=list(HealthCheck), deadline=None)
    @given(
        cases(
            dtypes=(dtype,), without=("sink", "softcap", "dropout"), sharpness=(1.0,),
            queries=(1, 5, 8), keys=(1, 3, 31, 32, 97, 200), widths=((1, 4), (1, 6)),
            leads=("no heads", (), (2,), (3, 2)), factors=("number",), masks=MORE_MASKS,
            biases=("full", "heads", "pairs", "queries", "keys", "one"),
        )
    )  # fmt: skip
    def check(case):
        with on_cpu():
            agrees(case)

    check()


def usual(rng):
    """Cases that need every line of the kernels."""
    yield a_case(rng, 7, 200)
    yield a_case(rng, 7, 33, batch=(), mask=masks.causal(offset=3))
    yield a_case(rng, 9, 100, mask=masks.sliding_window(60, 20, offset=30))
    holes = masks.dense(rng.random((2, 4, 5, 70)) < 0.6)
    yield a_case(rng, 5, 70, mask=holes, bias=rng.standard_normal((4, 5, 1)))
    yield a_case(rng, 5, 70, mask=masks.keys(rng.random((2, 70)) < 0.6), scale=-0.3)
    yield a_case(
        rng, 5, 70, bias=np.where(rng.random((5, 70)) < 0.5, rng.random((5, 70)), -math.inf)
    )
    yield a_case(rng, 5, 40, mask=masks.padding(np.array([0, 40])))
    large_scores = a_case(rng, 3, 150)
    yield large_scores.but(query=300 * large_scores.query)


def test_a_query_that_sees_no_key_has_output_and_gradients_0(rng):
    lengths = np.array([0, 40])
    for case in (
        a_case(rng, 5, 40, mask=masks.padding(lengths)),
        a_case(rng, 5, 40, mask=masks.dense(np.arange(40) < lengths[:, None, None, None])),
        a_case(rng, 5, 40, bias=np.where(lengths[:, None, None, None] > 0, 0, -math.inf)),
    ):
        with on_cpu():
            for x in computed(case)[:4]:
                assert np.all(x[0] == 0)
                assert np.all(x[1] != 0)


def hidden_entries_are_invisible(rng, wrong):
    """What is hidden may be anything, finite or not."""
    for hide in ("span", "array", "bias"):
        case = a_case(rng, 6, 70)
        seen = np.arange(70) < 50
        case = {
            "span": case.but(mask=masks.padding(np.array([50, 50]))),
            "array": case.but(mask=masks.dense(seen & (rng.random((6, 70)) < 0.7))),
            "bias": case.but(bias=np.where(seen, rng.random((6, 70)), -math.inf)),
        }[hide]
        expected = computed(case)
        for name in ("key", "value"):
            changed = getattr(case, name).copy()
            changed[..., 50:, :] = wrong
            for x, y in zip(computed(case.but(**{name: changed})), expected, strict=True):
                assert x is y is None or np.array_equal(x, y), f"{name} hidden by {hide}"


def a_nan_reaches_those_who_see_it(rng):
    case = a_case(rng, 6, 70, mask=masks.causal(offset=5))
    for name in ("query", "key", "value"):
        changed = getattr(case, name).copy()
        changed[0, 0, 2 if name == "query" else 8, 0] = math.nan
        out, dquery, dkey, dvalue, *_ = computed(case.but(**{name: changed}))
        hit = np.zeros((2, 4, 6), bool)
        if name == "query":
            hit[0, 0, 2] = True
        else:
            hit[0, :2, 3:] = True  # both heads that share these keys
        for x in (out, dquery):
            assert np.array_equal(np.isnan(x).any(-1), hit), name
        affected = np.zeros((2, 2, 70), bool)
        affected[0, 0, : 8 if name == "query" else 11] = True  # the keys that those queries see
        assert np.all(np.isfinite(dvalue[~affected])), name
        if name != "query":  # dK multiplies 0 by the query
            assert np.all(np.isfinite(dkey[~affected])), name


def everything(rng, numbers=(math.nan, 1e308)):
    for case in usual(rng):
        agrees(case)
    for number in numbers:
        hidden_entries_are_invisible(rng, number)
    a_nan_reaches_those_who_see_it(rng)


def test_kernels_agree_with_the_formula_and_show_nothing_that_is_hidden(rng):
    with on_cpu():
        everything(rng, (math.nan, math.inf, -math.inf, 1e308))


BROKEN = {
    "without the scale": ("real(scale) * of_row[s]", "of_row[s]"),
    "without the bias": ("of_row[s] + added", "of_row[s]"),
    "a bias of −∞ hides only what is finite": ("added == -INFINITY || ", ""),
    "without the array of the mask": ("(inside && !inside_row[s * inside_s])", "false"),
    "the mask of another head": ("h * inside_h", "0"),
    "the bias of another query": ("t * bias_t", "0"),
    "heads and sequences mixed up": ("h = row / T % H, b = row / T / H", "h = row / T / H, b = row / T % H"),
    "the peak is not subtracted": ("exp(score(s) - peak)", "exp(score(s))"),
    "one key too many": ("s < last; s += blockDim.x) total", "s <= last; s += blockDim.x) total"),
    "hidden keys keep their scores": ("s < first || s >= last ? -INFINITY : score(s)", "score(s)"),
    "hidden keys divide 0 by 0": ("x == -INFINITY ? 0 : exp(x - peak) / total", "exp(x - peak) / total"),
    "each thread starts at key 0": ("s = threadIdx.x; s < S", "s = 0; s < S"),
    "threads skip keys": ("peak = larger", "s += 1, peak = larger"),
    "half a warp is left out": ("distance = 16", "distance = 8"),
    "only the first warp counts": ("warp < blockDim.x / 32", "warp < 1"),
    "a result is read too early": (
        "of_warp[threadIdx.x / 32] = x;\n    __syncthreads();", "of_warp[threadIdx.x / 32] = x;",
    ),
    "a result is overwritten too early": (
        "    __syncthreads();  // until no thread reads the results of the previous call any more\n", "",
    ),
    "blocks skip rows": ("row += gridDim.x", "row += gridDim.x + 1"),
    "blocks repeat rows": ("row += gridDim.x", "row += 1"),
    "the backward without the mean": ("(dw[s] - mean)", "dw[s]"),
    "the backward multiplies 0 by NaN": ("w[s] == 0 ? 0 : w[s]", "w[s]"),
    "the mean multiplies 0 by NaN": ("if (w[s] != 0) mean", "mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught(rng, name):
    old, new = BROKEN[name]
    assert old in SOURCE

    def check():
        with on_cpu(SOURCE.replace(old, new)):
            everything(rng)

    assert cuda_on_cpu.is_caught(check)
