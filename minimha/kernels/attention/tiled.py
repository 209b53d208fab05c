"""Attention in tiles: the code on the host, which divides the work among threads."""

from __future__ import annotations

import contextlib
import functools
import math
from itertools import pairwise, product

import numpy as np

from minimha_autograd.operation import Wanted

from ...attention import Arguments
from ...attention.arguments import Gradients
from .. import blas, threads, unavailable
from ..shared import as_given
from .layout import (
    QUERIES_IN_ORDER,
    SILENT,
    KernelArguments,
    compiled,
    heads_first,
    positions_first,
)

FORWARD = 1536
"""Keys in a tile of the forward, a multiple of `GRAIN` in `cpu.attention_tiles`."""
BACKWARD = 384
"""Keys in a tile of the backward, also a multiple of `GRAIN`."""
_IN_CACHE = 2560
"""The number of keys that stay in the cache until the next tile of the forward needs them. The
backward copies operands for this many queries and keys at a time; within `batch_invariant` it
copies them for fewer queries."""


def _height(keys: float) -> int:
    """The number of queries in a tile, if a query sees this number of keys on average. It is a
    multiple of 12, so that it is a multiple of `ROWS` in `cpu.registers` on every CPU.

    With few queries in a tile, little work is wasted on pairs that a causal mask hides. With many
    queries, keys that are not in the cache are read less often.
    """
    if keys <= _IN_CACHE:
        return 24 if keys <= 256 else 48
    return 96 if keys <= 2 * _IN_CACHE else 192


def obstacle(x: Arguments) -> str | None:
    """The reason why attention in tiles cannot be computed, or None if it can. The kernels support
    all arguments x of attention, but need SciPy, through which Numba calls BLAS, and threadpoolctl.
    """
    return unavailable("scipy", "threadpoolctl")


