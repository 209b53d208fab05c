"""The kernels in CUDA C++ read and write only what is in their arrays.

The tests of their results run once more, with AddressSanitizer, which does for the CPU what
compute-sanitizer does for a GPU.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import cuda_on_cpu
import pytest

WHY = cuda_on_cpu.unavailable()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
HERE = Path(__file__).parent
RIGHT = [
    "test_fused.py::test_kernels_agree_with_the_formula_and_show_nothing_that_is_hidden",
    "test_optimiser.py::test_the_steps_are_those_of_the_formula[float64-1e-14-0.5-2]",
    *(
        f"test_operations_on_gpu.py::test_kernels_agree_with_the_formulas_and_no_others_run[{x}]"
        for x in (
            "norms-float64",
            "elementwise-float64",
            "softmax-float64",
            "embedding-float64",
            "sums-float64",
            "linear-float64",
        )
    ),
]
BROKEN = [
    "test_operations_on_gpu.py::test_a_broken_kernel_is_caught[sums-beyond the last row]",
    "test_optimiser.py::test_a_broken_kernel_is_caught[the last part is too long]",
]


@pytest.fixture
def sanitized():
    """Runs tests with AddressSanitizer. Returns what they print."""
    asked = ["g++", "-print-file-name=libasan.so"]
    library = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("g++ has no AddressSanitizer")
    settings = {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "CUDA_ON_CPU_FLAGS": "-fsanitize=address",
        "PYTHONMALLOC": "malloc",
    }

    def run(tests):
        command = [sys.executable, "-m", "pytest", "--thorough", "-q", "-s", "-n", "0"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *(str(HERE / test) for test in tests)],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    return run


def test_right_kernels_stay_within_their_arrays(sanitized):
    said = sanitized(RIGHT)
    assert "ERROR: AddressSanitizer" not in said
    assert re.fullmatch(r"\d+ passed in .*", said.splitlines()[-1]), said


@pytest.mark.parametrize("test", BROKEN)
def test_a_kernel_that_leaves_its_arrays_is_named(sanitized, test):
    assert re.search("AddressSanitizer: heap-(buffer-overflow|use-after-free)", sanitized([test]))
