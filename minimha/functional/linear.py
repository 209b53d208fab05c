"""The linear map, and several linear maps of one input."""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Pullback, backend, half, operation
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from .implementations import accelerated
from .quantised import Quantised

_ENOUGH = 2**14
"""The number of entries of all y, or of all w for few rows, from which a kernel is faster."""
_BLOCK = 2**20
"""The number of weights that are widened at a time: 4 MB stay in the cache."""


@operation(narrow=("w",), native=half.on_device)
def linear(x: Array, w: Array, b: Array | None = None, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = x w + b.   dx = dy wᵀ,  dw = xᵀ dy,  db = Σ dy, with sums over the rows.

    x (…, M), w (M, N), b (N,) or None, y (…, N). A w of 16 bits, or `Quantised`, may be multiplied
    by a wider x.
    Raises ValueError for shapes that do not match.
    """
    (y,), pullback = linear_maps(x, (w,), (b,), wanted=wanted)
    return y, pullback


def has_few_rows(x: Array, w: Any) -> bool:
    """Whether x has so few rows that a kernel reads the weights where they are. For more rows, they
    are copied first; to widen those of 16 or 8 bits takes as long as to multiply 16 rows."""
    return math.prod(x.shape[:-1]) <= (6 if w.dtype == x.dtype else 16)


def _entries(x: Array, ws: tuple[Array, ...], bs: tuple[Array | None, ...]) -> int:
    """The number of entries of all y, or of all w if x has few rows: then most time goes to reading
    them. 0 if there are too few for a kernel to be faster."""
    rows = math.prod(x.shape[:-1])
    columns = sum(math.prod(w.shape[-1:]) for w in ws)
    if has_few_rows(x, ws[0]):
        entries = columns * math.prod(x.shape[-1:])
    else:
        entries = rows * columns if rows >= 64 and x.shape[-1] >= 32 else 0
    return entries if entries >= _ENOUGH else 0


@accelerated(size=_entries)
def linear_maps(
    x: Array, ws: tuple[Array, ...], bs: tuple[Array | None, ...], *, wanted: tuple[bool, ...]
) -> tuple[list[Array], Pullback]:
    """y₁ = x w₁ + b₁, y₂ = x w₂ + b₂, ….   dx = dy₁ w₁ᵀ + dy₂ w₂ᵀ + …,  the others as in `linear`.

    wanted and the gradients are in the order x, ws, bs. A missing dy counts as zero.
    """
    xp = namespace(x)
    shape = tuple(x.shape)
    count = len(ws)
    for w, b in zip(ws, bs, strict=True):
        same = x.ndim and w.ndim == 2 and shape[-1] == w.shape[0]
        if not same or (b is not None and b.shape != w.shape[1:]):
            raise ValueError("x (…, M), w (M, N) and b (N,) need the same M and N")

    wants_x = wanted[0]
    wants_ws = wanted[1 : 1 + count]
    wants_bs = wanted[1 + count :]

    # One large product is faster than a batch of small ones.
    n = math.prod(shape[:-1])
    rows = xp.reshape(x, (n, shape[-1]))  # (n, M)

    ys = []
    for w, b in zip(ws, bs, strict=True):
        y = rows @ w if w.dtype == rows.dtype else _product(rows, w)  # (n, N)
        if b is not None:
            y = _added_to(y, b)
        ys.append(xp.reshape(y, (*shape[:-1], y.shape[1])))

    # Free what no gradient needs.
    saved: Any = rows if any(wants_ws) else None
    ws = ws if wants_x else ()

    # On a device dy may have 16 bits, in which a sum stops growing.
    wide = xp.float32 if getattr(x.dtype, "itemsize", 0) == 2 else None

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        dx = None
        dws: list[Array | None] = [None] * count
        dbs: list[Array | None] = [None] * count

        for k, dy in enumerate(dys):
            if dy is None:
                continue
            dy = xp.reshape(dy, (n, dy.shape[-1]))  # noqa: PLW2901  (n, N)
            if wants_x:
                w = ws[k].mT
                own = dy @ w if w.dtype == dy.dtype else _product(dy, w)
                dx = own if dx is None else _added_to(dx, own)
            if wants_ws[k]:
                dws[k] = saved.mT @ dy
            if wants_bs[k]:
                dbs[k] = backend.total(dy if wide is None else xp.astype(dy, wide), 0)

        if dx is not None:
            dx = xp.reshape(dx, shape)
        return dx, *dws, *dbs

    return ys, pullback


def _added_to(y: Array, x: Array) -> Array:
    """y + x. If the dtypes are equal, y itself is changed, so the caller must hold its only
    reference."""
    if y.dtype != x.dtype:  # in a complex step, where one of them may be real
        return y + x
    y += x
    return y


def _product(x: Array, w: Any) -> Array:
    """x w, with a w of 16 or 8 bits that becomes as wide as x block by block: a table of all words
    would need twice its memory once more."""
    if isinstance(w, Quantised):
        by_column, scale = w.scale.shape[0] == 1, namespace(x).astype(w.scale, x.dtype)
        return _product(x, w.values) * scale if by_column else _product(x * scale.mT, w.values)
    xp, step = namespace(x), max(1, _BLOCK // max(1, w.shape[0]))
    blocks = [w[:, k : k + step] for k in range(0, max(1, w.shape[1]), step)]
    return xp.concat([x @ xp.astype(block, x.dtype) for block in blocks], axis=1)
