"""What operations require of their arguments, checked after an error to explain it.

Each function returns the violation and the likely fix, or None if its requirement is met.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from ..backend import Array, is_array


def broadcasting(*arrays: Array, **_: Any) -> str | None:
    """Aligned on the right, lengths are equal or 1."""
    shapes = [tuple(x.shape) for x in arrays if is_array(x)]
    if _broadcast(shapes):
        return None
    fix = ""
    for k, shape in enumerate(shapes):
        if len(shape) == 1 and _broadcast([*shapes[:k], (*shape, 1), *shapes[k + 1 :]]):
            fix = f"; {shape} as a column, by [:, None], would fit"
    return (
        f"shapes {' and '.join(map(str, shapes))} do not broadcast: aligned at the right, lengths "
        f"must be equal or 1{fix}"
    )


def _broadcast(shapes: list[tuple[int, ...]]) -> bool:
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return all(len(set(lengths) - {1}) <= 1 for lengths in columns)


def multiplying(a: Array, b: Array, **_: Any) -> str | None:
    """(…, N, K) and (…, K, L)"""
    if not (is_array(a) and is_array(b) and a.ndim and b.ndim):
        return "a product of matrices needs arrays with an axis at least; * multiplies by a number"
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] == inner:
        batches = [tuple(x.shape[:-2]) for x in (a, b)]
        if _broadcast(batches):
            return None
        both = " and ".join(map(str, batches))
        return f"the leading axes {both} do not broadcast: lengths must be equal or 1"
    fix = ""
    if b.ndim > 1 and a.shape[-1] == b.shape[-1]:
        fix = "; b.mT would fit"
    elif a.ndim > 1 and a.shape[-2] == inner:
        fix = "; a.mT would fit"
    return f"(…, N, K) and (…, K, L) need the same K, not {a.shape[-1]} and {inner}{fix}"


def axes(x: Array, *_: Array, axis: Any = None, **__: Any) -> str | None:
    """Each axis exists and occurs once."""
    named = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    if any(not isinstance(k, int) for k in named):
        return f"axis must be an integer or a tuple of them, not {axis!r}"
    if any(not -x.ndim <= k < x.ndim for k in named):
        there = f"from {-x.ndim} to {x.ndim - 1}" if x.ndim else "none"
        return f"axis {axis} is not among the axes of x, which are {there}"
    if len({k % x.ndim for k in named}) < len(named):
        return f"axis {axis} names an axis twice"
    return None


def one_axis(x: Array, *_: Array, axis: Any = 0, **__: Any) -> str | None:
    """One axis, which exists."""
    return axes(x, axis=axis) if isinstance(axis, int) else f"axis must be an integer, not {axis!r}"
