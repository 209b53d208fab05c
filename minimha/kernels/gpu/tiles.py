"""Attention on a GPU in tiles, with online softmax: the scores (T, S) are not stored.

A *block* of threads computes one tile of each of its results. `ct.bid` is its index in the grid,
and its variables are tiles: arrays of a fixed size that stay in registers. It loads a tile of an
array by the index of the tile along each axis. If a tile extends beyond the array, zeros are loaded
for the part outside, and only the part inside is stored. The formulas are those of
`kernels.cpu.attention_tiles`, except that exponentials have base 2, which a GPU computes directly.
So scores are multiplied by log₂ e. The logarithm lse is natural.

    q (B, H, T, D)   k (B, G, S, D)   v (B, G, S, V)   out (B, H, T, V)   lse (B, H, T)
    start, stop (B, H, T)   a query sees the keys from start up to stop, exclusive,
    inside (B, H, T, S)     except those where this is False
    bias (B, H, T, S)       added to the scores
    sink (B, H)             a further score that each query of the head sees, without a key
    keep (B, H, T, S)       the pairs that dropout keeps; if `counted`, a seed and a threshold, from
                            which `dropout_keeps` computes them

The tiles of keys that a tile of queries sees form three runs: an edge, the middle, and an edge. In
the middle every query sees every key, so nothing has to be hidden. At an edge, pairs may be hidden.
If an array has an entry for each pair (inside, bias or keep), every tile counts as an edge.

The weight of a hidden pair is 0, but 0 · NaN is NaN. So at an edge, keys, values, queries and dout
that are NaN or infinite are replaced by 0. A visible one reaches the results by other means: in
`forward` by `sees_nonfinite`, in the backward pass by its score or by `nan_rows`.

The loops have no branch that depends on the numbers in these arrays: with one, the compiler might
not load the next tile while this one is multiplied.

Each Const is known when a kernel is compiled: M queries and N keys in a tile; D and V, the widths
rounded up to a power of 2; scale, softcap (0 for none) and `kept_factor`, 1 / (1 − dropout); which
of the optional arrays are used; tf32, whether products of float32 may be rounded to tf32. Sums have
the dtype of lse. In this file M is not the width of a model, and V is called Dv elsewhere.
Source: Dao et al., "FlashAttention" (2022), algorithm 4; Dao, "FlashAttention-2" (2023), algorithm
1, whose outer loop is over queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

try:
    import cuda.tile as ct
except ImportError:
    from . import numpy_tile as ct

Const = ct.Constant
LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
ZERO = ct.PaddingMode.ZERO


# cuTile accepts frozen dataclasses, but no named tuples. And it compiles a return inside an `if` to
# a loop that ends at once, so most functions here have one return, at the end.
@dataclass(frozen=True)
class Span:
    """Consecutive queries or keys, as many as a tile has: those of tile i in head h of sequence b.

    They are the positions i · size … (i + 1) · size − 1 along the third axis of an array.
    """

    b: int
    h: int
    i: int
    size: int


@dataclass(frozen=True)
class Pairs:
    """A tile of pairs of a query and a key."""

    queries: Span
    keys: Span
    transposed: bool  # whether its shape is (N, M) instead of (M, N)


@dataclass(frozen=True)
class Range:
    """The tiles of keys that a tile of queries sees, or the tiles of queries that see a tile of
    keys.

    Tiles first … middle − 1 and after … stop − 1 are the edges, where pairs may be hidden. Tiles
    middle … after − 1 are the middle, where all pairs are visible.
    """

    first: int
    middle: int
    after: int
    stop: int


def positions(span):
    """The positions of the queries or keys of a span: a tile (size,)."""
    return span.i * span.size + ct.arange(span.size, dtype=ct.int32)


def rows(x, span, width):
    """Load the rows of x (B, H, T, width) that belong to a span of queries or keys: a tile
    (size, width)."""
    index = (span.b, span.h, span.i, 0)
    tile = ct.load(x, index, (1, 1, span.size, width), padding_mode=ZERO)
    return tile.reshape((span.size, width))


def columns(x, span, width):
    """Load the rows of x (B, H, T, width) that belong to a span, as `rows` does, but transposed: a
    tile (width, size)."""
    index = (span.b, span.h, 0, span.i)
    shape = (1, 1, width, span.size)
    tile = ct.load(x, index, shape, order=(0, 1, 3, 2), padding_mode=ZERO)
    return tile.reshape((width, span.size))


def numbers(x, span, shape):
    """Load from x (B, H, T) one number for each position of a span, as a tile of the given shape,
    (size, 1) or (1, size)."""
    index = (span.b, span.h, span.i)
    tile = ct.load(x, index, (1, 1, span.size), padding_mode=ZERO)
    return tile.reshape(shape)


def store_rows(x, span, tile):
    """Store a tile (size, width) in x (B, H, T, width), at the rows that belong to a span. It is
    converted to the dtype of x."""
    shape = (1, 1, span.size, tile.shape[1])
    tile = tile.astype(x.dtype)
    ct.store(x, (span.b, span.h, span.i, 0), tile.reshape(shape))


def store_numbers(x, span, tile):
    """Store a tile (size, 1) in x (B, H, T), at the positions of a span."""
    index = (span.b, span.h, span.i)
    shape = (1, 1, span.size)
    ct.store(x, index, tile.reshape(shape))


def entries(x, pairs):
    """Load one entry of x (B, H, T, S) for each pair of a tile of pairs: a tile (M, N) for M
    queries and N keys, or (N, M) if the pairs are transposed."""
    queries = pairs.queries
    keys = pairs.keys
    if pairs.transposed:
        index = (queries.b, queries.h, keys.i, queries.i)
        shape = (1, 1, keys.size, queries.size)
        tile = ct.load(x, index, shape, order=(0, 1, 3, 2), padding_mode=ZERO)
        tile = tile.reshape((keys.size, queries.size))
    else:
        index = (queries.b, queries.h, queries.i, keys.i)
        shape = (1, 1, queries.size, keys.size)
        tile = ct.load(x, index, shape, padding_mode=ZERO)
        tile = tile.reshape((queries.size, keys.size))
    return tile


def store_entries(x, pairs, tile):
    """Store a tile (M, N) in x (B, H, T, S), one entry for each pair of a tile of pairs that is not
    transposed. It is converted to the dtype of x."""
    queries = pairs.queries
    keys = pairs.keys
    index = (queries.b, queries.h, queries.i, keys.i)
    shape = (1, 1, queries.size, keys.size)
    tile = tile.astype(x.dtype)
    # tileiras 13.4 cannot compile this store by TMA for every tile on Blackwell.
    ct.store(x, index, tile.reshape(shape), allow_tma=False)


def of_queries(x, pairs):
    """Reshape x, which holds M numbers, one for each query, so that they broadcast to a tile of
    pairs."""
    shape = (pairs.queries.size, 1)
    if pairs.transposed:
        shape = (1, pairs.queries.size)
    return x.reshape(shape)


def of_keys(x, pairs):
    """Reshape x, which holds N numbers, one for each key, so that they broadcast to a tile of
    pairs."""
    shape = (1, pairs.keys.size)
    if pairs.transposed:
        shape = (pairs.keys.size, 1)
    return x.reshape(shape)


def all_edges(masked, biased, dropped, counted):
    """Whether every tile counts as an edge, where pairs may be hidden or dropped: true if an array
    has an entry for each pair. These arrays are `inside` (if masked), bias (if biased) and keep (if
    dropped, but not if `counted`: then keep is a seed and a threshold)."""
    return masked or biased or (dropped and not counted)


def edges_then_middle(only_edges):
    """The values of `edge` in the loop over tiles: True for the edges of a `Range`, where pairs may
    be hidden, then False for its middle. If only_edges, there is no middle, and the only value is
    True."""
    edges = (True, False)
    if only_edges:
        edges = (True,)
    return edges


def make_range(first, middle, after, stop, only_edges):
    """The `Range` of tiles with these bounds. middle and after, which may be any numbers, are
    limited to first … stop. If only_edges, there is no middle."""
    if only_edges:
        middle = stop
    middle = ct.minimum(ct.maximum(middle, first), stop)
    after = ct.minimum(ct.maximum(after, middle), stop)
    return Range(first, middle, after, stop)


def tiles_of_keys(begin, end, queries, T, S, N, only_edges):
    """The `Range` of tiles of N keys that a span of M queries sees. Each query sees the keys
    begin … end − 1, with begin and end (M, 1). T and S are the numbers of all queries and of all
    keys. If only_edges, the range has no middle."""
    # A query without keys must not extend the range.
    sees = begin < end  # (M, 1)
    first = ct.min(ct.where(sees, begin, S)) // N
    stop = ct.cdiv(ct.max(ct.where(sees, end, 0)), N)

    # Rows beyond the last query are never stored, so nothing needs to be hidden from them.
    position = positions(queries).reshape(begin.shape)  # (M, 1)
    middle = ct.cdiv(ct.max(begin), N)
    after = ct.min(ct.where(position < T, end, S)) // N
    return make_range(first, middle, after, stop, only_edges)


def tiles_of_queries(seeing, b, h, j, only_edges):
    """The `Range` of tiles of queries, in head h of sequence b, that see the keys of tile j. The
    host has computed its four numbers: they are seeing[b, h, j]. If only_edges, the range has no
    middle."""
    one = (1, 1, 1, 1)
    first = ct.load(seeing, (b, h, j, 0), one).item()
    middle = ct.load(seeing, (b, h, j, 1), one).item()
    after = ct.load(seeing, (b, h, j, 2), one).item()
    stop = ct.load(seeing, (b, h, j, 3), one).item()
    return make_range(first, middle, after, stop, only_edges)


def count(tiles, edge):
    """The number of tiles in a `Range`: in both its edges or, if edge is False, in its middle."""
    if edge:
        n = (tiles.stop - tiles.first) - (tiles.after - tiles.middle)
    else:
        n = tiles.after - tiles.middle
    return n


def number(tiles, edge, n):
    """The index of the n-th tile, from 0, of the edges of a `Range` or, if edge is False, of its
    middle. Both edges are one sequence: the first tile of the second edge follows the last of the
    first, so the index jumps over the middle."""
    if edge:
        index = tiles.first + n
        index = index + (n >= tiles.middle - tiles.first) * (tiles.after - tiles.middle)
    else:
        index = tiles.middle + n
    return index


def product(x, y, acc, tf32):
    """acc + x y, on the tensor cores. They round float32 to tf32, which has 10 bits of fraction.

    If tf32 is false, each number is split into two in tf32, the rounded number and its rounding
    error, and three of the four products are added. This keeps about 21 bits.
    """
    if x.dtype != ct.float32 or y.dtype != ct.float32:
        return ct.mma(x, y, acc)

    a = x.astype(ct.tfloat32)
    b = y.astype(ct.tfloat32)
    if not tf32:
        # The product of both errors is too small to matter. The large term is added last.
        error = x - a.astype(ct.float32)
        acc = ct.mma(error.astype(ct.tfloat32), b, acc)
        error = y - b.astype(ct.float32)
        acc = ct.mma(a, error.astype(ct.tfloat32), acc)
    return ct.mma(a, b, acc)


def exp2(x):
    """2^x. In float32, results below 2^−126 become 0, which is faster."""
    return ct.exp2(x) if x.dtype == ct.float64 else ct.exp2(x, flush_to_zero=True)


def biases(bias, biased, pairs, dtype):
    """Load the bias of each pair of a tile of pairs, converted to this dtype. The result is the
    number 0 if not `biased`: then there is no bias."""
    added = 0.0
    if biased:
        added = entries(bias, pairs).astype(dtype)
    return added


def scores_of(raw, scale, softcap, added, biased):
    """Two results for a tile of pairs: the scores times log₂ e, and the derivative of the softcap.

    raw             the tile of Q Kᵀ
    scale, softcap  numbers; softcap is 0 for none, and then its derivative is 1
    added           the biases of the pairs, which are added if `biased`
    """
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


def online(scores, peak):
    """A step of the online softmax with a tile of scores (M, N). peak (M, 1) is the largest score
    of each query so far.

    Returns the new peak, 2^(scores − new peak), and 2^(old peak − new peak), by which the sums so
    far must be multiplied.
    """
    highest = ct.max(scores, axis=1, keepdims=True)  # (M, 1)
    new = ct.maximum(peak, highest)
    # Without a key so far, −∞ is not subtracted: −∞ − (−∞) is NaN.
    base = ct.where(new == -math.inf, 0.0, new)
    p = exp2(scores - base)  # (M, N)
    shrink = exp2(peak - base)  # (M, 1)
    return new, p, shrink


def visible(begin, end, inside, masked, added, biased, pairs):
    """Whether the query of each pair of a tile of pairs may attend to the key: begin ≤ key < end,
    the entry of `inside` (if masked) is True, and the bias `added` (if biased) is not −∞. begin and
    end hold one number for each query."""
    key = of_keys(positions(pairs.keys), pairs)
    seen = (begin <= key) & (key < end)  # (M, N), or (N, M) if flipped
    if masked:
        seen = seen & entries(inside, pairs)
    if biased:
        seen = seen & (added != -math.inf)
    return seen


def mix(x):
    """Hash unsigned 32-bit integers: every bit of the result depends on every bit of x. `Draw`, in
    `functional.dropout`, uses the same hash."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


