"""Which implementation runs on a GPU, and what happens where it cannot: on the stand-in for CuPy."""

import sys

import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import masks
from minimha.kernels import attention as ways
from minimha.kernels.gpu import cuda, numpy_tile, tiled
from minimha_autograd import backend

H, G, T, D = 2, 1, 96, 64


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in for CuPy; that for cuTile is installed, too."""
    with cupy_on_numpy.installed():
        monkeypatch.setattr(cuda, "REALS", {})  # supports no dtype: a compiler would take a second
        monkeypatch.setitem(sys.modules, "cuda", sys)
        monkeypatch.setitem(sys.modules, "cuda.tile", numpy_tile)
        tiled.machine_obstacle.cache_clear()
        yield backend.library("cupy")
        tiled.machine_obstacle.cache_clear()
        ways._failed.clear()


def arrays(cupy, rng, t=T):
    shapes = (1, H, t, D), (1, G, t, D), (1, G, t, D)
    return [cupy.asarray(rng.standard_normal(shape).astype("float32")) for shape in shapes]


def attended(inputs, **settings):
    """The output of attention and the gradients of its inputs."""
    tensors = [mh.Tensor(x, requires_grad=True) for x in inputs]
    out = mh.scaled_dot_product_attention(*tensors, **settings)
    out.backward(out.data)
    return [out.data, *(x.grad for x in tensors)]


def test_half_precision_is_not_converted(cupy, rng, monkeypatch):
    kernels, launch, _ = tiled._on_gpu()
    launched = []

    def noting(stream, grid, kernel, arguments):
        launched.append(arguments[0].dtype)
        launch(stream, grid, kernel, arguments)

    monkeypatch.setattr(tiled, "_on_gpu", lambda: tiled.Runner(kernels, noting, None))
    inputs = [cupy.asarray(x.get().astype("float16")) for x in arrays(cupy, rng)]
    found = attended(inputs, mask=masks.causal())
    assert launched == ["float16"] * 3
    wide = [x.get().astype("float64") for x in inputs]
    expected = attended(wide, mask=masks.causal(), implementation="reference")
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == "float16"
        np.testing.assert_allclose(x.get(), y, rtol=0, atol=2e-3 * abs(y).max())


def test_dropout_copies_no_draw_to_the_gpu_and_is_the_same_in_every_implementation(cupy, rng):
    inputs = arrays(cupy, rng)
    cupy_on_numpy.traffic.clear()
    tiles, reference = (
        attended(inputs, dropout=0.3, rng=np.random.default_rng(3), implementation=name)
        for name in ("tiled", "reference")
    )
    assert not cupy_on_numpy.traffic
    for x, y in zip(tiles, reference, strict=True):
        np.testing.assert_allclose(x.get(), y.get(), rtol=1e-4, atol=1e-5)
    other = attended(inputs, dropout=0.3, rng=np.random.default_rng(4))
    assert abs(other[0].get() - tiles[0].get()).max() > 0.01


def test_tiles_are_the_fastest_on_a_gpu(cupy, rng):
    inputs = arrays(cupy, rng)
    explained = mh.explain_dispatch(*inputs)
    assert explained.implementation == "tiled"
    assert set(explained.reasons) == {"tiled", "fused", "reference", "loop"}  # those on a GPU
    for name in ("microkernel", "simulated"):
        explained = mh.explain_dispatch(*inputs, implementation=name)
        assert explained.implementation == "reference"
        assert explained.reasons[name] == "the arrays are not NumPy arrays"


@pytest.mark.parametrize(
    ("lack", "says"),
    [
        ("compute_capability", "tiles need compute capability 8.0, and this GPU has 7.5"),
        ("driver", "and this one is for 12.8: install driver 580 or later"),
        ("library", "cuda-tile is not installed: pip install"),
    ],
)
def test_a_gpu_that_cannot_run_tiles_uses_fused_and_says_so_once(
    cupy, rng, monkeypatch, caplog, lack, says
):
    if lack == "compute_capability":
        monkeypatch.setattr(cupy_on_numpy.Device, lack, "75")
    elif lack == "driver":
        monkeypatch.setattr("cupy.cuda.runtime.driverGetVersion", lambda: 12080)
    else:
        monkeypatch.setitem(sys.modules, "cuda.tile", None)
    for _ in range(2):
        explained = mh.explain_dispatch(*arrays(cupy, rng))
        assert explained.implementation == "fused"
        assert says in explained.reasons["tiled"]
    assert [says in record.message for record in caplog.records] == [True]


def failing(error):
    def launch(*_):
        raise error

    return lambda: tiled.Runner(tiled.on_numpy().kernels, launch, None)


def test_if_the_first_launch_fails_the_next_implementation_takes_over(
    cupy, rng, monkeypatch, caplog
):
    error = RuntimeError("PTX JIT compiler library not found")
    monkeypatch.setattr(tiled, "_on_gpu", failing(error))
    inputs = arrays(cupy, rng)
    found = attended(inputs, implementation="tiled")
    expected = attended(inputs, implementation="reference")
    for x, y in zip(found, expected, strict=True):  # the call that failed
        np.testing.assert_array_equal(x.get(), y.get())
    for dtype, width in (("float32", D), ("float64", D), ("float16", D // 2)):  # and later ones
        others = [cupy.asarray(x.get()[..., :width].astype(dtype)) for x in inputs]
        explained = mh.explain_dispatch(*others)
        assert explained.implementation == "fused"
        assert str(error) in explained.reasons["tiled"]
    attended(inputs, implementation="tiled")
    assert [str(error) in record.message for record in caplog.records] == [True]


def test_memory_that_runs_out_is_an_error_not_a_reason_to_use_more(cupy, rng, monkeypatch):
    monkeypatch.setattr(tiled, "_on_gpu", failing(MemoryError("out of memory")))
    with pytest.raises(MemoryError):
        attended(arrays(cupy, rng), implementation="tiled")
