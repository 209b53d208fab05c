"""Operations that move, repeat or drop entries without changing them.

Their pullbacks save no arrays: where the entries went depends on shapes and axes alone. They move
the gradients back, and add up those of an entry that y contains several times.
"""

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
def reshape(
    x: Array,
    *,
    shape: tuple[int, ...],
) -> tuple[Array, Pullback]:
    """y = the entries of x, in row-major order, in another shape.   dx = dy in the shape of x.

    One length may be −1; it is computed from the others.
    """
    xp = namespace(x)
    before = x.shape
    if isinstance(shape, int):
        shape = (shape,)
    y = xp.reshape(x, tuple(shape))  # (B, T, M) to (B, T, H, D) with M = H D
    return y, lambda dy: (xp.reshape(dy, before),)


@operation(native=always)
def permute_dims(
    x: Array,
    *,
    axes: tuple[int, ...],
) -> tuple[Array, Pullback]:
    """y is x with its axes in another order: axis k of y is axis axes[k] of x.

    The inverse order gives dx from dy.
    """
    xp = namespace(x)
    if isinstance(axes, int):
        axes = (axes,)
    axes = tuple(axes)
    y = xp.permute_dims(x, axes)  # (B, T, H, D) to (B, H, T, D) with axes (0, 2, 1, 3)

    # What axes (2, 0, 1) do is undone by (1, 2, 0).
    back = [0] * x.ndim
    for k, axis in enumerate(axes):
        back[axis] = k  # axis k of y came from this axis of x
    inverse = tuple(back)
    return y, lambda dy: (xp.permute_dims(dy, inverse),)


def _two_axes(
    x: Array,
    *,
    axis1: int = -2,
    axis2: int = -1,
) -> str | None:
    return axes(x, axis=(axis1, axis2))


@operation(requirement=_two_axes, native=always)
def transpose(
    x: Array,
    *,
    axis1: int = -2,
    axis2: int = -1,
) -> tuple[Array, Pullback]:
    """y = x with two axes swapped.   dx = dy with the same axes swapped."""
    order = list(range(x.ndim))  # all axes where they are
    order[axis1], order[axis2] = order[axis2], order[axis1]

    # The function as written, since this wrapper already checks the arguments.
    return permute_dims.function(x, axes=tuple(order))


@operation(native=always)
def matrix_transpose(x: Array) -> tuple[Array, Pullback]:
    """y = xᵀ, the last two axes swapped.   dx = dyᵀ."""
    if x.ndim < 2:
        raise ValueError("a matrix has at least two axes")
    return x.mT, lambda dy: (dy.mT,)  # views, as in the other operations that only move axes


@operation(native=always)
def broadcast_to(
    x: Array,
    *,
    shape: tuple[int, ...],
) -> tuple[Array, Pullback]:
    """y = x repeated along new axes and axes of length 1.   dx = dy summed over these axes."""
    if isinstance(shape, int):
        shape = (shape,)
    shape = tuple(shape)
    if shape and min(shape) < 0:
        raise ValueError(f"the lengths of {shape} must be at least 0")
    xp = namespace(x)
    y = xp.broadcast_to(x, shape)  # a view, which repeats entries without copying them

    # The tape sums dy to the shape of x, as for every argument that was broadcast.
    return y, lambda dy: (dy,)


@operation(native=always)
def expand_dims(
    x: Array,
    *,
    axis: int = 0,
) -> tuple[Array, Pullback]:
    """y = x with a new axis of length 1 at index `axis`.   dx = dy without this axis."""
    xp = namespace(x)
    before = x.shape
    y = xp.expand_dims(x, axis=axis)  # (B, T) to (B, 1, T) with axis 1
    return y, lambda dy: (xp.reshape(dy, before),)


def _axes_of_length_1(x: Array, *, axis: Any = None) -> str:
    return axes(x, axis=axis) or f"axis {axis} is not of length 1"


