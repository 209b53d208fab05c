"""A few rows times a matrix, each entry summed in the order of `linear.product`.

    y[r, n] = fma(x[r, M−1], w[M−1, n], … fma(x[r, 0], w[0, n], b[n]))

The weights are read from memory once and where they are, since memory sets the speed, as in
`few_rows`. If the rows in memory are rows of w (M, N), each is multiplied by an entry of x and
added to y, which stays in the cache. If w is a transpose, they are columns of w: square blocks of
them are transposed in the registers. Threads divide the columns of y.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, contiguous, in_chunks
from .jit import kernel
from .microkernel import BYTES, LONG, add_rows, add_transposed_block, fma, prefetch
from .parallel import share

_LINE = 64  # bytes in a cache line
_WIDE, _DEEP = 8, 16
"""The blocks of columns and the rows of w that are multiplied at a time: y stays in the L1 cache,
and the next rows of w come from memory meanwhile."""


def product(x: Array, w: Array, b: Array | None) -> Array:
    """x w + b, for x (R, M), w (M, N) and b (N,)."""
    transposed = w.flags.f_contiguous and not w.flags.c_contiguous
    stored = contiguous(w.T if transposed else w)
    b = np.empty(0, x.dtype) if b is None else contiguous(b)
    n = w.shape[1]
    y = np.empty((len(x), n), x.dtype)
    blocks = -(-n // (LONG * BYTES // y.itemsize))
    chunks = in_chunks(blocks, w.nbytes)
    (_columns if transposed else _rows)(chunks, x, stored, b, y)
    return y


@kernel
def _rows(chunk, x, w, b, y):
    """For the rows of w in memory. The range counts blocks of columns, LONG vectors wide."""
    first, last = share(chunk)
    (depth, row), wide, line = w.shape, LONG * BYTES // w.itemsize, _LINE // w.itemsize
    low, high = first * wide, min(last * wide, row)
    for start in range(low, high, _WIDE * wide):
        stop = min(start + _WIDE * wide, high)
        whole = stop - (stop - start) % wide
        _begin(y, b, start, stop)
        for k0 in range(0, depth, _DEEP):
            count = min(_DEEP, depth - k0)
            for n in range(start, whole, wide):
                for k in range(k0 + _DEEP, min(k0 + 2 * _DEEP, depth)):
                    for ahead in range(n, n + wide, line):
                        prefetch(w, k * row + ahead)
                for r in range(len(x)):
                    add_rows(x, r * depth + k0, w, k0 * row + n, row, count, y, r * row + n)
            if whole < stop:
                for r in range(len(x)):
                    for k in range(k0, k0 + count):
                        _add_row(y[r, whole:stop], x[r, k], w[k, whole:stop])


@kernel
def _add_row(y, x, w):
    for n in range(len(y)):
        y[n] = fma(x, w[n], y[n])


@kernel
def _columns(chunk, x, w, b, y):
    """For the columns of w in memory, the rows of its transpose. The range counts the blocks."""
    first, last = share(chunk)
    length, depth = BYTES // w.itemsize, w.shape[1]
    low, high = first * LONG * length, min(last * LONG * length, y.shape[1])
    _begin(y, b, low, high)
    whole = depth // length * length
    for n in range(low, high, length):
        if n + length > high:
            whole = 0
        for k in range(0, whole, length):
            for ahead in range(length):
                prefetch(w, (n + length + ahead) * depth + k)
            add_transposed_block(x, k, depth, len(x), w, n * depth + k, depth, y, n, y.shape[1])
        for r in range(len(x)):
            for column in range(n, min(n + length, high)):
                total = y[r, column]
                for k in range(whole, depth):
                    total = fma(x[r, k], w[column, k], total)
                y[r, column] = total


@kernel
def _begin(y, b, start, stop):
    for r in range(len(y)):
        for n in range(start, stop):
            y[r, n] = b[n] if b.size else y.dtype.type(0)
