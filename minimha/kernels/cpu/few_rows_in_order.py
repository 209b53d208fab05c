"""A few rows times a matrix; each entry is summed from its first term to its last.

    y[r, n] = fma(x[r, M−1], w[M−1, n], … fma(x[r, 0], w[0, n], b[n]))

This is the order of `linear.product` for many rows within `batch_invariant`. As in `few_rows`,
memory sets the speed, so the weights are not copied, and each is read once. If the rows in memory
are rows of w (M, N), each is multiplied by an entry of x and added to y, which stays in the cache.
If w is a transpose, they are columns of w, and square blocks of them are transposed in the
registers. Threads divide the columns of y.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, contiguous, in_chunks, in_memory
from .few_rows_blocks import LONG, add_rows, add_transposed_block
from .jit import kernel
from .parallel import share
from .registers import BYTES
from .vectors import fma, prefetch

_WIDE = 32
"""How many blocks of columns of w are multiplied at a time, so that their part of y stays in the L1
cache."""
_DEEP = 8
"""How many rows of w are multiplied at a time: memory then delivers a few long streams."""


def product(x: Array, w: Array, b: Array | None) -> Array:
    """x w + b, for x (R, M), w (M, N) and b (N,), or x w if b is None. The terms of each entry are
    added in the order of the rows of w, beginning with b, as in the formula of this module."""
    stored, transposed = in_memory(w)
    b = np.empty(0, x.dtype) if b is None else contiguous(b)
    n = w.shape[1]
    y = np.empty((len(x), n), x.dtype)

    blocks = -(-n // (LONG * BYTES // y.itemsize))
    chunks = in_chunks(blocks, w.nbytes)
    multiply = _columns if transposed else _rows
    multiply(chunks, x, stored, b, y)
    return y


@kernel
def _rows(chunk, x, w, b, y):
    """Compute y = x w + b for x (R, M), w (M, N) in row-major order and b (N,), or x w if b is
    empty. `chunk`, made by `parallel.whole`, divides the columns of y among threads, in blocks that
    are LONG vectors wide."""
    first, last = share(chunk)
    wide = LONG * BYTES // w.itemsize
    low = first * wide
    high = min(last * wide, w.shape[1])

    _begin(y, b, low, high)
    for start in range(low, high, _WIDE * wide):
        stop = min(start + _WIDE * wide, high)
        add_rows_of_matrix(x, w, (0, len(w), start, stop), y, start)


@kernel
def _columns(chunk, x, w, b, y):
    """Compute y = x wᵀ + b for x (R, M), w (N, M) in row-major order, the transpose of the weights,
    and b (N,), or x wᵀ if b is empty. `chunk`, made by `parallel.whole`, divides the columns of y
    among threads, in blocks that are LONG vectors wide."""
    first, last = share(chunk)
    wide = LONG * BYTES // w.itemsize
    low = first * wide
    high = min(last * wide, len(w))

    _begin(y, b, low, high)
    add_columns_of_matrix(x, w, (low, high, 0, w.shape[1]), y, low)


@kernel
def _begin(y, b, start, stop):
    """Set each entry of the columns of y from start to stop to the bias of its column, b[n] in
    column n, or to 0 if b is empty."""
    for r in range(len(y)):
        for n in range(start, stop):
            y[r, n] = b[n] if b.size else y.dtype.type(0)


@kernel
def add_rows_of_matrix(x, w, region, y, to):
    """Multiply x (R, k1 − k0) by a region (k0, k1, n0, n1) of w, its rows from k0 to k1 and columns
    from n0 to n1. Add the product, (R, n1 − n0), to y, in the columns from the column `to` on."""
    k0, k1, n0, n1 = region
    row_w = w.shape[1]
    row_x = x.strides[0] // x.itemsize
    row_y = y.strides[0] // y.itemsize
    wide = LONG * BYTES // w.itemsize
    whole = n1 - (n1 - n0) % wide

    for k in range(k0, k1, _DEEP):
        count = min(_DEEP, k1 - k)
        for n in range(n0, whole, wide):
            for r in range(len(x)):
                from_x = r * row_x + k - k0
                to_y = r * row_y + to + n - n0
                add_rows(x, from_x, w, k * row_w + n, row_w, count, y, to_y)

        # The columns after the last whole block.
        if whole < n1:
            for r in range(len(x)):
                for i in range(k, k + count):
                    rest = y[r, to + whole - n0 : to + n1 - n0]
                    _add_row(rest, x[r, i - k0], w[i, whole:n1])


@kernel
def _add_row(y, x, w):
    for n in range(len(y)):
        y[n] = fma(x, w[n], y[n])


@kernel
def add_columns_of_matrix(x, w, region, y, to):
    """Multiply x (R, k1 − k0) by the transpose of a region (n0, n1, k0, k1) of w, its rows from n0
    to n1 and columns from k0 to k1. Add the product, (R, n1 − n0), to y, in the columns from the
    column `to` on."""
    n0, n1, k0, k1 = region
    row_w = w.shape[1]
    row_x = x.strides[0] // x.itemsize
    row_y = y.strides[0] // y.itemsize
    length = BYTES // w.itemsize

    for n in range(n0, n1, length):
        # Blocks need as many rows of w as a vector has entries.
        whole = k1 - (k1 - k0) % length if n + length <= n1 else k0
        for k in range(k0, whole, length):
            for ahead in range(n + length, n + 2 * length):
                prefetch(w, ahead * row_w + k)
            from_w = n * row_w + k
            add_transposed_block(x, k - k0, row_x, len(x), w, from_w, row_w, y, to + n - n0, row_y)

        # The entries of these rows after the last whole block.
        for r in range(len(x)):
            for i in range(n, min(n + length, n1)):
                total = y[r, to + i - n0]
                for k in range(whole, k1):
                    total = fma(x[r, k - k0], w[i, k], total)
                y[r, to + i - n0] = total
