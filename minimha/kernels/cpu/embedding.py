"""Embedding, and the angles and the rotation of rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional.implementations import batch_invariance, register
from .arrays import Array, are_floats, as_indices, as_rows, in_chunks
from .jit import kernel, strict_kernel
from .parallel import share


@register("embedding")
def embedding(table: Array, indices: Array) -> Any:
    """The value, table[indices], and the pullback of `functional.embedding`, or None for arrays
    that the kernel does not support."""
    if not are_floats(table) or table.ndim != 2:
        return None
    if (rows := as_indices(indices, len(table))) is None:
        return None
    shape = table.shape

    def pullback(dy: Array) -> tuple[Array, None]:
        dtable = np.zeros(shape, dy.dtype)
        _add_rows(as_rows(dy), rows, dtable)
        return dtable, None

    return table[rows].reshape(*indices.shape, shape[1]), pullback


@strict_kernel
def _add_rows(dy, indices, dtable):
    for i in range(indices.size):
        for j in range(dtable.shape[1]):
            dtable[indices[i], j] += dy[i, j]


@register("cos_and_sin")
def cos_and_sin(theta: Array) -> Any:
    """The cosines and sines of the angles theta, as in `functional.rope.cos_and_sin`. They are
    computed entry by entry, so that a position has the same cosines and sines in every sequence.
    Returns None outside `batch_invariant`, since NumPy is faster, and for a theta that is not a
    float64 array."""
    if not batch_invariance.get() or type(theta) is not Array or theta.dtype != np.float64:
        return None
    rows = as_rows(theta)
    cos, sin = np.empty(theta.shape), np.empty(theta.shape)
    _cos_and_sin(in_chunks(len(rows), 8 * theta.nbytes), rows, as_rows(cos), as_rows(sin))
    return cos, sin


@kernel(fastmath=False)
def _cos_and_sin(chunk, theta, cos, sin):
    for t in range(*share(chunk)):
        for i in range(theta.shape[1]):
            cos[t, i], sin[t, i] = math.cos(theta[t, i]), math.sin(theta[t, i])


@register("rotate")
def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Any:
    """The value and the pullback of `functional.rope.rotate`, which has the same arguments, if cos
    and sin are (T, width/2), the same for all sequences and heads. Returns None for arrays that the
    kernel does not support."""
    if not are_floats(x, cos, sin) or cos.ndim != 2:
        return None

    def rotated(x: Array, sin: Array) -> Array:
        y, rows = np.empty(x.shape, x.dtype), as_rows(x)
        chunks = in_chunks(len(rows), x.nbytes)
        _rotate(chunks, rows, cos, sin, bool(interleaved), as_rows(y))
        return y

    return rotated(x, sin), lambda dy: (rotated(dy, -sin),)


@kernel(fastmath=False)  # the same bits as the reference, which rotates short sequences
def _rotate(chunk, x, cos, sin, interleaved, y):
    half = cos.shape[1]
    for i in range(*share(chunk)):
        t = i % len(cos)
        if interleaved:
            for j in range(half):
                a, b = x[i, 2 * j], x[i, 2 * j + 1]
                y[i, 2 * j] = a * cos[t, j] - b * sin[t, j]
                y[i, 2 * j + 1] = b * cos[t, j] + a * sin[t, j]
        else:
            for j in range(half):
                a, b = x[i, j], x[i, half + j]
                y[i, j] = a * cos[t, j] - b * sin[t, j]
                y[i, half + j] = b * cos[t, j] + a * sin[t, j]
        for j in range(2 * half, x.shape[1]):
            y[i, j] = x[i, j]
