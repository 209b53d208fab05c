"""Attention on a GPU in tiles, with online softmax: no array of size (T, S) is ever made.

A *block* of threads computes one tile of the result. `ct.bid` is its index in the grid, and its
variables are tiles: arrays of a fixed size that stay in registers. It loads a tile of an array by
the index of the tile along each axis. If a tile extends beyond the array, zeros are loaded for the
part outside, and only the part inside is stored. The formulas are those of
`kernels.cpu.attention_tiles`, except that exponentials and logarithms have base 2, which a GPU
computes directly.

    q (B, H, T, D)   k (B, G, S, D)   v (B, G, S, V)   out (B, H, T, V)   lse (B, H, T)
    start, stop (B, H, T)   a query sees the keys from start up to stop, exclusive,
    inside (B, H, T, S)     except those where this is False
    bias (B, H, T, S), sink (B, H)
    keep (B, H, T, S)       the pairs that dropout keeps; if `counted`, a seed and a threshold, from
                            which `kept` computes them

The tiles of keys that a tile of queries sees are an edge, the middle, and another edge. If an array
has an entry for each pair (inside, bias or keep), all of them are edges. In the middle every query
sees every key, so there is nothing to hide. At the edges, pairs may be hidden. Their weight is 0,
but 0 · NaN is NaN. So at an edge, entries that are NaN or infinite are replaced by 0, and an entry
of the result to which a visible pair contributes such an entry is set to NaN.
The loops have no branch that depends on the contents of these arrays: with such a branch, the next
tile would not be loaded while this one is multiplied.

Each Const is known when a kernel is compiled: M queries and N keys in a tile; D and V, the widths
rounded up to a power of 2; scale, softcap (0 for none) and `kept_factor`, 1 / (1 − dropout); which
of the optional arrays are used; whether tf32 is precise enough for products of float32. Sums have
the dtype of lse. Source: Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

import math

try:
    import cuda.tile as ct
except ImportError:
    from . import numpy_tile as ct

Const = ct.Constant
LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
ZERO = ct.PaddingMode.ZERO


def rows(x, b, h, i, height, width):
    """Tile i of the rows of a head, (height, width)."""
    tile = ct.load(x, (b, h, i, 0), (1, 1, height, width), padding_mode=ZERO)
    return tile.reshape((height, width))


def columns(x, b, h, i, height, width):
    """The same tile transposed, (width, height)."""
    tile = ct.load(x, (b, h, 0, i), (1, 1, width, height), order=(0, 1, 3, 2), padding_mode=ZERO)
    return tile.reshape((width, height))


def numbers(x, b, h, i, shape):
    """One number for each query of tile i; shape is (M, 1) or (1, M)."""
    m = shape[0] * shape[1]
    return ct.load(x, (b, h, i), (1, 1, m), padding_mode=ZERO).reshape(shape)


def pairs(x, place, shape, flip):
    """One number for each pair of a query of tile i and a key of tile j.

    place is (b, h, i, j). The shape is (M, N), or (N, M) if flip.
    """
    b, h, i, j = place
    if flip:
        tile = ct.load(x, (b, h, j, i), (1, 1, *shape), order=(0, 1, 3, 2), padding_mode=ZERO)
    else:
        tile = ct.load(x, place, (1, 1, *shape), padding_mode=ZERO)
    return tile.reshape(shape)


def ordered(first, whole, rest, last, only_edges):
    """Four indices of tiles, limited so that first ≤ whole ≤ rest ≤ last.

    The middle, from whole up to rest, is empty if only_edges.
    """
    if only_edges:
        whole = last
    whole = ct.minimum(ct.maximum(whole, first), last)
    rest = ct.minimum(ct.maximum(rest, whole), last)
    return first, whole, rest, last


def tiles_of_keys(begin, end, i, queries, keys, M, N, only_edges):
    """Which tiles of keys the queries of tile i see; begin and end are (M, 1).

    Some pairs are visible in the tiles from first up to last, and all pairs in those from whole up
    to rest. Both ends are exclusive.
    """
    sees = begin < end
    first = ct.min(ct.where(sees, begin, keys)) // N
    last = ct.cdiv(ct.max(ct.where(sees, end, 0)), N)

    # Rows of the tile beyond the last query are never stored, so nothing must be hidden from them.
    query = (i * M + ct.arange(M, dtype=ct.int32)).reshape((M, 1))
    whole = ct.cdiv(ct.max(begin), N)
    rest = ct.min(ct.where(query < queries, end, keys)) // N
    return ordered(first, whole, rest, last, only_edges)


def tiles_of_queries(seeing, b, h, j, only_edges):
    """The same four indices for the tiles of queries that see the keys of tile j."""
    first = ct.load(seeing, (b, h, j, 0), (1, 1, 1, 1)).item()
    whole = ct.load(seeing, (b, h, j, 1), (1, 1, 1, 1)).item()
    rest = ct.load(seeing, (b, h, j, 2), (1, 1, 1, 1)).item()
    last = ct.load(seeing, (b, h, j, 3), (1, 1, 1, 1)).item()
    return ordered(first, whole, rest, last, only_edges)


def count(tiles, edge):
    """How many tiles there are at the edges or, if not edge, in the middle."""
    first, whole, rest, last = tiles
    return (last - first) - (rest - whole) if edge else rest - whole


def number(tiles, edge, n):
    """The index of the nth tile at the edges or in the middle. The edges skip the middle."""
    first, whole, rest, _ = tiles
    return first + n + (n >= whole - first) * (rest - whole) if edge else whole + n


def product(x, y, acc, tf32):
    """acc + x y, on the tensor cores. They round float32 to tf32, which has 10 bits of fraction.

    Unless tf32 is enough, the rounding error of each number is multiplied, too, as another tf32.
    This keeps about 21 bits.
    """
    if x.dtype != ct.float32 or y.dtype != ct.float32:
        return ct.mma(x, y, acc)
    a = x.astype(ct.tfloat32)
    b = y.astype(ct.tfloat32)
    if not tf32:
        rest = (x - a.astype(ct.float32)).astype(ct.tfloat32)
        acc = ct.mma(rest, b, acc)
        rest = (y - b.astype(ct.float32)).astype(ct.tfloat32)
        acc = ct.mma(a, rest, acc)
    return ct.mma(a, b, acc)


def exp2(x):
    """2^x. In float32, results below 2^−126 become 0, since computing them takes longer."""
    return ct.exp2(x) if x.dtype == ct.float64 else ct.exp2(x, flush_to_zero=True)


def biases(bias, biased, place, shape, flip, dtype):
    """The bias of each pair, or 0 without a bias."""
    added = 0.0
    if biased:
        added = pairs(bias, place, shape, flip).astype(dtype)
    return added


def scores_of(raw, scale, softcap, added, biased):
    """The scores times log₂ e, from a tile of Q Kᵀ and its biases, and the slope of the softcap."""
    slope = 1.0
    if softcap > 0:
        bend = ct.tanh(raw * (scale / softcap))
        scores = bend * (softcap * LOG2_E)
        slope = 1.0 - bend * bend
    else:
        scores = raw * (scale * LOG2_E)
    if biased:
        scores = scores + added * LOG2_E
    return scores, slope


def visible(begin, end, inside, masked, added, biased, place, shape, flip):
    """Whether the query of each pair may attend to the key; begin and end are those of tile i."""
    n = shape[0] if flip else shape[1]
    key = (place[3] * n + ct.arange(n, dtype=ct.int32)).reshape((n, 1) if flip else (1, n))
    seen = (begin <= key) & (key < end)
    if masked:
        seen = seen & pairs(inside, place, shape, flip)
    if biased:
        seen = seen & (added != -math.inf)
    return seen


def mixed(x):
    """A hash: every bit of the result depends on every bit of x. See `functional.Draw`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


