"""Linear maps of one input on a GPU: one product with their matrices side by side.

    [y₁ y₂ …] = x [w₁ w₂ …] + [b₁ b₂ …]
    dx = [dy₁ dy₂ …] [w₁ w₂ …]ᵀ,   [dw₁ dw₂ …] = xᵀ [dy₁ dy₂ …],   [db₁ db₂ …] = Σ [dy₁ dy₂ …]

Here [y₁ y₂ …] is one array that has the columns of y₁, then those of y₂, and so on. One large
product is faster than several small ones and the sum of their dx. A kernel puts arrays side by
side, or takes them apart. Within `half.bfloat16_products`, the factors of each product are rounded
to bfloat16, and nothing else is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend, half
from minimha_autograd.backend import Array, namespace

from ...functional.implementations import register
from ...functional.linear import WantedOfMaps
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")
_MOST = 4
"""The largest number of maps, as in the source."""
_PARTS = np.dtype([("part", np.int64, (_MOST,)), ("columns", np.int64, (_MOST,))])


@register("linear_maps", library="cupy")
def linear_maps(
    x: Array, ws: tuple[Any, ...], bs: tuple[Array | None, ...], *, wanted: WantedOfMaps
) -> Any:
    """The value and the pullback of `functional.linear_maps`: the list [x w₁ + b₁, x w₂ + b₂, …]
    for x (…, M), matrices `ws`, each (M, N) with an N of its own, and biases `bs`, each (N,) or
    None. `wanted` says which gradients are needed. Returns None unless there are one to four maps
    that have either all a bias or none, and for arrays that the kernel does not support."""
    count = len(ws)
    biases = [b for b in bs if b is not None]
    arrays = *ws, *biases
    if not 1 <= count <= _MOST or len(biases) not in (0, count) or x.ndim < 2 or not x.size:
        return None
    if backend.is_half(x) or any(type(a) is not type(x) or a.dtype != x.dtype for a in arrays):
        return None
    if count > 1 and not cuda.are_reals(x):
        return None
    if any(w.ndim != 2 or not w.size or w.shape[0] != x.shape[-1] for w in ws):
        return None
    if any(b.shape != w.shape[1:] for b, w in zip(biases, ws, strict=False)):
        return None

    xp = namespace(x)
    shape = x.shape
    n = math.prod(shape[:-1])
    narrow, widen = half.around_products(x)
    rows = narrow(xp.reshape(x, (n, shape[-1])))  # (n, M)
    widths = [w.shape[1] for w in ws]
    columns = list(pairwise(accumulate(widths, initial=0)))

    w = narrow(side_by_side(ws))
    y = widen(rows @ w)
    if biases:
        y += side_by_side(biases)
    ys = [xp.reshape(y[:, first:last], (*shape[:-1], last - first)) for first, last in columns]

    # Free what no gradient needs.
    saved_w = w if wanted.x else None
    saved_rows = rows if any(wanted.ws) else None
    wants_bs = any(wanted.bs)

    def as_rows(dy: Array | None, width: int) -> Array:  # (n, width)
        if dy is None:
            return xp.zeros((n, width), dtype=x.dtype, device=x.device)
        return xp.reshape(dy, (n, width))

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        parts = [as_rows(dy, width) for dy, width in zip(dys, widths, strict=True)]
        dy = side_by_side(parts)  # (n, N₁ + N₂ + …)
        factor = narrow(dy)

        dx = None
        dws: Sequence[Array | None] = [None] * count
        dbs: Sequence[Array | None] = [None] * count
        if saved_w is not None:
            dx = xp.reshape(widen(factor @ saved_w.mT), shape)
        if saved_rows is not None:
            dws = apart(widen(saved_rows.mT @ factor), widths)
        if wants_bs:
            dbs = apart(backend.total(dy, 0), widths)

        # If the value of a map was not used, its matrix and its bias have no gradients.
        dws = [None if dy is None else dw for dw, dy in zip(dws, dys, strict=True)]
        dbs = [None if dy is None else db for db, dy in zip(dbs, dys, strict=True)]
        return dx, *dws, *dbs

    return ys, pullback


def side_by_side(parts: Sequence[Array]) -> Array:
    """Join arrays (…, N₁), (…, N₂), … to one array (…, N₁ + N₂ + …), column beside column. A single
    array is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    width = sum(part.shape[-1] for part in parts)
    whole = cuda.empty((*parts[0].shape[:-1], width), like=parts[0])
    _launch([cuda.contiguous(part) for part in parts], whole, apart=False)
    return whole


def apart(whole: Array, widths: Sequence[int]) -> list[Array]:
    """Cut the columns of `whole` (…, N₁ + N₂ + …) into a list of arrays (…, N₁), (…, N₂), … of
    these widths: the inverse of `side_by_side`. The list holds copies or, for a single width,
    `whole` itself."""
    if len(widths) == 1:
        return [whole]
    parts = [cuda.empty((*whole.shape[:-1], width), like=whole) for width in widths]
    _launch(parts, cuda.contiguous(whole), apart=True)
    return parts


def _launch(parts: Sequence[Array], whole: Array, apart: bool) -> None:
    table = np.zeros(1, _PARTS)
    table["part"][0, : len(parts)] = [part.data.ptr for part in parts]
    table["columns"][0, : len(parts)] = [part.shape[-1] for part in parts]
    cuda.launch_for_entries(
        SOURCE, "side_by_side", whole, table, whole, int(apart), whole.shape[-1], whole.size
    )
