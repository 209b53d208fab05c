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
stands for None, so that one compiled kernel supports all arguments. Arrays are passed one by one:
passing named tuples of them made small calls a fifth slower.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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
"""With at most this many queries, a kernel that multiplies in blocks reads keys and values where
they are, without a copy."""


class Place(NamedTuple):
    """Where a tile of scores is in (B, H, T, S): its sequence b, its head h, its first query t and
    its first key s."""

    b: int
    h: int
    t: int
    s: int


@kernel
def forward(  # noqa: PLR0912, PLR0915
    chunk,  # made by `parallel.whole`; divides the items among threads
    query,  # (B, T, H, D) or (B · H, T, 1, D): see `head`
    key,  # (B, S, G, D) or (B · G, S, 1, D)
    value,  # (B, S, G, Dv) or (B · G, S, 1, Dv)
    heads,  # H, G
    start,  # (B, H, T): each query sees the keys from its start
    stop,  # (B, H, T): up to its stop, exclusive
    inside,  # (B, H, some queries, S): except those where this is False; or empty
    origin,  # the first query of `inside`
    bias,  # (B, H, T, S), or empty
    sink,  # (B, H), or empty
    keep,  # (B, H, T, S): the weights that dropout keeps; or empty
    scale,  # the factor of Q Kᵀ
    softcap,  # 0 for none
    kept_factor,  # 1 / (1 − p) of dropout
    operand,  # says whether BLAS or blocks multiply: see `matmul`
    tile,  # the largest numbers of queries and of keys in a tile
    in_order,  # whether no bit of a row of out depends on other queries: see `batch_invariant`
    items,  # (items, 4): each is b, h, t0, t1 for queries t0 … t1 − 1 of a head
    out,  # (B, T, H, Dv)
    lse,  # (B, H, T)
    nonfinite,  # (1,), boolean
):
    """Compute the output and lse, the log-sum-exp of the scores of a query, for the queries of all
    `items`. Each item is a range of queries of one head.

    lse is +∞ for a query that sees no key and no sink, so that exp(scores − lse) is 0. Sets
    nonfinite[0] to True if any output is not finite.
    """
    first_item, last_item = share(chunk)
    query_heads, key_heads = heads
    group = query_heads // key_heads
    depth = query.shape[3]
    depth_v = value.shape[3]
    dtype = operand.dtype
    one = dtype.type(1)
    flat_key = flat(key)
    flat_value = flat(value)

    # Memory for one tile, which all tiles use one after another.
    height, most_keys = tile
    width = min(most_keys, key.shape[1] + GRAIN)
    queries = matrix(height, padded_columns(depth, operand), operand)  # (height, D)
    sums_of_values = matrix(height, padded_columns(depth_v, operand), operand)  # (height, Dv)
    memory = matrix(height, padded_columns(width, operand), operand).reshape(-1)
    slopes = np.empty((height if softcap > 0 else 0, width), dtype)
    peaks = np.empty(height, dtype)
    totals = np.empty(height, dtype)
    # Products also read rows and columns that only fill up their blocks. Uninitialised memory may
    # hold NaN there, or subnormal numbers, which are slow.
    queries[:] = 0
    sums_of_values[:] = 0

    finite = True
    for n_item in range(first_item, last_item):
        b, h, t0, t1 = items[n_item]
        g = h // group
        starts = of_head(start, b, h)[t0:t1]  # (t1 − t0,)
        stops = of_head(stop, b, h)[t0:t1]  # (t1 − t0,)
        low, high = key_range(starts, stops)
        if in_order:
            # Places in a vector are counted from key 0, not from the first visible one.
            low = low // GRAIN * GRAIN

        # For a few queries, a copy would take longer than what it saves.
        copied = high
        if operand.ndim == 3 and t1 - t0 <= _FEW:
            copied = low
        of_keys = head(key, b, g, key_heads, low, copied)
        of_values = head(value, b, g, key_heads, low, copied)
        # Right operands, laid out as `matmul` says. For BLAS, keys is (1, 1, copied − low, D) and
        # values (copied − low, Dv); for blocks, both are panels (·, depth, width).
        keys = right_of_transpose(flat_key, of_keys, operand)  # represents Kᵀ
        values = right(flat_value, of_values, operand)  # represents V

        for i0 in range(0, t1 - t0, height):
            m = min(height, t1 - t0 - i0)
            t = t0 + i0
            begin = starts[i0 : i0 + m]  # (m,)
            end = stops[i0 : i0 + m]  # (m,)
            first, last = key_range(begin, end)
            of_queries = head(query, b, h, query_heads, t, t + m)
            gather(query, of_queries, scale, queries)

            acc = sums_of_values[:m]  # (m, Dv)
            acc[:] = 0
            peaks[:] = -math.inf
            totals[:] = 0
            if sink.size and of_head(sink, b, h) > -math.inf:
                # A sink is a score without a key, so the sum so far is exp(sink − peak) = 1.
                peaks[:] = of_head(sink, b, h)
                totals[:] = 1

            # Blocks of columns begin at multiples of GRAIN, counted from the first copied key.
            s = low + (first - low) // GRAIN * GRAIN
            while s < last:
                n = min(width, last - s)
                if in_order:
                    # Tiles end at multiples of their width, counted from key 0.
                    n = min(n, width - s % width)
                place = Place(b, h, t, s)
                j = s - low
                wide = padded_columns(n, operand)
                scores = memory[: m * wide].reshape(m, wide)  # (m, n) and columns that fill it up
                of_keys = head(key, b, g, key_heads, s, s + n)
                of_values = head(value, b, g, key_heads, s, s + n)

                multiply_by_keys(queries[:m], depth, keys, j, n, flat_key, of_keys, scores)
                finish_scores(
                    scores,
                    slopes,
                    n,
                    place,
                    softcap,
                    bias,
                    inside,
                    origin,
                    begin,
                    end,
                )

                # The online softmax: each row of scores becomes e, and what was summed up so far is
                # rescaled to the new peak.
                for i in range(m):
                    row = scores[i]  # (wide,)
                    peak = peaks[i]
                    highest = row_max(row)
                    new = peak if peak >= highest else highest  # NaN if highest is
                    if new == -math.inf:
                        # No key seen so far: exp(−∞ − (−∞)) would be NaN.
                        row[:] = 0
                        continue
                    more = exp_minus_in_order(row, new)
                    if new != peak and peak > -math.inf:
                        shrink = math.exp(peak - new)
                        totals[i] *= shrink
                        scale_by(acc[i], shrink)
                    peaks[i] = new
                    totals[i] += more

                drop(scores, n, place, keep, kept_factor)
                add_values(scores, n, values, j, flat_value, of_values, acc)
                s += n

            for i in range(m):
                if totals[i] == 0:
                    # A query that sees nothing: its output stays 0.
                    lse[b, h, t + i] = math.inf
                else:
                    scale_by(acc[i], one / totals[i])
                    lse[b, h, t + i] = peaks[i] + math.log(totals[i])
            finite &= is_finite(acc.reshape(-1))
            scatter(acc, out, head(out, b, h, query_heads, t, t + m), one, False)

    if not finite:
        nonfinite[0] = True


