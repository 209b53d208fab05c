"""AdamW and clipping by their kernels for GPUs, compiled for the CPU."""

import contextlib
import functools
import math

import cuda_on_cpu
import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import nn
from minimha.kernels.gpu import cuda, optimiser
from minimha_autograd import backend

WHY = cuda_on_cpu.unavailable()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
SOURCE = cuda.text(optimiser.SOURCE)
SHAPES = (70, 30), (1,), (5000,), (), (4096,), (3, 7, 2), (4097, 1)


@contextlib.contextmanager
def on_gpu(source=SOURCE, most=None):
    """The stand-in for CuPy with this source, and at most `most` parameters in a launch. Yields the
    counts of launches."""

    @functools.cache
    def kernel(_, name, dtype):
        return cupy_on_numpy.raw_kernel(source, name, (f"-Dreal={cuda.REALS[str(dtype)]}",))

    AROUND.clear()
    with (
        cupy_on_numpy.installed(),
        mh.implementation("tiled"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(cuda, "kernel", kernel)
        patch.setattr(cuda, "empty", lambda shape, like: there(np.full(shape, np.nan, like.dtype)))
        if most:
            patch.setattr(optimiser, "_MOST", most)
        yield cupy_on_numpy.launches
        for around in AROUND:
            assert np.all(around[:5000] == 7), "a kernel wrote before the beginning of an array"
            assert np.all(around[-5000:] == 7), "a kernel wrote beyond the end of an array"


AROUND = []
"""The memory of all arrays. Each array lies between entries that must not change."""


def there(x):
    """An array on the device."""
    around = np.full(x.size + 10000, 7, x.dtype)
    inner = around[5000:-5000].reshape(x.shape)
    inner[...] = x
    AROUND.append(around)
    return cupy_on_numpy.ndarray(inner)


def steps(move, dtype, make=nn.AdamW, shapes=SHAPES, clip=None):
    """Parameters, states and norms after three steps.

    Gradients are stored by columns. One parameter has none in the first step, so it stays one step
    behind the others.
    """
    rng = np.random.default_rng(0)

    def drawn(shape):
        return rng.standard_normal(shape).astype(dtype)

    params = [mh.Tensor(move(drawn(shape)), requires_grad=True) for shape in shapes]
    groups = [{"params": params[::2], "weight_decay": 0.2}, {"params": params[1::2]}]
    optimiser = make(groups, lr=0.1)
    wide = "float32" if dtype == "float16" else dtype
    for p in params:
        for name in ("m", "v"):
            optimiser._states[p][name] = move(np.zeros(p.shape, wide))
    norms = []
    for k in range(3):
        for p in params:
            p.grad = move(drawn(p.shape).T.copy()).T
        if k == 0:
            params[0].grad = None
        if clip:
            norms.append(backend.to_numpy(backend.asarray(nn.clip_gradients(params, clip))))
        optimiser.step()
    return [backend.to_numpy(p.data) for p in params] + [*optimiser.state().values(), *norms]


def agree(found, expected, tolerance):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("clip", [None, 0.5, 1000.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
def test_the_steps_are_those_of_the_formula(dtype, tolerance, clip, most):
    with mh.implementation("reference"):
        expected = steps(np.asarray, dtype, clip=clip)
    with on_gpu(most=most):
        agree(steps(there, dtype, clip=clip), expected, tolerance)


def test_a_step_of_many_parameters_takes_a_few_kernels():
    """A launch updates up to 64 parameters of a group; those that are one step behind need another
    launch."""
    shapes = [(3, 2)] * 200
    with on_gpu() as launches:
        steps(there, "float32", shapes=shapes, clip=0.1)
        steps_of_half = 2 * 2  # 100 parameters of a group
        assert launches["adamw"] == 3 * steps_of_half + 2  # the first one is behind in two steps
        assert launches["squares"] == launches["clip"] == 3 * 4
        assert launches["total"] == 3


def test_a_step_leaves_the_old_parameter_and_the_old_gradient_as_they_were():
    with on_gpu():
        p = mh.Tensor(there(np.ones(5)), requires_grad=True)
        optimiser, old = nn.AdamW([p]), p.data
        p.grad = g = 2 * p.data
        cupy_on_numpy.traffic.clear()
        nn.clip_gradients([p], 1.0)
        optimiser.step()
        assert not cupy_on_numpy.traffic
        assert old.get().tolist() == [1.0] * 5 != p.data.get().tolist()
        assert g.get().tolist() == [2.0] * 5 != p.grad.get().tolist()


def test_a_norm_that_is_not_finite_spreads_as_in_the_reference():
    for number in (math.nan, math.inf):
        results = []
        for move in (np.asarray, there):
            with on_gpu() if move is there else mh.implementation("reference"):
                params = [mh.Tensor(move(np.ones(n)), requires_grad=True) for n in (2, 5000)]
                for p in params:
                    p.grad = move(np.append(np.ones(p.shape[0] - 1), number))
                with np.errstate(all="ignore"):
                    norm = nn.clip_gradients(params, 1.0)
                results.append(
                    [
                        backend.to_numpy(backend.asarray(x))
                        for x in (norm, *(p.grad for p in params))
                    ]
                )
        agree(*results, 0)


def test_parameters_of_16_bits_are_updated_in_float32():
    shapes = SHAPES[:3]
    with mh.implementation("reference"):
        expected = steps(np.asarray, "float16", shapes=shapes, clip=0.5)
    with on_gpu() as launches:
        agree(steps(there, "float16", shapes=shapes, clip=0.5), expected, 1e-3)
        assert launches["adamw"]


def test_a_subclass_or_mixin_may_override_only_the_update_of_one_parameter():
    class Half(nn.AdamW):
        def update(self, p, g, state, settings):
            return p + (super().update(p, g, state, settings) - p) / 2

    class Halving:
        def update(self, p, g, state, settings):
            return p + (super().update(p, g, state, settings) - p) / 2

    class Mixed(Halving, nn.AdamW):
        pass

    with on_gpu():
        whole, half, mixed = (
            steps(there, "float64", make, [(2,), (3,)]) for make in (nn.AdamW, Half, Mixed)
        )
    assert not np.allclose(whole[0], half[0])
    np.testing.assert_array_equal(half[0], mixed[0])


BROKEN = {
    "m of another parameter": ("x.m[i] = m", "parameters.of[0].m[i] = m"),
    "p in place": ("x.next[i] = real(decay)", "x.next[i] = ((real*)x.p)[i] = real(decay)"),
    "without decay": ("real(decay) * x.p[i]", "x.p[i]"),
    "without the root": ("sqrt(v)", "v"),
    "without eps": (" + real(eps)", ""),
    "m instead of v": ("real(beta2) * x.v[i]", "real(beta2) * x.m[i]"),
    "g instead of its square": ("(x.g[i] * x.g[i]);", "x.g[i];"),
    "the last part is too long": ("first + SIZE < x.n ? first + SIZE : x.n", "first + SIZE"),
    "parts of the first parameter": ("- (k ? parameters.of[k - 1].next_block : 0)", ""),
    "the next parameter too late": ("next_block <= blockIdx.x", "next_block < blockIdx.x"),
    "a block of squares is lost": ("sums[blockIdx.x] = total", "sums[0] = total"),
    "the total of the first warp": ("i < n; i += blockDim.x) result", "i < 2; i += blockDim.x) result"),
    "gradients grow": ("(scale > 1 ? 1 : scale)", "scale"),
    "the square in place of the norm": ("sqrt(*square)", "*square"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught(name):
    old, new = BROKEN[name]
    assert old in SOURCE
    assert cuda_on_cpu.is_caught(everything, SOURCE.replace(old, new))


def everything(source):
    for clip in (0.5, 1000.0):
        with mh.implementation("reference"):
            expected = steps(np.asarray, "float64", clip=clip)
        with on_gpu(source):
            agree(steps(there, "float64", clip=clip), expected, 1e-13)
            the_old_parameter_stays()


def the_old_parameter_stays():
    p = mh.Tensor(there(np.ones(5)), requires_grad=True)
    optimiser, old = nn.AdamW([p]), p.data
    p.grad = 2 * p.data
    optimiser.step()
    assert old.get().tolist() == [1.0] * 5
