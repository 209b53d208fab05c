"""Rows of a table, and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...functional import acceleration
from .arrays import Array, as_rows, exact, floats, shared
from .parallel import led


@acceleration.register("embedding")
def embedding(table: Array, indices: Array) -> Any:
    """As `functional.embedding`."""
    fits = floats(table) and table.ndim == 2 and type(indices) is Array
    if not fits or indices.dtype.kind not in "iu" or not indices.size:
        return None
    shape = table.shape
    flat = indices.astype(np.int64, order="C").reshape(-1)  # a copy that is ours alone
    if flat.min() < 0 or flat.max() >= shape[0]:
        return None

    def pullback(dy: Array) -> tuple[Array, None]:
        dtable = np.zeros(shape, dy.dtype)
        _add_rows(as_rows(dy), flat, dtable)
        return dtable, None

    return table[flat].reshape(*indices.shape, shape[1]), pullback


@exact
def _add_rows(dy, indices, dtable):
    for i in range(indices.size):
        for j in range(dtable.shape[1]):
            dtable[indices[i], j] += dy[i, j]


@acceleration.register("rotate")
def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Any:
    """As `functional.rope.rotate`, for positions (T,): cos and sin (T, width/2)."""
    if not floats(x, cos, sin) or cos.ndim != 2:
        return None
    shape, interleaved = x.shape, bool(interleaved)

    def turned(x: Array, sin: Array) -> Array:
        y, x = np.empty(shape, x.dtype), as_rows(x)
        out = y.reshape(x.shape)
        _turn(shared(len(x), x.nbytes), x, cos, sin, interleaved, out)
        return y

    return turned(x, sin), lambda dy: (turned(dy, -sin),)


@exact
def _turn(part, x, cos, sin, interleaved, y):
    if led(part):
        return
    half = cos.shape[1]
    for i in range(part[0], part[1]):
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