def dropout_keeps(keep, counted, heads, pairs):
    """Whether dropout keeps each pair of a tile of pairs: read from the array keep or, if counted,
    computed from the seed and the threshold in keep. heads is H."""
    if counted:
        # Sequence and head, query and key enter one after another: each pair has its own bits.
        head = ct.full((1, 1), pairs.queries.b * heads + pairs.queries.h, ct.int32)
        head = head.astype(ct.uint32)
        query = positions(pairs.queries).astype(ct.uint32)  # (M,)
        key = positions(pairs.keys).astype(ct.uint32)  # (N,)
        seed = ct.load(keep, (0, 0, 0, 0), (1, 1, 1, 1))
        bits = mix(seed.reshape((1, 1)) + head)
        bits = mix(bits + of_queries(query, pairs))
        bits = mix(bits + of_keys(key, pairs))  # (M, N), or (N, M) if flipped

        threshold = ct.load(keep, (0, 0, 0, 1), (1, 1, 1, 1))
        threshold = threshold.reshape((1, 1))
        keeps = (bits >> 8) < threshold  # the upper 24 bits
    else:
        keeps = entries(keep, pairs)
    return keeps


def is_finite(x):
    """Whether each entry of x is neither NaN nor infinite."""
    return x * 0.0 == 0.0


