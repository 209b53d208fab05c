"""Attention in tiles, with online softmax: no array of size (T, S) is ever made.

Forward, for a tile of queries Q, over blocks of keys K with their values V:

    scores = scale · Q Kᵀ               then softcap, bias and mask as in `attention.reference`
    new    = max(peak, max of scores)   the largest of each row so far
    e      = exp(scores − new)
    shrink = exp(peak − new)            turns exp(… − peak) into exp(… − new)
    total  ← total · shrink + Σ e       the sum so far
    acc    ← acc · shrink + e V         the weighted values so far
    peak   ← new

and after the last block out = acc / total, lse = peak + log total.

Backward, for a block of keys K with their values V, over tiles of queries Q:

    p       = exp(scores − lse)       the weights, recomputed
    dV      ← dV + pᵀ dO,  dP = dO Vᵀ
    dscores = p · (dP − delta)        delta = Σ dO · out − dlse; the sum is the mean of dP weighted
                                      by p
    dQ      ← dQ + scale · dscores K
    dK      ← dK + scale · dscoresᵀ Q

Rows of heads have one of the two layouts of `head`. A query sees the keys from its `start` up to,
but not including, its `stop`, except those that `inside` hides. An empty array or a softcap of 0
stands for None, so that one compiled kernel supports all arguments.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

import math

import numpy as np

from .few_rows_in_order import add_columns_of_matrix, add_rows_of_matrix
from .jit import kernel
from .matmul import (
    as_right,
    matrix,
    multiply,
    padded_columns,
    padded_rows,
    right,
    right_of_transpose,
    some_columns,
)
from .parallel import share
from .registers import BYTES, VECTORS
from .row_softmax import dot, exp_minus, is_finite, row_max, scale_by
from .vectors import copy_vector, sum_in_vectors

GRAIN = 32
"""Keys are skipped in multiples of this number, which is a multiple of the columns of a block on
every CPU, and at least its rows. The width of a tile is also a multiple of it."""
_FEW = 6
"""For at most this many queries, keys and values are read where they are, without a copy."""


@kernel
def forward(  # noqa: PLR0915
    chunk, q, k, v, heads, start, stop, inside, bias, sink, keep, scale, softcap, kept_factor,
    origin, tile, in_order, operand, items, out, lse, nonfinite,
):  # fmt: skip
    """Fill out and lse (B, H, T) for `items`: (b, h, t0, t1), queries of a head; heads is (H, G).

    Sets nonfinite[0] if any output is not finite. lse is +∞ for a query that sees no key and no
    sink, so that exp(scores − lse) is 0. If `in_order`, what the other queries see does not
    change a bit.
    """
    first_item, last_item = share(chunk)
    height, width = tile[0], min(tile[1], k.shape[1] + GRAIN)
    group, depth, depth_v = heads[0] // heads[1], q.shape[3], v.shape[3]
    queries = matrix(height, padded_columns(depth, operand), operand)
    sums_of_values = matrix(height, padded_columns(depth_v, operand), operand)
    queries[:], sums_of_values[:] = 0, 0
    memory = matrix(height, padded_columns(width, operand), operand).reshape(-1)
    slopes = np.empty((height if softcap > 0 else 0, width), operand.dtype)
    peaks, totals = np.empty(height, operand.dtype), np.empty(height, operand.dtype)
    finite, one, flat_k, flat_v = True, operand.dtype.type(1), flat(k), flat(v)
    for n_item in range(first_item, last_item):
        b, h, t0, t1 = items[n_item]
        starts, stops = of_head(start, b, h)[t0:t1], of_head(stop, b, h)[t0:t1]
        low, high = key_range(starts, stops)
        if in_order:  # places in a vector are counted from key 0, not from the first visible one
            low = low // GRAIN * GRAIN
        copied = low if operand.ndim == 3 and t1 - t0 <= _FEW else high
        keys = right_of_transpose(flat_k, head(k, b, h // group, heads[1], low, copied), operand)
        values = right(flat_v, head(v, b, h // group, heads[1], low, copied), operand)
        for i0 in range(0, t1 - t0, height):
            m, t = min(height, t1 - t0 - i0), t0 + i0
            begin, end = starts[i0 : i0 + m], stops[i0 : i0 + m]
            first, last = key_range(begin, end)
            gather(q, head(q, b, h, heads[0], t, t + m), scale, queries)
            acc = sums_of_values[:m]
            acc[:], peaks[:], totals[:] = 0, -math.inf, 0
            if sink.size and of_head(sink, b, h) > -math.inf:
                peaks[:], totals[:] = of_head(sink, b, h), 1
            s = low + (first - low) // GRAIN * GRAIN
            while s < last:
                n = min(width, last - s)
                if in_order:  # tiles end at multiples of their width, counted from key 0
                    n = min(n, width - s % width)
                j0 = s - low
                wide = padded_columns(n, operand)
                scores = memory[: m * wide].reshape(m, wide)
                of_keys = head(k, b, h // group, heads[1], s, s + n)
                of_values = head(v, b, h // group, heads[1], s, s + n)
                multiply_by_keys(queries[:m], depth, keys, j0, n, flat_k, of_keys, scores)
                finish_scores(
                    scores, slopes, n, b, h, t, s, softcap, bias, inside, origin, begin, end
                )
                for i in range(m):
                    row, peak = scores[i], peaks[i]
                    new = row_max(row)
                    new = peak if peak >= new else new  # NaN if it is
                    if new == -math.inf:
                        row[:] = 0
                        continue
                    more = exp_minus_in_order(row, new)
                    if new != peak and peak > -math.inf:
                        shrink = math.exp(peak - new)
                        totals[i] *= shrink
                        scale_by(acc[i], shrink)
                    peaks[i], totals[i] = new, totals[i] + more
                drop(scores, n, keep, b, h, t, s, kept_factor)
                add_values(scores, n, values, j0, flat_v, of_values, acc)
                s += n
            for i in range(m):
                empty = totals[i] == 0
                scale_by(acc[i], one if empty else one / totals[i])
                lse[b, h, t + i] = math.inf if empty else peaks[i] + math.log(totals[i])
            finite &= is_finite(acc.reshape(-1))
            scatter(acc, out, head(out, b, h, heads[0], t, t + m), one, False)
    if not finite:
        nonfinite[0] = True


@kernel
def multiply_by_keys(queries, depth, keys, start, n, flat_k, region, scores):
    """scores = queries times n of the keys: those from `start` on in the copies, if there are any,
    or else those in a region of flat_k."""
    if keys.size:
        multiply(queries, depth, some_columns(keys, start, start + n), 0, scores, False)
    else:
        scores[:] = 0
        add_columns_of_matrix(queries, flat_k, region, scores, 0)


@kernel
def add_values(weights, n, values, start, flat_v, region, acc):
    """acc += weights times n of the values: those from `start` on in the copies, if there are any,
    or else those in a region of flat_v."""
    if values.size:
        multiply(weights, n, values, start, acc, True)
        return
    _, _, n0, n1 = region
    sums = np.zeros_like(acc)
    add_rows_of_matrix(weights, flat_v, region, sums, 0)
    for i in range(len(acc)):
        for x in range(n1 - n0):
            acc[i, x] += sums[i, x]


@kernel
def backward(
    chunk, q, k, v, heads, start, stop, inside, bias, keep, scale, softcap, kept_factor, origin,
    tile, most, operand, items, out, lse, dout, dlse, t0, t1, dq, dk, dv, dbias, nonfinite,
):  # fmt: skip
    """Fill dq (C, …), dk, dv and, unless it is empty, dbias (B, H, T, S), which begins as zeros.

    `items` are (c, b, g, from_key, to_key): keys of a head that contribute to entry c of dq, for
    the queries from t0 to t1. If t0 > 0, the sums in dk and dv are continued. At most most[0]
    queries and most[1] keys are held at a time. Several calls, one for each part of the queries,
    give the bits of a single call if the parts begin at multiples of most[0]. Sets nonfinite[0] if
    any gradient is not finite.
    """
    first_item, last_item = share(chunk)
    group, one, finite = heads[0] // heads[1], operand.dtype.type(1), True
    flat_k, flat_v = flat(k), flat(v)
    for n_item in range(first_item, last_item):
        c, b, g, from_key, to_key = items[n_item]
        for s0 in range(from_key, to_key, most[1]):
            s1 = min(s0 + most[1], to_key)
            of_keys, of_values = head(k, b, g, heads[1], s0, s1), head(v, b, g, heads[1], s0, s1)
            keys_across = right_of_transpose(flat_k, of_keys, operand)
            values_across = right_of_transpose(flat_v, of_values, operand)
            keys_down = right(flat_k, of_keys, operand)
            dkeys = matrix(s1 - s0 + GRAIN, padded_columns(k.shape[3], operand), operand)
            dvalues = matrix(s1 - s0 + GRAIN, padded_columns(v.shape[3], operand), operand)
            dkeys[:], dvalues[:] = 0, 0
            if t0 > 0:
                gather(dk, of_keys, one, dkeys)
                gather(dv, of_values, one, dvalues)
            for from_ in range(t0, t1, most[0]):
                to = min(from_ + most[0], t1)
                for h in range(g * group, (g + 1) * group):
                    finite &= tile_backward(
                        q, keys_across, values_across, keys_down, heads[0], of_head(start, b, h),
                        of_head(stop, b, h), inside, bias, keep, scale, softcap, kept_factor,
                        origin, tile, operand, out, lse, dout, dlse, b, h, from_, to, s0, s1,
                        s0 > from_key, dq[c], dkeys, dvalues, dbias,
                    )  # fmt: skip
            finite &= is_finite(dkeys.reshape(-1)) and is_finite(dvalues.reshape(-1))
            scatter(dkeys, dk, of_keys, one, False)
            scatter(dvalues, dv, of_values, one, False)
    if not finite:
        nonfinite[0] = True


@kernel
def tile_backward(
    q, keys_across, values_across, keys_down, heads, start, stop, inside, bias, keep, scale,
    softcap, kept_factor, origin, tile, operand, out, lse, dout, dlse, b, h, t0, t1, s0, s1, add,
    dq, dkeys, dvalues, dbias,
):  # fmt: skip
    """The backward of the queries from t0 to t1 of a head and the keys from s0 to s1.

    Stores dq, or adds to it if `add`. Returns whether it is finite.
    """
    low, high = key_range(start[t0:t1], stop[t0:t1])
    if add and (high <= s0 or low >= s1):
        return True
    t, depth, depth_v = t1 - t0, q.shape[3], out.shape[3]
    height, width = min(tile[0], t), tile[1]
    wide = min(width, s1 - s0) + GRAIN
    p_memory, ds_memory = matrix(height, wide, operand), matrix(height, wide, operand)
    slopes = np.empty((height if softcap > 0 else 0, width), operand.dtype)
    of_queries, of_out = head(q, b, h, heads, t0, t1), head(out, b, h, heads, t0, t1)
    queries = matrix(t, padded_columns(depth, operand), operand)
    douts = matrix(t, padded_columns(depth_v, operand), operand)
    gather(q, of_queries, scale, queries)
    gather(dout, head(dout, b, h, heads, t0, t1), operand.dtype.type(1), douts)
    queries_down, douts_down = as_right(queries, operand), as_right(douts, operand)
    dqueries = matrix(t, padded_columns(depth, operand), operand)
    dqueries[:] = 0
    outs, delta = flat(out), np.empty(t, operand.dtype)
    for i in range(t):
        delta[i] = dot(douts[i, :depth_v], outs[of_out[0] + i, of_out[2] : of_out[3]])
        if dlse.size:
            delta[i] -= dlse[b, h, t0 + i]
    for j0 in range(0, s1 - s0, width):
        for i0 in range(0, t, height):
            m, at = min(height, t - i0), t0 + i0
            begin, end = start[at : at + m], stop[at : at + m]
            low, high = key_range(begin, end)
            j = max(j0, (low - s0) // GRAIN * GRAIN)
            n, s = min(j0 + width, s1 - s0, high - s0) - j, s0 + j
            if n <= 0:
                continue
            used, whole = padded_columns(n, operand), padded_rows(n, operand)
            wide = max(used, whole)
            p = p_memory.reshape(-1)[: m * wide].reshape(m, wide)
            ds = ds_memory.reshape(-1)[: m * wide].reshape(m, wide)
            query, dvalue = queries[i0 : i0 + m], douts[i0 : i0 + m]
            multiply(query, depth, some_columns(keys_across, j, j + n), 0, p, False)
            multiply(dvalue, depth_v, some_columns(values_across, j, j + n), 0, ds, False)
            finish_scores(p, slopes, n, b, h, at, s, softcap, bias, inside, origin, begin, end)
            drop(ds, n, keep, b, h, at, s, kept_factor)
            for i in range(m):
                row, drow, mean = p[i, :used], ds[i], delta[i0 + i]
                exp_minus(row, lse[b, h, at + i])
                for x in range(used):
                    drow[x] = row[x] * (drow[x] - mean)
                p[i, used:], drow[used:] = 0, 0
                if dbias.size:
                    for x in range(n):
                        # 0 for a hidden pair, as outside the tile; not −0
                        dbias[b, h, at + i, s + x] = 0 if row[x] == 0 else drow[x]
                if softcap > 0:
                    for x in range(n):
                        drow[x] *= slopes[i, x]
            drop(p, n, keep, b, h, at, s, kept_factor)
            multiply(p.T, m, douts_down, i0, dvalues[j : j + whole], True)
            multiply(ds.T, m, queries_down, i0, dkeys[j : j + whole], True)
            multiply(ds, n, keys_down, j, dqueries[i0 : i0 + m], True)
    scatter(dqueries, dq, of_queries, scale, add)
    return is_finite(dqueries.reshape(-1))


@kernel(forceinline=True)
def exp_minus_in_order(row, peak):
    """As `exp_minus`, but zeros at the end of a row do not change a bit of its sum, if its width is
    that of `padded_columns`. So keys that only other queries of the tile see have no influence."""
    exp_minus(row, peak)
    block = VECTORS * BYTES // row.itemsize
    whole = len(row) // block * block
    total = sum_in_vectors(row, whole)
    for j in range(whole, len(row)):
        total += row[j]
    return total


@kernel
def finish_scores(scores, slopes, n, b, h, t, s, softcap, bias, inside, origin, begin, end):
    """Change scale · Q Kᵀ to scores in place, for the queries from t on and the n keys from s on.

    Stores the derivative of the cap in slopes; inside begins with query `origin`. Hidden pairs and
    columns beyond n become −∞, so that every row can be processed over its whole width: loops with
    separate bounds would dominate the time of short rows.
    """
    m = len(scores)
    if softcap > 0:
        for i in range(m):
            for j in range(n):
                x = math.tanh(scores[i, j] / softcap)
                scores[i, j], slopes[i, j] = softcap * x, 1 - x * x
    if bias.size:
        for i in range(m):
            more = of_query(bias, b, h, t + i)
            for j in range(n):
                scores[i, j] += more[s + j]
    if inside.size:
        for i in range(m):
            seen = of_query(inside, b, h, t + i - origin)
            for j in range(n):
                scores[i, j] = scores[i, j] if seen[s + j] else -math.inf
    for i in range(m):
        row = scores[i]
        row[: max(0, min(n, begin[i] - s))] = -math.inf
        row[max(0, end[i] - s) :] = -math.inf


@kernel
def key_range(start, stop):
    """The first and last of the keys that any of several queries sees, empty if there are none."""
    low, high = start[0], stop[0]
    for i in range(len(start)):
        low, high = min(low, start[i]), max(high, stop[i])
    return low, max(low, high)


@kernel
def drop(weights, n, keep, b, h, t, s, kept_factor):
    """Apply dropout in place, for the queries from t on and the n keys from s on."""
    if keep.size:
        for i in range(len(weights)):
            kept = of_query(keep, b, h, t + i)
            for j in range(n):
                weights[i, j] = weights[i, j] * kept_factor if kept[s + j] else 0


@kernel
def of_head(x, b, h):
    """The entry of x, (1 or B, 1 or H, …), for a head."""
    return x[b % x.shape[0], h % x.shape[1]]


@kernel
def of_query(x, b, h, t):
    """The row of x, (1 or B, 1 or H, 1 or T, S), for a query."""
    return x[b % x.shape[0], h % x.shape[1], t % x.shape[2]]


@kernel
def flat(x):
    """x (B, T, H, N) as a matrix."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2] * x.shape[3])


