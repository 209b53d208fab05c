"""Sums of products."""

from __future__ import annotations

import functools
import math

from .. import backend, half
from ..backend import Array, namespace
from ..operation import Wanted, operation
from ..tape import Pullback
from .requirements import multiplying


@operation(requirement=multiplying, native=half.on_device)
def matmul(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = a b for matrices (…, N, K) and (…, K, L), whose leading axes broadcast; a vector (K,) on
    either side is a row or a column whose axis is dropped from y.   da = dy bᵀ, db = aᵀ dy.
    """
    if half.rounds_factors(a):
        return half.with_bfloat16(functools.partial(matmul.function, wanted=wanted), a, b)
    xp = namespace(a, b)
    shape = a.shape
    row = a.ndim == 1
    column = b.ndim == 1

    # One large product is faster than a batch of small ones.
    merged = a.ndim > 2 and b.ndim == 2
    if merged:
        a = xp.reshape(a, (math.prod(shape[:-1]), shape[-1]))
    y = a @ b
    if merged:
        y = xp.reshape(y, (*shape[:-1], y.shape[-1]))

    # Free what no gradient needs.
    saved_a = a if wanted.b else None
    saved_b = b if wanted.a else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        if merged:
            dy = xp.reshape(dy, (-1, dy.shape[-1]))
        if column:
            dy = xp.expand_dims(dy, axis=-1)
        if row:
            dy = xp.expand_dims(dy, axis=-2)

        da = db = None
        if saved_b is not None:
            da = dy @ (saved_b[None, :] if column else saved_b.mT)
            if row:
                da = da[..., 0, :]
            if merged:
                da = xp.reshape(da, shape)
        if saved_a is not None:
            db = (saved_a[:, None] if row else saved_a.mT) @ dy
            if column:
                db = db[..., 0]
        return da, db

    return y, pullback


@operation(settings=("subscripts",))
def einsum(
    subscripts: str, a: Array, b: Array | None = None, *, wanted: Wanted
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
    terms = left.split(",")
    letters = [term.replace("...", "") for term in terms]
    operands = [a] if b is None else [a, b]
    if not arrow or any(len(set(term)) < len(term) for term in letters):
        raise ValueError(f"{subscripts!r} needs an arrow, and no letter twice in a term")
    if len(terms) != len(operands):
        raise ValueError(f"{subscripts!r} describes {len(terms)} arrays, not {len(operands)}")

    y = backend.einsum(subscripts, *operands)
    shapes = [x.shape for x in operands]
    wants_a = wanted.a
    wants_b = wanted.b
    saved = [a if wants_b else None, b if wants_a else None]  # free what no gradient needs

    def gradient(k: int, dy: Array) -> Array:
        xp = namespace(dy)
        sources = [(out, dy)]
        for j in range(len(terms)):
            if j != k:
                sources.append((terms[j], saved[j]))

        # Axes of ones, for the letters that no other term has.
        for place, letter in enumerate(reversed(letters[k]), 1):
            if not any(letter in term for term, _ in sources):
                length = shapes[k][-place]
                sources.append((letter, xp.ones((length,), dtype=dy.dtype, device=dy.device)))

        names = ",".join(term for term, _ in sources)
        dx = backend.einsum(f"{names}->{terms[k]}", *(x for _, x in sources))

        # Repeated where the axis of the other operand has length 1. The first axes may be those of
        # "..." that only the other operand has.
        extra = dx.ndim - len(shapes[k])
        lengths = zip(dx.shape[extra:], shapes[k], strict=True)
        full = (*dx.shape[:extra], *(n if m == 1 else m for m, n in lengths))
        return xp.broadcast_to(dx, full)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = gradient(0, dy) if wants_a else None
        db = gradient(1, dy) if wants_b else None
        return None, da, db

    return y, pullback


@operation
def outer(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """yᵢⱼ = aᵢ bⱼ for vectors.   da = dy b, db = dyᵀ a."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("a and b must be vectors, with one axis")
    y = a[:, None] * b[None, :]
    saved_a = a if wanted.b else None
    saved_b = b if wanted.a else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None if saved_b is None else dy @ saved_b
        db = None if saved_a is None else dy.mT @ saved_a
        return da, db

    return y, pullback
