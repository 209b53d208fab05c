"""Operations that reduce axes: axis is an integer, a tuple of them, or None for all."""

from __future__ import annotations

import math

from ..backend import Array, is_complex, namespace
from ..operation import Pullback, operation

Axis = int | tuple[int, ...] | None


@operation
def sum(x: Array, *, axis: Axis = None, keepdims: bool = False) -> tuple[Array, Pullback]:
    """y = Σ x over axis.   dx = dy, repeated along axis."""
    xp = namespace(x)

    def pullback(dy: Array) -> tuple[Array]:
        return (xp.broadcast_to(_kept(dy, x, axis), x.shape),)

    return xp.sum(x, axis=axis, keepdims=keepdims), pullback


@operation
def mean(x: Array, *, axis: Axis = None, keepdims: bool = False) -> tuple[Array, Pullback]:
    """y = Σ x / n over the n entries of axis.   dx = dy / n, repeated along axis."""
    xp = namespace(x)
    count = math.prod(x.shape[k] for k in _axes(axis, x.ndim))

    def pullback(dy: Array) -> tuple[Array]:
        return (xp.broadcast_to(_kept(dy, x, axis) / count, x.shape),)

    return xp.sum(x, axis=axis, keepdims=keepdims) / count, pullback


@operation
def max(x: Array, *, axis: Axis = None, keepdims: bool = False) -> tuple[Array, Pullback]:
    """y = the largest entry over axis.   dx = dy at the largest, shared evenly between ties.

    For complex x, which the complex step sends, the entry with the largest real part, so that the
    derivative follows the entry that the maximum follows.
    """
    xp = namespace(x)
    real = xp.real(x) if is_complex(x) else x
    y = xp.max(real, axis=axis, keepdims=keepdims)

    def share() -> Array:
        largest = xp.astype(real == _kept(y, x, axis), x.dtype)
        return largest / xp.sum(largest, axis=axis, keepdims=True)

    def pullback(dy: Array) -> tuple[Array]:
        return (_kept(dy, x, axis) * share(),)

    if is_complex(x):
        return xp.sum(x * share(), axis=axis, keepdims=keepdims), pullback
    return y, pullback


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(k % ndim for k in (axis if isinstance(axis, tuple) else (axis,)))


def _kept(dy: Array, x: Array, axis: Axis) -> Array:
    """dy with the reduced axes of x put back, of length 1, whether they were kept or not."""
    reduced = _axes(axis, x.ndim)
    kept = tuple(1 if k in reduced else n for k, n in enumerate(x.shape))
    return namespace(dy).reshape(dy, kept)
