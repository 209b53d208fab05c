"""The arguments of attention in the form for kernels: four axes, contiguous, masks as intervals."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import masks
from ...attention import Arguments
from ...functional.implementations import batch_invariance
from ...masks.kinds import Band
from ..shared import four_axes, like_scores, numbers

_MASK_ENTRIES, _MASK_QUERIES = 2**24, 192
"""The array of a mask is computed for one block of queries after another. A block has up to
_MASK_ENTRIES entries, or more if these would be fewer than _MASK_QUERIES queries."""
QUERIES_IN_ORDER = 768
"""Queries for which a mask's array is computed at a time within `minimha.batch_invariant`, whatever
the number of entries. The sums of the backward, too, are divided at multiples of this number, so
that they have the same order with and without such an array. A multiple of the height of a tile;
fewer would be slower, since each call of a kernel copies the keys."""
_THREADS_PAY, _PIECE = 2**22, 2**20
"""The number of multiplications above which several threads are faster than one, and the number of
multiplications in one piece of work."""
SILENT = np.errstate(all="ignore")
"""A decorator that switches off NumPy's warnings in functions that compute for kernels. If a result
is not finite, the reference computes it instead, and warns if the cause is a visible pair."""


class KernelArguments(NamedTuple):
    """The arguments of attention, as the kernels take them. In start, stop, bias and keep, axis B
    or H has length 1 if all sequences or all heads share the entries. In bias and keep, axis T has
    length 1 if all queries share them. An array for an argument that is None is empty."""

    query: np.ndarray  # (B, T, H, D) or (B · H, T, 1, D): see `positions_first`
    key: np.ndarray  # (B, S, G, D) or (B · G, S, 1, D)
    value: np.ndarray  # (B, S, G, Dv) or (B · G, S, 1, Dv)
    heads: tuple[int, int]  # H, G
    start: np.ndarray  # (B, H, T): each query sees the keys from its start
    stop: np.ndarray  # (B, H, T): up to its stop, exclusive
    inside: masks.Mask | None  # which of these keys it sees; None for all of them
    mean_keys: float  # the average number of keys between start and stop
    bias: np.ndarray  # (B, H, T, S)
    sink: np.ndarray  # (B, H)
    keep: np.ndarray  # (B, H, T, S): the weights that dropout keeps
    scale: Any
    softcap: Any  # 0 for none
    kept_factor: Any  # 1 / (1 − p), by which dropout multiplies the weights that it keeps
    operand: np.ndarray  # empty; its type chooses BLAS or blocks for products: see `cpu.matmul`
    shape: tuple[int, ...]  # (…, H, T, S), as given
    in_order: bool  # whether sums have the order that `minimha.batch_invariant` promises

    @classmethod
    def of(cls, x: Arguments, in_registers: bool) -> KernelArguments:
        """Make the arguments of a kernel from checked arguments of attention.

        in_registers  whether the kernel's matrix products keep their sums in the CPU's registers
                      (see `cpu.microkernel`) instead of calling BLAS
        """
        shape, dtype = x.shape, x.query.dtype
        if x.mask is None or type(x.mask) is Band:
            start, stop, inside, mean_keys = _intervals_of_band(x.mask, *shape[-2:])
        else:
            start, stop, inside, mean_keys = _intervals(x.mask, x.query, x.key)
        scale, softcap, kept_factor = map(dtype.type, numbers(x))
        return cls(
            positions_first(x.query),
            positions_first(x.key),
            positions_first(x.value),
            (1, 1) if len(shape) == 2 else (shape[-3], x.key.shape[-3]),
            start,
            stop,
            inside,
            mean_keys,
            _like_scores(x.bias, shape, dtype),
            _like_heads(x.sink, shape[:-2], dtype),
            _like_scores(x.keep, shape, bool),
            scale,
            softcap,
            kept_factor,
            _operand(dtype, in_registers),
            shape,
            batch_invariance.get(),
        )

    def mask_blocks(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Divide the queries into blocks, so that the mask `inside` need not become an array of all
        T · S pairs at once. For each block, yield its first query, its end (exclusive), and the
        boolean array of `inside` for its queries. Without `inside`, there is one block of all
        queries, with an empty array."""
        *lead, t, s = self.shape
        if self.inside is None:
            yield 0, t, _like_scores(None, self.shape, bool)
            return
        entries = math.prod(self.inside.array(self.shape, queries=slice(0, 1)).shape[:-2]) * s
        step = max(_MASK_QUERIES, _MASK_ENTRIES // entries)
        if self.in_order:
            step = QUERIES_IN_ORDER
        for t0 in range(0, t, step):
            t1 = min(t, t0 + step)
            block = self.inside.array(self.shape, queries=slice(t0, t1))
            yield t0, t1, _like_scores(block, (*lead, t1 - t0, s), bool)

    def shared(self, count: int) -> tuple[Any, ...]:
        """Make the argument `chunk` of a kernel that loops over range(count), by
        `cpu.parallel.whole`. It says into how many chunks threads divide this range: several only
        if the call is large enough for that to be faster."""
        multiplications = math.prod(self.shape) * (self.query.shape[-1] + self.value.shape[-1])
        chunks = 1 if multiplications < _THREADS_PAY else min(count, multiplications // _PIECE)
        return compiled("parallel").whole(count, chunks)


@functools.cache
def compiled(name: str) -> Any:
    """The module of `kernels.cpu` with this name. The result is cached, since an import statement
    takes 10 µs when the CPU's caches are cold."""
    return importlib.import_module(f"..cpu.{name}", __package__)


def positions_first(x: np.ndarray) -> np.ndarray:
    """Rearrange x (…, H, T, N) to (B, T, H, N) if it lies in memory in this order, as after
    projections, or else to (B · H, T, 1, N). It is copied only if its memory has neither order."""
    x = four_axes(x)
    transposed = x.transpose(0, 2, 1, 3)
    if transposed.flags.carray:
        return transposed
    b, h, t, n = x.shape
    return _contiguous(x).reshape(b * h, t, 1, n)


def heads_first(x: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `positions_first`: rearrange x, (B, T, H, N) or (B · H, T, 1, N), to
    (B, H, T, N). `heads` is H."""
    if x.shape[2] == heads:
        return x.transpose(0, 2, 1, 3)
    return x.reshape(-1, heads, x.shape[1], x.shape[3])


def _contiguous(x: np.ndarray) -> np.ndarray:
    """x itself if it is contiguous, or else a copy that is: kernels are compiled for one layout."""
    return x if x.flags.carray else x.copy()


def _intervals(mask: Any, query: Any, key: Any) -> tuple[Any, ...]:
    """The fields start, stop, inside and mean_keys of `KernelArguments`, for a mask or None and
    arrays of queries and keys. Each query sees the keys from its start to its stop (exclusive): all
    of them if inside is None, or else those that the mask `inside` allows. mean_keys is the mean of
    stop − start."""
    shape = (*query.shape[:-1], key.shape[-2])
    start, stop, inside = np.zeros(shape[-2], int), np.full(shape[-2], shape[-1]), None
    if (intervals := masks.key_intervals(mask, query, key)) is not None:
        start, stop, inside = intervals
    start, stop = _like_queries(start, shape[:-1]), _like_queries(stop, shape[:-1])
    return start, stop, inside, (stop.sum() - start.sum()) / stop.size


@functools.lru_cache(maxsize=32)
def _intervals_of_band(mask: Band | None, t: int, s: int) -> tuple[Any, ...]:
    """The result of `_intervals` for T queries, S keys and a causal mask, a sliding window or None,
    whose intervals depend only on T and S. It is cached, since computing it takes longer than a
    small kernel. The mask must not be of a subclass of Band: the cache compares only the fields of
    a Band, and would mix up masks that differ in other settings."""
    return _intervals(mask, np.empty((t, 0)), np.empty((s, 0)))


@functools.cache
def _empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype)


@functools.cache
def _operand(dtype: Any, in_registers: bool) -> np.ndarray:
    if not in_registers:
        return np.empty((0, 0), dtype)
    from ..cpu.registers import BYTES, VECTORS

    return np.empty((0, 0, VECTORS * BYTES // dtype.itemsize), dtype)


def _like_heads(x: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """x, which broadcasts to the `shape` (…, H), as an array (B, H). If x is None, an empty array
    of this dtype."""
    if x is None:
        return _empty((0, 0), dtype)
    return np.broadcast_to(x, shape).reshape(math.prod(shape[:-1]), -1).copy()


def _like_queries(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x, which broadcasts to the `shape` (…, H, T), as an array (B, H, T). Axis B or H has length 1
    if x is repeated along it."""
    return _like_scores(x[..., None, :], (*shape[:-1], 1, shape[-1]), int)[:, :, 0]


def _like_scores(x: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """x, which broadcasts to the `shape` (…, H, T, S), as an array (B, H, T, S). Axis B, H or T has
    length 1 if x is repeated along it. If x is None, an empty array of this dtype."""
    if x is None:
        return _empty((0, 0, 0, 0), dtype)
    x = like_scores(x, shape)
    once = (slice(1 if step == 0 else None) for step in x.strides[:-1])
    return _contiguous(x[*once])
