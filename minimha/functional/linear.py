"""The linear map, and several linear maps of one input."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from minimha_autograd import Pullback, backend, half, operation
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from .implementations import accelerated
from .quantised import Quantised

_ENOUGH = 2**14
"""A kernel is faster from this number of entries on, as `_entries` counts them."""
_BLOCK = 2**20
"""The number of weights that are widened at a time: 4 MB stay in the cache."""


@operation(narrow=("w",), native=half.on_device)
def linear(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
    """y = x w + b.   dx = dy wᵀ,  dw = xᵀ dy,  db = Σ dy, with sums over the rows.

    x (…, M), w (M, N), b (N,) or None, y (…, N). A w of 16 bits, or `Quantised`, may be multiplied
    by an x with more bits. The pullback computes only the gradients that `wanted` asks for, and
    returns None for the others.
    Raises ValueError for shapes that do not match.
    """
    groups = WantedOfMaps(wanted.x, (wanted.w,), (wanted.b,))
    (y,), pullback = linear_maps(x, (w,), (b,), wanted=groups)
    return y, pullback


class WantedOfMaps(NamedTuple):
    """Which gradients of `linear_maps` are wanted: that of x, and those of each w and of each b."""

    x: bool
    ws: tuple[bool, ...]
    bs: tuple[bool, ...]


def has_few_rows(x: Array, w: Any) -> bool:
    """Whether x has so few rows that it does not pay to copy w into the order in which the product
    of many rows reads it. A kernel then reads w where it is in memory."""
    n = math.prod(x.shape[:-1])
    if w.dtype == x.dtype:
        return n <= 6

    # To widen weights of 16 or 8 bits takes as long as to multiply 16 rows.
    return n <= 16


def _entries(
    x: Array,
    ws: tuple[Array, ...],
    bs: tuple[Array | None, ...],
) -> int:
    """The size by which `accelerated` decides whether a kernel computes `linear_maps`: the number
    of entries of all y or, if x has few rows, of all w, since reading w then takes most of the
    time. It is 0 if a kernel would not be faster."""
    n = math.prod(x.shape[:-1])
    columns = sum(math.prod(w.shape[-1:]) for w in ws)  # N₁ + N₂ + …
    if has_few_rows(x, ws[0]):
        entries = columns * math.prod(x.shape[-1:])
    elif n >= 64 and x.shape[-1] >= 32:
        entries = columns * n
    else:
        return 0

    if entries < _ENOUGH:
        return 0
    return entries


@accelerated(size=_entries)
def linear_maps(
    x: Array,
    ws: tuple[Array, ...],
    bs: tuple[Array | None, ...],
    *,
    wanted: WantedOfMaps,
) -> tuple[list[Array], Pullback]:
    """y₁ = x w₁ + b₁, y₂ = x w₂ + b₂, ….   dx = dy₁ w₁ᵀ + dy₂ w₂ᵀ + …,  dw and db as in `linear`.

    x (…, M), each w (M, N) with an N of its own, each b (N,) or None. The pullback takes the dy of
    each map, or None for zero. It returns the gradients in the order x, ws, bs, and None for those
    that are not wanted. Raises ValueError for shapes that do not match.
    """
    xp = namespace(x)
    shape = tuple(x.shape)
    for w, b in zip(ws, bs, strict=True):
        fits = x.ndim and w.ndim == 2 and shape[-1] == w.shape[0]
        if not fits or (b is not None and b.shape != w.shape[1:]):
            raise ValueError("x (…, M), w (M, N) and b (N,) need the same M and N")

    # One large product is faster than a batch of small ones.
    n = math.prod(shape[:-1])
    rows = xp.reshape(x, (n, shape[-1]))  # (n, M)

    ys = []
    for w, b in zip(ws, bs, strict=True):
        y = _product(rows, w)  # (n, N)
        if b is not None:
            y = _added_to(y, b)
        y = xp.reshape(y, (*shape[:-1], y.shape[1]))  # (…, N)
        ys.append(y)

    # Free what no gradient needs.
    count = len(ws)
    if not wanted.x:
        ws = ()
    if not any(wanted.ws):
        rows = None

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        dx = None
        dws: list[Array | None] = [None] * count
        dbs: list[Array | None] = [None] * count

        for k, dy in enumerate(dys):
            if dy is None:
                continue
            dy_rows = xp.reshape(dy, (n, dy.shape[-1]))  # (n, N)

            # All maps share x, so its gradient is a sum; no other map has this w and this b.
            if wanted.x:
                own = _product(dy_rows, ws[k].mT)  # (n, M)
                dx = own if dx is None else _added_to(dx, own)
            if wanted.ws[k]:
                dws[k] = rows.mT @ dy_rows  # (M, N)
            if wanted.bs[k]:
                dbs[k] = _sum_of_rows(dy_rows)  # (N,)

        if dx is not None:
            dx = xp.reshape(dx, shape)  # (…, M)
        return dx, *dws, *dbs

    return ys, pullback


def _added_to(y: Array, x: Array) -> Array:
    """y + x. If the dtypes are equal, x is added to y in place, to save memory, so nothing else may
    need the old y."""
    if y.dtype != x.dtype:  # in a complex step, where one of them may be real
        return y + x
    y += x
    return y


def _sum_of_rows(dy: Array) -> Array:
    """Σ dy over the rows, (n, N) -> (N,)."""
    # On a device dy may have 16 bits, in which a long sum stops growing.
    if getattr(dy.dtype, "itemsize", 0) == 2:
        xp = namespace(dy)
        dy = xp.astype(dy, xp.float32)
    return backend.total(dy, 0)


def _product(x: Array, w: Any) -> Array:
    """x w, (n, M) times (M, N), where w may have fewer bits than x.

    Such a w is converted to the dtype of x block by block. To convert all of it at once would take
    two or four times its own memory: in many models, the w of the last map is the large table of
    token embeddings.
    """
    if w.dtype == x.dtype:
        return x @ w
    if isinstance(w, Quantised):
        return _times_quantised(x, w)

    xp = namespace(x)
    depth, columns = w.shape
    step = max(1, _BLOCK // max(1, depth))
    parts = []
    for k in range(0, max(1, columns), step):
        block = w[:, k : k + step]  # (M, step)
        parts.append(x @ xp.astype(block, x.dtype))  # (n, step)
    return xp.concat(parts, axis=1)  # (n, N)


def _times_quantised(x: Array, w: Quantised) -> Array:
    """x (values · scale) for w = values · scale. It multiplies the scale by y or x, which are
    smaller than w: y = (x values) · scale with one scale for each column of w, or
    y = (x · scaleᵀ) values with one for each row."""
    xp = namespace(x)
    scale = xp.astype(w.scale, x.dtype)
    if scale.shape[0] == 1:  # (1, N), one for each column of y
        return _product(x, w.values) * scale

    # (M, 1), one for each column of x
    return _product(x * scale.mT, w.values)
