"""A few rows times a large matrix, as for each token of a text that is being generated.

Every weight is read from memory once and used only a few times, so that memory sets the speed: a
matrix of bfloat16 is read in half the time of float32, one of int8 in a quarter. The weights
become float32 in registers.

The matrix is cut into blocks of its rows in memory. Four rows of a block are read at a time, each a
quarter of the block away from the next, so that memory delivers four streams, each in order. This
is up to twice as fast as a single stream, or as four rows that are close together. If the rows in
memory are rows of w (M, N), each is multiplied by an entry of x and added to the sum of its block;
the sums of the blocks are added at the end, in the same order for any number of threads. If w is a
transpose, they are columns of w, and each gives one entry of y.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from ...functional import Quantised
from ...functional.linear import WantedOfMaps, has_few_rows
from .arrays import Array, are_floats, as_rows, in_chunks
from .jit import kernel, reduction, widest_vectors
from .parallel import share

_BLOCK = 128
"""The number of rows of the matrix in memory that form a block."""


def linear_maps(
    x: Any, ws: tuple[Any, ...], bs: tuple[Array | None, ...], wanted: WantedOfMaps
) -> list[Array] | None:
    """The values of `functional.linear_maps`, a list with x w + b for each w of ws and its b of bs
    (None for no bias), for a float32 x with few rows (see `has_few_rows`), if no gradients are
    wanted. Returns None in other cases, and for weights that the kernels do not support."""
    if wanted.x or any(wanted.ws) or any(wanted.bs):
        return None
    if not are_floats(x, *[b for b in bs if b is not None]):
        return None
    if x.dtype != np.float32 or x.ndim < 2 or not has_few_rows(x, ws[0]):
        return None
    rows, ys = as_rows(x), []
    for w, b in zip(ws, bs, strict=True):
        y = _linear(rows, w, b)
        if y is None:
            return None
        ys.append(y.reshape(*x.shape[:-1], -1))
    return ys


@functools.cache
def _stored(dtype: np.dtype) -> Any:
    """The dtype in which a kernel reads the bits of a matrix of this dtype: uint16 for bfloat16,
    which Numba lacks, and the same dtype for float32 and int8. None for other dtypes, which no
    kernel supports."""
    return {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}.get(dtype.name)


def _linear(x: Array, w: Any, b: Array | None) -> Array | None:
    """Compute x w + b for x (R, M), w (M, N), which may be a `Quantised` matrix, and b (N,) or
    None. Returns None if the kernels do not support the shape, the dtype or the memory order of w.
    """
    w, scale = (w.values, w.scale) if type(w) is Quantised else (w, None)
    if type(w) is not Array or w.ndim != 2 or not w.size or len(w) != x.shape[1]:
        return None
    kind = _stored(w.dtype)
    if kind is None or not w.flags.aligned or not w.flags.forc:
        return None
    n, transposed = w.shape[1], not w.flags.c_contiguous
    if (scale is not None and scale.shape != (1, n)) or (b is not None and b.shape != (n,)):
        return None
    y, stored = np.empty((len(x), n), x.dtype), w.T if transposed else w
    bits, blocks = stored.view(kind), -(-len(stored) // _BLOCK)
    if transposed:
        _columns(in_chunks(blocks, w.nbytes), x, bits, y)
    else:
        _rows(in_chunks(blocks, w.nbytes), x, bits, np.empty((blocks, *y.shape), x.dtype), y)
    if scale is not None:
        y *= scale
    if b is not None:
        y += b
    return y


def _wide(x):
    """Convert a weight to float32, inside a kernel. A uint16 stands for the bfloat16 with the same
    bits, which are the upper half of the bits of a float32."""


@overload(_wide, inline="always")
def _compiled_wide(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: np.float32(x)  # noqa: PLW0108 — Numba compiles Python functions


@kernel
def _columns(chunk, x, w, y):
    """Compute y[r, n] = Σ x[r, k] · w[n, k], a sum over k, for every row n of w (N, M), which is
    the transpose of the weight matrix. `chunk`, made by `parallel.whole`, divides the blocks of
    `_BLOCK` rows of w among threads."""
    for block in range(*share(chunk)):
        first, last = block * _BLOCK, min(len(w), (block + 1) * _BLOCK)
        step = -(-(last - first) // 4)
        for n in range(first, first + step):  # the last row may be computed more than once
            n1, n2, n3 = (
                min(n + step, last - 1),
                min(n + 2 * step, last - 1),
                min(n + 3 * step, last - 1),
            )
            for r in range(len(x)):
                y[r, n], y[r, n1], y[r, n2], y[r, n3] = _four_dots(x[r], w[n], w[n1], w[n2], w[n3])


@reduction
def _four_dots(x, w0, w1, w2, w3):
    widest_vectors()
    y0 = y1 = y2 = y3 = x.dtype.type(0)
    for k in range(len(x)):
        y0 += x[k] * _wide(w0[k])
        y1 += x[k] * _wide(w1[k])
        y2 += x[k] * _wide(w2[k])
        y3 += x[k] * _wide(w3[k])
    return y0, y1, y2, y3


@kernel
def _rows(chunk, x, w, sums, y):
    """Compute y[r, n] = Σ x[r, k] · w[k, n], a sum over the rows k of w (M, N). `chunk`, made by
    `parallel.whole`, divides the blocks of `_BLOCK` rows of w among threads, and `sums`
    (blocks, R, N) is memory for the sum over each block."""
    _sums_of_blocks(chunk, x, w, sums)
    for r in range(len(y)):
        y[r] = 0
        for block in range(len(sums)):
            for n in range(y.shape[1]):
                y[r, n] += sums[block, r, n]


@kernel
def _sums_of_blocks(chunk, x, w, sums):
    for block in range(*share(chunk)):
        first, last = block * _BLOCK, min(len(w), (block + 1) * _BLOCK)
        step = (last - first) // 4
        for r in range(len(x)):
            sums[block, r] = 0
        for k in range(first, first + step):
            k1, k2, k3 = k + step, k + 2 * step, k + 3 * step
            for r in range(len(x)):
                _add_four(
                    sums[block, r], x[r, k], x[r, k1], x[r, k2], x[r, k3], w[k], w[k1], w[k2], w[k3]
                )
        for k in range(first + 4 * step, last):
            for r in range(len(x)):
                _add_one(sums[block, r], x[r, k], w[k])


@kernel
def _add_four(y, x0, x1, x2, x3, w0, w1, w2, w3):
    """Add x0 · w0 + x1 · w1 + x2 · w2 + x3 · w3 to the row y, where x0 to x3 are numbers and w0 to
    w3 are rows of weights, which `_wide` converts to float32."""
    widest_vectors()
    for n in range(len(y)):
        y[n] += (x0 * _wide(w0[n]) + x1 * _wide(w1[n])) + (x2 * _wide(w2[n]) + x3 * _wide(w3[n]))


@kernel
def _add_one(y, x, w):
    for n in range(len(y)):
        y[n] += x * _wide(w[n])
