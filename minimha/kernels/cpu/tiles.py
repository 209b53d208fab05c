"""Attention in tiles, with online softmax: nothing of size (T, S) is ever made.

Forward, for a few queries Q, and one block of keys K with their values V after another:

    scores = scale · Q Kᵀ             then softcap, bias and mask as in `functional.attention`
    m′     = max(m, max of scores)    the largest so far of each row
    p      = exp(scores − m′)
    l      ← l · exp(m − m′) + Σ p    the sum so far, and
    acc    ← acc · exp(m − m′) + p V  the weighted values so far, both relative to the new m
    out    = acc / l,  lse = m + log l

Backward, for a block of keys K with their values V, and some queries Q after others:

    p       = exp(scores − lse)       the weights, computed once more
    dV      ← dV + pᵀ dO,  dP = dO Vᵀ
    dscores = p · (dP − delta)        delta = Σ dO · out, the mean of dP weighted by p
    dQ      ← dQ + scale · dscores K
    dK      ← dK + scale · dscoresᵀ Q

A query sees the keys from its `first` up to its `last`, less those that `rest` hides. An empty
array, or a softcap of 0, says that there is none: so one kernel serves all.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .jit import kernel
from .product import columns, matrix, multiply, right, right_of_transpose, some_columns
from .rows import bounds, exp_less, is_finite, largest, scale_by

GRAIN = 96
"""Keys are left out in multiples of this, a multiple of the rows and of the columns of a block on
every CPU. So is the width of a tile."""


@kernel
def forward(  # noqa: PLR0912, PLR0915
    q: Any, k: Any, v: Any, first: Any, last: Any, rest: Any, bias: Any, sink: Any, keep: Any,
    scale: Any, softcap: Any, enlarge: Any, origin: int, tile: Any, like: Any, items: Any,
    out: Any, lse: Any,
) -> bool:  # fmt: skip
    """Fill out (B, H, T, Dv) and lse (B, H, T) for `items`: (b, h, t0, t1), queries of a head.

    Returns whether out is finite. lse is +∞ for a query that sees nothing: exp(scores − lse) is 0.
    """
    height, width = tile
    group, depth, depth_v = q.shape[1] // k.shape[1], q.shape[3], v.shape[3]
    queries = matrix(height, depth, like)
    sums_of_values = matrix(height, columns(depth_v, like), like)
    memory = matrix(height, columns(width, like), like).reshape(-1)
    peaks, sums = np.empty(height, like.dtype), np.empty(height, like.dtype)
    slope = np.empty(width, like.dtype)
    finite = True
    for n_item in range(len(items)):
        b, h, t0, t1 = items[n_item]
        firsts = first[b % len(first), h % first.shape[1], t0:t1]
        lasts = last[b % len(last), h % last.shape[1], t0:t1]
        low, high = bounds(firsts, lasts)
        keys = right_of_transpose(k[b, h // group, low:high], like)
        values = right(v[b, h // group, low:high], like)
        for i0 in range(0, t1 - t0, height):
            m, t = min(height, t1 - t0 - i0), t0 + i0
            begin, end = firsts[i0 : i0 + m] - low, lasts[i0 : i0 + m] - low
            for i in range(m):
                for d in range(depth):
                    queries[i, d] = q[b, h, t + i, d] * scale
            acc = sums_of_values[:m]
            acc[:] = 0
            peaks[:], sums[:] = -math.inf, 0
            if sink.size:
                peaks[:] = sink[b % len(sink), h % sink.shape[1]]
                sums[:] = 1 if peaks[0] > -math.inf else 0
            start, stop = bounds(begin, end)
            for j0 in range(start // GRAIN * GRAIN, stop, width):
                n = min(width, stop - j0)
                wide = columns(n, like)
                scores = memory[: m * wide].reshape(m, wide)
                multiply(queries[:m], depth, some_columns(keys, j0, j0 + n), 0, scores, False)
                for i in range(m):
                    f = min(n, max(0, begin[i] - j0))
                    e = max(f, min(n, end[i] - j0))
                    scores[i, :f], scores[i, e:] = 0, 0
                    if f == e:
                        continue
                    row, s = scores[i, f:e], low + j0 + f
                    finish(row, slope, b, h, t + i, s, softcap, bias, rest, origin)
                    peak = largest(row)
                    peak = peaks[i] if peaks[i] >= peak else peak  # NaN if it is
                    if peak == -math.inf:
                        row[:] = 0
                        continue
                    more = exp_less(row, peak)
                    if peak != peaks[i]:
                        shrink = math.exp(peaks[i] - peak)
                        peaks[i] = peak
                        sums[i] *= shrink
                        scale_by(acc[i], shrink)
                    sums[i] += more
                    if keep.size:
                        drop(row, of_query(keep, b, h, t + i), s, enlarge)
                multiply(scores, n, values, j0, acc, True)
            for i in range(m):
                empty = sums[i] == 0
                scale_by(acc[i], 1 if empty else 1 / sums[i])
                finite &= is_finite(acc[i])
                for d in range(depth_v):
                    out[b, h, t + i, d] = acc[i, d]
                lse[b, h, t + i] = math.inf if empty else peaks[i] + math.log(sums[i])
    return finite


@kernel
def backward(  # noqa: PLR0912, PLR0915
    q: Any, k: Any, v: Any, first: Any, last: Any, rest: Any, bias: Any, keep: Any,
    scale: Any, softcap: Any, enlarge: Any, origin: int, tile: Any, like: Any, items: Any,
    out: Any, lse: Any, dout: Any, t0: int, t1: int, dq: Any, dk: Any, dv: Any, dbias: Any,
) -> bool:  # fmt: skip
    """Fill dq (chunks, B, H, T, D) and add to dk, dv and, unless it is empty, dbias (B, H, T, S).

    `items` are (c, b, g, s0, s1): chunk c of the keys of a head, and what the queries from t0 to t1
    get from it. Returns whether the gradients are finite.
    """
    height, width = tile
    t, depth, depth_v = t1 - t0, q.shape[3], v.shape[3]
    group = q.shape[1] // k.shape[1]
    p_memory = matrix(height, width, like).reshape(-1)
    ds_memory = matrix(height, width, like).reshape(-1)
    slope = np.empty(width, like.dtype)
    queries, douts = matrix(t, depth, like), matrix(t, depth_v, like)
    dqueries = matrix(t, columns(depth, like), like)
    delta = np.empty(t, like.dtype)
    finite = True
    for n_item in range(len(items)):
        c, b, g, s0, s1 = items[n_item]
        keys, values = k[b, g, s0:s1], v[b, g, s0:s1]
        keys_across = right_of_transpose(keys, like)
        values_across = right_of_transpose(values, like)
        keys_down = right(keys, like)
        dkeys = matrix(s1 - s0 + GRAIN, columns(depth, like), like)
        dvalues = matrix(s1 - s0 + GRAIN, columns(depth_v, like), like)
        dkeys[:], dvalues[:] = 0, 0
        for h in range(g * group, (g + 1) * group):
            for i in range(t):
                for d in range(depth):
                    queries[i, d] = q[b, h, t0 + i, d] * scale
                mean = like.dtype.type(0)
                for d in range(depth_v):
                    douts[i, d] = dout[b, h, t0 + i, d]
                    mean += douts[i, d] * out[b, h, t0 + i, d]
                delta[i] = mean
            queries_down, douts_down = right(queries, like), right(douts, like)
            dqueries[:] = 0
            firsts = first[b % len(first), h % first.shape[1], t0:t1] - s0
            lasts = last[b % len(last), h % last.shape[1], t0:t1] - s0
            for j0 in range(0, s1 - s0, width):
                for i0 in range(0, t, height):
                    m = min(height, t - i0)
                    begin, end = firsts[i0 : i0 + m], lasts[i0 : i0 + m]
                    start, stop = bounds(begin, end)
                    j = max(j0, start // GRAIN * GRAIN)
                    n = min(j0 + width, s1 - s0, stop) - j
                    if n <= 0:
                        continue
                    wide = n if like.ndim == 2 else -(-n // GRAIN) * GRAIN
                    p = p_memory[: m * wide].reshape(m, wide)
                    ds = ds_memory[: m * wide].reshape(m, wide)
                    query, dvalue = queries[i0 : i0 + m], douts[i0 : i0 + m]
                    multiply(query, depth, some_columns(keys_across, j, j + n), 0, p, False)
                    multiply(dvalue, depth_v, some_columns(values_across, j, j + n), 0, ds, False)
                    for i in range(m):
                        f = min(n, max(0, begin[i] - j))
                        e = max(f, min(n, end[i] - j))
                        p[i, :f], p[i, e:], ds[i, :f], ds[i, e:] = 0, 0, 0, 0
                        row, drow, s = p[i, f:e], ds[i, f:e], s0 + j + f
                        at = t0 + i0 + i
                        finish(row, slope, b, h, at, s, softcap, bias, rest, origin)
                        exp_less(row, lse[b, h, at])
                        if keep.size:
                            drop(drow, of_query(keep, b, h, at), s, enlarge)
                        mean = delta[i0 + i]
                        for x in range(len(row)):
                            drow[x] = row[x] * (drow[x] - mean)
                        if dbias.size:
                            for x in range(len(row)):
                                dbias[b, h, at, s + x] = drow[x]
                        if softcap > 0:
                            for x in range(len(row)):
                                drow[x] *= slope[x]
                        if keep.size:
                            drop(row, of_query(keep, b, h, at), s, enlarge)
                    multiply(p.T, m, douts_down, i0, dvalues[j : j + wide], True)
                    multiply(ds.T, m, queries_down, i0, dkeys[j : j + wide], True)
                    multiply(ds, n, keys_down, j, dqueries[i0 : i0 + m], True)
            for i in range(t):
                finite &= is_finite(dqueries[i])
                for d in range(depth):
                    dq[c, b, h, t0 + i, d] = dqueries[i, d] * scale
        for j in range(s1 - s0):
            finite &= is_finite(dkeys[j]) and is_finite(dvalues[j])
            for d in range(depth):
                dk[b, g, s0 + j, d] += dkeys[j, d]
            for d in range(depth_v):
                dv[b, g, s0 + j, d] += dvalues[j, d]
    return finite


@kernel
def finish(
    row: Any, slope: Any, b: int, h: int, t: int, s: int, softcap: Any, bias: Any, rest: Any,
    origin: int,
) -> None:  # fmt: skip
    """Make the scores of query t, for the keys from s on, of scale · Q Kᵀ, in place.

    slope becomes the derivative of the cap; rest begins with query `origin`.
    """
    if softcap > 0:
        for j in range(len(row)):
            x = math.tanh(row[j] / softcap)
            row[j], slope[j] = softcap * x, 1 - x * x
    if bias.size:
        more = of_query(bias, b, h, t)
        for j in range(len(row)):
            row[j] += more[s + j]
    if rest.size:
        seen = of_query(rest, b, h, t - origin)
        for j in range(len(row)):
            row[j] = row[j] if seen[s + j] else -math.inf


@kernel
def drop(row: Any, kept: Any, s: int, enlarge: Any) -> None:
    """Dropout of the weights of a query for the keys from s on, in place."""
    for j in range(len(row)):
        row[j] = row[j] * enlarge if kept[s + j] else 0


@kernel
def of_query(x: Any, b: int, h: int, t: int) -> Any:
    """The row of x, (1 or B, 1 or H, 1 or T, S), for a query."""
    return x[b % x.shape[0], h % x.shape[1], t % x.shape[2]]