def finite(x):
    """x with zeros in place of NaN and infinity."""
    return ct.where(is_finite(x), x, 0.0)


def sees_nonfinite(seen, x, dtype):
    """For each query and each column of x (N, columns), whether the query sees a key for which this
    column holds NaN or infinity: (M, columns). seen (M, N) says which keys each query sees. Such
    entries are counted in this dtype."""
    # The product counts such entries of each column that each query sees.
    nonfinite = ct.where(is_finite(x), 0.0, 1.0)  # (N, columns)
    nonfinite = nonfinite.astype(x.dtype)
    zero = ct.full((seen.shape[0], x.shape[1]), 0.0, dtype)
    sees = ct.where(seen, 1.0, 0.0)  # (M, N)
    counts = product(sees.astype(x.dtype), nonfinite, zero, True)
    return counts > 0.0


def nan_if_nonfinite(x, dtype):
    """For each row of x (M, columns), 0 if all its entries are finite, else NaN: a tile (M, 1) of
    this dtype."""
    nothing = x.astype(dtype) * 0.0
    return ct.sum(nothing, axis=1, keepdims=True)


@ct.kernel(num_worker_warps=8)
def forward(
    q,  # (B, H, T, D)
    k,  # (B, G, S, D)
    v,  # (B, G, S, V)
    start,  # (B, H, T)
    stop,  # (B, H, T)
    inside,  # (B, H, T, S)
    bias,  # (B, H, T, S)
    keep,  # (B, H, T, S), or (1, 1, 1, 2): a seed and a threshold
    sink,  # (B, H)
    out,  # (B, H, T, V), stored
    lse,  # (B, H, T), stored
    scale: Const[float],
    softcap: Const[float],
    kept_factor: Const[float],
    masked: Const[bool],
    biased: Const[bool],
    dropped: Const[bool],
    counted: Const[bool],
    sunk: Const[bool],
    tf32: Const[bool],
    M: Const[int],
    N: Const[int],
    D: Const[int],
    V: Const[int],
):
    """Store out, the output of attention, and lse, the log-sum-exp of the scores, for M queries.
    lse is +∞ for a query that sees neither a key nor a sink, so that exp(… − lse) = 0. The
    docstring of this module explains the arguments."""
    # The last queries see the most keys under a causal mask. They get the first blocks, so that the
    # longest blocks start first.
    i = ct.num_blocks(0) - 1 - ct.bid(0)
    h = ct.bid(1)
    b = ct.bid(2)
    g = h // (q.shape[1] // k.shape[1])
    dtype = lse.dtype

    queries = Span(b, h, i, M)
    query = rows(q, queries, D)  # (M, D)
    begin = numbers(start, queries, (M, 1))
    end = numbers(stop, queries, (M, 1))

    peak = ct.full((M, 1), -math.inf, dtype)
    total = ct.full((M, 1), 0.0, dtype)
    acc = ct.full((M, V), 0.0, dtype)
    if sunk:
        # A sink is a score without a key, so the sum so far is exp(sink − peak) = 1.
        score = ct.load(sink, (b, h), (1, 1))
        score = score.astype(dtype) * LOG2_E
        peak = ct.maximum(peak, score)
        total = ct.where(peak > -math.inf, 1.0, total)

    only_edges = all_edges(masked, biased, dropped, counted)
    tiles = tiles_of_keys(
        begin,
        end,
        queries,
        q.shape[2],
        k.shape[2],
        N,
        only_edges,
    )
    for edge in ct.static_iter(edges_then_middle(only_edges)):
        for n in range(count(tiles, edge)):
            j = number(tiles, edge, n)
            keys = Span(b, g, j, N)
            pairs = Pairs(queries, keys, False)
            value = rows(v, keys, V)  # (N, V)
            key_t = columns(k, keys, D)  # (D, N)
            zero = ct.full((M, N), 0.0, dtype)
            raw = product(query, key_t, zero, tf32)  # (M, N)
            added = biases(bias, biased, pairs, dtype)
            scores, _ = scores_of(raw, scale, softcap, added, biased)  # (M, N)
            if edge:
                seen = visible(
                    begin,
                    end,
                    inside,
                    masked,
                    added,
                    biased,
                    pairs,
                )
                scores = ct.where(seen, scores, -math.inf)

            # The sums so far shrink, since the new peak is subtracted from their scores as well.
            peak, p, shrink = online(scores, peak)  # (M, 1), (M, N), (M, 1)
            total = total * shrink + ct.sum(p, axis=1, keepdims=True)

            # Dropout comes after the sum, since it drops weights, not scores.
            if dropped:
                keeps = dropout_keeps(keep, counted, q.shape[1], pairs)
                p = ct.where(keeps, p * kept_factor, 0.0)
            if edge:
                p = ct.where(seen, p, 0.0)
                nonfinite = sees_nonfinite(seen, value, acc.dtype)  # (M, V)
                acc = ct.where(nonfinite, math.nan, acc)
                value = finite(value)
            acc = product(p.astype(v.dtype), value, acc * shrink, tf32)  # (M, V)

    empty = total == 0.0
    acc = acc / ct.where(empty, 1.0, total)
    log_sum = ct.where(empty, math.inf, peak * LN_2 + ct.log(total))
    store_rows(out, queries, acc)
    store_numbers(lse, queries, log_sum)


