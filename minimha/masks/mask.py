"""The base class of masks, and masks combined with & | ~."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace
from minimha_autograd.extension import extension_point

from ..functional.checks import integer
from . import intervals


class Scores(NamedTuple):
    """The scores that a mask is made for: their shape, the library and the device of the mask's
    array (those of `like`), and which of its rows and columns are wanted (`queries` and `keys`).
    The offset is the key position of the first query where more keys will follow, else None."""

    shape: tuple[int, ...]  # (…, H, T, S), or (T, S) alone
    like: Array  # an array of the library and on the device wanted
    offset: int | None = None  # the key position of the first query, where more keys will follow
    queries: slice = slice(None)  # the queries whose rows are wanted
    keys: slice = slice(None)  # the keys whose columns are wanted

    @classmethod
    def of(cls, shape: Sequence[int], like: Any = None, queries: slice = slice(None)) -> Scores:
        shape = tuple(map(backend.index, shape))
        if len(shape) < 2 or min(shape) < 0:
            raise ValueError(f"shape is that of the scores, (…, H, T, S) or (T, S), not {shape}")
        like = backend.asarray(0) if like is None else array_of(like)
        return cls(shape, like, queries=backend.setting(queries))

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[:-3]

    @property
    def t(self) -> int:
        return self.shape[-2]

    @property
    def s(self) -> int:
        return self.shape[-1]

    @property
    def queries_wanted(self) -> range:
        return range(self.t)[self.queries]

    @property
    def keys_wanted(self) -> range:
        return range(self.s)[self.keys]

    def positions(self, places: range) -> Array:
        arange = namespace(self.like).arange
        return arange(places.start, places.stop, device=self.like.device)

    def bring(self, x: Array) -> Array:
        """Move x to the library and the device of the scores."""
        return backend.mover(self.like)(x)

    def over_heads(self, x: Array) -> Array:
        """Reshape x from (…, n) to (…, 1, n), so that it broadcasts over the heads."""
        heads = [1] * (len(self.shape) - 1 - x.ndim)
        return namespace(x).reshape(x, (*x.shape[:-1], *heads, x.shape[-1]))

    def over_keys(self, x: Array) -> Array:
        """Reshape x from (…, T) to (…, 1, T, 1), so that it broadcasts over heads and keys."""
        return self.over_heads(x)[..., :, None]

    def over_queries(self, x: Array) -> Array:
        """Reshape x from (…, S) to (…, 1, 1, S), so that it broadcasts over heads and queries."""
        return self.over_heads(x)[..., None, :]


class KeyIntervals(NamedTuple):
    """The keys that each query may attend to: j with start ≤ j < stop, where `inside` allows it.

    start, stop  int64, both broadcast to (…, H, T), with 0 ≤ start ≤ stop ≤ S. Where they are
                 equal, the query sees nothing
    inside       None: the query sees every key of its interval. Otherwise a mask that says which
                 of these keys it sees, for scores of the same shape and with the same offset; its
                 entries outside the interval do not matter
    """

    start: Array
    stop: Array
    inside: Mask | None


@extension_point
def picture(mask: Mask) -> str | None:
    """The picture of a mask that a notebook shows, as the text of an SVG file; None for no picture.

    This default draws nothing and returns None. In this package, `pictures.masks.mask_svg` is
    called in its place: see `minimha_autograd.extension`."""
    return None


class Mask:
    """Which query may attend to which key. Combine masks with & | ~.

    A subclass defines `_array`. It also defines `_intervals` if the interval of each query, the
    range start ≤ j < stop of the keys that it sees, is known without the array; see `KeyIntervals`.
    Both methods are given a `Scores`, and compute only what it wants: the queries
    `scores.queries_wanted` and the keys `scores.keys_wanted`. Intervals count from the first wanted
    key, and should be as short as possible, since kernels skip the other keys. A class that defines
    `_array` and inherits `_intervals` from another kind of mask raises a TypeError, since kernels
    would see the wrong keys.
    """

    sizes: tuple[int, ...] = ()
    """The shape (…, H, T, S) that the mask's own arrays require, 0 for an axis of any length."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        inherited = "_intervals" not in vars(cls) and cls._intervals is not Mask._intervals
        if "_array" in vars(cls) and inherited:
            raise TypeError(
                f"{cls.__name__} defines _array and inherits the _intervals of another rule: "
                "define them, too, or write `_intervals = Mask._intervals`, which reads the array"
            )

    def array(
        self, shape: Sequence[int], *, like: Any = None, queries: slice = slice(None)
    ) -> Array:
        """The boolean array of this mask; it broadcasts to the shape of the scores.

        shape    (…, H, T, S), or (T, S) alone
        like     an array of the library and on the device wanted; NumPy if left out
        queries  the queries whose rows are wanted, a slice of 0 … T − 1 without a step; other rows
                 are never built. Where all queries share one row, the array has this row alone

        Raises ValueError if the mask does not fit the shape.
        """
        return self._array(Scores.of(shape, like, queries))

    def blocks(
        self, shape: Sequence[int], block: tuple[int, int], *, like: Any = None
    ) -> tuple[Array, Array]:
        """Which blocks of the scores are empty, with all pairs hidden, and which are full, with no
        pair hidden.

        shape    that of the scores, (…, H, T, S) or (T, S)
        block    (queries, keys) in a block; the last blocks may be smaller
        like     an array of the library and on the device wanted; NumPy if left out
        returns  (empty, full), booleans (…, ⌈T/queries⌉, ⌈S/keys⌉) that broadcast over the heads

        The array (T, S) is not built as a whole, except for `dense` and for documents with ids on a
        device: where each query is known to see one run of keys, its interval is enough, and
        otherwise one row of blocks is made at a time.
        """
        height, width = map(backend.index, block)
        if height < 1 or width < 1:
            raise ValueError(f"block is (queries, keys), both at least 1, not {block}")
        scores = Scores.of(shape, like)
        t, s, xp = scores.t, scores.s, namespace(scores.like)
        height, width = min(height, max(1, t)), min(width, max(1, s))
        start, stop, inside = self._intervals(scores)
        start, stop = (xp.broadcast_to(x, (*x.shape[:-1], t))[..., None] for x in (start, stop))
        left = scores.positions(range(-(-s // width))) * width
        right = backend.clip(left + width, high=s)
        rows = []
        for first in range(0, t, height):
            queries = slice(first, min(first + height, t))
            if inside is None:
                among = xp.minimum(stop[..., queries, :], right)
                seen = backend.clip(among - xp.maximum(start[..., queries, :], left), low=0)
            else:
                some = self._array(scores._replace(queries=queries))
                some = xp.broadcast_to(some, (*(some.shape[:-1] or (1,)), s))
                before = xp.cumulative_sum(xp.astype(some, xp.int64), axis=-1, include_initial=True)
                seen = xp.take(before, right, axis=-1) - xp.take(before, left, axis=-1)
            rows.append((xp.all(seen == 0, axis=-2), xp.all(seen == right - left, axis=-2)))
        if not rows:
            none = xp.zeros((0, left.shape[0]), dtype=xp.bool, device=scores.like.device)
            return none, none
        empty, full = (xp.stack(x, axis=-2) for x in zip(*rows, strict=True))
        return empty, full

    def at(self, offset: int) -> Mask:
        """This mask for queries at the key positions offset … offset + T − 1, unless it has an
        offset or align of its own.

        For decoding with a cache, where more keys will come: lengths may exceed S, and of ids and
        valid keys for the whole sequence only the first S are used.
        """
        return _At(self, offset)

    def part(
        self, shape: Sequence[int], queries: slice, keys: slice, heads: slice = slice(None)
    ) -> Mask:
        """The part of this mask for some queries and keys of a sequence, as a mask for their
        scores.

        shape          that of the scores of the whole sequence, (…, H, T, S) or (T, S)
        queries, keys  which of the T queries and of the S keys: slices without a step
        heads          which of the H heads: a slice

        For attention in parts, such as `parallel.ring_attention`. Of the whole array, nothing but
        the entries of this part is built.
        """
        return _Part(self, Scores.of(shape, None, queries)._replace(keys=keys), heads)

    def _repr_svg_(self) -> str | None:
        return picture(self)

    def _array(self, scores: Scores) -> Array:
        raise NotImplementedError

    def _intervals(self, scores: Scores) -> KeyIntervals:
        start, stop, whole = intervals.around(self._array(scores), len(scores.keys_wanted))
        return KeyIntervals(start, stop, None if whole else self)

    def __and__(self, other: Mask) -> Mask:
        return _Combined(self, other, operator.and_)

    def __or__(self, other: Mask) -> Mask:
        return _Combined(self, other, operator.or_)

    __rand__, __ror__ = __and__, __or__  # reached with an array on the left, and refused
    __array_ufunc__ = None  # so that a NumPy array on the left comes here as well

    def __invert__(self) -> Mask:
        return _Inverted(self)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is neither true nor false: combine masks with & | ~")


AnyMask = Mask | Array | None
"""What takes the place of a mask: a mask, a boolean array, or None where nothing is hidden."""


class _Combined(Mask):
    def __init__(self, left: Mask, right: Mask, how: Callable[[Array, Array], Array]) -> None:
        if not isinstance(right, Mask):
            raise TypeError(
                f"a mask combines with a mask, not with {type(right).__name__}; "
                "a boolean array becomes one by masks.dense(array)"
            )
        self.left, self.right, self.how = left, right, how
        n = max(len(left.sizes), len(right.sizes))
        padded = ((0,) * (n - len(m.sizes)) + m.sizes for m in (left, right))
        self.sizes = tuple(map(max, *padded))

    def _array(self, scores: Scores) -> Array:
        return self.how(self.left._array(scores), self.right._array(scores))

    def _intervals(self, scores: Scores) -> KeyIntervals:
        left, right = self.left._intervals(scores), self.right._intervals(scores)
        if self.how is operator.and_:
            masks = [x.inside for x in (left, right) if x.inside is not None]
            inside = functools.reduce(operator.and_, masks) if masks else None
            return KeyIntervals(*intervals.intersection(left[:2], right[:2]), inside)
        start, stop, whole = intervals.union(left[:2], right[:2])
        whole = whole and left.inside is right.inside is None
        return KeyIntervals(start, stop, None if whole else self)

    def __repr__(self) -> str:
        def part(mask: Mask) -> str:
            other = isinstance(mask, _Combined) and mask.how is not self.how
            return f"({mask!r})" if other else repr(mask)

        sign = "&" if self.how is operator.and_ else "|"
        return f"{part(self.left)} {sign} {part(self.right)}"


class _Inverted(Mask):
    def __init__(self, mask: Mask) -> None:
        self.mask, self.sizes = mask, mask.sizes

    def _array(self, scores: Scores) -> Array:
        return ~self.mask._array(scores)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        start = self.mask._intervals(scores).start  # raises if the mask does not fit
        start = namespace(start).zeros_like(start)
        return KeyIntervals(start, start + len(scores.keys_wanted), self)

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, _Combined) else f"~{self.mask!r}"


class _At(Mask):
    def __init__(self, mask: Mask, offset: int) -> None:
        self.mask, self.sizes = mask, mask.sizes
        self.offset = integer(offset, "at: offset", least=0)

    def _array(self, scores: Scores) -> Array:
        return self.mask._array(scores._replace(offset=self.offset))

    def _intervals(self, scores: Scores) -> KeyIntervals:
        start, stop, inside = self.mask._intervals(scores._replace(offset=self.offset))
        return KeyIntervals(start, stop, None if inside is None else _At(inside, self.offset))

    def __repr__(self) -> str:
        return f"({self.mask!r}).at({self.offset})"


class _Part(Mask):
    def __init__(self, mask: Mask, whole: Scores, heads: slice) -> None:
        self.mask, self.whole, self.heads = mask, whole, heads
        *batch, h = whole.shape[:-2] or (1,)
        t, s = len(whole.queries_wanted), len(whole.keys_wanted)
        self.sizes = (*batch, len(range(h)[heads]), t, s)

    def _array(self, scores: Scores) -> Array:
        return self._of_heads(self.mask._array(self._within(scores)), 3)

    def _intervals(self, scores: Scores) -> KeyIntervals:
        start, stop, inside = self.mask._intervals(self._within(scores))
        inside = None if inside is None else _Part(inside, self.whole, self.heads)
        return KeyIntervals(self._of_heads(start, 2), self._of_heads(stop, 2), inside)

    def _within(self, scores: Scores) -> Scores:
        """Convert the `Scores` of this part to those of the whole sequence, in which the same
        queries and keys are wanted."""
        if (scores.t, scores.s) != self.sizes[-2:]:
            raise ValueError(
                f"{self!r} is for scores (T, S) = {self.sizes[-2:]}, not {(scores.t, scores.s)}"
            )
        queries = self.whole.queries_wanted[scores.queries]
        keys = self.whole.keys_wanted[scores.keys]
        return self.whole._replace(
            like=scores.like,
            queries=slice(queries.start, queries.stop),
            keys=slice(keys.start, keys.stop),
        )

    def _of_heads(self, x: Array, axis: int) -> Array:
        """x with only the heads of this part, if x has a separate entry for each head.

        axis  the axis of the heads, counted from the end
        """
        if x.ndim < axis or x.shape[-axis] == 1:
            return x
        return x[(..., self.heads, *(slice(None),) * (axis - 1))]

    def __repr__(self) -> str:
        queries, keys = self.whole.queries_wanted, self.whole.keys_wanted
        of = f"({self.mask!r})" if isinstance(self.mask, _Combined) else repr(self.mask)
        return f"{of}.part(queries={queries.start}:{queries.stop}, keys={keys.start}:{keys.stop})"
