"""Every implementation of attention by name, and how a test runs it on a machine without a GPU."""

import cuda_on_cpu
import cupy_on_numpy
from attention_paths import results

from minimha.attention import IMPLEMENTATIONS
from minimha.kernels import unavailable
from minimha_autograd import backend

NAMES = *sorted(IMPLEMENTATIONS), "fused on CuPy", "tiled on CuPy"
"""The implementations for NumPy arrays, and those for CuPy arrays, which run on a stand-in."""

WHY_NOT = {
    **dict.fromkeys(("fused", "tiled", "microkernel"), unavailable()),
    "fused on CuPy": cuda_on_cpu.unavailable(),
}
"""Why an implementation does not run on this machine, or None."""


def results_by(name, case):
    """The output and the gradients of the seven inputs, by an implementation of NAMES."""
    implementation, _, library = name.partition(" on ")
    if not library:
        return results(implementation, case)
    with cupy_on_numpy.installed():
        return results(implementation, case, backend.library("cupy").asarray)
