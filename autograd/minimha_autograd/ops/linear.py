"""Sums of products."""

from __future__ import annotations

import math

from .. import backend
from ..backend import Array, namespace
from ..operation import operation
from ..pullback import Pullback
from .fits import multiplying


@operation(fits=multiplying)
def matmul(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a b for matrices (…, N, K) and (…, K, L), whose leading axes broadcast; a vector (K,) on
    either side is a row or a column whose axis is dropped from y.   da = dy bᵀ, db = aᵀ dy.
    """
    xp = namespace(a, b)
    if a.ndim > 2 and b.ndim == 2:  # one large product instead of a batch of small ones
        return _as_rows(a, b, wanted)
    y, row, column = a @ b, a.ndim == 1, b.ndim == 1
    a, b = a if wanted[1] else None, b if wanted[0] else None  # what no gradient needs may go

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = xp.expand_dims(dy, axis=-1) if column else dy
        dy = xp.expand_dims(dy, axis=-2) if row else dy
        da = db = None
        if b is not None:
            da = dy @ (b[None, :] if column else b.mT)
            da = da[..., 0, :] if row else da
        if a is not None:
            db = (a[:, None] if row else a.mT) @ dy
            db = db[..., 0] if column else db
        return da, db

    return y, pullback


def _as_rows(a: Array, b: Array, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    xp, shape = namespace(a), tuple(a.shape)
    rows = math.prod(shape[:-1])
    flat, pull = matmul.with_pullback(xp.reshape(a, (rows, shape[-1])), b, wanted=wanted)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da, db = pull(xp.reshape(dy, (rows, dy.shape[-1])))
        return None if da is None else xp.reshape(da, shape), db

    return xp.reshape(flat, (*shape[:-1], b.shape[-1])), pullback


@operation
def einsum(
    subscripts: str, a: Array, b: Array | None = None, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = the sum of products that subscripts names: "bhtd,bhsd->bhts" for Q Kᵀ, "ii->" a trace.

    subscripts  a letter an axis, repeated where axes run together; letters that the result lacks
                are summed over. "..." stands for axes that broadcast; without "->" the result has
                the letters that occur once, in alphabetical order
    da          the sum with y and a in each other's place: for "ij,jk->ik" it is "ik,jk->ij" of dy
                and b; a letter of a alone is repeated, a diagonal goes back to the diagonal

    Raises ValueError for subscripts that do not fit the arrays.
    """
    operands = [a] if b is None else [a, b]
    terms, out = backend.einsum_terms(subscripts, operands)
    y = backend.einsum(terms, out, operands)
    shapes = [x.shape for x in operands]
    a, b = a if wanted[2] else None, b if wanted[1] else None  # what no gradient needs may go

    def gradient(k: int, dy: Array, other: Array | None) -> Array:
        sources = [(out, dy)] if other is None else [(out, dy), (terms[1 - k], other)]
        there = "".join(c for c in dict.fromkeys(terms[k]) if any(c in t for t, _ in sources))
        dx = backend.einsum([t for t, _ in sources], there, [x for _, x in sources])
        return backend.spread(dx, there, terms[k], shapes[k])

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = gradient(0, dy, b) if wanted[1] else None
        return None, da, gradient(1, dy, a) if wanted[2] else None

    return y, pullback


@operation
def outer(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """yᵢⱼ = aᵢ bⱼ for vectors.   da = dy b, db = dyᵀ a."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("a and b must be vectors, of one axis")
    y = a[:, None] * b[None, :]
    a, b = a if wanted[1] else None, b if wanted[0] else None  # what no gradient needs may go
    return y, lambda dy: (None if b is None else dy @ b, None if a is None else dy.mT @ a)