def kept(keep, counted, heads, place, shape, flip):
    """Whether dropout keeps each pair: read from keep or, if counted, computed from its seed."""
    if counted:
        b, h, i, j = place
        m, n = (shape[1], shape[0]) if flip else shape
        head = ct.full((1, 1), b * heads + h, ct.int32).astype(ct.uint32)
        query = (i * m + ct.arange(m, dtype=ct.int32)).astype(ct.uint32)
        key = (j * n + ct.arange(n, dtype=ct.int32)).astype(ct.uint32)
        seed = ct.load(keep, (0, 0, 0, 0), (1, 1, 1, 1)).reshape((1, 1))
        bits = mixed(mixed(seed + head) + query.reshape((1, m) if flip else (m, 1)))
        bits = mixed(bits + key.reshape((n, 1) if flip else (1, n)))
        seen = bits >> 8 < ct.load(keep, (0, 0, 0, 1), (1, 1, 1, 1)).reshape((1, 1))
    else:
        seen = pairs(keep, place, shape, flip)
    return seen


def finite(x):
    """x with zeros in place of NaN and infinity."""
    return ct.where(x * 0.0 == 0.0, x, 0.0)


def sees_odd(seen, x, dtype):
    """Whether a query sees an entry of a column of x that is not finite, (M, columns)."""
    odd = ct.where(x * 0.0 == 0.0, 0.0, 1.0).astype(x.dtype)
    zero = ct.full((seen.shape[0], x.shape[1]), 0.0, dtype)
    return product(ct.where(seen, 1.0, 0.0).astype(x.dtype), odd, zero, True) > 0.0


