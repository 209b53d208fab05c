"""Sums over axes other than the last, as of bias gradients: each block sums a few columns.

CuPy's own sum needs 50 times as long as memory there (NVIDIA H200, CuPy 14.2). A block adds up to
2¹⁴ rows, each thread 128 of them in order, and then pairs of sums: a float32 sum loses little, and
has the same bits each time. More rows are summed in parts, and then the parts.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array

from ...functional.implementations import register
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")
COLUMNS, _LANES = 8, 128
"""The columns that a block sums, and the threads for each of them."""
_HEIGHT = 2**14
"""The rows that a block sums, at most."""


@register("sum", library="cupy")
def total(x: Array, axis: Any, keepdims: bool) -> Array | None:
    """As `backend.total`, over neighbouring axes without the last one."""
    if not cuda.are_reals(x) or axis is None:
        return None
    axes = sorted(axis) if isinstance(axis, tuple) else [axis]
    axes = sorted(k + x.ndim if k < 0 else k for k in axes)
    if not axes or axes != list(range(axes[0], axes[0] + len(axes))):
        return None
    first, last = axes[0], axes[-1] + 1
    if first < 0 or last >= x.ndim or math.prod(x.shape[last:]) < 2:
        return None

    before, summed, after = x.shape[:first], x.shape[first:last], x.shape[last:]
    kept = (1,) * len(axes) if keepdims else ()
    sizes = math.prod(before), math.prod(summed), math.prod(after)
    return over_rows(cuda.contiguous(x), sizes, (*before, *kept, *after))


def over_rows(x: Array, sizes: tuple[int, int, int], shape: tuple[int, ...]) -> Array:
    """The sum of a contiguous x over the second of its three axes, in this shape."""
    outer, rows, columns = sizes
    while True:
        parts = -(-rows // _HEIGHT)
        y = cuda.empty(shape if parts == 1 else (outer, parts, columns), like=x)
        blocks = outer * parts * -(-columns // COLUMNS)
        cuda.launch(
            SOURCE, "sum_over_rows", x.dtype, blocks, threads_for(rows), x, y, rows, columns,
            _HEIGHT,
        )  # fmt: skip
        if parts == 1:
            return y
        x, rows = y, parts


def threads_for(rows: int) -> int:
    """The threads of a block that sums columns: a power of two, and whole warps."""
    lanes = 1 << max(2, (min(rows, _LANES) - 1).bit_length())
    return COLUMNS * lanes
