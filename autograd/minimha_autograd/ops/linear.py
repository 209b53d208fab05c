"""Sums of products."""

from __future__ import annotations

import math
import string

from .. import backend
from ..backend import Array, is_half, namespace
from ..operation import operation
from ..tape import Pullback
from .half import in_float32
from .requirements import multiplying


@operation(requirement=multiplying)
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

    subscripts  a letter for each axis, repeated where axes run together; letters that the result
                lacks are summed over. "..." stands for axes that broadcast; without "->" the result
                has the letters that occur once, in alphabetical order
    da          the sum in which y and a change places: for "ij,jk->ik" it is "ik,jk->ij" of dy and
                b. A letter that only a has stands along an axis of ones there, a repeated letter
                ("ii") on the diagonal of an identity matrix

    Raises ValueError for subscripts that do not fit the arrays.
    """
    if is_half(a):
        return in_float32(einsum, subscripts, a, b, wanted=wanted)
    xp, operands = namespace(a), [a] if b is None else [a, b]
    terms, out, lengths = _letters(subscripts, operands)
    spare = (c for c in string.ascii_letters if c not in lengths)
    for k, term in enumerate(terms):
        operands[k] = xp.broadcast_to(operands[k], tuple(lengths[c] for c in term))
    for k, term in enumerate(terms):  # "ii" becomes "ij", with an identity matrix "ij"
        for place, c in enumerate(term):
            if c in term[:place]:
                other = next(spare)
                terms[k] = terms[k][:place] + other + term[place + 1 :]
                lengths[other] = lengths[c]
                terms.append(c + other)
                operands.append(xp.eye(lengths[c], dtype=a.dtype, device=a.device))
    y = backend.einsum(f"{','.join(terms)}->{out}", *operands)
    saved = [x if wanted[2 - k] or k > 1 else None for k, x in enumerate(operands)]

    def gradient(k: int, dy: Array) -> Array:
        sources = [(out, dy), *((terms[j], saved[j]) for j in range(len(terms)) if j != k)]
        for c in terms[k]:
            if not any(c in term for term, _ in sources):
                ones = xp.ones((lengths[c],), dtype=dy.dtype, device=dy.device)
                sources.append((c, ones))
        names = ",".join(term for term, _ in sources)
        return backend.einsum(f"{names}->{terms[k]}", *(x for _, x in sources))

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = gradient(0, dy) if wanted[1] else None
        return None, da, gradient(1, dy) if wanted[2] else None

    return y, pullback


def _letters(subscripts: str, operands: list[Array]) -> tuple[list[str], str, dict[str, int]]:
    """The letters of each operand and of the result, also for the axes of an ellipsis, and the
    length of each letter's axis."""
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"{subscripts!r} is about {len(terms)} arrays, {len(operands)} were given")
    hidden = [x.ndim - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True)]
    free = [c for c in string.ascii_letters if c not in subscripts][: max(0, *hidden)]
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        out = "..." * ("..." in left) + "".join(once)
    ellipsis = "".join(free)
    terms = [
        t.replace("...", ellipsis[len(free) - n :]) for t, n in zip(terms, hidden, strict=True)
    ]
    out = out.replace("...", ellipsis)
    lengths: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        if len(term) != x.ndim:
            raise ValueError(f"{subscripts!r} has {len(term)} letters for shape {tuple(x.shape)}")
        for k, (c, n) in enumerate(zip(term, x.shape, strict=True)):
            other = x.shape[term.index(c)] if c in term[:k] else lengths.setdefault(c, n)
            if n != other and (c in term[:k] or 1 not in (n, other)):
                found = sorted((n, other))
                raise ValueError(f"{subscripts!r}: axis {c} has the lengths {found}")
            lengths[c] = n if lengths.get(c, 1) == 1 else lengths[c]
    if len(set(out)) < len(out) or not set(out) <= lengths.keys():
        raise ValueError(f"{subscripts!r}: a letter of the result must be that of an array, once")
    return terms, out, lengths


@operation
def outer(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """yᵢⱼ = aᵢ bⱼ for vectors.   da = dy b, db = dyᵀ a."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("a and b must be vectors, of one axis")
    y = a[:, None] * b[None, :]
    a, b = a if wanted[1] else None, b if wanted[0] else None  # what no gradient needs may go
    return y, lambda dy: (None if b is None else dy @ b, None if a is None else dy.mT @ a)
