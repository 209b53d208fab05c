"""The linear map, as products of matrices of any size.

    y = x w + b,  dx = dy wᵀ,  dw = xᵀ dy,  db = dy, summed over the rows

The right operand is copied one panel at a time. A panel is as wide as a block, and its depth is
chosen so that it stays in the L1 cache while it is multiplied by rows of the left operand. The rows
used at a time fit into the L2 cache. Source: Goto and van de Geijn, as for `microkernel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional
from .. import threads
from .arrays import Array, are_floats, as_rows, contiguous
from .jit import kernel
from .matmul import matrix, multiply, right, right_of_transpose
from .microkernel import BYTES, ROWS, VECTORS, no_vectors
from .parallel import share, whole

_DEEP, _HIGH = 256, 384
"""The depth of a panel, and the rows multiplied by it: a multiple of ROWS on every CPU."""
_CHUNK = 2**21, 2
"""The fewest multiplications and blocks of rows in a chunk, since each chunk copies all panels."""


@functional.acceleration.register("linear")
def linear(x: Any, w: Any, b: Array | None = None, *, wanted: tuple[bool, ...]) -> Any:
    """As `functional.linear`."""
    biases = () if b is None else (b,)
    if no_vectors() or not are_floats(x, w, *biases) or x.ndim < 2 or w.ndim != 2 or not w.size:
        return None
    if x.shape[-1] != len(w) or any(b.shape != w.shape[1:] for b in biases):
        return None
    shape, x = x.shape, as_rows(x)
    y = product(x, w, bias=b).reshape(*shape[:-1], -1)
    w, x = w if wanted[0] else None, x if wanted[1] else None  # keeps nothing else alive

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = as_rows(dy)
        dx = None if w is None else product(dy, w.T).reshape(shape)
        db = np.zeros(dy.shape[1], dy.dtype) if wanted[2] else None
        dw = None if x is None else product(x.T, dy, sums=db)
        if dw is None and db is not None:
            db += dy.sum(axis=0)
        return dx, dw, db

    return y, pullback


def product(a: Array, b: Array, *, bias: Array | None = None, sums: Array | None = None) -> Array:
    """a b + bias, with a (M, K), b (K, N) and bias (N,). Transposes need not be contiguous.

    sums  (N,), zeros to which the sums of b's columns are added
    """
    none, c = np.empty(0, a.dtype), np.empty((len(a), b.shape[1]), a.dtype)
    blocks, like = -(-len(a) // ROWS), np.empty((0, 0, VECTORS * BYTES // a.itemsize), a.dtype)
    chunks = min(threads.number(), a.size * b.shape[1] // _CHUNK[0], blocks // _CHUNK[1])
    _product(
        whole(blocks, chunks), *_in_memory(a), *_in_memory(b),
        none if bias is None else contiguous(bias), none if sums is None else sums, like, c,
    )  # fmt: skip
    return c


def _in_memory(x: Array) -> tuple[Array, bool]:
    """x or its transpose, whichever is contiguous, and whether it is transposed."""
    transposed = x.flags.f_contiguous and not x.flags.c_contiguous
    return contiguous(x.T if transposed else x), transposed


@kernel
def _product(chunk, a, a_transposed, b, b_transposed, bias, sums, like, c):
    start, stop = share(chunk)
    first, last = start * ROWS, min(stop * ROWS, len(c))
    depth, n, width = b.shape[1] if b_transposed else len(b), c.shape[1], like.shape[2]
    tail, border = np.zeros((ROWS, _DEEP), like.dtype), matrix(_HIGH, width, like)
    for m0 in range(first, last, _HIGH):
        m1 = min(m0 + _HIGH, last)
        rest = m1 - (m1 - m0) % ROWS
        for k0 in range(0, depth, _DEEP):
            k1 = min(k0 + _DEEP, depth)
            left = a[k0:k1, m0:m1].T if a_transposed else a[m0:m1, k0:k1]
            _move(left[rest - m0 :], tail[: m1 - rest, : k1 - k0], False)
            for n0 in range(0, n, width):
                n1 = min(n0 + width, n)
                if b_transposed:
                    panel = right_of_transpose(b, (n0, n1, k0, k1), like)
                else:
                    panel = right(b, (k0, k1, n0, n1), like)
                if m0 == 0 and sums.size:
                    _add_up(panel[0], sums[n0:n1])
                into = c[m0:rest, n0:n1]
                if n1 - n0 == width:
                    multiply(left, k1 - k0, panel, 0, into, k0 > 0)
                else:
                    multiply(left, k1 - k0, panel, 0, border[: rest - m0, :width], False)
                    _move(border, into, k0 > 0)
                if rest < m1:
                    multiply(tail[:, : k1 - k0], k1 - k0, panel, 0, border[:ROWS, :width], False)
                    _move(border, c[rest:m1, n0:n1], k0 > 0)
                if bias.size and k1 == depth:
                    rows = c[m0:m1, n0:n1]
                    rows += bias[n0:n1]


@kernel
def _move(x, y, add):
    """Copy the first rows and columns of x to y, or add them to it."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = x[i, j] + y[i, j] if add else x[i, j]


@kernel
def _add_up(rows, sums):
    """Add the sum of each column to sums."""
    block = np.zeros(rows.shape[1], rows.dtype)
    for i in range(len(rows)):
        for j in range(rows.shape[1]):
            block[j] += rows[i, j]
    for j in range(len(sums)):
        sums[j] += block[j]
