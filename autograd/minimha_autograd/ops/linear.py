"""Sums of products."""

from __future__ import annotations

import math

from .. import backend
from ..backend import Array, namespace
from ..half import on_device
from ..operation import operation
from ..tape import Pullback
from .requirements import multiplying


@operation(requirement=multiplying, native=on_device)
def matmul(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a b for matrices (…, N, K) and (…, K, L), whose leading axes broadcast; a vector (K,) on
    either side is a row or a column whose axis is dropped from y.   da = dy bᵀ, db = aᵀ dy.
    """
    xp, shape = namespace(a, b), a.shape
    if rows := a.ndim > 2 and b.ndim == 2:  # one large product instead of a batch of small ones
        a = xp.reshape(a, (math.prod(shape[:-1]), shape[-1]))
    y, row, column = a @ b, a.ndim == 1, b.ndim == 1
    a, b = a if wanted[1] else None, b if wanted[0] else None  # free what no gradient needs

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = xp.reshape(dy, (-1, dy.shape[-1])) if rows else dy
        dy = xp.expand_dims(dy, axis=-1) if column else dy
        dy = xp.expand_dims(dy, axis=-2) if row else dy
        da = db = None
        if b is not None:
            da = dy @ (b[None, :] if column else b.mT)
            da = da[..., 0, :] if row else xp.reshape(da, shape) if rows else da
        if a is not None:
            db = (a[:, None] if row else a.mT) @ dy
            db = db[..., 0] if column else db
        return da, db

    return xp.reshape(y, (*shape[:-1], y.shape[-1])) if rows else y, pullback


@operation(settings=("subscripts",))
def einsum(
    subscripts: str, a: Array, b: Array | None = None, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = the sum of products given by subscripts: "bhtd,bhsd->bhts" is Q Kᵀ, "ij->" is a sum.

    subscripts  a letter for each axis, an arrow, and the letters of the result, no letter twice in
                a term; letters that the result lacks are summed over. A "..." in front of a term
                stands for axes that broadcast
    da          the sum in which y and a change places: for "ij,jk->ik" it is "ik,jk->ij" of dy and
                b. A letter that only a has becomes an axis of ones

    Raises ValueError for subscripts that do not match the arrays.
    """
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms, operands = left.split(","), [a] if b is None else [a, b]
    letters = [term.replace("...", "") for term in terms]
    if not arrow or any(len(set(term)) < len(term) for term in letters):
        raise ValueError(f"{subscripts!r} needs an arrow, and no letter twice in a term")
    if len(terms) != len(operands):
        raise ValueError(f"{subscripts!r} describes {len(terms)} arrays, not {len(operands)}")
    y = backend.einsum(subscripts, *operands)
    shapes = [x.shape for x in operands]
    saved = [a if wanted[2] else None, b if wanted[1] else None]  # free what no gradient needs

    def gradient(k: int, dy: Array) -> Array:
        sources = [(out, dy), *((terms[j], saved[j]) for j in range(len(terms)) if j != k)]
        for place, c in enumerate(reversed(letters[k]), 1):
            if not any(c in term for term, _ in sources):
                length = (shapes[k][-place],)
                sources.append((c, namespace(dy).ones(length, dtype=dy.dtype, device=dy.device)))
        names = ",".join(term for term, _ in sources)
        dx = backend.einsum(f"{names}->{terms[k]}", *(x for _, x in sources))
        extra = dx.ndim - len(shapes[k])  # axes of "..." that only the others have
        lengths = zip(dx.shape[extra:], shapes[k], strict=True)
        full = (*dx.shape[:extra], *(n if m == 1 else m for m, n in lengths))
        return namespace(dy).broadcast_to(dx, full)  # along axes of length 1 of the other operand

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = gradient(0, dy) if wanted[1] else None
        return None, da, gradient(1, dy) if wanted[2] else None

    return y, pullback


@operation
def outer(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """yᵢⱼ = aᵢ bⱼ for vectors.   da = dy b, db = dyᵀ a."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("a and b must be vectors, with one axis")
    y = a[:, None] * b[None, :]
    a, b = a if wanted[1] else None, b if wanted[0] else None  # free what no gradient needs
    return y, lambda dy: (None if b is None else dy @ b, None if a is None else dy.mT @ a)