@kernel
def multiply_by_keys(queries, depth, keys, start, n, flat_key, region, scores):
    """Store Q Kᵀ, for m queries and n keys, in scores, which has m rows and at least n columns. The
    first `depth` columns of `queries` are Q.

    If the keys were copied, `keys` is the copy: the transpose of the keys, as a right operand (see
    `matmul`), whose column `start` is the first of the n keys. Otherwise `keys` is empty, and the n
    keys are the `region` (first row, end, first column, end) of flat_key.
    """
    if keys.size:
        multiply(queries, depth, some_columns(keys, start, start + n), 0, scores, False)
    else:
        scores[:] = 0
        add_columns_of_matrix(queries, flat_key, region, scores, 0)


@kernel
def add_values(weights, n, values, start, flat_value, region, acc):
    """Add the products of m rows of weights and n values to acc (m, Dv). The first n columns of
    `weights` are the weights.

    If the values were copied, `values` is the copy, as a right operand (see `matmul`), whose row
    `start` is the first of the n values. Otherwise `values` is empty, and the n values are the
    `region` (first row, end, first column, end) of flat_value.
    """
    if values.size:
        multiply(weights, n, values, start, acc, True)
        return

    # The sum of the block's terms is added at once, as `multiply` does.
    _, _, n0, n1 = region
    sums = np.zeros_like(acc)
    add_rows_of_matrix(weights, flat_value, region, sums, 0)
    for i in range(len(acc)):
        for j in range(n1 - n0):
            acc[i, j] += sums[i, j]


