"""Products of matrices."""

from __future__ import annotations

import math

from ..backend import Array, namespace
from ..operation import Pullback, operation


@operation
def matmul(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a b for matrices (…, N, K) and (…, K, L), whose leading axes broadcast; a vector (K,) on
    either side is a row or a column whose axis is dropped from y.   da = dy bᵀ, db = aᵀ dy.
    """
    xp = namespace(a, b)
    if a.ndim > 2 and b.ndim == 2:  # one large product instead of a batch of small ones
        flat, pull = matmul.with_pullback(_rows(a), b, wanted=wanted)

        def pull_flat(dy: Array) -> tuple[Array | None, ...]:
            da, db = pull(_rows(dy))
            return None if da is None else xp.reshape(da, a.shape), db

        return xp.reshape(flat, (*a.shape[:-1], b.shape[-1])), pull_flat

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        dy = xp.expand_dims(dy, axis=-1) if b.ndim == 1 else dy
        dy = xp.expand_dims(dy, axis=-2) if a.ndim == 1 else dy
        da = db = None
        if wanted[0]:
            da = xp.matmul(dy, xp.matrix_transpose(columns))
            da = da[..., 0, :] if a.ndim == 1 else da
        if wanted[1]:
            db = xp.matmul(xp.matrix_transpose(rows), dy)
            db = db[..., 0] if b.ndim == 1 else db
        return da, db

    return xp.matmul(a, b), pullback


def _rows(x: Array) -> Array:
    """(…, N, K) -> (… · N, K)"""
    return namespace(x).reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


@operation
def matrix_transpose(x: Array) -> tuple[Array, Pullback]:
    """y = xᵀ, the last two axes swapped.   dx = dyᵀ."""
    xp = namespace(x)
    return xp.matrix_transpose(x), lambda dy: (xp.matrix_transpose(dy),)
