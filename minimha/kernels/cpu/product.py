"""The product of matrices inside a kernel: by BLAS, or by blocks that stay in the registers.

    b = right(x, like)                     x as it is multiplied from the right, or
    b = right_of_transpose(x, like)        its transpose
    multiply(a, depth, b, start, c, add)   c (+)= a @ b[start : start + depth]

like has two axes for BLAS and three for blocks: the compiler sees which is meant. BLAS takes a
transpose as it is, if it is told: that operand has four axes, of which two are 1. It is not added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel
from .lanes import ROWS, multiply_block

_LINE = 64  # bytes


@kernel
def matrix(m: int, n: int, like: Any) -> Any:
    """Zeros (m, n), to be multiplied from the left or into.

    Blocks read and write a few rows beyond its end. Those are zeros as well: what happens to stand
    in memory are often numbers so small that a CPU takes a hundred times as long for each.
    """
    memory = aligned((m + ROWS) * n + ROWS, like)
    memory[:] = 0
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
def right(x: Any, like: Any) -> Any:
    """x (depth, n) as a right operand: itself, or panels (·, depth, columns of a block)."""
    if like.ndim == 2:
        return x
    (depth, n), width = x.shape, like.shape[2]
    count = -(-n // width)
    panels = aligned(count * depth * width, like).reshape(count, depth, width)
    for p in range(len(panels)):
        start, used = p * width, min(width, n - p * width)
        for i in range(depth):
            for j in range(used):
                panels[p, i, j] = x[i, start + j]
            for j in range(used, width):
                panels[p, i, j] = 0
    return panels


@kernel
def right_of_transpose(x: Any, like: Any) -> Any:
    """The transpose of x (n, depth) as a right operand."""
    if like.ndim == 2:
        return x.reshape(1, 1, *x.shape)  # to be turned when its columns are chosen
    return right(x.T, like)


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
        size, n, width = a.itemsize, c.shape[1], b.shape[2]
        row_a, step_a = a.strides[0] // size, a.strides[1] // size
        for p in range(b.shape[0]):
            start_b = (p * b.shape[1] + start) * width
            for i in range(0, c.shape[0], ROWS):
                multiply_block(
                    a, i * row_a, row_a, step_a, b, start_b, width, depth,
                    c, i * n + p * width, n, add,
                )  # fmt: skip
