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
    """y = a b for matrices (…, N, K) and (…, K, L), whose leading axes broadcast.   da = dy bᵀ,
    db = aᵀ dy.

    A vector (K,) counts as a matrix of one row if it is a, of one column if it is b; y lacks the
    axis of this row or column.
    """
    if half.rounds_factors(a):
        return half.with_bfloat16(functools.partial(matmul.function, wanted=wanted), a, b)
    xp = namespace(a, b)
    shape = a.shape  # (…, N, K), or (K,) for a row
    is_row = a.ndim == 1
    is_column = b.ndim == 1

    # One large product is faster than a batch of small ones.
    merged = a.ndim > 2 and b.ndim == 2
    if merged:
        rows = math.prod(shape[:-1])
        a = xp.reshape(a, (rows, shape[-1]))
    y = a @ b
    if merged:
        y = xp.reshape(y, (*shape[:-1], y.shape[-1]))  # (…, N, L)

    # Each gradient needs the other factor, which is freed if that gradient is not wanted.
    saved_a = None
    saved_b = None
    if wanted.b:
        saved_a = a
    if wanted.a:
        saved_b = b

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        # The axes of the matrix product: merged, or with the one that a vector dropped.
        if merged:
            dy = xp.reshape(dy, (-1, dy.shape[-1]))  # (rows, L)
        if is_column:
            dy = xp.expand_dims(dy, axis=-1)  # (…, N, 1)
        if is_row:
            dy = xp.expand_dims(dy, axis=-2)  # (…, 1, L)

        da = None
        db = None
        if saved_b is not None:
            matrix = saved_b  # (…, K, L)
            if is_column:
                matrix = saved_b[:, None]  # (K, 1)
            da = dy @ matrix.mT  # (…, N, K)
            if is_row:
                da = da[..., 0, :]  # (…, K)
            if merged:
                da = xp.reshape(da, shape)
        if saved_a is not None:
            matrix = saved_a  # (…, N, K)
            if is_row:
                matrix = saved_a[None, :]  # (1, K)
            db = matrix.mT @ dy  # (…, K, L)
            if is_column:
                db = db[..., 0]  # (…, K)
        return da, db  # the wrapper sums over leading axes that broadcast

    return y, pullback


@operation(settings=("subscripts",))
def einsum(
    subscripts: str, a: Array, b: Array | None = None, *, wanted: Wanted
) -> tuple[Array, Pullback]:
    """y = the sum of products given by subscripts: "bhtd,bhsd->bhts" is Q Kᵀ, "ij->" is a sum.

    subscripts  a letter for each axis, an arrow, and the letters of the result, no letter twice in
                a term; letters that the result lacks are summed over. A "..." in front of a term
                stands for axes that broadcast
    da          the sum with the letters of y and a exchanged: for "ij,jk->ik", the sum "ik,jk->ij"
                of dy and b. For a letter that neither y nor b has, dy is repeated along that axis
    db          likewise, with the letters of y and b exchanged

    Raises ValueError for subscripts that do not match the arrays.
    """
    # "ij,jk->ik": terms "ij" and "jk", out "ik".
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = [term.replace("...", "") for term in terms]
    operands = [a]
    if b is not None:
        operands.append(b)
    if not arrow or any(len(set(term)) < len(term) for term in letters):
        raise ValueError(f"{subscripts!r} needs an arrow, and no letter twice in a term")
    if len(terms) != len(operands):
        raise ValueError(f"{subscripts!r} describes {len(terms)} arrays, not {len(operands)}")

    y = backend.einsum(subscripts, *operands)
    shapes = [x.shape for x in operands]

    # The tape searches what the pullback closes over for arrays: booleans are faster to pass over
    # than the named tuple.
    wants_a = wanted.a
    wants_b = wanted.b

    # Each gradient needs the other operand, which is freed if that gradient is not wanted.
    saved: list[Array | None] = [None, None]
    if wants_b:
        saved[0] = a
    if wants_a:
        saved[1] = b

    def gradient(k: int, dy: Array) -> Array:
        # y and operand k change places.
        sources = [(out, dy)]
        for j in range(len(terms)):
            if j != k:
                sources.append((terms[j], saved[j]))
        sources += _ones(letters[k], shapes[k], sources)

        names = ",".join(term for term, _ in sources)
        dx = backend.einsum(f"{names}->{terms[k]}", *(x for _, x in sources))
        return _repeated(dx, shapes[k])

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None
        db = None
        if wants_a:
            da = gradient(0, dy)
        if wants_b:
            db = gradient(1, dy)
        return None, da, db

    return y, pullback


Source = tuple[str, Array]
"""An operand of einsum with its letters."""


def _ones(letters: str, shape: tuple[int, ...], sources: list[Source]) -> list[Source]:
    """Further operands for the einsum that computes the gradient of an operand of this shape: a
    vector of ones for each of its `letters` that none of the `sources`, dy and the other operand,
    has. y is a sum over such a letter, so all entries along it have the same gradient."""
    _, dy = sources[0]
    xp = namespace(dy)
    found = []
    for place, letter in enumerate(reversed(letters), 1):
        if not any(letter in term for term, _ in sources):
            length = shape[-place]  # counted from the right, since "..." stands in front
            ones = xp.ones((length,), dtype=dy.dtype, device=dy.device)
            found.append((letter, ones))
    return found


def _repeated(dx: Array, shape: tuple[int, ...]) -> Array:
    """dx, the gradient of an operand of this shape, repeated along each axis where dx has length 1
    and the operand is longer. This happens along axes where the other operand has length 1."""
    extra = dx.ndim - len(shape)  # axes of "..." that only the other operand has
    full = list(dx.shape)
    for k, n in enumerate(shape, extra):
        if full[k] == 1:
            full[k] = n
    return namespace(dx).broadcast_to(dx, tuple(full))


@operation
def outer(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """yᵢⱼ = aᵢ bⱼ for vectors a (N,) and b (L,).   da = dy b, db = dyᵀ a."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("a and b must be vectors, with one axis")
    y = a[:, None] * b[None, :]  # (N, L)

    # Each gradient needs the other vector, which is freed if that gradient is not wanted.
    saved_a = None
    saved_b = None
    if wanted.b:
        saved_a = a
    if wanted.a:
        saved_b = b

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None
        db = None
        if saved_b is not None:
            da = dy @ saved_b  # (N,)
        if saved_a is not None:
            db = dy.mT @ saved_a  # (L,)
        return da, db

    return y, pullback
