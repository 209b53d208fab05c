"""AdamW by its kernel for GPUs, compiled for the CPU, takes the steps of the formula."""

import cuda_on_cpu
import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import nn
from minimha.kernels.gpu import adamw, cuda
from minimha_autograd import backend

WHY = cuda_on_cpu.unavailable()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY is not None, reason=str(WHY))]


def steps(move, dtype, count=3):
    """A parameter and the state of AdamW after some steps, with gradients stored by columns."""
    rng = np.random.default_rng(0)
    p, *gradients = (rng.standard_normal((70, 30)).astype(dtype) for _ in range(count + 1))
    p = mh.Tensor(move(p), requires_grad=True)
    optimiser = nn.AdamW([p], lr=0.1, weight_decay=0.2)
    for g in gradients:
        p.grad = move(np.ascontiguousarray(g.T)).mT
        optimiser.step()
    return [backend.to_numpy(p.data), *optimiser.state().values()]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_the_steps_are_those_of_the_formula(monkeypatch, dtype, tolerance):
    monkeypatch.setattr(adamw, "_BLOCKS", 3)  # so that a thread updates several entries
    expected, launches, find = steps(np.asarray, dtype), [], cuda.kernel
    with cupy_on_numpy.installed(), mh.implementation("fused"), monkeypatch.context() as patch:
        patch.setattr(cuda, "kernel", lambda *which: launches.append(which) or find(*which))
        found = steps(backend.library("cupy").asarray, dtype)
    assert len(launches) == 3
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def test_a_step_leaves_the_old_parameter_as_it_was():
    with cupy_on_numpy.installed() as traffic, mh.implementation("fused"):
        p = mh.Tensor(backend.library("cupy").asarray(np.ones(5)), requires_grad=True)
        optimiser, old = nn.AdamW([p]), p.data
        p.grad = 2 * p.data
        traffic.clear()
        optimiser.step()
        assert not traffic
        assert old.get().tolist() == [1.0] * 5 != p.data.get().tolist()