@kernel
def backward(
    chunk,  # made by `parallel.whole`; divides the items among threads
    query,  # (B, T, H, D) or (B · H, T, 1, D): see `head`
    key,  # (B, S, G, D) or (B · G, S, 1, D)
    value,  # (B, S, G, Dv) or (B · G, S, 1, Dv)
    heads,  # H, G
    start,  # (B, H, T): each query sees the keys from its start
    stop,  # (B, H, T): up to its stop, exclusive
    inside,  # (B, H, some queries, S): except those where this is False; or empty
    origin,  # the first query of `inside`
    bias,  # (B, H, T, S), or empty
    keep,  # (B, H, T, S): the weights that dropout keeps; or empty
    scale,  # the factor of Q Kᵀ
    softcap,  # 0 for none
    kept_factor,  # 1 / (1 − p) of dropout
    operand,  # says whether BLAS or blocks multiply: see `matmul`
    tile,  # the largest numbers of queries and of keys in a tile
    most,  # queries, keys: the largest numbers that are copied at a time
    items,  # (items, 5): each is c, b, g, from_key, to_key, part c of the keys of a head
    out,  # (B, T, H, Dv)
    lse,  # (B, H, T)
    dout,  # (B, T, H, Dv)
    dlse,  # (B, H, T), or empty
    t0,  # the first query whose part is computed
    t1,  # the end of these queries
    dquery,  # (C, B, T, H, D): part c of the keys contributes to dquery[c]
    dkey,  # (B, S, G, D)
    dvalue,  # (B, S, G, Dv)
    dbias,  # (B, H, T, S), or empty
    nonfinite,  # (1,), boolean
):
    """Compute the gradients dquery, dkey and dvalue and, unless it is empty, dbias, which the
    caller has filled with zeros. Each item is a range of keys of one key head.

    A call computes the parts of these gradients that come from the queries from t0 to t1. Unless t0
    is 0, dkey and dvalue hold the sums over the queries before t0, and the call adds to them.
    Several calls, one for each part of the queries, give the same bits as a single call for all of
    them if each part begins at a multiple of most[0]. Sets nonfinite[0] to True if any gradient is
    not finite.
    """
    first_item, last_item = share(chunk)
    query_heads, key_heads = heads
    most_queries, most_keys = most
    group = query_heads // key_heads
    one = operand.dtype.type(1)
    depth = padded_columns(key.shape[3], operand)
    depth_v = padded_columns(value.shape[3], operand)
    flat_key = flat(key)
    flat_value = flat(value)

    finite = True
    for n_item in range(first_item, last_item):
        c, b, g, from_key, to_key = items[n_item]
        for s0 in range(from_key, to_key, most_keys):
            s1 = min(s0 + most_keys, to_key)
            of_keys = head(key, b, g, key_heads, s0, s1)
            of_values = head(value, b, g, key_heads, s0, s1)
            # Right operands, laid out as `matmul` says. For BLAS they are (1, 1, s1 − s0, D),
            # (s1 − s0, D) and (1, 1, s1 − s0, Dv); for blocks, panels (·, depth, width).
            keys_across = right_of_transpose(flat_key, of_keys, operand)  # represents Kᵀ
            keys_down = right(flat_key, of_keys, operand)  # represents K
            values_across = right_of_transpose(flat_value, of_values, operand)  # represents Vᵀ

            # The last block of a product may extend beyond the last key.
            dkeys = matrix(s1 - s0 + GRAIN, depth, operand)  # (s1 − s0, D)
            dvalues = matrix(s1 - s0 + GRAIN, depth_v, operand)  # (s1 − s0, Dv)
            dkeys[:] = 0
            dvalues[:] = 0
            if t0 > 0:
                gather(dkey, of_keys, one, dkeys)
                gather(dvalue, of_values, one, dvalues)

            for from_query in range(t0, t1, most_queries):
                to_query = min(from_query + most_queries, t1)
                for h in range(g * group, (g + 1) * group):
                    finite &= tiles_backward(
                        query,
                        keys_across,
                        keys_down,
                        values_across,
                        query_heads,
                        of_head(start, b, h),
                        of_head(stop, b, h),
                        inside,
                        origin,
                        bias,
                        keep,
                        scale,
                        softcap,
                        kept_factor,
                        operand,
                        tile,
                        out,
                        lse,
                        dout,
                        dlse,
                        b,
                        h,
                        from_query,
                        to_query,
                        s0,
                        s1,
                        s0 > from_key,
                        dquery[c],
                        dkeys,
                        dvalues,
                        dbias,
                    )

            finite &= is_finite(dkeys.reshape(-1)) and is_finite(dvalues.reshape(-1))
            scatter(dkeys, dkey, of_keys, one, False)
            scatter(dvalues, dvalue, of_values, one, False)

    if not finite:
        nonfinite[0] = True


