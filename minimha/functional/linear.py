"""The linear map."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


def _entries(x: Array, w: Array, b: Array | None = None) -> int:
    """The number of entries of y; 0 if x has too few rows or columns to be worth copying w."""
    rows = math.prod(x.shape[:-1])
    return rows * math.prod(w.shape[-1:]) if rows >= 64 and x.shape[-1] >= 32 else 0


@operation
@accelerated(size=_entries)
def linear(
    x: Array, w: Array, b: Array | None = None, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = x w + b.   dx = dy wᵀ,  dw = xᵀ dy,  db = Σ dy, with sums over the rows.

    x (…, M), w (M, N), b (N,) or None, y (…, N).
    Raises ValueError for shapes that do not match.
    """
    same = x.ndim and w.ndim == 2 and x.shape[-1] == w.shape[0]
    if not same or (b is not None and b.shape != w.shape[1:]):
        raise ValueError("x (…, M), w (M, N) and b (N,) need the same M and N")
    y, pull = ops.matmul.with_pullback(x, w, wanted=wanted[:2])
    y = y if b is None else y + b
    wants_db = wanted[2]

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        rows = tuple(range(dy.ndim - 1))
        return *pull(dy), namespace(dy).sum(dy, axis=rows) if wants_db else None

    return y, pullback
