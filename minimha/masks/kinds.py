"""The kinds of masks: causal, sliding_window, padding, keys, documents, prefix, dense.

A mask is a rule: its array, True = may attend, is made when the shape of the scores is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace

from ..functional.checks import integer
from . import intervals
from .alignment import checked, offset_of
from .mask import KeyIntervals, Mask, Scores


def causal(*, offset: int | None = None, align: str | None = None) -> Mask:
    """Query i sees key j where j ≤ i + offset: it cannot see the future.

    With T = S the offset is 0 unless given. Otherwise it must be given, by a cache or here, since
    libraries disagree: offset=…, or align="top-left" (offset 0: both sequences start together) or
    align="bottom-right" (S − T: they end together). Without it, raises a ValueError that names all
    three.
    """
    return Band("causal", None, 0, checked("causal", offset, align), align)


def sliding_window(
    left: int | None, right: int | None, *, offset: int | None = None, align: str | None = None
) -> Mask:
    """Query i sees key j where i + offset − left ≤ j ≤ i + offset + right.

    left and right are integers of at least 0, or None for no limit on that side. The offset is that
    of `causal`. Raises ValueError as `causal` does, and for a negative left or right.
    """
    name = "sliding_window"
    left = None if left is None else integer(left, f"{name}: left", least=0)
    right = None if right is None else integer(right, f"{name}: right", least=0)
    return Band(name, left, right, checked(name, offset, align), align)


def padding(lengths: Array | Sequence[int]) -> Mask:
    """Every query sees the first lengths[b] keys of its sequence b. lengths: integers (…), 0 to S.

    Hides keys, never queries. Raises TypeError unless lengths are integers, ValueError where they
    do not match the batch, are negative or, without the offset of `Mask.at`, exceed S. Lengths on
    a device are not compared with these bounds, since the host would have to wait for them.
    """
    lengths = _integers(
        lengths,
        "padding: lengths are integers, one per sequence",
        "; a boolean array of valid keys goes to masks.keys(valid)",
    )
    known = backend.on_host(lengths) and 0 not in lengths.shape
    longest = int(namespace(lengths).max(lengths)) if known else 0
    return _First("padding", lengths, max(1, longest))


def keys(valid: Array) -> Mask:
    """Every query sees the keys where valid (…, S) is True: padding anywhere in the sequence."""
    return _Keys(valid)


def documents(ids: Array | Sequence[int], key_ids: Array | Sequence[int] | None = None) -> Mask:
    """Query i sees key j if both are in the same one of several documents packed into a sequence.

    ids      (…, S) integers, the document of each key. The queries are those at the same positions:
             all if T = S, else ids[offset : offset + T] with the offset given to `Mask.at`
    key_ids  for queries of another sequence: documents(query_ids, key_ids), (…, T) and (…, S)

    Raises TypeError unless the ids are integers, ValueError where they do not fit the scores, or
    T ≠ S and no offset is given.
    """
    return _Documents(ids, key_ids)


def prefix(n: int | Array | Sequence[int]) -> Mask:
    """Every query sees the first n keys: causal() | prefix(n) is the mask of a prefix-LM.

    n is one integer, or integers (…), one per sequence, at least 0; beyond S it means all keys.
    Raises TypeError unless n is integers, ValueError if it does not match the batch or, on the
    host, is negative.
    """
    n = _integers(n, "prefix: n is an integer, or integers, one per sequence")
    return _First("prefix", n, 0)


def dense(array: Array) -> Mask:
    """A boolean array that broadcasts to (…, H, T, S). Raises TypeError unless it is boolean."""
    return _Dense(array)


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """i + offset − left ≤ j ≤ i + offset + right, without the side that is None."""

    name: str
    left: int | None
    right: int | None
    offset: int | None
    align: str | None

    def _ends(self, scores: Scores) -> tuple[int, int]:
        """The least and the largest j − i that are seen, from −T to S: beyond, nothing changes."""
        t, s = scores.t, scores.s
        own = self.offset is not None or self.align is not None
        offset = offset_of(repr(self), t, s, self.offset if own else scores.offset, self.align)
        least = -t if self.left is None else offset - self.left
        largest = s if self.right is None else offset + self.right
        return max(-t, min(least, s)), max(-t, min(largest, s))

    def _array(self, scores: Scores) -> Array:
        least, largest = self._ends(scores)
        i, j = map(scores.positions, (scores.queries_wanted, scores.keys_wanted))
        i = i[:, None]
        if self.left is None:
            return j <= i + largest
        return (i + least <= j) & (j <= i + largest)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        least, largest = self._ends(scores)
        i, keys = scores.positions(scores.queries_wanted), scores.keys_wanted
        ends = (backend.clip(i + end, keys.start, keys.stop) for end in (least, largest + 1))
        start, stop = (end - keys.start for end in ends)
        return KeyIntervals(start, stop, None)

    def at(self, offset: int) -> Mask:
        """A band again, whose intervals kernels remember: all layers of a model share them."""
        offset = integer(offset, "at: offset", least=0)
        own = self.offset is not None or self.align is not None
        return self if own else replace(self, offset=offset)

    def __repr__(self) -> str:
        window = [] if self.name == "causal" else [str(self.left), str(self.right)]
        offset = [] if self.offset is None else [f"offset={self.offset}"]
        align = [] if self.align is None else [f'align="{self.align}"']
        return f"{self.name}({', '.join(window + offset + align)})"


class _First(Mask):
    """The first n keys of each sequence: its length, at most S, or a prefix."""

    def __init__(self, name: str, n: Array, longest: int) -> None:
        self.name, self.n, self.sizes = name, n, _sizes(n.shape, 0, longest)

    def _array(self, scores: Scores) -> Array:
        lengths = self.name == "padding"
        n, s, word = self.n, scores.s, "lengths" if lengths else "n"
        if lengths or n.ndim:
            n = _fitting(self, word, n, "the batch (…)", scores)
        too_long = n > s if lengths and scores.offset is None else False
        if backend.on_host(n) and bool(namespace(n).any((n < 0) | too_long)):
            bounds = f"from 0 to S = {s}" if lengths else "at least 0"
            raise ValueError(f"{self!r}: {word} must be {bounds}")
        j = scores.positions(scores.keys_wanted)
        if n.ndim == 0 and backend.on_host(n):
            return scores.over_queries(j < int(n))  # needs no copy to a device
        return scores.over_queries(j < scores.bring(n)[..., None])

    def _intervals(self, scores: Scores) -> KeyIntervals:
        return super()._intervals(scores)._replace(inside=None)  # known without reading a device

    def __repr__(self) -> str:
        return f"{self.name}({_brief(self.n)})"


class _Keys(Mask):
    def __init__(self, valid: Any) -> None:
        self.valid = boolean(valid, "keys: valid")
        self.sizes = _sizes(self.valid.shape[:-1], 0, sum(self.valid.shape[-1:]))

    def _array(self, scores: Scores) -> Array:
        valid = _fitting(self, "valid", self.valid, "(…, S)", scores, scores.s)
        return scores.over_queries(scores.bring(valid[..., scores.keys]))

    def __repr__(self) -> str:
        return f"keys({_brief(self.valid)})"


class _Documents(Mask):
    def __init__(self, ids: Any, key_ids: Any = None) -> None:
        must = "documents: ids are integers, one per position"
        self.query_ids = None if key_ids is None else _integers(ids, must)
        self.key_ids = _integers(ids if key_ids is None else key_ids, must)
        t = () if self.query_ids is None else self.query_ids.shape[-1:]
        self.sizes = _sizes(self.key_ids.shape[:-1], sum(t), sum(self.key_ids.shape[-1:]))

    def _ids(self, scores: Scores) -> tuple[Array, Array]:
        """The ids of the queries and of the keys that are wanted."""
        t, s = scores.t, scores.s
        key = _fitting(self, "the keys' ids", self.key_ids, "(…, S)", scores, s)
        if self.query_ids is not None:
            fixed = scores._replace(offset=None)  # no more queries will come
            query = _fitting(self, "the queries' ids", self.query_ids, "(…, T)", fixed, t)
            return query[..., scores.queries], key[..., scores.keys]
        offset = scores.offset or 0
        if (scores.offset is None and t != s) or not 0 <= offset <= s - t:
            raise ValueError(
                f"{self!r}: T = {t} queries at offset {scores.offset} are not all among the "
                f"S = {s} keys: place them with .at(offset), or give documents(query_ids, key_ids)"
            )
        return key[..., offset : offset + t][..., scores.queries], key[..., scores.keys]

    def _array(self, scores: Scores) -> Array:
        query, key = map(scores.bring, self._ids(scores))
        return scores.over_keys(query) == scores.over_queries(key)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        query, key = self._ids(scores)
        if not (backend.on_host(query) and backend.on_host(key)):
            return super()._intervals(scores)  # sorting ids makes the host wait for the device
        start, stop, whole = intervals.equal(backend.mover(key)(query), key)
        start, stop = (scores.over_heads(scores.bring(x)) for x in (start, stop))
        return KeyIntervals(start, stop, None if whole else self)

    def __repr__(self) -> str:
        ids = [self.key_ids] if self.query_ids is None else [self.query_ids, self.key_ids]
        return f"documents({', '.join(map(_brief, ids))})"


class _Dense(Mask):
    def __init__(self, array: Any) -> None:
        self.dense = boolean(array, "dense: the mask")
        self.sizes = tuple(0 if n == 1 else n for n in self.dense.shape)

    def _array(self, scores: Scores) -> Array:
        if not broadcasts(self.dense.shape, scores.shape):
            raise ValueError(
                f"mask has shape {tuple(self.dense.shape)}, which does not broadcast to "
                f"(…, H, T, S) {scores.shape}; to hide keys of each sequence write "
                "masks.padding(lengths) or masks.keys(valid)"
            )
        seen = self.dense
        if seen.ndim > 0 and seen.shape[-1] == scores.s:
            seen = seen[..., scores.keys]
        if seen.ndim > 1 and seen.shape[-2] == scores.t:
            seen = seen[..., scores.queries, :]
        return scores.bring(seen)

    def __repr__(self) -> str:
        return f"dense({_brief(self.dense)})"


def broadcasts(shape: Sequence[int], scores: Sequence[int]) -> bool:
    """Whether an array of this shape broadcasts to the shape of the scores (…, H, T, S)."""
    return len(shape) <= len(scores) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(scores), strict=False)
    )


def boolean(array: Any, name: str) -> Array:
    """An array or Tensor as a boolean array. Raises TypeError for any other."""
    if callable(array):
        raise TypeError(f"{name} is a function: call it, as in masks.causal()")
    array = backend.asarray(array_of(array))
    if not backend.is_boolean(array):
        raise TypeError(
            f"{name} has dtype {array.dtype} and must be boolean, True = may attend: write "
            "mask != 0 for zeros and ones, or pass numbers to add to the scores as bias"
        )
    return array


def _integers(x: Any, must: str, fix: str = "") -> Array:
    x = backend.asarray(array_of(x))
    if not backend.is_integral(x):
        raise TypeError(f"{must}, not {x.dtype}{fix}")
    return x


def _fitting(
    mask: Mask, name: str, x: Array, meaning: str, scores: Scores, *positions: int
) -> Array:
    """x, if it has the shape of the batch and the positions; with an offset, those so far."""
    if scores.offset is not None and positions and x.ndim:
        x = x[..., : min(positions[-1], x.shape[-1])]
    if tuple(x.shape) != (expected := (*scores.batch, *positions)):
        what = f"{meaning} is" if not positions else f"not {meaning}"
        raise ValueError(f"{mask!r}: {name} has shape {tuple(x.shape)}, {what} {expected}")
    return x


def _sizes(batch: tuple[int, ...], t: int, s: int) -> tuple[int, ...]:
    return (*batch, 0, t, s) if batch else (t, s)


def _brief(x: Array) -> str:
    """A few integers in full, other arrays by dtype and shape."""
    if x.ndim <= 1 and sum(x.shape) <= 12 and backend.is_integral(x):
        return str(backend.to_numpy(x).tolist())
    return f"{str(x.dtype).rpartition('.')[2]} {tuple(x.shape)}"
