"""The linear map with a bias."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from ..kernels.choice import ENOUGH


@operation
def linear(x: Array, w: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = x w + b.   dx = dy wᵀ,  dw = xᵀ dy,  db = dy, summed over the rows.

    x (…, M), w (M, N), b (N,), y (…, N): `ops.matmul` and `ops.add` in one pass less over y.
    Raises ValueError for shapes that do not fit.
    """
    if not x.ndim or w.ndim != 2 or x.shape[-1] != w.shape[0] or b.shape != w.shape[1:]:
        raise ValueError("x (…, M), w (M, N) and b (N,) need the same M and N")
    y, pull = ops.matmul.with_pullback(x, w, wanted=wanted[:2])
    sums = wanted[2]
    return plus(y, b), lambda dy: (*pull(dy), column_sums(dy) if sums else None)


def plus(y: Array, b: Array | None) -> Array:
    """y + b for a y that nobody else has seen, and which may change: that spares an array."""
    if b is not None and y.dtype == b.dtype:
        y += b
        return y
    return y if b is None else y + b


def column_sums(dy: Array) -> Array:
    """Σ dy over all axes but the last, (N,): of many rows half as long by a product with ones."""
    xp, width = namespace(dy), dy.shape[-1]
    rows = math.prod(dy.shape[:-1])
    if rows * width < ENOUGH:
        return xp.sum(dy, axis=tuple(range(dy.ndim - 1)))
    ones = xp.ones((rows,), dtype=dy.dtype, device=dy.device)
    return ones @ xp.reshape(dy, (rows, width))
