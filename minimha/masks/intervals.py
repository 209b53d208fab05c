"""Intervals start ≤ j < stop of keys, one per query: the arithmetic of `KeyIntervals`.

"Whole" means that, for all queries, the interval is known to contain only the requested keys.
"""

from __future__ import annotations

import math

from minimha_autograd.backend import Array, clip, namespace, on_host

Interval = tuple[Array, Array]


def around(seen: Array, s: int) -> tuple[Array, Array, bool]:
    """For each row of the booleans `seen` (…, S), which say which keys a query sees, the interval
    from the first True to the last, as start and stop (…,); and whether it is certain that no
    interval contains a False.

    s is S, the number of keys: a last axis of length 1 stands for all of them. Where no key is
    True, the interval is empty.
    """
    xp = namespace(seen)
    lead = seen.shape[:-1] or (1,)  # NumPy would reduce a single row to no array
    bits = xp.astype(xp.broadcast_to(seen, (*lead, s)), xp.uint8)
    count = xp.sum(bits, axis=-1, dtype=xp.int64)
    if not s:
        return count, count, True
    start = xp.argmax(bits, axis=-1)  # 0 where there is none
    stop = (s - xp.argmax(xp.flip(bits, axis=-1), axis=-1)) * xp.astype(count > 0, xp.int64)
    return start, stop, _all(stop - start == count)


def equal(query: Array, key: Array) -> tuple[Array, Array, bool]:
    """For each number in `query` (…, T), such as the id of a document, the interval from the first
    to the last number in `key` (…, S) that equals it, as start and stop (…, T), and whether all of
    these intervals are whole: known to contain no other number. The interval is empty if no number
    in `key` equals that of the query."""
    xp, s = namespace(key), key.shape[-1]
    if 0 in key.shape or 0 in query.shape:
        none = xp.zeros(query.shape, dtype=xp.int64, device=key.device)
        return none, none, True
    sequences, count = math.prod(key.shape[:-1]), math.prod(key.shape)
    both = xp.concat([xp.astype(x, xp.int64) for x in (key, query)], axis=-1)
    number = xp.reshape(xp.unique_inverse(both).inverse_indices, (sequences, -1))
    # Each sequence gets its own numbers, so that one search finds the keys of all sequences.
    number = number + math.prod(both.shape) * xp.arange(sequences, device=key.device)[:, None]
    keys, queries = xp.reshape(number[:, :s], (-1,)), xp.reshape(number[:, s:], (-1,))
    order = xp.argsort(keys, stable=True)  # equal keys stay in the order of their positions
    keys = xp.take(keys, order)
    low, high = (xp.searchsorted(keys, queries, side=side) for side in ("left", "right"))
    found = xp.astype(high > low, xp.int64)
    start = xp.take(order, clip(low, high=count - 1)) % s * found
    stop = (xp.take(order, clip(high - 1, low=0)) % s + 1) * found
    whole = _all(stop - start == high - low)
    return xp.reshape(start, query.shape), xp.reshape(stop, query.shape), whole


def intersection(one: Interval, other: Interval) -> Interval:
    """The keys that are in both of two intervals, for each query. An interval is a pair
    (start, stop) of arrays with an entry for each query, and so is the result."""
    xp = namespace(one[0])
    start = xp.maximum(one[0], other[0])
    return start, xp.maximum(start, xp.minimum(one[1], other[1]))


def union(one: Interval, other: Interval) -> tuple[Array, Array, bool]:
    """The start and the stop of the smallest interval that contains both of two intervals, for each
    query; and whether it is known that, for all queries, there is no gap between the two. An
    interval is a pair (start, stop) of arrays with an entry for each query."""
    xp = namespace(one[0])
    one = _unless_empty(one, other)
    other = _unless_empty(other, one)
    touching = xp.maximum(one[0], other[0]) <= xp.minimum(one[1], other[1])
    return xp.minimum(one[0], other[0]), xp.maximum(one[1], other[1]), _all(touching)


def _all(x: Array) -> bool:
    """Whether all entries of x are known to be True. False for an array on a device, since reading
    it would make the host wait."""
    return on_host(x) and bool(namespace(x).all(x))


def _unless_empty(one: Interval, other: Interval) -> Interval:
    where, empty = namespace(one[0]).where, one[0] == one[1]
    return where(empty, other[0], one[0]), where(empty, other[1], one[1])
