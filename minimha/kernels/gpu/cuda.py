"""Kernels in CUDA C++, which CuPy compiles when they are first needed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array, namespace

from ...functional.implementations import library_of

REALS = {"float32": "float", "float64": "double"}
"""The types that kernels compute in: what `real` stands for in a source, for each dtype."""

COMMON = Path(__file__).with_name("common.cuh")

THREADS = 256
"""The threads in a block, at most, where each thread computes single entries."""
BLOCKS = 2**16
"""The most blocks in a grid whose blocks compute several rows or entries."""


def text(source: Path) -> str:
    """A source with what all sources share in front of it."""
    shared = COMMON.read_text(encoding="ascii")
    return f'{shared}\n#line 1 "{source.name}"\n{source.read_text(encoding="ascii")}'


@functools.cache
def kernel(source: Path, name: str, dtype: Any) -> Any:
    """A kernel of a source for arrays of a dtype, called with grid, block and arguments."""
    import cupy

    options = (f"-Dreal={REALS[str(dtype)]}",)
    return cupy.RawKernel(text(source), name, options=options)


def launch(source: Path, name: str, dtype: Any, blocks: int, threads: int, *arguments: Any) -> None:
    """Run a kernel. Python's integers are passed as long long, its floats as double, None as a null
    pointer."""
    passed = tuple(0 if x is None else x for x in arguments)
    kernel(source, name, dtype)((blocks,), (threads,), passed)


def launch_for_entries(source: Path, name: str, x: Array, *arguments: Any) -> None:
    """Run a kernel with a thread for each entry of x, or for several."""
    blocks = max(1, min(BLOCKS, -(-x.size // THREADS)))
    launch(source, name, x.dtype, blocks, THREADS, *arguments)


def launch_for_rows(
    source: Path, name: str, dtype: Any, rows: int, width: int, *arguments: Any
) -> None:
    """Run a kernel with a block for each row, or for several."""
    launch(source, name, dtype, min(rows, BLOCKS), threads_for(width), *arguments)


def threads_for(width: int) -> int:
    """The threads of a block for a row: whole warps, with about four entries for each thread."""
    warps = -(-width // 128)
    return 32 * max(1, min(32, warps))


def are_reals(x: Any, *others: Any) -> bool:
    """Whether all are arrays of CuPy, of the same type among `REALS`, and x is not empty."""
    if library_of(x) != "cupy" or str(getattr(x, "dtype", "")) not in REALS:
        return False
    same = all(type(a) is type(x) and a.dtype == x.dtype for a in others)
    return same and x.size > 0


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """An array of the dtype and on the device of another one, which a kernel fills."""
    return namespace(like).empty(shape, dtype=like.dtype, device=like.device)


def contiguous(x: Array) -> Array:
    """x, or a copy if its entries do not follow each other in memory."""
    return x if x.flags.c_contiguous else x.copy()
