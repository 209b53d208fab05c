"""Compile the kernels for a GPU on a machine that has none.

CUDA C++ becomes machine code, and tiles become bytecode, which checks all types: for every source
and every signature in `tests/minimha/kernels/gpu/test_compiled.py`. `benchmarks/registers.py` goes
on to machine code. This needs Linux and `pip install "minimha[gpu-checks]"`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
from pathlib import Path
from typing import Any

from .tiled import KernelTypes

ARCHITECTURES = "sm_75", "sm_80", "sm_90", "sm_100"
"""The GPUs that the CUDA C++ is compiled for: Turing (T4), Ampere (A100), Hopper, Blackwell."""


def nvidia(pattern: str) -> Path:
    """A file of NVIDIA's wheels. Raises FileNotFoundError if none is installed."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob(pattern):
            return path
    raise FileNotFoundError(f"no installed wheel of NVIDIA has the file {pattern}")


def nvrtc(source: str, architecture: str, *options: str) -> bytes:
    """The machine code of a source in CUDA C++. Raises SyntaxError with the compiler's messages,
    warnings included."""
    lib = ctypes.CDLL(str(nvidia("cu13/lib/libnvrtc.so.*")))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = (f"--gpu-architecture={architecture}", *options)
    encoded = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    failed = lib.nvrtcCompileProgram(program, len(options), encoded)

    def result(name: str) -> bytes:
        getattr(lib, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(lib, f"nvrtcGet{name}")(program, text)
        return text.raw

    messages = result("ProgramLog").rstrip(b"\0").decode()
    if failed or messages:
        raise SyntaxError(messages)
    return result("CUBIN")


def bytecode(signature: KernelTypes) -> bytes:
    """A kernel of `tiles` in cuTile's bytecode, for any GPU. Raises cuTile's error for wrong types
    or shapes."""
    from cuda.tile import compilation

    from . import tiles

    parameters = [*(_array(*array) for array in signature.arrays), *signature.constants]
    convention = compilation.CallingConvention.cutile_python_v2()
    made = compilation.KernelSignature(parameters, convention, symbol=signature.kernel)
    file = io.BytesIO()
    compilation.export_kernel(
        getattr(tiles, signature.kernel), [made], file,
        output_format="tileir_bytecode", bytecode_version="13.3",
    )  # fmt: skip
    return file.getvalue()


def _array(dtype: str, ndim: int) -> Any:
    """An array as CuPy allocates it: entries of a row side by side, and rows, where there are four
    axes, at multiples of 16 bytes."""
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint

    kind = {"bool": ct.bool_}.get(dtype) or getattr(ct, dtype)
    row = 16 * 8 // kind.bitwidth if ndim == 4 else 1
    return ArrayConstraint(
        kind, ndim, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
        may_alias_internally=False, stride_constant=[None] * (ndim - 1) + [1],
        stride_divisible_by=[row] * (ndim - 1) + [1], base_addr_divisible_by=16,
    )  # fmt: skip
