"""A few rows times a large matrix, as for each token of a text that is being generated.

Every weight is read from memory once and used only a few times, so that memory sets the speed: a
matrix of bfloat16 is read in half the time of float32, one of int8 in a quarter. The weights
become float32 in registers.

The matrix is read in the order in which it is stored, in blocks of its rows. If those are rows of w
(M, N), each is multiplied by an entry of x and added to the sum of its block; the sums of the
blocks are added at the end, in the same order for any number of threads. If w is a transpose, its
columns are rows in memory, and each gives one entry of y.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from ...functional import Quantised
from ...functional.linear import FEW
from .arrays import Array, are_floats, as_rows, in_chunks
from .jit import kernel, reduction, widest_vectors
from .parallel import share

_BLOCK = 128
"""The rows of w whose products are summed separately."""


def linear_maps(
    x: Any, ws: tuple[Any, ...], bs: tuple[Array | None, ...], wanted: tuple[bool, ...]
) -> list[Array] | None:
    """The values of `functional.linear_maps`, if no gradients are wanted and x has few rows, of
    float32."""
    if any(wanted) or not are_floats(x, *[b for b in bs if b is not None]):
        return None
    if x.dtype != np.float32 or x.ndim < 2 or x.size > FEW * x.shape[-1]:
        return None
    ys = [_linear(as_rows(x), w, b) for w, b in zip(ws, bs, strict=True)]
    if any(y is None for y in ys):
        return None
    return [y.reshape(*x.shape[:-1], -1) for y in ys if y is not None]


@functools.cache
def _stored(dtype: np.dtype) -> Any:
    """The dtype as which a kernel reads the entries of a matrix; None for others."""
    return {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}.get(dtype.name)


def _linear(x: Array, w: Any, b: Array | None) -> Array | None:
    """x w + b, for x (R, M) and w (M, N); None if w has another shape, dtype or order."""
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
    bits = stored.view(kind)
    if transposed:
        _columns(in_chunks(n, w.nbytes), x, bits, y)
    else:
        blocks = -(-len(w) // _BLOCK)
        _rows(in_chunks(blocks, w.nbytes), x, bits, np.empty((blocks, *y.shape), x.dtype), y)
    if scale is not None:
        y *= scale
    return y if b is None else y + b


def _wide(x):
    """A weight as float32. A bfloat16 is the upper half of its bits."""


@overload(_wide, inline="always")
def _compiled_wide(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: np.float32(x)  # noqa: PLW0108 — Numba compiles Python functions


@kernel
def _columns(chunk, x, w, y):
    """y[r, n] = Σ x[r] · w[n], for the rows n of w, the transpose in memory."""
    for n in range(*share(chunk)):
        for r in range(len(x)):
            y[r, n] = _dot(x[r], w[n])


@reduction
def _dot(x, w):
    widest_vectors()
    y = x.dtype.type(0)
    for k in range(len(x)):
        y += x[k] * _wide(w[k])
    return y


@kernel
def _rows(chunk, x, w, sums, y):
    """y[r] = Σ x[r, k] w[k], for the rows k of w."""
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
        eights = first + (last - first) // 8 * 8
        for r in range(len(x)):
            sums[block, r] = 0
        for k in range(first, eights, 8):  # eight at a time: sums are read and written less often
            for r in range(len(x)):
                _add_eight(sums[block, r], x[r, k : k + 8], w[k : k + 8])
        for k in range(eights, last):
            for r in range(len(x)):
                _add_one(sums[block, r], x[r, k], w[k])


@kernel
def _add_eight(y, x, w):
    """y += x w, for eight rows of w."""
    widest_vectors()
    x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
    for n in range(len(y)):
        one = x0 * _wide(w[0, n]) + x1 * _wide(w[1, n])
        two = x2 * _wide(w[2, n]) + x3 * _wide(w[3, n])
        three = x4 * _wide(w[4, n]) + x5 * _wide(w[5, n])
        four = x6 * _wide(w[6, n]) + x7 * _wide(w[7, n])
        y[n] += (one + two) + (three + four)


@kernel
def _add_one(y, x, w):
    for n in range(len(y)):
        y[n] += x * _wide(w[n])
