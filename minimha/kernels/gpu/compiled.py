"""Compile the kernels for a GPU on a machine that has none.

    python -m minimha.kernels.gpu.compiled nvrtc      CUDA C++ to machine code
    python -m minimha.kernels.gpu.compiled bytecode   tiles to bytecode, which checks all types
    python -m minimha.kernels.gpu.compiled cubins     tiles to machine code, to count registers

The first two need `pip install "minimha[gpu-checks]"`. The third needs NVIDIA's compiler for tiles,
which is a large download: `pip install "cuda-tile[tileiras]" nvidia-cuda-cuobjdump`. All three
are for Linux.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import adamw, cuda, fused, tiled
from .tiled import KernelTypes

ARCHITECTURES = "sm_75", "sm_80", "sm_90", "sm_100"
"""The GPUs that the CUDA C++ is compiled for: Turing (T4), Ampere (A100), Hopper, Blackwell."""
SOURCES = fused.SOURCE, adamw.SOURCE
LONGEST = 30
"""Seconds after which tileiras is stopped: a tile that spills much can take minutes."""


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


def cubin(code: bytes, architecture: str) -> bytes:
    """The machine code of cuTile's bytecode. Raises subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "bytecode"), Path(folder, "cubin")
        source.write_bytes(code)
        command = nvidia("cu13/bin/tileiras*"), source, "-o", made, "--gpu-name", architecture
        subprocess.run([*command, "-O3"], check=True, capture_output=True, timeout=LONGEST)
        return made.read_bytes()


def registers_and_spills(code: bytes) -> tuple[int, int]:
    """Of machine code with a single kernel: the registers of a thread, and the bytes of those that
    do not fit and spill to memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(code)
        command = nvidia("cu13/bin/cuobjdump*"), "--dump-resource-usage", path
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (usage,) = re.findall(r"REG:(\d+) STACK:(\d+)", text)
    return int(usage[0]), int(usage[1])


SIZES = (32, 32), (64, 32), (64, 64), (128, 64)
"""Candidates for the queries and keys in a tile."""
PAGE = """\
# Registers of the kernels for GPUs

`python -m minimha.kernels.gpu.compiled cubins`, on a machine without a GPU. It compiles the kernels
of tiled attention, without options, for heads of width D. Each cell shows the registers of a
thread, and how many bytes do not fit into them and spill to memory. `tiled.tile_sizes` chooses a
large tile (queries × keys) that spills little on sm_90; it is marked "in use". Products of float32
are three products of TF32. The speed of the kernels has not been measured on a GPU yet.
"""


def page(architectures: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown: registers and bytes spilled for each size of a tile."""
    yield f"{PAGE}\n| kernel | dtype | D | tile | {' | '.join(architectures)} |"
    yield "| --- " * (4 + len(architectures)) + "|"
    for signature in tiled.signatures():
        (dtype, _), *_ = signature.arrays
        *options, m, n, d, _ = signature.constants
        if dtype not in ("float16", "float32") or any(x is True for x in options) or options[1]:
            continue
        for size in SIZES:
            code = bytecode(signature._replace(constants=(*options, *size, d, d)))
            cells = " | ".join(_cell(code, architecture) for architecture in architectures)
            used = " (in use)" if size == (m, n) else ""
            yield f"| {signature.kernel} | {dtype} | {d} | {size[0]} × {size[1]}{used} | {cells} |"
    versions = (f"{name} {version(name)}" for name in ("cuda-tile", "nvidia-cuda-tileiras"))
    yield f"\n{', '.join(versions)}."


def _cell(code: bytes, architecture: str) -> str:
    try:
        registers, spilled = registers_and_spills(cubin(code, architecture))
    except subprocess.TimeoutExpired:
        return f"not in {LONGEST} s"
    except subprocess.CalledProcessError:
        return "tileiras fails"
    return f"{registers}" + (f", spills {spilled}" if spilled else "")


def main(what: str, *architectures: str) -> None:
    """Compile, and print what was compiled."""
    if what == "nvrtc":
        targets = itertools.product(SOURCES, architectures or ARCHITECTURES, cuda.REALS.values())
        for source, architecture, real in targets:
            code = nvrtc(source.read_text(encoding="ascii"), architecture, f"-Dreal={real}")
            print(f"{source.name} for {real} on {architecture}: {len(code)} bytes")
    elif what == "bytecode":
        for count, signature in enumerate(tiled.signatures(), 1):
            bytecode(signature)
            print(f"{count} {signature.kernel} {signature.arrays[0][0]} {signature.constants}")
    elif what == "cubins":
        for line in page(architectures or ARCHITECTURES[1:]):  # cuTile has no sm_75
            print(line, flush=True)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
