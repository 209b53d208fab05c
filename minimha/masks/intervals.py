"""Where the keys that a query sees begin and end: one interval a query, in O(T + S) memory.

`masks.spans` asks for them: here is the arithmetic. "Whether" is said of all queries at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from minimha_autograd.backend import Array, namespace

if TYPE_CHECKING:
    from .kinds import Mask


class Spans(NamedTuple):
    """What each query may attend to: a key j with first ≤ j < last, if the rest lets it.

    first, last  int64, both broadcast to (…, H, T), and 0 ≤ first ≤ last ≤ S. Where they are equal,
                 the query sees nothing
    rest         None: every key of an interval is seen. Otherwise the mask that says which are, for
                 the same shape and offset; of keys outside it may say anything
    """

    first: Array
    last: Array
    rest: Mask | None

    @property
    def empty(self) -> Array:
        """Where the interval holds no key."""
        return self.first == self.last


def bounding(seen: Array, s: int) -> tuple[Array, Array, bool]:
    """Of booleans (…, S): the first True, one past the last, and whether all between are True.

    A last axis of length 1 stands for all S keys. Where no key is True, the interval is empty.
    """
    xp = namespace(seen)
    n = seen.shape[-1] if seen.ndim else 1
    rows = seen.shape[:-1] or (1,)  # NumPy would reduce a single row to no array
    ones = xp.astype(xp.reshape(seen, (*rows, n)), xp.uint8)
    count = xp.sum(ones, axis=-1, dtype=xp.int64)
    if not n:
        return count, count, True
    last = (n - xp.argmax(xp.flip(ones, axis=-1), axis=-1)) * xp.astype(count > 0, xp.int64)
    first = xp.argmax(ones, axis=-1)  # 0 where there is none
    whole = bool(xp.all(last - first == count))
    return first, last * s if n == 1 else last, whole


def occurrences(query: Array, key: Array) -> tuple[Array, Array, bool]:
    """Of the queries' ids (…, T): where each first stands among those of the keys (…, S), one past
    where it last does, and whether all between are the same. Nowhere is an empty interval."""
    xp, shape = namespace(key), query.shape
    b, s = math.prod(key.shape[:-1]), key.shape[-1]
    if 0 in key.shape:
        none = xp.zeros(shape, dtype=xp.int64, device=key.device)
        return none, none, True
    exact = query.dtype == key.dtype or xp.uint64 not in (query.dtype, key.dtype)
    ids = xp.concat([xp.astype(x, xp.int64) for x in (key, query)], axis=-1)
    ids = xp.reshape(xp.unique_inverse(ids).inverse_indices, (b, -1))
    ids = ids + xp.arange(b, device=key.device)[:, None] * math.prod(ids.shape)
    key, query = ids[:, :s], xp.reshape(ids[:, s:], (-1,))  # two sequences share no id now
    # In order of id, then of place: those of one id are numbers from id · S to id · S + S − 1.
    places = xp.sort(xp.reshape(key * s + xp.arange(s, device=key.device), (-1,)))
    start, stop = (xp.searchsorted(places, x) for x in (query * s, query * s + s))
    found = xp.astype(stop > start, xp.int64)
    first = xp.take(places, xp.clip(start, max=b * s - 1)) % s * found
    last = (xp.take(places, xp.clip(stop - 1, min=0)) % s + 1) * found
    whole = exact and bool(xp.all(last - first == stop - start))
    return xp.reshape(first, shape), xp.reshape(last, shape), whole


def both(one: Spans, other: Spans) -> tuple[Array, Array]:
    """What is in both intervals."""
    xp = namespace(one.first)
    first = xp.maximum(one.first, other.first)
    return first, xp.maximum(first, xp.minimum(one.last, other.last))


def either(one: Spans, other: Spans) -> tuple[Array, Array, bool]:
    """The interval around both, and whether nothing else is in it."""
    xp = namespace(one.first)
    one = _where(one.empty, other, one)
    other = _where(other.empty, one, other)
    touching = xp.maximum(one.first, other.first) <= xp.minimum(one.last, other.last)
    first, last = xp.minimum(one.first, other.first), xp.maximum(one.last, other.last)
    return first, last, bool(xp.all(touching))


def outside(span: Spans, s: int) -> tuple[Array, Array, bool]:
    """The interval around what is not in this one, and whether nothing else is in it."""
    xp = namespace(span.first)
    first = xp.where(span.first == 0, span.last, xp.zeros_like(span.last))
    last = xp.where(span.last == s, span.first, xp.full_like(span.first, s))
    whole = bool(xp.all((span.first == 0) | (span.last == s) | span.empty))
    return first, xp.maximum(first, last), whole


def _where(choose: Array, one: Spans, other: Spans) -> Spans:
    where = namespace(choose).where
    first, last = where(choose, one.first, other.first), where(choose, one.last, other.last)
    return Spans(first, last, None)
