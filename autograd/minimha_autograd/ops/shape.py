"""Operations that move, repeat or drop entries without changing them."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from .. import backend
from ..backend import Array, namespace
from ..half import always
from ..operation import operation
from ..tape import Pullback
from .requirements import axes, one_axis


@operation(native=always)
def reshape(x: Array, *, shape: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y = the entries of x, in row-major order, in another shape.   dx = dy in the shape of x.

    One length may be −1; it is computed from the others.
    """
    xp = namespace(x)
    before = x.shape
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    y = xp.reshape(x, shape)
    return y, lambda dy: (xp.reshape(dy, before),)


@operation(native=always)
def permute_dims(x: Array, *, axes: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y has as its k-th axis the axis axes[k] of x.   dx = dy with the axes put back."""
    xp = namespace(x)
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    y = xp.permute_dims(x, axes)

    back = [0] * x.ndim
    for k, axis in enumerate(axes):
        back[axis] = k
    inverse = tuple(back)
    return y, lambda dy: (xp.permute_dims(dy, inverse),)


@operation(requirement=lambda x, *, axis1=-2, axis2=-1: axes(x, axis=(axis1, axis2)), native=always)
def transpose(x: Array, *, axis1: int = -2, axis2: int = -1) -> tuple[Array, Pullback]:
    """y = x with two axes swapped.   dx = dy with the same axes swapped."""
    order = list(range(x.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return permute_dims.function(x, axes=tuple(order))


@operation(native=always)
def matrix_transpose(x: Array) -> tuple[Array, Pullback]:
    """y = xᵀ, the last two axes swapped.   dx = dyᵀ."""
    if x.ndim < 2:
        raise ValueError("a matrix has at least two axes")
    return x.mT, lambda dy: (dy.mT,)


@operation(native=always)
def broadcast_to(x: Array, *, shape: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y = x repeated along new axes and axes of length 1.   dx = dy summed over them."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if shape and min(shape) < 0:
        raise ValueError(f"the lengths of {shape} must be at least 0")
    y = namespace(x).broadcast_to(x, shape)
    return y, lambda dy: (dy,)  # the wrapper sums


@operation(native=always)
def expand_dims(x: Array, *, axis: int = 0) -> tuple[Array, Pullback]:
    """y = x with a new axis of length 1 at this place.   dx = dy without it."""
    xp = namespace(x)
    before = x.shape
    y = xp.expand_dims(x, axis=axis)
    return y, lambda dy: (xp.reshape(dy, before),)


@operation(
    requirement=lambda x, *, axis: axes(x, axis=axis) or f"axis {axis} is not of length 1",
    native=always,
)
def squeeze(x: Array, *, axis: int | tuple[int, ...] | None = None) -> tuple[Array, Pullback]:
    """y = x without these axes of length 1, by default all of them.   dx = dy with them.

    Raises ValueError for an axis of another length.
    """
    xp = namespace(x)
    before = x.shape
    if axis is None:
        axis = tuple(k for k, n in enumerate(before) if n == 1)
    elif not before and axis != ():
        raise IndexError("there are no axes")  # NumPy accepts 0 and -1 anyway
    y = xp.squeeze(x, axis=axis)
    return y, lambda dy: (xp.reshape(dy, before),)


@operation(native=always)
def concat(*arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays one after another along axis.   Each gets its part of dy.

    Called with the arrays, and axis by name, or with a list of them.
    """
    y = namespace(*arrays).concat(arrays, axis=axis)
    lengths = [x.shape[axis] for x in arrays]
    ends = (0, *accumulate(lengths))
    return y, lambda dy: _cut(dy, ends, axis)


@operation(native=always)
def stack(*arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays side by side along a new axis.   Each gets its part of dy.

    Called with the arrays, and axis by name, or with a list of them.
    """
    xp = namespace(*arrays)
    y = xp.stack(arrays, axis=axis)
    return y, lambda dy: xp.unstack(dy, axis=axis)


@operation(requirement=one_axis, native=always)
def split(
    x: Array, *, sections: int | tuple[int, ...], axis: int = 0
) -> tuple[tuple[Array, ...], Pullback]:
    """The parts of x along axis: this many equal ones, or cut at the given indices.

    dx = the gradients of the parts one after another, 0 for parts that have none.
    Raises ValueError if x cannot be cut into equal parts.
    """
    xp = namespace(x)
    n = x.shape[axis]
    if isinstance(sections, int):
        if sections < 1 or n % sections:
            raise ValueError(f"length {n} cannot be split into {sections} equal parts")
        sections = tuple(k * (n // sections) for k in range(1, sections))

    # Indices from the end, and beyond it, as in a slice.
    sections = tuple(slice(k).indices(n)[1] for k in sections)
    if list(sections) != sorted(sections):
        raise ValueError(f"the indices {sections} must increase")

    parts = _cut(x, (0, *sections, n), axis)
    shapes = [part.shape for part in parts]

    def pullback(*dys: Array | None) -> tuple[Array]:
        like = next(dy for dy in dys if dy is not None)
        filled = []
        for dy, shape in zip(dys, shapes, strict=True):
            if dy is None:
                dy = xp.zeros(shape, dtype=like.dtype, device=like.device)  # noqa: PLW2901
            filled.append(dy)
        return (xp.concat(filled, axis=axis),)

    return parts, pullback


@operation(native=always)
def pad(x: Array, *, pad_width: Any, value: float = 0.0) -> tuple[Array, Pullback]:
    """y = x with a margin of a constant value.   dx = dy without the margin.

    pad_width  for each axis (before, after); or one such pair, or one number, for all axes
    Raises ValueError for widths that are negative or do not match the axes.
    """
    pair: Any = (pad_width, pad_width) if isinstance(pad_width, int) else pad_width
    pairs: Any = [pair] * x.ndim if isinstance(pair[0], Integral) else pair
    if len(pairs) != x.ndim or any(not isinstance(n, Integral) or n < 0 for p in pairs for n in p):
        raise ValueError(f"pad_width must be integers of at least 0, not {pad_width!r}")

    shape = []
    inside = []
    for n, (before, after) in zip(x.shape, pairs, strict=True):
        shape.append(before + n + after)
        inside.append(slice(before, before + n))
    inner = tuple(inside)

    y = namespace(x).full(tuple(shape), value, dtype=x.dtype, device=x.device)
    y[inner] = x
    return y, lambda dy: (dy[inner],)


@operation(requirement=axes, native=always)
def flip(x: Array, *, axis: int | tuple[int, ...] | None = None) -> tuple[Array, Pullback]:
    """y = x in reverse order along axis, along all by default.   dx = dy in reverse order."""
    xp = namespace(x)
    y = xp.flip(x, axis=axis)
    return y, lambda dy: (xp.flip(dy, axis=axis),)


@operation(requirement=axes)
def repeat(x: Array, *, repeats: int, axis: int | None = None) -> tuple[Array, Pullback]:
    """y = each entry of x, repeated along axis; by default along x as one row.

    dx = dy summed over the copies. For grouped heads: (B, G, S, D) to (B, H, S, D) with axis 1 and
    repeats H // G.
    """
    xp = namespace(x)
    before = tuple(x.shape)
    if not isinstance(repeats, int) or repeats < 0:
        raise ValueError(f"repeats must be at least 0 and an integer, not {repeats}")

    # The copies of an entry get an axis of their own, behind the one that is repeated.
    shape = (math.prod(before),) if axis is None else before
    copies = 1 if axis is None else range(x.ndim)[axis] + 1
    apart = (*shape[:copies], repeats, *shape[copies:])

    def pullback(dy: Array) -> tuple[Array]:
        total = xp.sum(xp.reshape(dy, apart), axis=copies)
        return (xp.reshape(total, before),)

    return xp.repeat(x, repeats, axis=axis), pullback


@operation(converts=True, native=always)
def to_device(x: Array, *, device: Any) -> tuple[Array, Pullback]:
    """y = x on another device.   dx = dy on the device of x."""
    back = backend.mover(x)
    y = backend.to_device(x, device)
    return y, lambda dy: (back(dy),)


def _cut(x: Array, ends: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """The parts of x between these places along axis."""
    before = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*before, slice(i, j), ...)] for i, j in pairwise(ends))
