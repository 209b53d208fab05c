"""What operations require of their arguments, checked after an error to explain it.

Each function returns the violation and the likely fix, or None if its requirement is met. Checks
before each call would cost time that only calls with an error need.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from ..backend import Array, is_array


def broadcasting(*arrays: Array, **_: Any) -> str | None:
    """A message that says why the shapes of the arrays do not broadcast: aligned on the right,
    their lengths must be equal or 1. None if they broadcast."""
    shapes = []
    for x in arrays:
        if is_array(x):  # a number broadcasts to any shape
            shapes.append(tuple(x.shape))
    if _broadcast(shapes):
        return None  # the error has another cause

    # A vector that was meant as a column is the most common cause.
    fix = ""
    for k, shape in enumerate(shapes):
        changed = list(shapes)
        changed[k] = (*shape, 1)  # (N,) as (N, 1)
        if len(shape) == 1 and _broadcast(changed):
            fix = f"; {shape} as a column, by [:, None], would fit"
    return (
        f"shapes {_joined(shapes)} do not broadcast: aligned at the right, lengths must be equal "
        f"or 1{fix}"
    )


def _broadcast(shapes: list[tuple[int, ...]]) -> bool:
    """Whether arrays of these shapes broadcast."""
    from_right = [reversed(shape) for shape in shapes]
    axes = zip_longest(*from_right, fillvalue=1)  # the lengths of all arrays along each axis
    return all(len(set(lengths) - {1}) <= 1 for lengths in axes)


def _joined(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


def multiplying(a: Array, b: Array, **_: Any) -> str | None:
    """A message that says why the matrices a (…, N, K) and b (…, K, L) cannot be multiplied, with
    the likely fix; None if they can be multiplied."""
    # Neither numbers nor arrays without axes have a K.
    if not (is_array(a) and is_array(b) and a.ndim and b.ndim):
        return "a product of matrices needs arrays with an axis at least; * multiplies by a number"

    last = a.shape[-1]  # K of a
    inner = b.shape[0]  # K of b, if b is a vector
    if b.ndim > 1:
        inner = b.shape[-2]

    # With the same K, only the leading axes (…) can be wrong.
    if last == inner:
        leading = [tuple(a.shape[:-2]), tuple(b.shape[:-2])]
        if _broadcast(leading):
            return None
        return f"the leading axes {_joined(leading)} do not broadcast: lengths must be equal or 1"

    # A forgotten transpose is the most common cause.
    fix = ""
    if b.ndim > 1 and last == b.shape[-1]:
        fix = "; b.mT would fit"
    elif a.ndim > 1 and a.shape[-2] == inner:
        fix = "; a.mT would fit"
    return f"(…, N, K) and (…, K, L) need the same K, not {last} and {inner}{fix}"


def axes(x: Array, *_: Array, axis: Any = None, **__: Any) -> str | None:
    """A message that says what is wrong with `axis`, which must be an axis of x, a tuple of
    different axes, or None for all axes. Returns None if nothing is wrong."""
    # All the forms of axis as one tuple.
    named: tuple[Any, ...] = (axis,)
    if isinstance(axis, tuple):
        named = axis
    elif axis is None:  # which stands for all axes
        named = ()

    for k in named:
        if not isinstance(k, int):
            return f"axis must be an integer or a tuple of them, not {axis!r}"
    for k in named:
        if not -x.ndim <= k < x.ndim:
            there = "none"
            if x.ndim:
                there = f"from {-x.ndim} to {x.ndim - 1}"
            return f"axis {axis} is not among the axes of x, which are {there}"

    # −1 and the last axis are the same.
    if len({k % x.ndim for k in named}) < len(named):
        return f"axis {axis} names an axis twice"
    return None


def one_axis(x: Array, *_: Array, axis: Any = 0, **__: Any) -> str | None:
    """A message that says what is wrong with `axis`, which must be one axis of x; None if nothing
    is wrong."""
    if not isinstance(axis, int):
        return f"axis must be an integer, not {axis!r}"
    return axes(x, axis=axis)