@ct.kernel(num_worker_warps=8)
def backward_query(
    q,  # (B, H, T, D)
    k,  # (B, G, S, D)
    v,  # (B, G, S, V)
    start,  # (B, H, T)
    stop,  # (B, H, T)
    inside,  # (B, H, T, S)
    bias,  # (B, H, T, S)
    keep,  # (B, H, T, S), or (1, 1, 1, 2): a seed and a threshold
    out,  # (B, H, T, V)
    lse,  # (B, H, T)
    dout,  # (B, H, T, V)
    dlse,  # (B, H, T)
    delta,  # (B, H, T), stored
    nan_rows,  # (B, H, T), stored
    dq,  # (B, H, T, D), stored
    dbias,  # (B, H, T, S), zeros where no tile is stored
    scale: Const[float],
    softcap: Const[float],
    kept_factor: Const[float],
    masked: Const[bool],
    biased: Const[bool],
    dropped: Const[bool],
    counted: Const[bool],
    wants_bias: Const[bool],
    has_dlse: Const[bool],
    tf32: Const[bool],
    M: Const[int],
    N: Const[int],
    D: Const[int],
    V: Const[int],
):
    """Store dq and, if wants_bias, dbias for M queries, from dout and, if has_dlse, dlse, the
    gradients of out and lse. The docstring of this module explains the other arguments.

    It also stores, for `backward_key`, delta = Σ dout · out − dlse, and nan_rows, which is NaN for
    each query whose dout is not finite, else 0.
    """
    i = ct.num_blocks(0) - 1 - ct.bid(0)
    h = ct.bid(1)
    b = ct.bid(2)
    g = h // (q.shape[1] // k.shape[1])
    dtype = lse.dtype

    queries = Span(b, h, i, M)
    query = rows(q, queries, D)  # (M, D)
    dresult = rows(dout, queries, V)  # (M, V)
    begin = numbers(start, queries, (M, 1))
    end = numbers(stop, queries, (M, 1))
    log2_sum = numbers(lse, queries, (M, 1)) * LOG2_E

    result = rows(out, queries, V).astype(dtype)  # (M, V)
    weighted = result * dresult.astype(dtype)
    # A query that sees no key has the result 0, and 0 · NaN must not reach the gradient of the
    # sink, which the host computes from delta.
    weighted = ct.where(result == 0.0, 0.0, weighted)
    delta_i = ct.sum(weighted, axis=1, keepdims=True)  # (M, 1)
    if has_dlse:
        delta_i = delta_i - numbers(dlse, queries, (M, 1))
    store_numbers(delta, queries, delta_i)
    store_numbers(nan_rows, queries, nan_if_nonfinite(dresult, dtype))

    zero = ct.full((M, N), 0.0, dtype)
    acc = ct.full((M, D), 0.0, dtype)
    only_edges = all_edges(masked, biased, dropped, counted)
    tiles = tiles_of_keys(
        begin,
        end,
        queries,
        q.shape[2],
        k.shape[2],
        N,
        only_edges,
    )
    for edge in ct.static_iter(edges_then_middle(only_edges)):
        for n in range(count(tiles, edge)):
            j = number(tiles, edge, n)
            keys = Span(b, g, j, N)
            pairs = Pairs(queries, keys, False)
            key = rows(k, keys, D)  # (N, D)
            key_t = columns(k, keys, D)  # (D, N)
            raw = product(query, key_t, zero, tf32)  # (M, N)
            added = biases(bias, biased, pairs, dtype)
            scores, slope = scores_of(raw, scale, softcap, added, biased)
            value_t = columns(v, keys, V)  # (V, N)
            dp = product(dresult, value_t, zero, tf32)  # (M, N)
            if dropped:
                keeps = dropout_keeps(keep, counted, q.shape[1], pairs)
                dp = ct.where(keeps, dp * kept_factor, 0.0)

            # dcapped is the gradient of the scores after the softcap, ds of those before it.
            dcapped = exp2(scores - log2_sum) * (dp - delta_i)
            ds = dcapped * slope
            if edge:
                seen = visible(
                    begin,
                    end,
                    inside,
                    masked,
                    added,
                    biased,
                    pairs,
                )
                dcapped = ct.where(seen, dcapped, 0.0)
                ds = ct.where(seen, ds, 0.0)
                key = finite(key)
            if wants_bias:
                store_entries(dbias, pairs, dcapped)
            acc = product(ds.astype(k.dtype), key, acc, tf32)  # (M, D)

    store_rows(dq, queries, acc * scale)


