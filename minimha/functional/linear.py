"""The linear map, and several linear maps of one input."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


@operation
def linear(
    x: Array, w: Array, b: Array | None = None, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = x w + b.   dx = dy wᵀ,  dw = xᵀ dy,  db = Σ dy, with sums over the rows.

    x (…, M), w (M, N), b (N,) or None, y (…, N).
    Raises ValueError for shapes that do not match.
    """
    (y,), pullback = linear_maps(x, (w,), (b,), wanted=wanted)
    return y, pullback


def _entries(x: Array, ws: tuple[Array, ...], bs: tuple[Array | None, ...]) -> int:
    """The number of entries of all y; 0 if x has too few rows or columns to be worth copying w."""
    rows = math.prod(x.shape[:-1])
    columns = sum(math.prod(w.shape[-1:]) for w in ws)
    return rows * columns if rows >= 64 and x.shape[-1] >= 32 else 0


@accelerated(size=_entries)
def linear_maps(
    x: Array, ws: tuple[Array, ...], bs: tuple[Array | None, ...], *, wanted: tuple[bool, ...]
) -> tuple[list[Array], Pullback]:
    """y₁ = x w₁ + b₁, y₂ = x w₂ + b₂, ….   dx = dy₁ w₁ᵀ + dy₂ w₂ᵀ + …,  the others as in `linear`.

    wanted and the gradients are in the order x, ws, bs. A missing dy counts as zero.
    """
    pulls: list[Pullback] = []
    ys = []
    for w, b, wants_w in zip(ws, bs, wanted[1:], strict=False):
        same = x.ndim and w.ndim == 2 and x.shape[-1] == w.shape[0]
        if not same or (b is not None and b.shape != w.shape[1:]):
            raise ValueError("x (…, M), w (M, N) and b (N,) need the same M and N")
        y, pull = ops.matmul.with_pullback(x, w, wanted=(wanted[0], wants_w))
        ys.append(y if b is None else y + b)
        pulls.append(pull)
    wants_bs = wanted[1 + len(ws) :]

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        dx, dws, dbs = None, [], []
        for dy, pull, wants_b in zip(dys, pulls, wants_bs, strict=True):
            part, dw, db = None, None, None
            if dy is not None:
                part, dw = pull(dy)
                db = namespace(dy).sum(dy, axis=tuple(range(dy.ndim - 1))) if wants_b else None
            if part is not None:
                dx = part if dx is None else dx + part
            dws.append(dw)
            dbs.append(db)
        return dx, *dws, *dbs

    return ys, pullback
