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

Keys are those from `first` up to `last` of a query, of which `rest` may hide some. Other arguments
that may be None are left out when the kernel is compiled.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .jit import kernel
from .product import columns, matrix, multiply, right, right_of_transpose, some_columns
from .rows import exp_less, largest, scale_by, total

GRAIN = 96
"""Keys before the first that is seen are left out in multiples of this, which every block divides."""


@kernel
def forward(
    q: Any, k: Any, v: Any, first: Any, last: Any, rest: Any, bias: Any, sink: Any, keep: Any,
    scale: Any, softcap: Any, enlarge: Any, items: Any, tile: Any, like: Any, out: Any, lse: Any,
) -> None:  # fmt: skip
    """Fill out (B, H, T, Dv) and lse (B, H, T), of `items`: (b, h, t0, t1), queries of a head.

    lse is +∞ for a query that sees nothing, so that exp(scores − lse) is 0.
    """
    height, width = tile
    group, depth, depth_v = q.shape[1] // k.shape[1], q.shape[3], v.shape[3]
    queries = matrix(height, depth, like)
    sums_of_values = matrix(height, columns(depth_v, like), like)
    memory = matrix(height, columns(width, like), like).reshape(-1)
    peaks, sums = np.empty(height, like.dtype), np.empty(height, like.dtype)
    for b, h, t0, t1 in items:
        firsts = first[b % len(first), h % first.shape[1], t0:t1]
        lasts = last[b % len(last), h % last.shape[1], t0:t1]
        low, high = firsts.min(), max(lasts.max(), firsts.min())
        keys = right_of_transpose(k[b, h // group, low:high], like)
        values = right(v[b, h // group, low:high], like)
        for i0 in range(0, t1 - t0, height):
            m = min(height, t1 - t0 - i0)
            t = t0 + i0
            begin, end = firsts[i0 : i0 + m] - low, lasts[i0 : i0 + m] - low
            for i in range(m):
                for d in range(depth):
                    queries[i, d] = q[b, h, t + i, d] * scale
            acc = sums_of_values[:m]
            acc[:] = 0
            peaks[:], sums[:] = -math.inf, 0
            if sink is not None:
                peaks[:], sums[:] = sink[b % len(sink), h % sink.shape[1]], 1
            stop = end.max()
            for j0 in range(begin.min() // GRAIN * GRAIN, stop, width):
                n = min(width, stop - j0)
                wide = columns(n, like)
                scores = memory[: m * wide].reshape(m, wide)
                multiply(queries[:m], depth, some_columns(keys, j0, j0 + n), 0, scores, False)
                for i in range(m):
                    f = min(n, max(0, begin[i] - j0))
                    e = max(f, min(n, end[i] - j0))
                    row = scores[i, f:e]
                    scores[i, :f], scores[i, e:] = 0, 0
                    finish(row, None, b, h, t + i, low + j0 + f, softcap, bias, rest)
                    peak = largest(row) if e > f else peaks[i]
                    peak = peaks[i] if peaks[i] >= peak else peak  # NaN if it is
                    if peak == -math.inf:
                        row[:] = 0
                        continue
                    exp_less(row, peak)
                    if peak != peaks[i]:
                        shrink = math.exp(peaks[i] - peak)
                        peaks[i] = peak
                        sums[i] *= shrink
                        scale_by(acc[i], shrink)
                    sums[i] += total(row)
                    if keep is not None:
                        drop(row, keep, enlarge, b, h, t + i, low + j0 + f)
                multiply(scores, n, values, j0, acc, True)
            for i in range(m):
                inverse = 1 / sums[i] if sums[i] > 0 else sums[i]
                for d in range(depth_v):
                    out[b, h, t + i, d] = acc[i, d] * inverse
                lse[b, h, t + i] = peaks[i] + math.log(sums[i]) if sums[i] > 0 else math.inf


@kernel
def backward(
    q: Any, k: Any, v: Any, first: Any, last: Any, rest: Any, bias: Any, keep: Any, scale: Any,
    softcap: Any, enlarge: Any, items: Any, tile: Any, like: Any, dout: Any, lse: Any, delta: Any,
    dq: Any, dk: Any, dv: Any, dbias: Any,
) -> None:  # fmt: skip
    """Fill dq (chunks, B, H, T, D), dk, dv and, unless None, dbias, the last of zeros.

    `items` are (c, b, g, s0, s1): chunk c of the keys of a head, and what its queries get from it.
    """
    height, width = tile
    t, depth, depth_v = q.shape[2], q.shape[3], v.shape[3]
    group = q.shape[1] // k.shape[1]
    memory = np.empty((2, (height + GRAIN) * columns(width, like)), like.dtype)
    slope = None if softcap is None else np.empty(width, like.dtype)
    for c, b, g, s0, s1 in items:
        keys, values = k[b, g, s0:s1], v[b, g, s0:s1]
        keys_across, values_across = (
            right_of_transpose(keys, like),
            right_of_transpose(values, like),
        )
        keys_down = right(keys, like)
        dkeys = matrix(s1 - s0, columns(depth, like), like)
        dvalues = matrix(s1 - s0, columns(depth_v, like), like)
        dqueries = matrix(t, columns(depth, like), like)
        dkeys[:], dvalues[:] = 0, 0
        queries, douts = matrix(t, depth, like), matrix(t, depth_v, like)
        for h in range(g * group, (g + 1) * group):
            for i in range(t):
                for d in range(depth):
                    queries[i, d] = q[b, h, i, d] * scale
                for d in range(depth_v):
                    douts[i, d] = dout[b, h, i, d]
            queries_down, douts_down = right(queries, like), right(douts, like)
            dqueries[:] = 0
            firsts = first[b % len(first), h % first.shape[1]] - s0
            lasts = last[b % len(last), h % last.shape[1]] - s0
            for j0 in range(0, s1 - s0, width):
                for i0 in range(0, t, height):
                    m = min(height, t - i0)
                    begin, end = firsts[i0 : i0 + m], lasts[i0 : i0 + m]
                    j = max(j0, j0 + (begin.min() - j0) // GRAIN * GRAIN)
                    n = min(j0 + width, s1 - s0, end.max()) - j
                    if n <= 0:
                        continue
                    wide = columns(n, like)
                    p = memory[0, : m * wide].reshape(m, wide)
                    ds = memory[1, : m * wide].reshape(m, wide)
                    multiply(
                        queries[i0 : i0 + m],
                        depth,
                        some_columns(keys_across, j, j + n),
                        0,
                        p,
                        False,
                    )
                    multiply(
                        douts[i0 : i0 + m],
                        depth_v,
                        some_columns(values_across, j, j + n),
                        0,
                        ds,
                        False,
                    )
                    for i in range(m):
                        f = min(n, max(0, begin[i] - j))
                        e = max(f, min(n, end[i] - j))
                        p[i, :f], p[i, e:], ds[i, :f], ds[i, e:] = 0, 0, 0, 0
                        row, drow = p[i, f:e], ds[i, f:e]
                        place = b, h, i0 + i, s0 + j + f
                        finish(row, slope, b, h, i0 + i, s0 + j + f, softcap, bias, rest)
                        exp_less(row, lse[b, h, i0 + i])
                        if keep is not None:
                            drop(drow, keep, enlarge, b, h, i0 + i, s0 + j + f)
                        mean = delta[b, h, i0 + i]
                        for x in range(len(row)):
                            drow[x] = row[x] * (drow[x] - mean)
                        if dbias is not None:
                            dbias[b, h, i0 + i, s0 + j + f : s0 + j + e] = drow
                        if softcap is not None:
                            for x in range(len(row)):
                                drow[x] *= slope[x]
                        if keep is not None:
                            drop(row, keep, enlarge, b, h, i0 + i, s0 + j + f)
                    multiply(p.T, m, douts_down, i0, dvalues[j : j + n], True)
                    multiply(ds.T, m, queries_down, i0, dkeys[j : j + n], True)
                    multiply(ds, n, keys_down, j, dqueries[i0 : i0 + m], True)
            for i in range(t):
                for d in range(depth):
                    dq[c, b, h, i, d] = dqueries[i, d] * scale
        dk[b, g, s0:s1], dv[b, g, s0:s1] = dkeys[:, :depth], dvalues[:, :depth_v]


@kernel
def finish(
    row: Any, slope: Any, b: int, h: int, t: int, s: int, softcap: Any, bias: Any, rest: Any
) -> None:
    """Make scores of query t, for the keys from s on, of what scale · Q Kᵀ is, in place.

    slope, unless None, becomes the derivative of the cap.
    """
    if softcap is not None:
        for j in range(len(row)):
            x = math.tanh(row[j] / softcap)
            row[j] = softcap * x
            if slope is not None:
                slope[j] = 1 - x * x
    if bias is not None:
        more = of_query(bias, b, h, t)
        for j in range(len(row)):
            row[j] += more[s + j]
    if rest is not None:
        seen = of_query(rest, b, h, t)
        for j in range(len(row)):
            if not seen[s + j]:
                row[j] = -math.inf


@kernel
def drop(row: Any, keep: Any, enlarge: Any, b: int, h: int, t: int, s: int) -> None:
    """Dropout of the weights of query t for the keys from s on, in place."""
    kept = of_query(keep, b, h, t)
    for j in range(len(row)):
        row[j] = row[j] * enlarge if kept[s + j] else 0


@kernel
def of_query(x: Any, b: int, h: int, t: int) -> Any:
    """The row of x, (1 or B, 1 or H, 1 or T, S), for a query."""
    return x[b % x.shape[0], h % x.shape[1], t % x.shape[2]]
