"""Tests on CuPy's arrays, without a GPU: `cupy_on_numpy` stands in for CuPy."""

import cuda_on_cpu
import cupy_on_numpy
import pytest

import minimha as mh
from minimha.kernels.gpu import cuda, norms
from minimha_autograd import backend

SLOW = pytest.mark.thorough
WHY = cuda_on_cpu.unavailable()
COMPILES = [SLOW, pytest.mark.skipif(WHY is not None, reason=str(WHY))]


@pytest.fixture(params=["reference", pytest.param("auto", marks=COMPILES)])
def traffic(request, monkeypatch):
    """The counts, where operations run without kernels, and where kernels are compiled."""
    # A CPU needs longer to start a thread of a kernel than to compute an entry.
    monkeypatch.setattr(cuda, "BLOCKS", 3)
    monkeypatch.setattr(cuda, "THREADS", 32)
    monkeypatch.setattr(norms, "_BLOCKS", 3)
    with cupy_on_numpy.installed() as counts, mh.implementation(request.param):
        yield counts


@pytest.fixture
def there(traffic):
    """A function that moves an array to the device, and forgets the copy."""
    cupy = backend.library("cupy")

    def move(x):
        moved = cupy.asarray(x)
        traffic.clear()
        return moved

    return move