@kernel
def head(x, b, h, heads, start, stop):
    """The region of `flat` that holds the rows of a head from start to stop. x is (B, T, H, N) or
    (B · H, T, 1, N)."""
    b, h = (b, h) if x.shape[2] == heads else (b * heads + h, 0)
    t, n = b * x.shape[1], h * x.shape[3]
    return t + start, t + stop, n, n + x.shape[3]


@kernel
def gather(x, region, scale, y):
    """Store scale · a region of `flat` in y, whose other columns become 0."""
    t0, t1, n0, n1 = region
    row = x.shape[2] * x.shape[3]
    if y.shape[1] > n1 - n0:
        y[:] = 0
    copy(x, t0 * row + n0, row, y, 0, y.shape[1], (t1 - t0, n1 - n0), scale)


@kernel
def scatter(x, y, region, scale, add):
    """Store scale · the first rows and columns of x in a region of `flat`, or add to it."""
    t0, t1, n0, n1 = region
    row = y.shape[2] * y.shape[3]
    if not add:
        copy(x, 0, x.shape[1], y, t0 * row + n0, row, (t1 - t0, n1 - n0), scale)
        return
    flat_y = flat(y)
    for i in range(t1 - t0):
        row = flat_y[t0 + i, n0:n1]
        for j in range(len(row)):
            row[j] += x[i, j] * scale


@kernel
def copy(x, start_x, row_x, y, start_y, row_y, size, scale):
    """y = scale · x for a region of this size. The arrays are plain memory: row r begins at
    start + r * row."""
    (rows, columns), length = size, BYTES // x.itemsize
    whole = columns // length * length
    for i in range(rows):
        for j in range(0, whole, length):
            copy_vector(x, start_x + i * row_x + j, y, start_y + i * row_y + j, scale)
    if whole < columns:
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        for i in range(rows):
            for j in range(whole, columns):
                flat_y[start_y + i * row_y + j] = flat_x[start_x + i * row_x + j] * scale