@kernel
def tiles_backward(  # noqa: PLR0915
    query,  # (B, T, H, D)
    keys_across,  # Kᵀ (D, s1 − s0) as a right operand, laid out as `matmul` says
    keys_down,  # K (s1 − s0, D) as a right operand
    values_across,  # Vᵀ (Dv, s1 − s0) as a right operand
    heads,  # H
    start,  # (T,): each query of the head sees the keys from its start
    stop,  # (T,): up to its stop, exclusive
    inside,  # (B, H, some queries, S): except those where this is False; or empty
    origin,  # the first query of `inside`
    bias,  # (B, H, T, S), or empty
    keep,  # (B, H, T, S): the weights that dropout keeps; or empty
    scale,  # the factor of Q Kᵀ
    softcap,  # 0 for none
    kept_factor,  # 1 / (1 − p) of dropout
    operand,  # says whether BLAS or blocks multiply: see `matmul`
    tile,  # the largest numbers of queries and of keys in a tile
    out,  # (B, T, H, Dv)
    lse,  # (B, H, T)
    dout,  # (B, T, H, Dv)
    dlse,  # (B, H, T), or empty
    b,  # the sequence
    h,  # the head
    t0,  # the first query
    t1,  # the end of the queries
    s0,  # the first key
    s1,  # the end of the keys
    add,  # whether dquery has an earlier part of the sum
    dquery,  # (B, T, H, D): stored or, if `add`, added to
    dkeys,  # (s1 − s0, D), added to
    dvalues,  # (s1 − s0, Dv), added to
    dbias,  # (B, H, T, S), stored unless empty
):
    """Compute, tile by tile, what the queries from t0 to t1 and the keys from s0 to s1 of head h of
    sequence b contribute to the gradients.

    Returns whether the gradient of these queries is finite.
    """
    low, high = key_range(start[t0:t1], stop[t0:t1])
    if add and (high <= s0 or low >= s1):
        # None of these queries sees any of these keys.
        return True

    t = t1 - t0
    depth = query.shape[3]
    depth_v = out.shape[3]
    of_queries = head(query, b, h, heads, t0, t1)
    of_out = head(out, b, h, heads, t0, t1)
    of_dout = head(dout, b, h, heads, t0, t1)

    queries = matrix(t, padded_columns(depth, operand), operand)  # scale · Q, (t, D)
    douts = matrix(t, padded_columns(depth_v, operand), operand)  # dO, (t, Dv)
    dqueries = matrix(t, padded_columns(depth, operand), operand)  # (t, D)
    gather(query, of_queries, scale, queries)
    gather(dout, of_dout, operand.dtype.type(1), douts)
    dqueries[:] = 0
    queries_down = as_right(queries, operand)
    douts_down = as_right(douts, operand)

    # delta = Σ dO · out − dlse
    outs = flat(out)
    delta = np.empty(t, operand.dtype)
    for i in range(t):
        delta[i] = dot(douts[i, :depth_v], outs[of_out[0] + i, of_out[2] : of_out[3]])
        if dlse.size:
            delta[i] -= dlse[b, h, t0 + i]

    # Memory for one tile, which all tiles use one after another.
    height, width = tile
    height = min(height, t)
    room = min(width, s1 - s0) + GRAIN
    p_memory = matrix(height, room, operand)
    ds_memory = matrix(height, room, operand)
    slopes = np.empty((height if softcap > 0 else 0, width), operand.dtype)

    for j0 in range(0, s1 - s0, width):
        for i0 in range(0, t, height):
            # The tile has m queries, from t0 + i0 on, and n keys, from s0 + j on.
            m = min(height, t - i0)
            at = t0 + i0
            begin = start[at : at + m]  # (m,)
            end = stop[at : at + m]  # (m,)
            low, high = key_range(begin, end)
            j = max(j0, (low - s0) // GRAIN * GRAIN)
            n = min(j0 + width, s1 - s0, high - s0) - j
            if n <= 0:
                continue
            place = Place(b, h, at, s0 + j)

            # A product fills whole blocks of columns, and pᵀ and dsᵀ need whole blocks of rows.
            used = padded_columns(n, operand)
            whole = padded_rows(n, operand)
            wide = max(used, whole)
            p = p_memory.reshape(-1)[: m * wide].reshape(m, wide)  # (m, n) and what fills it up
            ds = ds_memory.reshape(-1)[: m * wide].reshape(m, wide)  # the same

            # p becomes the scores, and ds becomes dP.
            q = queries[i0 : i0 + m]  # (m, D)
            do = douts[i0 : i0 + m]  # (m, Dv)
            keys = some_columns(keys_across, j, j + n)  # Kᵀ (D, n) as a right operand
            values = some_columns(values_across, j, j + n)  # Vᵀ (Dv, n), likewise
            multiply(q, depth, keys, 0, p, False)
            multiply(do, depth_v, values, 0, ds, False)
            finish_scores(p, slopes, n, place, softcap, bias, inside, origin, begin, end)
            drop(ds, n, place, keep, kept_factor)

            # p becomes the weights, and ds becomes dscores.
            for i in range(m):
                row = p[i, :used]  # (used,)
                drow = ds[i]  # (wide,)
                mean = delta[i0 + i]
                exp_minus(row, lse[b, h, at + i])
                for x in range(used):
                    drow[x] = row[x] * (drow[x] - mean)
                p[i, used:] = 0
                drow[used:] = 0
                if dbias.size:
                    for x in range(n):
                        # 0 for a hidden pair, as outside the tile; not −0
                        dbias[b, h, at + i, place.s + x] = 0 if row[x] == 0 else drow[x]
                if softcap > 0:
                    for x in range(n):
                        drow[x] *= slopes[i, x]
            drop(p, n, place, keep, kept_factor)

            multiply(p.T, m, douts_down, i0, dvalues[j : j + whole], True)
            multiply(ds.T, m, queries_down, i0, dkeys[j : j + whole], True)
            multiply(ds, n, keys_down, j, dqueries[i0 : i0 + m], True)

    scatter(dqueries, dquery, of_queries, scale, add)
    return is_finite(dqueries.reshape(-1))


@kernel(forceinline=True)
def exp_minus_in_order(row, peak):
    """Replace a row by exp(row − peak), for a peak that no entry exceeds, as `exp_minus` does.
    Returns the sum of the new row.

    If the width of the row is a result of `padded_columns`, more zeros at its end do not change a
    bit of the sum. So keys that the query of this row does not see have no influence on it, even if
    the tile is wider because other queries see them.
    """
    exp_minus(row, peak)
    block = VECTORS * BYTES // row.itemsize
    whole = len(row) // block * block
    total = sum_in_vectors(row, whole)
    for j in range(whole, len(row)):
        total += row[j]
    return total


@kernel
def finish_scores(
    scores,  # (m, n), and more columns up to the width of a block
    slopes,  # (m, n), used only with a softcap
    n,  # the number of keys in the tile
    place,  # the `Place` of the tile
    softcap,  # 0 for none
    bias,  # (B, H, T, S), or empty
    inside,  # (B, H, some queries, S), False hides a key between begin and end; or empty
    origin,  # the first query of `inside`
    begin,  # (m,), the first key that each query sees
    end,  # (m,), the end of the keys that it sees
):
    """Turn scale · Q Kᵀ, for a tile of m queries and n keys, into scores in place: apply the
    softcap, add the bias, and hide the keys that a query does not see.

    The derivative of the softcap is stored in slopes. Hidden keys and columns beyond n become −∞,
    so that later loops can go over the whole width of each row. With bounds of its own for each
    row, most of the time of a short row would go into these.
    """
    b, h, t, s = place
    m = len(scores)
    if softcap > 0:
        for i in range(m):
            for j in range(n):
                bend = math.tanh(scores[i, j] / softcap)
                scores[i, j] = softcap * bend
                slopes[i, j] = 1 - bend * bend
    if bias.size:
        for i in range(m):
            more = of_query(bias, b, h, t + i)  # (S,)
            for j in range(n):
                scores[i, j] += more[s + j]
    if inside.size:
        for i in range(m):
            seen = of_query(inside, b, h, t + i - origin)  # (S,)
            for j in range(n):
                scores[i, j] = scores[i, j] if seen[s + j] else -math.inf
    for i in range(m):
        row = scores[i]
        row[: max(0, min(n, begin[i] - s))] = -math.inf
        row[max(0, end[i] - s) :] = -math.inf


@kernel
def key_range(start, stop):
    """Return (low, high), a range outside which no query sees a key: `start` and `stop` have an
    entry for each of several queries, which sees the keys from its start to its stop (exclusive).
    low is the smallest start and high the largest stop, or low if no stop is larger."""
    low = start[0]
    high = stop[0]
    for i in range(len(start)):
        low = min(low, start[i])
        high = max(high, stop[i])
    return low, max(low, high)


@kernel
def drop(weights, n, place, keep, kept_factor):
    """Apply dropout in place to the weights (m, n) of the tile at `place`: multiply those where
    `keep` is True by kept_factor, 1 / (1 − p), and set the others to 0. An empty `keep` means no
    dropout. `weights` may have more than n columns, which do not change."""
    if keep.size:
        b, h, t, s = place
        for i in range(len(weights)):
            kept = of_query(keep, b, h, t + i)  # (S,)
            for j in range(n):
                weights[i, j] = weights[i, j] * kept_factor if kept[s + j] else 0


@kernel
def of_head(x, b, h):
    """x[b, h], the part of x for head h of sequence b. The first two axes of x have the lengths B
    and H, or length 1 if all sequences or all heads share the entries of x."""
    return x[b % x.shape[0], h % x.shape[1]]


@kernel
def of_query(x, b, h, t):
    """x[b, h, t], the row (S,) of x for query t of head h of sequence b. The axes of x have the
    lengths B, H, T and S; each of the first three has length 1 if its sequences, heads or queries
    share the entries."""
    return x[b % x.shape[0], h % x.shape[1], t % x.shape[2]]


@kernel
def flat(x):
    """Reshape x (B, T, H, N) to a matrix (B · T, H · N)."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2] * x.shape[3])


@kernel
def head(x, b, h, heads, start, stop):
    """The region (first row, end, first column, end) of the matrix `flat(x)` that holds head h of
    sequence b, from its row `start` to its row `stop`. x is (B, T, H, N) or (B · H, T, 1, N), and
    `heads` is H."""
    if x.shape[2] != heads:
        b = b * heads + h
        h = 0
    t = b * x.shape[1]
    n = h * x.shape[3]
    return t + start, t + stop, n, n + x.shape[3]


@kernel
def gather(x, region, scale, y):
    """Copy a region (first row, end, first column, end) of the matrix `flat(x)`, such as a result
    of `head`, times scale, to the first rows of the matrix y. If y has more columns than the
    region, the others become 0."""
    t0, t1, n0, n1 = region
    row = x.shape[2] * x.shape[3]
    size = t1 - t0, n1 - n0
    if y.shape[1] > n1 - n0:
        y[:] = 0
    copy(x, t0 * row + n0, row, y, 0, y.shape[1], size, scale)


@kernel
def scatter(x, y, region, scale, add):
    """Copy the matrix x, times scale, to a region of the matrix `flat(y)` or, if `add`, add it
    there. region is (first row, end, first column, end), as `head` returns it. Rows and columns of
    x beyond the size of the region are left out."""
    t0, t1, n0, n1 = region
    if not add:
        row = y.shape[2] * y.shape[3]
        size = t1 - t0, n1 - n0
        copy(x, 0, x.shape[1], y, t0 * row + n0, row, size, scale)
        return
    flat_y = flat(y)
    for i in range(t1 - t0):
        row_y = flat_y[t0 + i, n0:n1]
        for j in range(len(row_y)):
            row_y[j] += x[i, j] * scale


@kernel
def copy(x, start_x, row_x, y, start_y, row_y, size, scale):
    """Set y = scale · x for a block of x and a block of y, both of `size` (rows, columns).

    The shapes of the arrays do not matter: in memory, row r of the block of x begins at entry
    start_x + r * row_x, and row r of the block of y at entry start_y + r * row_y.
    """
    rows, columns = size
    length = BYTES // x.itemsize
    whole = columns // length * length
    for i in range(rows):
        for j in range(0, whole, length):
            copy_vector(x, start_x + i * row_x + j, y, start_y + i * row_y + j, scale)

    # The columns after the last whole vector.
    if whole < columns:
        flat_x = x.reshape(-1)
        flat_y = y.reshape(-1)
        for i in range(rows):
            for j in range(whole, columns):
                flat_y[start_y + i * row_y + j] = flat_x[start_x + i * row_x + j] * scale
