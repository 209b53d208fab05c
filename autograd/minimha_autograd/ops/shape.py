"""Operations that move entries without changing them."""

from __future__ import annotations

from ..backend import Array, namespace
from ..operation import Pullback, operation


@operation
def reshape(x: Array, *, shape: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y = the entries of x, in row-major order, in another shape.   dx = dy in the shape of x."""
    xp = namespace(x)
    return xp.reshape(x, shape), lambda dy: (xp.reshape(dy, x.shape),)


@operation
def permute_dims(x: Array, *, axes: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y has as its k-th axis the axis axes[k] of x.   dx = dy with the axes put back."""
    xp = namespace(x)
    back = tuple(sorted(range(x.ndim), key=lambda k: axes[k] % x.ndim))
    return xp.permute_dims(x, axes), lambda dy: (xp.permute_dims(dy, back),)


@operation
def broadcast_to(x: Array, *, shape: tuple[int, ...]) -> tuple[Array, Pullback]:
    """y = x repeated along new axes and axes of length 1.   dx = dy summed over them."""
    return namespace(x).broadcast_to(x, shape), lambda dy: (dy,)  # the wrapper sums