@ct.kernel(num_worker_warps=8)
def backward_key(
    q,  # (B, H, T, D)
    k,  # (B, G, S, D)
    v,  # (B, G, S, V)
    start,  # (B, H, T)
    stop,  # (B, H, T)
    inside,  # (B, H, T, S)
    bias,  # (B, H, T, S)
    keep,  # (B, H, T, S), or (1, 1, 1, 2): a seed and a threshold
    lse,  # (B, H, T)
    dout,  # (B, H, T, V)
    delta,  # (B, H, T)
    nan_rows,  # (B, H, T)
    seeing,  # (B, H, tiles of keys, 4): see `Range`
    dk,  # (B, G, S, D), stored
    dv,  # (B, G, S, V), stored
    scale: Const[float],
    softcap: Const[float],
    kept_factor: Const[float],
    masked: Const[bool],
    biased: Const[bool],
    dropped: Const[bool],
    counted: Const[bool],
    tf32: Const[bool],
    M: Const[int],
    N: Const[int],
    D: Const[int],
    V: Const[int],
):
    """Store dk and dv for N keys: sums over the queries that see them, in all heads that share the
    keys.

    dout is the gradient of out, `seeing` holds the four numbers of a `Range` of tiles of queries
    for each tile of keys, and `backward_query` has stored delta and nan_rows. The docstring of this
    module explains the other arguments.

    Tiles of pairs have the shape (N, M) here, so that no product needs them transposed.
    """
    j = ct.bid(0)
    g = ct.bid(1)
    b = ct.bid(2)
    group = q.shape[1] // k.shape[1]
    dtype = lse.dtype

    keys = Span(b, g, j, N)
    key = rows(k, keys, D)  # (N, D)
    value = rows(v, keys, V)  # (N, V)
    zero = ct.full((N, M), 0.0, dtype)
    dkey = ct.full((N, D), 0.0, dtype)
    dvalue = ct.full((N, V), 0.0, dtype)
    only_edges = all_edges(masked, biased, dropped, counted)
    for h in range(g * group, (g + 1) * group):
        tiles = tiles_of_queries(seeing, b, h, j, only_edges)
        for edge in ct.static_iter(edges_then_middle(only_edges)):
            for n in range(count(tiles, edge)):
                i = number(tiles, edge, n)
                queries = Span(b, h, i, M)
                pairs = Pairs(queries, keys, True)
                query = rows(q, queries, D)  # (M, D)
                dresult = rows(dout, queries, V)  # (M, V)
                query_t = columns(q, queries, D)  # (D, M)
                raw = product(key, query_t, zero, tf32)  # (N, M)
                added = biases(bias, biased, pairs, dtype)
                scores, slope = scores_of(raw, scale, softcap, added, biased)
                dresult_t = columns(dout, queries, V)  # (V, M)
                dp = product(value, dresult_t, zero, tf32)  # (N, M)

                log2_sum = numbers(lse, queries, (1, M)) * LOG2_E
                p = exp2(scores - log2_sum)  # (N, M)
                weights = p
                if dropped:
                    keeps = dropout_keeps(keep, counted, q.shape[1], pairs)
                    weights = ct.where(keeps, p * kept_factor, 0.0)
                    dp = ct.where(keeps, dp * kept_factor, 0.0)

                delta_i = numbers(delta, queries, (1, M))
                ds = (dp - delta_i) * p * slope  # (N, M)
                if edge:
                    begin = numbers(start, queries, (1, M))
                    end = numbers(stop, queries, (1, M))
                    seen = visible(
                        begin,
                        end,
                        inside,
                        masked,
                        added,
                        biased,
                        pairs,
                    )
                    # A visible query whose dout is not finite makes dv NaN.
                    nan_row = numbers(nan_rows, queries, (1, M))
                    weights = ct.where(seen, weights + nan_row, 0.0)
                    ds = ct.where(seen, ds, 0.0)
                    dresult = finite(dresult)
                    query = finite(query)
                dvalue = product(weights.astype(dout.dtype), dresult, dvalue, tf32)  # (N, V)
                dkey = product(ds.astype(q.dtype), query, dkey, tf32)  # (N, D)

    store_rows(dk, keys, dkey * scale)
    store_rows(dv, keys, dvalue)