@operation(requirement=_axes_of_length_1, native=always)
def squeeze(
    x: Array,
    *,
    axis: int | tuple[int, ...] | None = None,
) -> tuple[Array, Pullback]:
    """y = x without `axis`, one or several axes of length 1.   dx = dy with these axes again.

    By default all axes of length 1 are dropped. Raises ValueError for an axis of another length.
    """
    xp = namespace(x)
    before = x.shape
    if axis is None:
        axis = tuple(k for k, n in enumerate(before) if n == 1)  # the standard has no default
    elif not before and axis != ():
        raise IndexError("there are no axes")  # NumPy accepts 0 and -1 anyway
    y = xp.squeeze(x, axis=axis)  # (B, 1, T) to (B, T) with axis 1
    return y, lambda dy: (xp.reshape(dy, before),)


@operation(native=always)
def concat(*arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays one after another along axis.   The gradient of each is its part of dy.

    Call it as `concat(a, b, axis=1)` or with one list, `concat([a, b], axis=1)`.
    """
    xp = namespace(*arrays)
    y = xp.concat(arrays, axis=axis)  # (B, T, M) and (B, S, M) to (B, T + S, M) with axis 1

    # Where each array begins in y, and the last one ends: 0, T, T + S.
    lengths = [x.shape[axis] for x in arrays]
    ends = (0, *accumulate(lengths))
    return y, lambda dy: _cut(dy, ends, axis)


@operation(native=always)
def stack(*arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays side by side along a new axis.   The gradient of each is its slice of dy.

    Call it as `stack(a, b, axis=1)` or with one list, `stack([a, b], axis=1)`.
    """
    xp = namespace(*arrays)
    y = xp.stack(arrays, axis=axis)  # two (B, T) to (B, 2, T) with axis 1
    return y, lambda dy: xp.unstack(dy, axis=axis)  # (B, 2, T) to two (B, T)


@operation(requirement=one_axis, native=always)
def split(
    x: Array,
    *,
    sections: int | tuple[int, ...],
    axis: int = 0,
) -> tuple[tuple[Array, ...], Pullback]:
    """The parts of x along axis. `sections` is the number of equal parts, or a tuple of the indices
    at which to cut: (2, 5) gives the parts :2, 2:5 and 5:.

    dx = the gradients of the parts one after another, with 0 for a part whose gradient is None.
    Raises ValueError if x cannot be cut into equal parts, or if the indices decrease.
    """
    xp = namespace(x)
    n = x.shape[axis]

    # A number of parts as the indices where they meet.
    if isinstance(sections, int):
        if sections < 1 or n % sections:
            raise ValueError(f"length {n} cannot be split into {sections} equal parts")
        length = n // sections
        sections = tuple(k * length for k in range(1, sections))

    # Indices may count from the end, or lie beyond it, as in a slice.
    sections = tuple(slice(k).indices(n)[1] for k in sections)
    if list(sections) != sorted(sections):
        raise ValueError(f"the indices {sections} must not decrease")

    ends = (0, *sections, n)
    parts = _cut(x, ends, axis)
    shapes = [part.shape for part in parts]  # of the gradients that may be missing

    def pullback(*dys: Array | None) -> tuple[Array]:
        like = next(dy for dy in dys if dy is not None)  # one at least has a gradient

        # A part that nothing depends on receives no gradient, but its entries need zeros.
        filled = []
        for dy, shape in zip(dys, shapes, strict=True):
            if dy is None:
                dy = xp.zeros(  # noqa: PLW2901
                    shape,
                    dtype=like.dtype,
                    device=like.device,
                )
            filled.append(dy)
        dx = xp.concat(filled, axis=axis)
        return (dx,)

    return parts, pullback


@operation(native=always)
def pad(
    x: Array,
    *,
    pad_width: Any,
    value: float = 0.0,
) -> tuple[Array, Pullback]:
    """y = x with a margin of a constant value.   dx = dy without the margin.

    pad_width  the entries to add at the two ends of each axis: a pair (before, after) for each
               axis, or one such pair, or one number, for all axes
    Raises ValueError for widths that are negative or do not match the axes.
    """
    pairs = _pairs(pad_width, x.ndim)
    if len(pairs) != x.ndim or any(not isinstance(n, Integral) or n < 0 for p in pairs for n in p):
        raise ValueError(f"pad_width must be integers of at least 0, not {pad_width!r}")

    # Along each axis, the length of y and the part of it that holds x.
    shape = []
    inside = []
    for n, (before, after) in zip(x.shape, pairs, strict=True):
        shape.append(before + n + after)
        inside.append(slice(before, before + n))
    inner = tuple(inside)  # y[1:4, 2:6] for x of shape (3, 4), with 1 row and 2 columns in front

    xp = namespace(x)
    y = xp.full(
        tuple(shape),
        value,
        dtype=x.dtype,
        device=x.device,
    )
    y[inner] = x

    # The margin is constant, so what flows back to it ends here.
    return y, lambda dy: (dy[inner],)


def _pairs(pad_width: Any, ndim: int) -> Any:
    """`pad_width` as a sequence of pairs (before, after), one for each of the ndim axes."""
    if isinstance(pad_width, int):
        pair = (pad_width, pad_width)
        return [pair] * ndim
    if isinstance(pad_width[0], Integral):
        return [pad_width] * ndim
    return pad_width


@operation(requirement=axes, native=always)
def flip(
    x: Array,
    *,
    axis: int | tuple[int, ...] | None = None,
) -> tuple[Array, Pullback]:
    """y = x in reverse order along axis, by default along all axes.   dx = dy in reverse order."""
    xp = namespace(x)
    y = xp.flip(x, axis=axis)
    return y, lambda dy: (xp.flip(dy, axis=axis),)  # reversed twice, the order is the old one


@operation(requirement=axes)
def repeat(
    x: Array,
    *,
    repeats: int,
    axis: int | None = None,
) -> tuple[Array, Pullback]:
    """y = x with `repeats` copies of each entry, side by side along axis. By default x is flattened
    first.

    dx = dy summed over the copies. For grouped heads: (B, G, S, D) to (B, H, S, D) with axis 1 and
    repeats H // G.
    """
    xp = namespace(x)
    before = tuple(x.shape)
    if not isinstance(repeats, int) or repeats < 0:
        raise ValueError(f"repeats must be at least 0 and an integer, not {repeats}")

    # The copies of an entry get an axis of their own, behind the one that is repeated.
    if axis is None:
        shape: tuple[int, ...] = (math.prod(before),)
        copies = 1
    else:
        shape = before
        copies = range(x.ndim)[axis] + 1
    apart = (*shape[:copies], repeats, *shape[copies:])  # (B, G, H // G, S, D)
    y = xp.repeat(x, repeats, axis=axis)  # (B, H, S, D)

    def pullback(dy: Array) -> tuple[Array]:
        dy = xp.reshape(dy, apart)
        dx = xp.sum(dy, axis=copies)  # (B, G, S, D)
        dx = xp.reshape(dx, before)  # if x was repeated as one row
        return (dx,)

    return y, pullback


@operation(converts=True, native=always)
def to_device(
    x: Array,
    *,
    device: Any,
) -> tuple[Array, Pullback]:
    """y = x on another device.   dx = dy on the device of x.

    device  a device object of the library of x, or a name such as "cpu" or "cuda:1". On "cuda" a
            NumPy array becomes a CuPy array, on "cpu" a CuPy array becomes a NumPy array
    """
    back = backend.mover(x)  # which need not save x
    y = backend.to_device(x, device)
    return y, lambda dy: (back(dy),)


def _cut(x: Array, ends: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """The parts of x along axis between consecutive indices in `ends`: for (0, 2, 5) the entries
    0:2 and the entries 2:5."""
    axis = axis % x.ndim  # counted from the left
    before = (slice(None),) * axis  # all of the axes in front: x[:, :, i:j] for axis 2
    parts = []
    for start, end in pairwise(ends):
        part = x[(*before, slice(start, end), ...)]
        parts.append(part)
    return tuple(parts)