def forward(x: KernelArguments) -> tuple[np.ndarray, np.ndarray] | None:
    """The output of attention, (…, H, T, Dv), and lse (B, H, T), the log-sum-exp of each query's
    scores. Returns None if any output is not finite, or if a sink is NaN or +∞, since only
    `attention.reference` handles these."""
    if not np.all(x.sink < math.inf):  # NaN, too: the output might be finite nevertheless
        return None
    h, _ = x.heads
    t, _ = x.shape[-2:]
    b = math.prod(x.shape[:-3])
    dv = x.value.shape[-1]
    dtype = x.operand.dtype
    tile = _height(x.mean_keys), FORWARD

    out = np.empty((*x.query.shape[:-1], dv), dtype)
    lse = np.empty((b, h, t), dtype)
    nonfinite = np.zeros(1, bool)
    for t0, t1, inside in x.mask_blocks():
        items = _items_of_queries(b, h, t0, t1, _parts(b * h, (t1 - t0) // 192))
        with _single_blas(x):
            compiled("attention_tiles").forward(
                chunk=x.shared(len(items)),
                query=x.query,
                key=x.key,
                value=x.value,
                heads=x.heads,
                start=x.start,
                stop=x.stop,
                inside=inside,
                origin=t0,
                bias=x.bias,
                sink=x.sink,
                keep=x.keep,
                scale=x.scale,
                softcap=x.softcap,
                kept_factor=x.kept_factor,
                operand=x.operand,
                tile=tile,
                in_order=x.in_order,
                items=items,
                out=out,
                lse=lse,
                nonfinite=nonfinite,
            )
        if nonfinite[0]:
            return None
    return heads_first(out, h).reshape(*x.shape[:-1], dv), lse


def backward(
    x: KernelArguments,
    out: np.ndarray,
    lse: np.ndarray,
    dout: np.ndarray,
    dlse: np.ndarray | None,
    wanted: Wanted,
) -> Gradients | None:
    """The gradients of query, key and value, and of bias and sink if they are `wanted`. Those of
    scale and softcap are None, since these are numbers here.

    out, lse  the results of `forward` for the same x
    dout      the gradient of out
    dlse      the gradient of lse, or None if nothing depends on lse

    Returns None if any gradient is not finite, since only `attention.reference` handles NaN and
    infinity.
    """
    h, g = x.heads
    t, s = x.shape[-2:]
    b = math.prod(x.shape[:-3])
    dtype = x.operand.dtype
    wants_bias = wanted.bias
    wants_sink = wanted.sink

    # With fixed sizes and undivided heads, sums have the same order in every batch and prefix.
    height = min(48, _height(x.mean_keys))
    parts = _parts(b * g, s // BACKWARD)
    queries = _IN_CACHE
    if x.in_order:
        height = 48
        parts = 1
        queries = QUERIES_IN_ORDER
    tile = height, BACKWARD
    most = queries, _IN_CACHE
    items = _items_of_keys(b, g, s, parts)

    # Each part of a head's keys adds to a dquery of its own.
    dquery = np.empty((items[-1, 0] + 1, *x.query.shape), dtype)
    dkey = np.empty_like(x.key)
    dvalue = np.empty_like(x.value)
    dbias = np.zeros((b, h, t, s) if wants_bias else (0, 0, 0, 0), dtype)

    out_laid_out = positions_first(out)
    dout_laid_out = positions_first(dout)
    dlse = np.empty((0, 0, 0), lse.dtype) if dlse is None else dlse.reshape(b, h, t)
    nonfinite = np.zeros(1, bool)
    for t0, t1, inside in x.mask_blocks():
        with _single_blas(x):
            compiled("attention_tiles").backward(
                chunk=x.shared(len(items)),
                query=x.query,
                key=x.key,
                value=x.value,
                heads=x.heads,
                start=x.start,
                stop=x.stop,
                inside=inside,
                origin=t0,
                bias=x.bias,
                keep=x.keep,
                scale=x.scale,
                softcap=x.softcap,
                kept_factor=x.kept_factor,
                operand=x.operand,
                tile=tile,
                most=most,
                items=items,
                out=out_laid_out,
                lse=lse,
                dout=dout_laid_out,
                dlse=dlse,
                t0=t0,
                t1=t1,
                dquery=dquery,
                dkey=dkey,
                dvalue=dvalue,
                dbias=dbias,
                nonfinite=nonfinite,
            )
        if nonfinite[0]:
            return None

    dsink = _sink_gradient(x, out, lse, dout, dlse) if wants_sink else None
    if dsink is not None and not np.all(np.isfinite(dsink)):
        return None

    dquery = dquery[0] if len(dquery) == 1 else SILENT(dquery.sum)(axis=0)
    dquery = heads_first(dquery, h)
    dkey = heads_first(dkey, g)
    dvalue = heads_first(dvalue, g)
    return as_given(x.shape, g, dquery, dkey, dvalue, dbias if wants_bias else None, dsink)


@SILENT
def _sink_gradient(
    x: KernelArguments, out: np.ndarray, lse: np.ndarray, dout: np.ndarray, dlse: np.ndarray
) -> np.ndarray:
    """The gradient of the sink, (B, H). out and lse are the results of `forward`, and dout and dlse
    their gradients; dlse is empty if nothing depends on lse."""
    delta = np.sum(dout * out, axis=-1).reshape(lse.shape) - (dlse if dlse.size else 0)
    return -np.sum(np.exp(x.sink[..., None] - lse) * delta, axis=-1)


@functools.lru_cache(maxsize=32)
def _items_of_queries(b: int, h: int, t0: int, t1: int, parts: int) -> np.ndarray:
    """The pieces of work of the forward pass, one in each row: (sequence, head, first query, end of
    the queries). There are b sequences of h heads; the queries t0 … t1 − 1 of each head are divided
    into up to `parts` parts. The last queries come first, since they see the most keys under a
    causal mask."""
    ends = reversed(list(pairwise(_edges(t0, t1, parts))))
    return np.array([(*head, *part) for part, *head in product(ends, range(b), range(h))])


@functools.lru_cache(maxsize=32)
def _items_of_keys(b: int, g: int, s: int, parts: int) -> np.ndarray:
    """The pieces of work of the backward pass, one in each row: (number of the part, sequence, key
    head, first key, end of the keys). There are b sequences of g key heads; the s keys of each head
    are divided into up to `parts` parts, numbered from 0."""
    ends = list(enumerate(pairwise(_edges(0, s, parts))))
    return np.array([(c, *head, *part) for (c, part), *head in product(ends, range(b), range(g))])


def _parts(heads: int, most: int) -> int:
    """The number of parts into which the work of each head is divided: 1 if there are many heads,
    or else enough for all threads to have work, but no more than `most`. `heads` counts the heads
    of all sequences."""
    enough = 4 * threads.number()
    return 1 if 2 * heads >= enough else max(1, min(most, -(-enough // heads)))


def _edges(start: int, stop: int, parts: int) -> list[int]:
    """Divide the range from start to stop into up to `parts` parts of about equal length, each of
    which begins at start or a multiple of 96 after it. Returns where each part begins, and the end
    of the last one."""
    return sorted({start + (stop - start) * n // parts // 96 * 96 for n in range(parts)} | {stop})


_AS_IT_IS = contextlib.nullcontext()


def _single_blas(x: KernelArguments) -> contextlib.AbstractContextManager[None]:
    """A context manager in which BLAS uses one thread, if BLAS computes the matrix products of the
    kernel; otherwise one that does nothing."""
    return _AS_IT_IS if x.operand.ndim > 2 else blas.single_threaded()
