"""The product of matrices inside a kernel: by BLAS, or by blocks that stay in the registers.

    b = right(x, part, like)               a part of x as it is multiplied from the right, or
    b = right_of_transpose(x, part, like)  its transpose
    multiply(a, depth, b, start, c, add)   c (+)= a @ b[start : start + depth]

A part is (t0, t1, n0, n1): rows from t0 to t1, columns from n0 to n1.
like has two axes for BLAS and three for blocks: the compiler sees which is meant. BLAS takes a
transpose as it is, if it is told: that operand has four axes, of which two are 1. It is not added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel
from .lanes import BYTES, ROWS, multiply_block, turn_block

_LINE = 64  # bytes


@kernel
def matrix(m: int, n: int, like: Any) -> Any:
    """Empty (m, n), to be multiplied from the left or into.

    Blocks read and write a few rows beyond its end. Those are zeros: what happens to stand in
    memory are often numbers so small that a CPU takes a hundred times as long for each.
    """
    memory = aligned((m + ROWS) * n + ROWS, like)
    memory[m * n :] = 0
    return memory[: m * n].reshape(m, n)


@kernel
def aligned(size: int, like: Any) -> Any:
    """An empty (size,) that begins with a line of the cache: a vector lies in one, not in two."""
    memory = np.empty(size + _LINE // like.itemsize, like.dtype)
    start = -memory.ctypes.data % _LINE // like.itemsize
    return memory[start : start + size]


@kernel
def columns(n: int, like: Any) -> int:
    """How many columns a matrix needs that is multiplied into, for n of them to be used."""
    if like.ndim == 2:
        return n
    return -(-n // like.shape[2]) * like.shape[2]


@kernel
def blocks(m: int, like: Any) -> int:
    """How many rows blocks write to where m are multiplied into."""
    return m if like.ndim == 2 else -(-m // ROWS) * ROWS


@kernel
def right(x: Any, part: Any, like: Any) -> Any:
    """Part (depth, n) of x as a right operand: a copy, or panels (·, depth, columns of a block)."""
    t0, t1, n0, n1 = part
    if like.ndim == 2:
        return x[t0:t1, n0:n1].copy()
    width = like.shape[2]
    panels = _panels(t1 - t0, n1 - n0, like)
    for p in range(len(panels)):
        start = n0 + p * width
        used = min(width, n1 - start)
        for i in range(t1 - t0):
            row = x[t0 + i, start : start + used]
            for j in range(used):
                panels[p, i, j] = row[j]
    return panels


@kernel
def right_of_transpose(x: Any, part: Any, like: Any) -> Any:
    """The transpose of part (n, depth) of a contiguous x as a right operand."""
    t0, t1, n0, n1 = part
    if like.ndim == 2:  # to be turned when its columns are chosen
        return x[t0:t1, n0:n1].copy().reshape(1, 1, t1 - t0, n1 - n0)
    width, lanes, row = like.shape[2], BYTES // like.itemsize, x.shape[1]
    panels, deep = _panels(n1 - n0, t1 - t0, like), n1 - n0
    for p in range(len(panels)):
        start = t0 + p * width
        used = min(width, t1 - start)
        for i in range(0, deep, lanes):
            for j in range(0, used, lanes):
                high, wide = min(lanes, deep - i), min(lanes, used - j)
                if high == wide == lanes:
                    place = (p * deep + i) * width + j
                    turn_block(x, (start + j) * row + n0 + i, row, panels, place, width)
                    continue
                for a in range(high):
                    for b in range(wide):
                        panels[p, i + a, j + b] = x[start + j + b, n0 + i + a]
    return panels


@kernel
def _panels(depth: int, n: int, like: Any) -> Any:
    """For n columns: empty, but for zeros in a last one that they do not fill."""
    width = like.shape[2]
    count = -(-n // width)
    panels = aligned(count * depth * width, like).reshape(count, depth, width)
    if n % width:
        panels[-1] = 0
    return panels


@kernel
def some_columns(b: Any, start: int, stop: int) -> Any:
    """These columns of a `right_of_transpose`; start is a multiple of those of a block."""
    if b.ndim == 4:
        return b[0, 0, start:stop].reshape(1, 1, stop - start, b.shape[3])
    width = b.shape[2]
    return b[start // width : -(-stop // width)]


@kernel
def multiply(a: Any, depth: int, b: Any, start: int, c: Any, add: bool) -> None:
    """c = a[:, :depth] @ b[start : start + depth], or c plus that.

    a (m or more, depth or more), b a right operand, c (m, n); for BLAS the shapes are to be exact.
    """
    if b.ndim == 4:
        np.dot(a, b[0, 0].T, c)
    elif b.ndim == 2:
        if add:
            c += np.dot(a, b[start : start + depth])
        else:
            np.dot(a, b[start : start + depth], c)
    else:
        size, width = a.itemsize, b.shape[2]
        row_a, step_a, row_c = a.strides[0] // size, a.strides[1] // size, c.strides[0] // size
        for p in range(b.shape[0]):
            start_b = (p * b.shape[1] + start) * width
            for i in range(0, c.shape[0], ROWS):
                multiply_block(
                    a, i * row_a, row_a, step_a, b, start_b, width, depth,
                    c, i * row_c + p * width, row_c, add,
                )  # fmt: skip