def spoilt(x, dtype, shape):
    """For each row of x, 0 if all its entries are finite, else NaN, in a tile of this shape."""
    return ct.sum(x.astype(dtype) * 0.0, axis=1).reshape(shape)


@ct.kernel(num_worker_warps=8)
def forward(
    q, k, v, start, stop, inside, bias, keep, sink, out, lse,
    scale: Const[float], softcap: Const[float], kept_factor: Const[float], masked: Const[bool],
    biased: Const[bool], dropped: Const[bool], counted: Const[bool], sunk: Const[bool],
    tf32: Const[bool], M: Const[int], N: Const[int], D: Const[int], V: Const[int],
):  # fmt: skip
    """out and lse of M queries. lse is +∞ for a query that sees neither a key nor a sink, so that
    exp(… − lse) = 0.
    """
    # The last queries see the most keys under a causal mask: they get the first blocks.
    i = ct.num_blocks(0) - 1 - ct.bid(0)
    h = ct.bid(1)
    b = ct.bid(2)
    g = h // (q.shape[1] // k.shape[1])

    query = rows(q, b, h, i, M, D)
    begin = numbers(start, b, h, i, (M, 1))
    end = numbers(stop, b, h, i, (M, 1))

    peak = ct.full((M, 1), -math.inf, lse.dtype)
    total = ct.full((M, 1), 0.0, lse.dtype)
    acc = ct.full((M, V), 0.0, lse.dtype)
    if sunk:  # a score without a key
        peak = ct.maximum(peak, ct.load(sink, (b, h), (1, 1)).astype(lse.dtype) * LOG2_E)
        total = ct.where(peak > -math.inf, 1.0, total)

    only_edges = masked or biased or (dropped and not counted)
    tiles = tiles_of_keys(begin, end, i, q.shape[2], k.shape[2], M, N, only_edges)
    for edge in ct.static_iter((True,) if only_edges else (True, False)):
        for n in range(count(tiles, edge)):
            j = number(tiles, edge, n)
            place = (b, h, i, j)
            value = rows(v, b, g, j, N, V)
            raw = product(query, columns(k, b, g, j, N, D), ct.full((M, N), 0.0, lse.dtype), tf32)
            added = biases(bias, biased, place, (M, N), False, lse.dtype)
            scores, _ = scores_of(raw, scale, softcap, added, biased)
            if edge:
                seen = visible(begin, end, inside, masked, added, biased, place, (M, N), False)
                scores = ct.where(seen, scores, -math.inf)

            new = ct.maximum(peak, ct.max(scores, axis=1, keepdims=True))
            base = ct.where(new == -math.inf, 0.0, new)  # no key seen so far
            p = exp2(scores - base)
            shrink = exp2(peak - base)
            peak = new
            total = total * shrink + ct.sum(p, axis=1, keepdims=True)

            if dropped:
                p = ct.where(
                    kept(keep, counted, q.shape[1], place, (M, N), False), p * kept_factor, 0.0
                )
            if edge:
                p = ct.where(seen, p, 0.0)
                acc = ct.where(sees_odd(seen, value, acc.dtype), math.nan, acc)
                value = finite(value)
            acc = product(p.astype(v.dtype), value, acc * shrink, tf32)

    empty = total == 0.0
    acc = acc / ct.where(empty, 1.0, total)
    logs = ct.where(empty, math.inf, peak * LN_2 + ct.log(total))
    ct.store(out, (b, h, i, 0), acc.astype(out.dtype).reshape((1, 1, M, V)))
    ct.store(lse, (b, h, i), logs.reshape((1, 1, M)))


