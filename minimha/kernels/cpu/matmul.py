"""Matrix products inside a kernel: by BLAS, or by blocks that stay in registers.

    b = right(x, region, operand)               a region of x as a right operand, or
    b = right_of_transpose(x, region, operand)  its transpose, or
    b = as_right(x, operand)                    x, with `padded_columns`, without a copy
    multiply(a, depth, b, start, c, add)        c (+)= a[:, :depth] @ b[start : start + depth]

A region is (t0, t1, n0, n1): rows from t0 to t1, columns from n0 to n1. A right operand is a copy
or a view of a matrix, laid out for the way in which it will be multiplied: for blocks, it is cut
into panels, groups of neighbouring columns as wide as a block.

`operand`, an empty array, has two axes to choose BLAS and three to choose blocks, so that the
choice is made when a kernel is compiled; the length of its third axis is the width of a block. BLAS
transposes without a copy: a right operand that represents a transpose has four axes, two of them of
length 1. Its product can only be stored in c, not added to it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .jit import kernel
from .microkernel import ADD, STORE, multiply_block
from .registers import BYTES, ROWS
from .transpose import transpose_block
from .vectors import copy_vector

_LINE = 64  # bytes in a cache line


@kernel
def matrix(m, n, operand):
    """A new matrix (m, n), not yet filled, of the dtype of `operand` (see the top of the file), for
    a left operand or a result of `multiply`.

    The blocks of `multiply` read and write a few rows beyond its end, where memory is reserved for
    them. There it is filled with zeros: uninitialised memory often contains subnormal numbers,
    which slow a CPU down a hundredfold.
    """
    memory = cache_aligned((m + ROWS) * n + ROWS, operand)
    memory[m * n :] = 0
    return memory[: m * n].reshape(m, n)


@kernel
def cache_aligned(size, operand):
    """A new array (size,), not yet filled, of the dtype of `operand`. It begins at a cache line, so
    that no vector lies in two lines."""
    memory = np.empty(size + _LINE // operand.itemsize, operand.dtype)
    start = -memory.ctypes.data % _LINE // operand.itemsize
    return memory[start : start + size]


@kernel
def padded_columns(n, operand):
    """The number of columns to allocate for a result of n columns: n rounded up to whole blocks, or
    n itself if `operand` has two axes, which stands for BLAS."""
    if operand.ndim == 2:
        return n
    return -(-n // operand.shape[2]) * operand.shape[2]


@kernel
def padded_rows(m, operand):
    """The number of rows to allocate for a result of m rows: m rounded up to whole blocks, or m
    itself if `operand` has two axes, which stands for BLAS."""
    return m if operand.ndim == 2 else -(-m // ROWS) * ROWS


@kernel
def right(x, region, operand):
    """Copy a region (t0, t1, n0, n1) of the matrix x, its rows from t0 to t1 and columns from n0 to
    n1, as a right operand of `multiply`: as a matrix (t1 − t0, n1 − n0) if `operand` has two axes,
    for BLAS, or else as panels (number of panels, t1 − t0, width), for blocks. Columns that are
    missing in the last panel are zeros."""
    t0, t1, n0, n1 = region
    if operand.ndim == 2:
        return x[t0:t1, n0:n1].copy()
    width, length = operand.shape[2], BYTES // operand.itemsize
    panels = _panels(t1 - t0, n1 - n0, operand)
    row, full = x.strides[0] // x.itemsize, (n1 - n0) // width
    if x.strides[1] != x.itemsize:
        full = 0
    for i in range(t1 - t0):  # row by row, as they are in memory
        for p in range(full):
            at, to = (t0 + i) * row + n0 + p * width, (p * (t1 - t0) + i) * width
            for j in range(0, width, length):
                copy_vector(x, at + j, panels, to + j)
    for p in range(full, len(panels)):
        start = n0 + p * width
        for i in range(t1 - t0):
            for j in range(min(width, n1 - start)):
                panels[p, i, j] = x[t0 + i, start + j]
    return panels


@kernel
def as_right(x, operand):
    """A view of x (depth, n) as a right operand of `multiply`, for BLAS if `operand` has two axes,
    or else for blocks; n must be a result of `padded_columns`."""
    if operand.ndim == 2:
        return x
    (row, entry), width = x.strides, operand.shape[2]
    return as_strided(x, (x.shape[1] // width, len(x), width), (width * entry, row, entry))


@kernel
def right_of_transpose(x, region, operand):
    """Copy a region (t0, t1, n0, n1) of a contiguous matrix x, its rows from t0 to t1 and columns
    from n0 to n1, as a right operand of `multiply` that represents the transpose of the region: n1
    − n0 rows and t1 − t0 columns. `operand` has two axes for BLAS, three for blocks."""
    t0, t1, n0, n1 = region
    if operand.ndim == 2:  # transposed by `multiply`
        return x[t0:t1, n0:n1].copy().reshape(1, 1, t1 - t0, n1 - n0)
    width, length, row = operand.shape[2], BYTES // operand.itemsize, x.shape[1]
    panels, deep = _panels(n1 - n0, t1 - t0, operand), n1 - n0
    for p in range(len(panels)):
        start = t0 + p * width
        used = min(width, t1 - start)
        for i in range(0, deep, length):
            for j in range(0, used, length):
                high, wide = min(length, deep - i), min(length, used - j)
                if high == wide == length:
                    place = (p * deep + i) * width + j
                    transpose_block(x, (start + j) * row + n0 + i, row, panels, place, width)
                    continue
                for a in range(high):
                    for b in range(wide):
                        panels[p, i + a, j + b] = x[start + j + b, n0 + i + a]
    return panels


@kernel
def _panels(depth, n, operand):
    """Memory, not yet filled, for the panels of a right operand (depth, n): an array (number of
    panels, depth, width), where the width is operand.shape[2]. If the n columns do not fill the
    last panel, that one is filled with zeros."""
    width = operand.shape[2]
    count = -(-n // width)
    panels = cache_aligned(count * depth * width, operand).reshape(count, depth, width)
    if n % width:
        panels[-1] = 0
    return panels


@kernel
def some_columns(b, start, stop):
    """The columns from start to stop of a matrix b, as a right operand of `multiply`. b is itself a
    right operand that `right_of_transpose` returned; start must be a multiple of the width of a
    block."""
    if b.ndim == 4:
        return b[0, 0, start:stop].reshape(1, 1, stop - start, b.shape[3])
    width = b.shape[2]
    return b[start // width : -(-stop // width)]


@kernel
def multiply(a, depth, b, start, c, add):
    """Store a[:m, :depth] @ B[start : start + depth] in c (m, n) or, if `add`, add it to c.

    b holds the matrix B in one of the three forms of a right operand, which the top of this file
    explains. With two or four axes it is for BLAS. Then a must be (m, depth) and B must have n
    columns, and with four axes, those of a transpose, start must be 0 and `add` False.
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
        panel, step_b, to = b.strides[0] // size, b.strides[1] // size, ADD if add else STORE
        for p in range(b.shape[0]):
            start_b = p * panel + start * step_b
            for i in range(0, c.shape[0], ROWS):
                multiply_block(
                    a, i * row_a, row_a, step_a, b, start_b, step_b, depth,
                    c, i * row_c + p * width, row_c, to, None,
                )  # fmt: skip
