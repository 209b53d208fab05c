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

    With T = S the offset is 0 unless given. If T ≠ S, a cache gives it, or you do, since libraries
    disagree: by offset=…, by align="top-left" (offset 0: both sequences start together) or by
    align="bottom-right" (S − T: they end together). Without any of these, a ValueError that names
    all three is raised when the scores' shape is known.
    """
    offset = checked("causal", offset, align)
    return Band("causal", None, 0, offset, align)


def sliding_window(
    left: int | None, right: int | None, *, offset: int | None = None, align: str | None = None
) -> Mask:
    """Query i sees key j where i + offset − left ≤ j ≤ i + offset + right.

    left and right are integers of at least 0, or None for no limit on that side. offset and align
    say where the queries are among the keys, as in `causal`. Raises ValueError as `causal` does,
    and for a negative left or right.
    """
    name = "sliding_window"
    if left is not None:
        left = integer(left, f"{name}: left", least=0)
    if right is not None:
        right = integer(right, f"{name}: right", least=0)
    offset = checked(name, offset, align)
    return Band(name, left, right, offset, align)


def padding(lengths: Array | Sequence[int]) -> Mask:
    """Every query sees the first lengths[b] keys of its sequence b. lengths: integers (…), 0 to S.

    Hides keys, never queries. Raises TypeError unless lengths are integers, ValueError if their
    shape is not that of the batch, or if one is negative or exceeds S. In decoding, after
    `Mask.at`, they may exceed S, since more keys will come. Lengths on a device are not compared
    with these bounds, since the host would have to wait for them.
    """
    lengths = _integers(
        lengths,
        "padding: lengths are integers, one per sequence",
        "; a boolean array of valid keys goes to masks.keys(valid)",
    )

    # There are at least as many keys as the longest sequence has. The host would have to wait for
    # lengths on a device.
    longest = 1
    if backend.on_host(lengths) and 0 not in lengths.shape:
        largest = namespace(lengths).max(lengths)
        longest = max(longest, int(largest))
    return _First("padding", lengths, longest)


def keys(valid: Array) -> Mask:
    """Every query sees the keys where valid (…, S) is True: padding anywhere in the sequence.
    Raises TypeError unless valid is boolean."""
    return _Keys(valid)


def documents(ids: Array | Sequence[int], key_ids: Array | Sequence[int] | None = None) -> Mask:
    """Query i sees key j if both are in the same one of several documents packed into a sequence.

    ids      (…, S) integers, the document of each key. Query i has the id of the key at its own
             position: ids[i] if T = S, else ids[i + offset] with the offset given to `Mask.at`
    key_ids  (…, S) integers, if queries and keys are two different sequences: the document of each
             key; ids (…, T) is then the document of each query

    Raises TypeError unless the ids are integers, ValueError if their shapes do not fit the scores,
    or if T ≠ S and neither key_ids nor an offset is given.
    """
    return _Documents(ids, key_ids)


def prefix(n: int | Array | Sequence[int]) -> Mask:
    """Every query sees the first n keys: causal() | prefix(n) is the mask of a prefix-LM.

    n is one integer of at least 0, or an array (…) of them, one per sequence; an n above S means
    all keys. Raises TypeError unless n is an integer or integers, ValueError if its shape is not
    that of the batch or if it is on the host and negative.
    """
    n = _integers(n, "prefix: n is an integer, or integers, one per sequence")
    return _First("prefix", n, 0)


def dense(array: Array) -> Mask:
    """Query i sees key j where a boolean array is True at (i, j); it broadcasts to (…, H, T, S).

    Raises TypeError unless the array is boolean.
    """
    return _Dense(array)


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """Query i sees key j where i + offset − left ≤ j ≤ i + offset + right; None for left or right
    means no limit on that side. offset and align are those of `causal`, and name is that of the
    public function that made the mask."""

    name: str  # of the public function, for repr
    left: int | None
    right: int | None
    offset: int | None
    align: str | None

    def _ends(self, scores: Scores) -> tuple[int, int]:
        """The smallest and the largest difference j − i at which query i sees key j, limited to the
        range from −T to S, outside of which there are no pairs. Raises ValueError if T ≠ S and
        neither the mask nor `scores` says where the queries are among the keys."""
        t = scores.t
        s = scores.s

        # An offset of the mask's own takes precedence over that of `Mask.at`.
        offset = scores.offset
        if self.offset is not None or self.align is not None:
            offset = self.offset
        offset = offset_of(repr(self), t, s, offset, self.align)

        least = -t  # i − T < 0 ≤ j, so this hides nothing
        if self.left is not None:
            least = offset - self.left
        largest = s  # j < S ≤ i + S, so this hides nothing
        if self.right is not None:
            largest = offset + self.right

        # An offset may be any integer, but those of arrays have 64 bits.
        least = max(-t, min(least, s))
        largest = max(-t, min(largest, s))
        return least, largest

    def _array(self, scores: Scores) -> Array:
        least, largest = self._ends(scores)
        i = scores.positions(scores.queries_wanted)[:, None]  # (T, 1)
        j = scores.positions(scores.keys_wanted)  # (S,)

        seen = j <= i + largest  # (T, S)
        if self.left is None:
            return seen  # as in `causal`: the other half would hide nothing
        return seen & (i + least <= j)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        least, largest = self._ends(scores)
        i = scores.positions(scores.queries_wanted)  # (T,)
        keys = scores.keys_wanted

        # Of the keys i + least … i + largest, those that are wanted. The stop is exclusive.
        start = backend.clip(i + least, keys.start, keys.stop)  # (T,)
        stop = backend.clip(i + (largest + 1), keys.start, keys.stop)  # (T,)

        # Intervals count from the first key that is wanted.
        start = start - keys.start
        stop = stop - keys.start
        return KeyIntervals(start, stop, None)

    def at(self, offset: int) -> Mask:
        """This band for queries that start at key position `offset`, or the band itself if it has
        an offset or align of its own. The result is a Band, too: kernels cache the intervals of a
        Band, so all layers of a model share them."""
        offset = integer(offset, "at: offset", least=0)
        if self.offset is not None or self.align is not None:
            return self  # it has a place of its own
        return replace(self, offset=offset)

    def __repr__(self) -> str:
        arguments = []
        if self.name != "causal":
            arguments += [str(self.left), str(self.right)]
        if self.offset is not None:
            arguments.append(f"offset={self.offset}")
        if self.align is not None:
            arguments.append(f'align="{self.align}"')
        return f"{self.name}({', '.join(arguments)})"


class _First(Mask):
    """Every query sees the first n keys of its sequence.

    name     "padding" or "prefix", the function that made the mask
    n        the number of keys: (…) for each sequence, or an array without axes for all
    longest  how many keys the scores have at least, for `Mask.sizes`
    """

    def __init__(self, name: str, n: Array, longest: int) -> None:
        self.name = name
        self.n = n  # (…), one number per sequence, or () for all
        self.sizes = _sizes(n.shape, 0, longest)

    def _array(self, scores: Scores) -> Array:
        is_padding = self.name == "padding"
        word = "n"
        bounds = "at least 0"
        if is_padding:
            word = "lengths"
            bounds = f"from 0 to S = {scores.s}"

        # One number without an axis, as in prefix(3), is for all sequences.
        n = self.n
        if is_padding or n.ndim:
            n = _fitting(self, word, n, "the batch (…)", scores)

        # Numbers on a device are not compared: the host would have to wait.
        if backend.on_host(n):
            wrong = n < 0
            if is_padding and scores.offset is None:  # or else more keys will come
                wrong = wrong | (n > scores.s)
            if bool(namespace(n).any(wrong)):
                raise ValueError(f"{self!r}: {word} must be {bounds}")

        # The same keys for all queries and heads.
        j = scores.positions(scores.keys_wanted)  # (S,)
        if n.ndim == 0 and backend.on_host(n):
            # A Python number needs no copy to the device.
            return scores.over_queries(j < int(n))  # (1, 1, 1, S)
        n = scores.bring(n)[..., None]  # (B, 1)
        return scores.over_queries(j < n)  # (B, 1, 1, S)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        # `Mask` would have to read the array to find that the keys are one run. Here it is known.
        return super()._intervals(scores)._replace(inside=None)

    def __repr__(self) -> str:
        return f"{self.name}({_brief(self.n)})"


class _Keys(Mask):
    """Every query sees the keys where an array of booleans is True."""

    def __init__(self, valid: Any) -> None:
        self.valid = boolean(valid, "keys: valid")  # (…, S)
        batch = self.valid.shape[:-1]
        self.sizes = _sizes(batch, 0, _length(self.valid))

    def _array(self, scores: Scores) -> Array:
        valid = _fitting(self, "valid", self.valid, "(…, S)", scores, scores.s)
        valid = scores.bring(valid[..., scores.keys])
        return scores.over_queries(valid)  # (B, 1, 1, S)

    def __repr__(self) -> str:
        return f"keys({_brief(self.valid)})"


class _Documents(Mask):
    """A query sees the keys that belong to the same document: those with the same id. The arguments
    are those of `documents`."""

    def __init__(self, ids: Any, key_ids: Any = None) -> None:
        must = "documents: ids are integers, one per position"
        self.query_ids = None  # or (…, T), if the queries are another sequence
        t = 0
        if key_ids is not None:
            self.query_ids = _integers(ids, must)
            t = _length(self.query_ids)
            ids = key_ids
        self.key_ids = _integers(ids, must)  # (…, S)

        batch = self.key_ids.shape[:-1]
        self.sizes = _sizes(batch, t, _length(self.key_ids))

    def _ids(self, scores: Scores) -> tuple[Array, Array]:
        """The documents' ids of the wanted queries and of the wanted keys, `scores.queries_wanted`
        and `scores.keys_wanted`."""
        t = scores.t
        s = scores.s
        key = _fitting(self, "the keys' ids", self.key_ids, "(…, S)", scores, s)

        if self.query_ids is not None:
            fixed = scores._replace(offset=None)  # no more queries will come
            query = _fitting(self, "the queries' ids", self.query_ids, "(…, T)", fixed, t)
        else:
            # Each query is one of the keys, and has its id.
            offset = scores.offset or 0
            unplaced = scores.offset is None and t != s
            if unplaced or not 0 <= offset <= s - t:
                raise ValueError(
                    f"{self!r}: T = {t} queries at offset {scores.offset} are not all among the "
                    f"S = {s} keys: place them with .at(offset), or give "
                    "documents(query_ids, key_ids)"
                )
            query = key[..., offset : offset + t]  # (B, T)
        return query[..., scores.queries], key[..., scores.keys]

    def _array(self, scores: Scores) -> Array:
        query, key = self._ids(scores)
        query_ids = scores.over_keys(scores.bring(query))  # (B, 1, T, 1)
        key_ids = scores.over_queries(scores.bring(key))  # (B, 1, 1, S)
        return query_ids == key_ids  # (B, 1, T, S)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        query, key = self._ids(scores)
        known = backend.on_host(query) and backend.on_host(key)
        if not known:
            return super()._intervals(scores)  # sorting ids makes the host wait for the device

        # Sorting finds the keys of a document in O(S log S), without an array of all pairs.
        query = backend.mover(key)(query)
        start, stop, whole = intervals.equal(query, key)  # (B, T), (B, T), a bool
        start = scores.over_heads(scores.bring(start))  # (B, 1, T)
        stop = scores.over_heads(scores.bring(stop))

        # A document in several pieces has keys of others between them.
        if not whole:
            return KeyIntervals(start, stop, self)
        return KeyIntervals(start, stop, None)

    def __repr__(self) -> str:
        keys = _brief(self.key_ids)
        if self.query_ids is None:
            return f"documents({keys})"
        return f"documents({_brief(self.query_ids)}, {keys})"


class _Dense(Mask):
    """Query i sees key j where an array of booleans is True at (i, j)."""

    def __init__(self, array: Any) -> None:
        self.dense = boolean(array, "dense: the mask")  # broadcasts to (…, H, T, S)
        self.sizes = tuple(0 if n == 1 else n for n in self.dense.shape)

    def _array(self, scores: Scores) -> Array:
        if not broadcasts(self.dense.shape, scores.shape):
            raise ValueError(
                f"mask has shape {tuple(self.dense.shape)}, which does not broadcast to "
                f"(…, H, T, S) {scores.shape}; to hide keys of each sequence write "
                "masks.padding(lengths) or masks.keys(valid)"
            )

        # An axis of length 1 stands for all queries or all keys, so there is nothing to select.
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
    if len(shape) > len(scores):
        return False

    # Axes are compared from the last one. Those that the array lacks stand for any length.
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    return all(n in (1, m) for n, m in pairs)


def boolean(array: Any, name: str) -> Array:
    """Return a boolean array, or the array of a boolean Tensor. Raises TypeError for anything else,
    with a message that starts with `name`."""
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
    """Return x if its shape is (*batch, *positions), with the batch of the scores; raise ValueError
    otherwise. If the scores have an offset, as in decoding, the last axis of x may be longer than
    positions say: the entries after the first S or T are left out.

    positions            (S,) if x has an entry for each key, (T,) for each query, () for each
                         sequence
    mask, name, meaning  what the message says: the mask, and what it calls x and its required shape
    """
    # During decoding, an array of the whole sequence may be longer than the keys that there are.
    if scores.offset is not None and positions and x.ndim:
        so_far = min(positions[-1], x.shape[-1])
        x = x[..., :so_far]

    expected = (*scores.batch, *positions)
    if tuple(x.shape) != expected:
        what = f"not {meaning}" if positions else f"{meaning} is"
        shape = tuple(x.shape)
        raise ValueError(f"{mask!r}: {name} has shape {shape}, {what} {expected}")
    return x


def _length(x: Array) -> int:
    """The length of the last axis of x, or 0 if x has no axes, which `_fitting` refuses later."""
    return x.shape[-1] if x.ndim else 0


def _sizes(batch: tuple[int, ...], t: int, s: int) -> tuple[int, ...]:
    """The value of the attribute `Mask.sizes`: the shape (…, H, T, S) that a mask requires of the
    scores, with 0 for an axis of any length, such as H here. batch is that of the mask's own
    arrays, () for any; t and s are T and S, or 0 for any."""
    if not batch:
        return t, s
    return *batch, 0, t, s


def _brief(x: Array) -> str:
    """Describe x in a text: up to 12 integers in full, any other array by its dtype and shape."""
    few = x.ndim <= 1 and sum(x.shape) <= 12
    if few and backend.is_integral(x):
        return str(backend.to_numpy(x).tolist())
    dtype = str(x.dtype).rpartition(".")[2]  # torch.bool as bool
    return f"{dtype} {tuple(x.shape)}"