@ct.kernel(num_worker_warps=8)
def backward_query(
    q, k, v, start, stop, inside, bias, keep, out, lse, dout, dlse, delta, spoils, dq, dbias,
    scale: Const[float], softcap: Const[float], kept_factor: Const[float], masked: Const[bool],
    biased: Const[bool], dropped: Const[bool], counted: Const[bool], wants_bias: Const[bool],
    has_dlse: Const[bool],
    tf32: Const[bool], M: Const[int], N: Const[int], D: Const[int], V: Const[int],
):  # fmt: skip
    """dq and, if wanted, dbias of M queries.

    Also, for `backward_key`, delta = Σ dout · out − dlse, and spoils, which is NaN for each query
    whose dout is not finite, else 0.
    """
    i = ct.num_blocks(0) - 1 - ct.bid(0)
    h = ct.bid(1)
    b = ct.bid(2)
    g = h // (q.shape[1] // k.shape[1])

    query = rows(q, b, h, i, M, D)
    dresult = rows(dout, b, h, i, M, V)
    begin = numbers(start, b, h, i, (M, 1))
    end = numbers(stop, b, h, i, (M, 1))
    logs = numbers(lse, b, h, i, (M, 1)) * LOG2_E

    result = rows(out, b, h, i, M, V).astype(lse.dtype)
    weighted = result * dresult.astype(lse.dtype)
    # A query that sees no key has the result 0, and 0 · NaN must not reach the sink.
    mean = ct.sum(ct.where(result == 0.0, 0.0, weighted), axis=1, keepdims=True)
    if has_dlse:
        mean = mean - numbers(dlse, b, h, i, (M, 1))
    ct.store(delta, (b, h, i), mean.reshape((1, 1, M)))
    ct.store(spoils, (b, h, i), spoilt(dresult, lse.dtype, (1, 1, M)))

    zero = ct.full((M, N), 0.0, lse.dtype)
    acc = ct.full((M, D), 0.0, lse.dtype)
    only_edges = masked or biased or (dropped and not counted)
    tiles = tiles_of_keys(begin, end, i, q.shape[2], k.shape[2], M, N, only_edges)
    for edge in ct.static_iter((True,) if only_edges else (True, False)):
        for n in range(count(tiles, edge)):
            j = number(tiles, edge, n)
            place = (b, h, i, j)
            key = rows(k, b, g, j, N, D)
            raw = product(query, columns(k, b, g, j, N, D), zero, tf32)
            added = biases(bias, biased, place, (M, N), False, lse.dtype)
            scores, slope = scores_of(raw, scale, softcap, added, biased)
            dp = product(dresult, columns(v, b, g, j, N, V), zero, tf32)
            if dropped:
                dp = ct.where(
                    kept(keep, counted, q.shape[1], place, (M, N), False), dp * kept_factor, 0.0
                )

            dcapped = exp2(scores - logs) * (dp - mean)  # of the scores after the softcap
            ds = dcapped * slope
            if edge:
                seen = visible(begin, end, inside, masked, added, biased, place, (M, N), False)
                dcapped = ct.where(seen, dcapped, 0.0)
                ds = ct.where(seen, ds, 0.0)
                key = finite(key)
            if wants_bias:
                # tileiras 13.4 cannot compile this store by TMA for every tile on Blackwell.
                tile = dcapped.astype(dbias.dtype).reshape((1, 1, M, N))
                ct.store(dbias, place, tile, allow_tma=False)
            acc = product(ds.astype(k.dtype), key, acc, tf32)

    ct.store(dq, (b, h, i, 0), (acc * scale).astype(dq.dtype).reshape((1, 1, M, D)))


