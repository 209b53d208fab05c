"""CUDA C++ compiled for the CPU, so that a machine without a GPU can run a kernel."""

import ctypes
import functools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
LAUNCHING = threading.Lock()
"""One launch at a time, as in a stream of a GPU: the header keeps its state in global variables."""


def unavailable():
    """The reason why kernels cannot be compiled here, or None."""
    if not sys.platform.startswith("linux"):
        return "cuda_on_cpu.h is for Linux"
    return None if shutil.which("g++") else "there is no g++"


@functools.cache
def library(source, real):
    """The kernels of a source, compiled."""
    names = re.findall(r"__global__ void (\w+)", source)
    launchers = "\n".join(
        f'extern "C" const char* launch_{name}'
        "(unsigned blocks, unsigned block, const void* const* a, const size_t* sizes)"
        f"\n{{ return cpu::launch({name}, blocks, block, a, sizes); }}"
        for name in names
    )
    text = f'#include "{HEADER}"\n#define real {real}\n{source}\n{launchers}\n'
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "kernels.so")
        command = ["g++", "-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC"]
        command += ["-x", "c++", "-", "-o", made]
        command += os.environ.get("CUDA_ON_CPU_FLAGS", "").split()
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SyntaxError(done.stderr)
        return ctypes.CDLL(str(made))


def raw_kernel(source, name, real):
    """What `cupy.RawKernel` makes of a source, for NumPy arrays."""
    launch = getattr(library(source, real), f"launch_{name}")
    launch.restype = ctypes.c_char_p

    def run(grid, block, arguments):
        values = list(map(as_bytes, arguments))
        sizes = (ctypes.c_size_t * len(values))(*map(len, values))
        with LAUNCHING:
            error = launch(*grid, *block, (ctypes.c_char_p * len(values))(*values), sizes)
        assert error is None, error.decode()

    return run


def as_bytes(x):
    """An argument as CuPy passes it: an array as its address, a number in 64 bits, a structure
    unchanged."""
    if isinstance(x, bytes):
        return x
    if isinstance(x, np.ndarray):
        x = x.ctypes.data
    return struct.pack("d" if isinstance(x, float) else "q", x)


def is_caught(check, *arguments):
    """Whether a check of a broken kernel fails.

    The check runs in a process of its own, because a broken kernel may write anywhere. A kernel that
    ends this process, or does not end within two minutes, is caught too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(outcome(check, arguments))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (PASSED, FAILED) or code < 0, "the check raised another error: see its traceback"
    return code != PASSED


PASSED, FAILED, ERROR = range(3)


def outcome(check, arguments):
    """What becomes of a check, as the exit code of a process."""
    try:
        check(*arguments)
    except AssertionError:
        return FAILED
    except BaseException:
        traceback.print_exc()
        return ERROR
    return PASSED
