"""What operations require of their arguments: asked after an error, to name the violation.

Each function returns what is wrong and the likely fix, or None if its requirement is met.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

from ..backend import Array, is_array


def broadcasting(*arrays: Array, **_: Any) -> str | None:
    """Aligned at the right, lengths are equal or 1."""
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


def repeating(x: Array, *, shape: Any, **_: Any) -> str | None:
    """The shape broadcasts to another."""
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    there = lengths[len(lengths) - x.ndim :]
    if len(there) == x.ndim and all(n in (1, m) for n, m in zip(x.shape, there, strict=True)):
        return None
    return f"shape {tuple(x.shape)} does not broadcast to {shape}"


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
    """Each axis is there, and named once."""
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
    """One axis, which is there."""
    return axes(x, axis=axis) if isinstance(axis, int) else f"axis must be an integer, not {axis!r}"


def permuting(x: Array, *, axes: Any, **_: Any) -> str | None:
    """Each axis of x is named, once."""
    axes = (axes,) if isinstance(axes, int) else axes
    if all(isinstance(k, int) and -x.ndim <= k < x.ndim for k in axes) and (
        len({k % x.ndim for k in axes}) == len(axes) == x.ndim
    ):
        return None
    return f"axes {axes} must name each of the {x.ndim} axes of x once"


def entries(x: Array, *, shape: Any, **_: Any) -> str | None:
    """The product of the lengths is the number of entries."""
    lengths = (shape,) if isinstance(shape, int) else shape
    if any(not isinstance(n, int) or n < -1 for n in lengths):
        return f"the lengths of {shape} must be integers from 0 on, or one of them -1"
    known = math.prod(n for n in lengths if n != -1)
    if lengths.count(-1) > 1 or (-1 in lengths and not known):
        return f"one length can be found from the others, but not those of {shape}"
    size, open_ = math.prod(x.shape), " or multiples of it" if -1 in lengths else ""
    if size == known or (open_ and size % known == 0):
        return None
    return f"{size} entries do not fit the shape {shape}, which has {known}{open_}"


def joining(*arrays: Array, axis: int = 0, **_: Any) -> str | None:
    """The same number of axes, and the same lengths but along the axis joined."""
    if not arrays:
        return "at least one array is needed"
    shapes = ", ".join(str(tuple(x.shape)) for x in arrays)
    if len({x.ndim for x in arrays}) > 1:
        return f"shapes {shapes} need the same number of axes"
    if wrong := axes(arrays[0], axis=axis):
        return wrong
    k = axis % arrays[0].ndim
    if len({(*x.shape[:k], *x.shape[k + 1 :]) for x in arrays}) == 1:
        return None
    return f"shapes {shapes} must be equal but for axis {axis}"


def stacking(*arrays: Array, axis: int = 0, **_: Any) -> str | None:
    """The same shape."""
    shapes = {tuple(x.shape) for x in arrays}
    if not arrays:
        return "at least one array is needed"
    if len(shapes) > 1:
        return f"shapes {', '.join(map(str, sorted(shapes)))} must be equal"
    n = arrays[0].ndim
    if not isinstance(axis, int):
        return f"axis must be an integer, not {axis!r}"
    return None if -n - 1 <= axis <= n else f"axis {axis} must be from {-n - 1} to {n}"