@ct.kernel(num_worker_warps=8)
def backward_key(
    q, k, v, start, stop, inside, bias, keep, lse, dout, delta, spoils, seeing, dk, dv,
    scale: Const[float], softcap: Const[float], kept_factor: Const[float], masked: Const[bool],
    biased: Const[bool], dropped: Const[bool], counted: Const[bool],
    tf32: Const[bool], M: Const[int], N: Const[int], D: Const[int], V: Const[int],
):  # fmt: skip
    """dk and dv of N keys: sums over the queries that see them, in all heads that share the keys.

    Tiles of pairs have the shape (N, M) here, so that no product needs them transposed.
    """
    j = ct.bid(0)
    g = ct.bid(1)
    b = ct.bid(2)
    group = q.shape[1] // k.shape[1]

    key = rows(k, b, g, j, N, D)
    value = rows(v, b, g, j, N, V)
    zero = ct.full((N, M), 0.0, lse.dtype)
    dkey = ct.full((N, D), 0.0, lse.dtype)
    dvalue = ct.full((N, V), 0.0, lse.dtype)
    only_edges = masked or biased or (dropped and not counted)
    for h in range(g * group, (g + 1) * group):
        tiles = tiles_of_queries(seeing, b, h, j, only_edges)
        for edge in ct.static_iter((True,) if only_edges else (True, False)):
            for n in range(count(tiles, edge)):
                i = number(tiles, edge, n)
                place = (b, h, i, j)
                query = rows(q, b, h, i, M, D)
                dresult = rows(dout, b, h, i, M, V)
                raw = product(key, columns(q, b, h, i, M, D), zero, tf32)
                added = biases(bias, biased, place, (N, M), True, lse.dtype)
                scores, slope = scores_of(raw, scale, softcap, added, biased)
                dp = product(value, columns(dout, b, h, i, M, V), zero, tf32)

                p = exp2(scores - numbers(lse, b, h, i, (1, M)) * LOG2_E)
                weights = p
                if dropped:
                    seen = kept(keep, counted, q.shape[1], place, (N, M), True)
                    weights = ct.where(seen, p * kept_factor, 0.0)
                    dp = ct.where(seen, dp * kept_factor, 0.0)

                ds = p * (dp - numbers(delta, b, h, i, (1, M))) * slope
                if edge:
                    begin = numbers(start, b, h, i, (1, M))
                    end = numbers(stop, b, h, i, (1, M))
                    seen = visible(begin, end, inside, masked, added, biased, place, (N, M), True)
                    weights = ct.where(seen, weights + numbers(spoils, b, h, i, (1, M)), 0.0)
                    ds = ct.where(seen, ds, 0.0)
                    dresult = finite(dresult)
                    query = finite(query)
                dvalue = product(weights.astype(dout.dtype), dresult, dvalue, tf32)
                dkey = product(ds.astype(q.dtype), query, dkey, tf32)

    ct.store(dk, (b, g, j, 0), (dkey * scale).astype(dk.dtype).reshape((1, 1, N, D)))
    ct.store(dv, (b, g, j, 0), dvalue.astype(dv.dtype).reshape((1, 1, N, V)))
