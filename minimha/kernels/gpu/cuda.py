"""Launching kernels in CUDA C++, which CuPy compiles when they are first needed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array, namespace

from ...functional.implementations import library_of

REALS = {"float32": "float", "float64": "double"}
"""What `real` stands for in a source, for each dtype that the kernels support."""

COMMON = Path(__file__).with_name("common.cuh")

THREADS = 256
"""The threads in a block of a kernel that computes entry by entry."""
BLOCKS = 2**16
"""The largest number of blocks in a launch. If there are more rows or entries, each block computes
several."""


def text(source: Path) -> str:
    """The text of a CUDA source file, preceded by the code that all source files share."""
    shared = COMMON.read_text(encoding="ascii")
    return f'{shared}\n#line 1 "{source.name}"\n{source.read_text(encoding="ascii")}'


@functools.cache
def kernel(source: Path, name: str, dtype: Any) -> Any:
    """The kernel with this name in a CUDA source file, for arrays of this dtype. Call the result as
    kernel((blocks,), (threads,), arguments), with the numbers of blocks and of threads in a block.
    """
    import cupy

    options = (f"-Dreal={REALS[str(dtype)]}",)
    return cupy.RawKernel(text(source), name, options=options)


def launch(source: Path, name: str, dtype: Any, blocks: int, threads: int, *arguments: Any) -> None:
    """Launch the kernel with this name in a CUDA source file, for arrays of this dtype, with this
    number of blocks and this number of threads in each block. The kernel receives the `arguments`:
    a Python int as a long long, a float as a double, and None as a null pointer."""
    passed = tuple(0 if x is None else x for x in arguments)
    kernel(source, name, dtype)((blocks,), (threads,), passed)


def launch_for_entries(source: Path, name: str, x: Array, *arguments: Any) -> None:
    """Launch the kernel with this name in a CUDA source file, which computes arrays of the same
    dtype and size as x, entry by entry. The kernel receives the `arguments`, and x only if it is
    one of them."""
    blocks = max(1, min(BLOCKS, -(-x.size // THREADS)))
    launch(source, name, x.dtype, blocks, THREADS, *arguments)


def launch_for_rows(
    source: Path, name: str, dtype: Any, rows: int, width: int, *arguments: Any
) -> None:
    """Launch the kernel with this name in a CUDA source file, which computes arrays of this dtype
    row by row, with a block for each row. If there are more than `BLOCKS` rows, a block computes
    several. The kernel receives the `arguments`.

    rows   the number of rows
    width  the number of entries in a row, which determines the number of threads in a block
    """
    launch(source, name, dtype, min(rows, BLOCKS), threads_for(width), *arguments)


def threads_for(width: int) -> int:
    """The number of threads in a block that computes a row of this width: a multiple of 32 (whole
    warps), so that each thread has about four entries. It is limited to 1024, so that in rows of
    more than 4096 entries each thread has more."""
    warps = -(-width // 128)
    return 32 * max(1, min(32, warps))


def are_reals(x: Any, *others: Any) -> bool:
    """Whether all arguments are CuPy arrays of the same dtype, float32 or float64, and x is not
    empty."""
    if library_of(x) != "cupy" or str(getattr(x, "dtype", "")) not in REALS:
        return False
    same = all(type(a) is type(x) and a.dtype == x.dtype for a in others)
    return same and x.size > 0


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """A new array, not yet filled, of the dtype and on the device of `like`."""
    return namespace(like).empty(shape, dtype=like.dtype, device=like.device)


def contiguous(x: Array) -> Array:
    """x itself if it is contiguous in memory (row-major), or else a contiguous copy."""
    return x if x.flags.c_contiguous else x.copy()
