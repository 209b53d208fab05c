"""What is given to attention, as kernels take it: four axes, contiguous, masks as intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import masks

_SLAB = 2**24
"""Entries of a mask that are made at a time,"""
_LEAST = 192
"""if those are so many queries."""
_THREADS, _PIECE = 2**22, 2**20
"""Products of two numbers from which on threads pay, and those of a piece of work."""


@dataclass(frozen=True, slots=True)
class Given:
    """Arrays whose first axes may be 1 where all sequences, heads or queries share them. Those that
    were not given are empty."""

    query: np.ndarray  # (B, H, T, D), as `rows` has it
    key: np.ndarray  # (B, G, S, D), too
    value: np.ndarray  # (B, G, S, Dv), too
    heads: tuple[int, int]  # H, G
    first: np.ndarray  # (B, H, T): a query sees keys from here
    last: np.ndarray  # up to here
    rest: masks.Mask | None  # less what this hides
    seen: float  # how many keys a query sees on average, of those between
    bias: np.ndarray  # (B, H, T, S)
    sink: np.ndarray  # (B, H)
    keep: np.ndarray  # (B, H, T, S)
    scale: Any
    softcap: Any  # 0 for none
    enlarge: Any  # what dropout keeps
    like: np.ndarray  # how a right operand of a product looks
    shape: tuple[int, ...]  # (…, H, T, S) as it was

    @classmethod
    def of(cls, inputs: tuple[Any, ...], mask: Any, keep: Any, p: float, panels: bool) -> Given:
        """The seven inputs of attention, checked before; mask, keep and p as there."""
        query, key, value, bias, sink, scale, softcap = inputs
        shape = (*query.shape[:-1], key.shape[-2])
        if mask is not None and not isinstance(mask, masks.Mask):
            mask = masks.dense(mask)
        number = query.dtype.type
        if mask is None or isinstance(mask, masks.Band):
            first, last, rest, seen = _of_band(mask, *shape[-2:])
        else:
            first, last, rest, seen = _intervals(mask, query, key)
        width: tuple[int, ...] = ()
        if panels:
            from .cpu.microkernel import BYTES, VECTORS

            width = (VECTORS * BYTES // query.itemsize,)
        return cls(
            rows(query),
            rows(key),
            rows(value),
            (four_axes(query).shape[1], four_axes(key).shape[1]),
            first,
            last,
            rest,
            seen,
            _of_pairs(bias, shape, query.dtype),
            _of_heads(sink, shape[:-2], query.dtype),
            _of_pairs(keep, shape, bool),
            number(1 / math.sqrt(query.shape[-1]) if scale is None else scale),
            number(softcap or 0),
            number(0 if p == 1 else 1 / (1 - p)),
            _nothing((0, 0, *width), query.dtype),
            shape,
        )

    @property
    def products(self) -> int:
        """How many numbers are multiplied in Q Kᵀ and in weights · V, if nothing is hidden."""
        return math.prod(self.shape) * (self.query.shape[-1] + self.value.shape[-1])

    def slabs(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Queries from … to …, and what of the rest of the mask is theirs: a part at a time, so
        that a mask needs no array of all pairs."""
        *lead, t, s = self.shape
        if self.rest is None:
            yield 0, t, _of_pairs(None, self.shape, bool)
            return
        entries = math.prod(self.rest.array(self.shape, queries=slice(0, 1)).shape[:-2]) * s
        step = max(_LEAST, _SLAB // entries)
        for t0 in range(0, t, step):
            t1 = min(t, t0 + step)
            some = self.rest.array(self.shape, queries=slice(t0, t1))
            yield t0, t1, _of_pairs(some, (*lead, t1 - t0, s), bool)


def four_axes(x: np.ndarray) -> np.ndarray:
    """(…, H, T, N) as (B, H, T, N)."""
    x = x[None] if x.ndim == 2 else x
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def rows(x: np.ndarray) -> np.ndarray:
    """(…, H, T, N) as (B, T, H, N), if that is how it lies in memory, as projections leave it, or
    else as (B · H, T, 1, N). Only where neither is, this is a copy."""
    x = four_axes(x)
    across = x.transpose(0, 2, 1, 3)
    if across.flags.carray:
        return across
    b, h, t, n = x.shape
    return contiguous(x).reshape(b * h, t, 1, n)


def heads_first(x: np.ndarray, heads: int) -> np.ndarray:
    """The inverse: (B, H, T, N)."""
    if x.shape[2] == heads:
        return x.transpose(0, 2, 1, 3)
    return x.reshape(-1, heads, x.shape[1], x.shape[3])


def contiguous(x: np.ndarray) -> np.ndarray:
    """x, or a copy: kernels are compiled for one layout."""
    return x if x.flags.carray else x.copy()


def _intervals(mask: Any, query: Any, key: Any) -> tuple[Any, ...]:
    """first, last, rest and seen."""
    shape = (*query.shape[:-1], key.shape[-2])
    first, last, rest = (np.zeros(shape[-2], int), np.full(shape[-2], shape[-1]), None)
    if (intervals := masks.key_intervals(mask, query, key)) is not None:
        first, last, rest = intervals
    first, last = _of_queries(first, shape[:-1]), _of_queries(last, shape[:-1])
    return first, last, rest, (last.sum() - first.sum()) / last.size


@functools.lru_cache(maxsize=32)
def _of_band(mask: masks.Band | None, t: int, s: int) -> tuple[Any, ...]:
    """The same, remembered, of what follows from the lengths: after a kernel the CPU has to fetch
    all code anew, and that of masks is long."""
    return _intervals(mask, np.empty((t, 0)), np.empty((s, 0)))


@functools.cache
def _nothing(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype)


def _of_heads(x: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What broadcasts to (…, H) as (B, H); empty for None."""
    if x is None:
        return _nothing((0, 0), dtype)
    return np.broadcast_to(x, shape).reshape(math.prod(shape[:-1]), -1).copy()


def _of_queries(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What broadcasts to (…, H, T) as (B, H, T), B and H being 1 if shared."""
    return _of_pairs(x[..., None, :], (*shape[:-1], 1, shape[-1]), int)[:, :, 0]


def _of_pairs(x: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What broadcasts to (…, H, T, S) as (B, H, T, S), all but S being 1 if shared. None is
    empty."""
    if x is None:
        return _nothing((0, 0, 0, 0), dtype)
    if x.shape[-1:] != shape[-1:]:
        x = np.broadcast_to(x, (*x.shape[:-1], shape[-1]))
    if x.ndim > 4 and math.prod(x.shape[:-3]) > 1:
        x = np.broadcast_to(x, (*shape[:-3], *x.shape[-3:]))
    shared = ((1,) * 3 + x.shape)[-3:]
    return contiguous(x.reshape(math.prod(x.shape[:-3]), *shared))


def shared(x: Given, count: int) -> tuple[Any, ...]:
    """range(count) for a kernel: threads share it where that pays."""
    from .cpu.parallel import whole

    return whole(count, 1 if x.products < _THREADS else min(count, x.products // _PIECE))
