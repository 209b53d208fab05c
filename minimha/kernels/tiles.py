"""Attention in tiles, from the host's side: what is cut into which parts for which thread."""

from __future__ import annotations

import contextlib
import functools
import math
from itertools import pairwise, product
from typing import Any

import numpy as np

from . import blas, threads, unavailable
from .given import Given, heads_first, rows, shared

FORWARD, BACKWARD = (48, 1536), (48, 384)
"""Queries in a tile, a multiple of the rows of every block, and keys, of
`cpu.attention_tiles.GRAIN`."""
_FAR = 2560
"""Keys beyond this number leave the fast memory before the next tile of the forward needs them: if
so many are seen, a tile has twice the queries, and if twice as many, four times. The backward makes
operands of so many queries and keys at a time."""


def obstacle(sink: Any, softcap: Any, keep: Any, panels: bool) -> str | None:
    """Nothing that attention may be asked for is one; but Numba takes BLAS from SciPy."""
    return None if panels else unavailable("scipy", "threadpoolctl")


def forward(x: Given) -> tuple[np.ndarray, np.ndarray] | None:
    """The output, in the shape of the query, and lse (B, H, T); None unless it is finite."""
    from .cpu import attention_tiles

    h, t = x.heads[0], x.shape[-2]
    b, dv, tile = math.prod(x.shape[:-3]), x.value.shape[-1], _tile(x)
    out = np.empty((*x.query.shape[:-1], dv), x.like.dtype)
    lse, nonfinite = np.empty((b, h, t), x.like.dtype), np.zeros(1, bool)
    for t0, t1, rest in x.slabs():
        items = _items_of_queries(b, h, t0, t1, _parts(b * h, (t1 - t0) // (4 * FORWARD[0])))
        with _one_thread_of_blas(x):
            attention_tiles.forward(
                shared(x, len(items)), x.query, x.key, x.value, x.heads, x.first,
                x.last, rest, x.bias, x.sink, x.keep, x.scale, x.softcap, x.enlarge, t0, tile,
                x.like, items, out, lse, nonfinite,
            )  # fmt: skip
        if nonfinite[0]:
            return None
    return heads_first(out, h).reshape(*x.shape[:-1], dv), lse


def backward(
    x: Given, out: np.ndarray, lse: np.ndarray, dout: np.ndarray, wanted: tuple[bool, ...]
) -> tuple[np.ndarray | None, ...] | None:
    """The gradients of the seven inputs of attention; None unless they are finite."""
    from .cpu import attention_tiles

    (h, g), (t, s) = x.heads, x.shape[-2:]
    b, d, dv = math.prod(x.shape[:-3]), x.query.shape[-1], x.value.shape[-1]
    items = _items_of_keys(b, g, s, _parts(b * g, s // BACKWARD[1]))
    dq = np.empty((items[-1, 0] + 1, *x.query.shape), x.like.dtype)
    dk, dvalue = np.empty_like(x.key), np.empty_like(x.value)
    dbias = np.zeros((b, h, t, s) if wanted[3] else (0, 0, 0, 0), x.like.dtype)
    out_rows, dout_rows, nonfinite = rows(out), rows(dout), np.zeros(1, bool)
    for t0, t1, rest in x.slabs():
        with _one_thread_of_blas(x):
            attention_tiles.backward(
                shared(x, len(items)), x.query, x.key, x.value, x.heads, x.first,
                x.last, rest, x.bias, x.keep, x.scale, x.softcap, x.enlarge, t0, BACKWARD, _FAR,
                x.like, items, out_rows, lse, dout_rows, t0, t1, dq, dk, dvalue, dbias, nonfinite,
            )  # fmt: skip
        if nonfinite[0]:
            return None
    dsink = None
    if wanted[4]:
        delta = np.sum(dout * out, axis=-1).reshape(b, h, t)
        dsink = -np.sum(np.exp(x.sink[..., None] - lse) * delta, axis=-1).reshape(x.shape[:-2])
        if not np.all(np.isfinite(dsink)):
            return None
    of_keys = (*x.shape[:-3], g, s) if len(x.shape) > 2 else (s,)
    return (
        heads_first(dq[0] if len(dq) == 1 else dq.sum(axis=0), h).reshape(*x.shape[:-1], d),
        heads_first(dk, g).reshape(*of_keys, d),
        heads_first(dvalue, g).reshape(*of_keys, dv),
        dbias.reshape(x.shape) if wanted[3] else None,
        dsink,
        None,
        None,
    )


def _tile(x: Given) -> tuple[int, int]:
    """Queries and keys in a tile of the forward."""
    return FORWARD[0] * (1 if x.seen <= _FAR else 2 if x.seen <= 2 * _FAR else 4), FORWARD[1]


@functools.lru_cache(maxsize=32)
def _items_of_queries(b: int, h: int, t0: int, t1: int, parts: int) -> np.ndarray:
    """The items of the forward, the last queries first: of a causal mask they see most."""
    ends = reversed(list(pairwise(_edges(t0, t1, parts))))
    return np.array([(*head, *part) for part, *head in product(ends, range(b), range(h))])


@functools.lru_cache(maxsize=32)
def _items_of_keys(b: int, g: int, s: int, parts: int) -> np.ndarray:
    """The items of the backward."""
    ends = list(enumerate(pairwise(_edges(0, s, parts))))
    return np.array([(c, *head, *part) for (c, part), *head in product(ends, range(b), range(g))])


def _parts(heads: int, most: int) -> int:
    """Into how many parts to cut a head, so that all threads have something to do."""
    enough = 4 * threads.number()
    return 1 if 2 * heads >= enough else max(1, min(most, -(-enough // heads)))


def _edges(start: int, stop: int, parts: int) -> list[int]:
    """Where parts of about the same length begin, and the last one ends."""
    return sorted({start + (stop - start) * n // parts // 96 * 96 for n in range(parts)} | {stop})


def _one_thread_of_blas(x: Given) -> contextlib.AbstractContextManager[None]:
    """Where its products are BLAS's."""
    return contextlib.nullcontext() if x.like.ndim > 2 else blas.single_threaded()
