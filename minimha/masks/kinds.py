"""Masks: which query may attend to which key. True = may attend, everywhere.

    masks.causal() & masks.padding([5, 3])

A mask is a rule; the boolean array is made when the shape of the scores is known, and blocks of it
are told empty or full without making it. Combine masks with & | ~.
B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace

from ..checks import integer
from .alignment import aligned, checked
from .intervals import Spans, both, bounding, either, occurrences, outside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Mask",
    "Spans",
    "broadcasts",
    "causal",
    "dense",
    "documents",
    "empty_rows",
    "keys",
    "padding",
    "prefix",
    "resolve",
    "sliding_window",
    "spans",
]


class _Scores(NamedTuple):
    """The scores that a mask is made for: their shape, and where the array shall live."""

    shape: tuple[int, ...]  # (…, H, T, S), or (T, S) alone
    offset: int | None  # where the first query stands among the keys
    like: Array
    growing: bool = False  # whether more keys are to come, which masks may know already
    rows: slice = slice(None)  # the queries that the array is wanted of

    @classmethod
    def of(cls, shape: Sequence[int], offset: int | None, like: Any) -> _Scores:
        shape = tuple(operator.index(n) for n in shape)
        if len(shape) < 2 or min(shape) < 0:
            raise ValueError(f"shape is that of the scores, (…, H, T, S) or (T, S), not {shape}")
        like = backend.asarray(0) if like is None else array_of(like)
        return cls(shape, None if offset is None else integer(offset, "offset"), like)

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[:-3]

    @property
    def t(self) -> int:
        return self.shape[-2]

    @property
    def s(self) -> int:
        return self.shape[-1]

    def range(self, n: int, step: int = 1) -> Array:
        """0, step, 2 · step, … below n."""
        return namespace(self.like).arange(0, n, step, device=self.like.device)

    def bring(self, x: Array) -> Array:
        """x in the library and on the device of the scores."""
        return backend.mover(self.like)(x)

    def queries(self, x: Array) -> Array:
        """(…, T) as (…, 1, T, 1): the same for all heads and keys."""
        return self.over_heads(x)[..., :, None]

    def keys(self, x: Array) -> Array:
        """(…, S) as (…, 1, 1, S): the same for all heads and queries."""
        return self.over_heads(x)[..., None, :]

    def over_heads(self, x: Array) -> Array:
        """(…, n) as (…, 1, n): the same for all heads."""
        heads = [1] * (len(self.shape) - 1 - x.ndim)
        return namespace(x).reshape(x, (*x.shape[:-1], *heads, x.shape[-1]))


class Mask:
    """What may be attended to. Combine masks with & | ~; a notebook shows the picture of one.
    Masks that follow from a few integers are equal if those are.

    Each kind says its array in `_array`, and what it knows without one in `_bounds`, of blocks, and
    in `_spans`, of queries.
    """

    def array(self, shape: Sequence[int], *, offset: int | None = None, like: Any = None) -> Array:
        """The boolean array of this mask; it broadcasts to the shape of the scores.

        shape   (…, H, T, S), or (T, S) alone
        offset  where the first query stands among the keys, for masks that were not told: in cached
                decoding T new queries stand at the positions offset … offset + T − 1 of S keys
        like    an array of the library and on the device wanted; NumPy if left out

        Raises ValueError if the mask does not fit the shape.
        """
        return self._array(_Scores.of(shape, offset, like))

    def rows(
        self,
        shape: Sequence[int],
        start: int,
        stop: int,
        *,
        offset: int | None = None,
        like: Any = None,
    ) -> Array:
        """The array of the queries start … stop − 1 alone; the others' is never made.

        It broadcasts to (…, H, stop − start, S): array(shape)[..., start:stop, :] where the array
        has an axis of queries, and the same array where all queries share it. shape, offset and
        like as in `array`.

        Raises ValueError as `array` does, and unless 0 ≤ start ≤ stop ≤ T; TypeError unless they
        are integers.
        """
        scores = _Scores.of(shape, offset, like)
        start, stop = integer(start, "rows: start", least=0), integer(stop, "rows: stop")
        if not start <= stop <= scores.t:
            raise ValueError(
                f"rows: start = {start} and stop = {stop} must be in order and at most "
                f"T = {scores.t}"
            )
        return self._array(scores._replace(rows=slice(start, stop)))

    def blocks(
        self,
        shape: Sequence[int],
        block: tuple[int, int],
        *,
        offset: int | None = None,
        like: Any = None,
    ) -> tuple[Array, Array]:
        """Which blocks are empty and which are full, without making the array (T, S).

        block   (rows, columns); the last blocks may be smaller
        returns (empty, full), booleans that broadcast to (…, H, ⌈T/rows⌉, ⌈S/columns⌉)

        Never wrong, and exact for each kind by itself, but for `documents` as said there. A
        combination knows of its parts only what each says of a block: a block is neither where none
        of them decides it alone. So causal() & ~causal(offset=-1), the diagonal, is found empty
        above and below it, while a & ~a is found empty only where a is empty or full.
        """
        rows, columns = (operator.index(n) for n in block)
        if rows < 1 or columns < 1:
            raise ValueError(f"block is (rows, columns), both at least 1, not {block}")
        scores = _Scores.of(shape, offset, like)
        rows, columns = min(rows, max(1, scores.t)), min(columns, max(1, scores.s))
        some, every = self._bounds(scores, rows, columns)
        return ~some, every

    def at(self, offset: int) -> Mask:
        """This mask for queries that begin at a key position, unless it was told another.

        For decoding with a cache, where more keys are to come: lengths, ids and valid keys may be
        those of the whole sequence, and count up to S.
        """
        return _Placed(self, offset)

    def draw(
        self,
        shape: Sequence[int] | None = None,
        *,
        block: tuple[int, int] | None = None,
        offset: int | None = None,
        title: str = "",
    ) -> Figure:
        """A picture: see `minimha.pictures.mask`. Without a shape, a small one that fits."""
        from .. import pictures

        shape = self._small() if shape is None else shape
        return pictures.mask(self, shape, block=block, offset=offset, title=title or repr(self))

    def _repr_svg_(self) -> str | None:
        from .. import pictures

        try:
            small = self._small()
            return pictures.svg(self.draw(small)) if small[-2] * small[-1] <= _SHOWN else None
        except Exception:  # no small shape fits all the parts: the notebook shows the repr
            return None

    def _array(self, scores: _Scores) -> Array:
        raise NotImplementedError

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        """Of each block, whether any entry may be True, and whether all are known to be."""
        x = self._array(scores)
        xp = namespace(x)

        def reduce(how: Callable[..., Array]) -> Array:
            y = how(_blocked(x, columns), axis=-1) if x.ndim else x
            if x.ndim < 2:
                return y
            y = how(_blocked(xp.matrix_transpose(y), rows), axis=-1)
            return xp.matrix_transpose(y)

        return reduce(xp.any), reduce(xp.all)

    def _spans(self, scores: _Scores) -> Spans:
        """See `spans`: here found in the array, which is small or there already."""
        return self._around(*bounding(self._array(scores), scores.s))

    def _around(self, first: Array, last: Array, whole: bool) -> Spans:
        return Spans(first, last, None if whole else self)

    def _wants(self) -> tuple[int, ...]:
        """The shape that its own arrays ask for, 0 where any length will do."""
        return ()

    def _small(self) -> tuple[int, ...]:
        *lead, t, s = (0, 0, *self._wants())[-max(2, len(self._wants())) :]
        return (*(n or 1 for n in lead), t or s or 8, s or t or 8)

    def __and__(self, other: Mask) -> Mask:
        return _Combined(self, other, operator.and_)

    def __or__(self, other: Mask) -> Mask:
        return _Combined(self, other, operator.or_)

    __rand__, __ror__ = __and__, __or__  # only reached by what is no mask, and refused
    __array_ufunc__ = None  # so that a NumPy array on the left comes here as well

    def __invert__(self) -> Mask:
        return _Inverted(self)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is neither true nor false: combine masks with & | ~")


_SHOWN = 4096
"""Entries of a mask up to which a notebook draws it unasked."""


class _Combined(Mask):
    def __init__(self, left: Mask, right: Mask, how: Callable[[Array, Array], Array]) -> None:
        if not isinstance(right, Mask):
            raise TypeError(
                f"a mask combines with a mask, not with {type(right).__name__}; "
                "a boolean array becomes one by masks.dense(array)"
            )
        self.left, self.right, self.how = left, right, how

    def _array(self, scores: _Scores) -> Array:
        return self.how(self.left._array(scores), self.right._array(scores))

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        left, right = (m._bounds(scores, rows, columns) for m in (self.left, self.right))
        return self.how(left[0], right[0]), self.how(left[1], right[1])

    def _spans(self, scores: _Scores) -> Spans:
        left, right = self.left._spans(scores), self.right._spans(scores)
        rests = [span.rest for span in (left, right) if span.rest is not None]
        if self.how is operator.and_:
            rest = functools.reduce(operator.and_, rests) if rests else None
            return Spans(*both(left, right), rest)
        first, last, whole = either(left, right)
        return self._around(first, last, whole and not rests)

    def _wants(self) -> tuple[int, ...]:
        left, right = self.left._wants(), self.right._wants()
        n = max(len(left), len(right))
        pairs = zip((0,) * (n - len(left)) + left, (0,) * (n - len(right)) + right, strict=True)
        return tuple(max(pair) for pair in pairs)

    def __repr__(self) -> str:
        def part(mask: Mask) -> str:
            other = isinstance(mask, _Combined) and mask.how is not self.how
            return f"({mask!r})" if other else repr(mask)

        sign = "&" if self.how is operator.and_ else "|"
        return f"{part(self.left)} {sign} {part(self.right)}"


class _Inverted(Mask):
    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def _array(self, scores: _Scores) -> Array:
        return ~self.mask._array(scores)

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        some, every = self.mask._bounds(scores, rows, columns)
        return ~every, ~some

    def _spans(self, scores: _Scores) -> Spans:
        span = self.mask._spans(scores)
        if span.rest is None:
            return self._around(*outside(span, scores.s))
        zero = namespace(span.first).zeros_like(span.first)
        return Spans(zero, zero + scores.s, self)

    def _wants(self) -> tuple[int, ...]:
        return self.mask._wants()

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, _Combined) else f"~{self.mask!r}"


class _Placed(Mask):
    def __init__(self, mask: Mask, offset: int) -> None:
        self.mask, self.offset = mask, integer(offset, "at: offset", least=0)

    def _array(self, scores: _Scores) -> Array:
        return self.mask._array(self._placed(scores))

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        return self.mask._bounds(self._placed(scores), rows, columns)

    def _spans(self, scores: _Scores) -> Spans:
        first, last, rest = self.mask._spans(self._placed(scores))
        return Spans(first, last, None if rest is None else _Placed(rest, self.offset))

    def _placed(self, scores: _Scores) -> _Scores:
        return scores._replace(offset=self.offset, growing=True)

    def _wants(self) -> tuple[int, ...]:
        return self.mask._wants()

    def __repr__(self) -> str:
        return f"({self.mask!r}).at({self.offset})"


class Band(Mask):
    """i + offset − left ≤ j ≤ i + offset + right, without the side that is None."""

    name: str

    def __init__(
        self, left: int | None, right: int | None, offset: int | None, align: str | None
    ) -> None:
        name = self.name
        self.offset, self.align = checked(name, offset, align), align
        self.left = None if left is None else integer(left, f"{name}: left")
        self.right = None if right is None else integer(right, f"{name}: right")
        if min(n for n in (self.left, self.right, 0) if n is not None) < 0:
            raise ValueError(f"{name}: left and right are at least 0, not {left} and {right}")

    def _ends(self, scores: _Scores) -> tuple[int, int]:
        """The least and the largest j − i that are seen, from −T to S: beyond, nothing differs."""
        t, s = scores.t, scores.s
        said = self.offset is not None or self.align is not None
        offset = self.offset if said else scores.offset
        offset = aligned(repr(self), t, s, offset, self.align)
        least = -t if self.left is None else offset - self.left
        largest = s if self.right is None else offset + self.right
        return max(-t, min(least, s)), max(-t, min(largest, s))

    def _array(self, scores: _Scores) -> Array:
        least, largest = self._ends(scores)
        i, j = scores.range(scores.t)[scores.rows, None], scores.range(scores.s)[None, :]
        if self.left is None:
            return j <= i + largest
        seen = j >= i + least
        return seen if self.right is None else seen & (j <= i + largest)

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        least, largest = self._ends(scores)
        t, s = scores.t, scores.s
        i, j = scores.range(t, rows)[:, None], scores.range(s, columns)[None, :]
        first = j - namespace(i).clip(i + (rows - 1), max=t - 1)  # least j − i of the block
        last = namespace(j).clip(j + (columns - 1), max=s - 1) - i
        return (first <= largest) & (last >= least), (first >= least) & (last <= largest)

    def _spans(self, scores: _Scores) -> Spans:
        least, largest = self._ends(scores)
        i, s = scores.range(scores.t), scores.s
        clip = namespace(i).clip
        return Spans(clip(i + least, 0, s), clip(i + (largest + 1), 0, s), None)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.left, self.right, self.offset, self.align))

    def __repr__(self) -> str:
        said = [f"offset={self.offset}"] if self.offset is not None else []
        said += [f'align="{self.align}"'] if self.align else []
        return f"{self.name}({', '.join([*self._window(), *said])})"

    def _window(self) -> list[str]:
        return []


class _Causal(Band):
    name = "causal"


class _SlidingWindow(Band):
    name = "sliding_window"

    def _window(self) -> list[str]:
        return [str(self.left), str(self.right)]


class _PerKey(Mask):
    """What is the same for all queries and heads: each kind says it in `_valid`, as (…, S)."""

    def _valid(self, scores: _Scores) -> Array:
        raise NotImplementedError

    def _array(self, scores: _Scores) -> Array:
        return scores.keys(self._valid(scores))

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        valid = _blocked(self._valid(scores), columns)
        xp = namespace(valid)
        return scores.keys(xp.any(valid, axis=-1)), scores.keys(xp.all(valid, axis=-1))


class _Keys(_PerKey):
    def __init__(self, valid: Any) -> None:
        self.valid = _boolean(valid, "keys: valid")

    def _valid(self, scores: _Scores) -> Array:
        return scores.bring(_fitting(self, "valid", self.valid, "(…, S)", scores, scores.s))

    def _wants(self) -> tuple[int, ...]:
        return _wanted(self.valid.shape[:-1], 0, self.valid.shape[-1])

    def __repr__(self) -> str:
        return f"keys({_brief(self.valid)})"


class _Padding(_PerKey):
    def __init__(self, lengths: Any) -> None:
        self.lengths = _integers(
            lengths,
            "padding: lengths are integers, one a sequence",
            "; a boolean array of valid keys goes to masks.keys(valid)",
        )

    def _valid(self, scores: _Scores) -> Array:
        lengths = scores.bring(_fitting(self, "lengths", self.lengths, "the batch (…)", scores))
        xp, s = namespace(lengths), scores.s
        most = xp.max(lengths) if scores.growing and 0 not in lengths.shape else s
        if bool(xp.any((lengths < 0) | (lengths > most))):
            raise ValueError(f"{self!r}: lengths must be from 0 to S = {s}")
        return scores.range(s) < lengths[..., None]

    def _wants(self) -> tuple[int, ...]:
        return _wanted(self.lengths.shape, 0, max(1, _largest(self.lengths)))

    def __repr__(self) -> str:
        return f"padding({_brief(self.lengths)})"


class _Prefix(_PerKey):
    def __init__(self, n: Any) -> None:
        self.n = _integers(n, "prefix: n is an integer, or integers, one a sequence", "")
        if bool(namespace(self.n).any(self.n < 0)):
            raise ValueError(f"{self!r}: n must be at least 0")

    def _valid(self, scores: _Scores) -> Array:
        n = _fitting(self, "n", self.n, "the batch (…)", scores) if self.n.ndim else self.n
        return scores.range(scores.s) < scores.bring(n)[..., None]

    def _wants(self) -> tuple[int, ...]:
        return _wanted(self.n.shape, 0, 0)

    def __repr__(self) -> str:
        return f"prefix({_brief(self.n)})"


class _Documents(Mask):
    def __init__(self, ids: Any, key_ids: Any = None) -> None:
        must = "documents: ids are integers, one a position"
        self.query_ids = None if key_ids is None else _integers(ids, must, "")
        self.key_ids = _integers(ids if key_ids is None else key_ids, must, "")

    def _ids(
        self, scores: _Scores, numbered: Callable[[Array], Array] = lambda ids: ids
    ) -> tuple[Array, Array]:
        """The ids of the queries (…, T) and of the keys (…, S)."""
        t, s = scores.t, scores.s
        key = scores.bring(_fitting(self, "the keys' ids", self.key_ids, "(…, S)", scores, s))
        if self.query_ids is not None:
            here = scores._replace(growing=False)
            ids = _fitting(self, "the queries' ids", self.query_ids, "(…, T)", here, t)
            return scores.bring(ids), key
        fix = "give documents(query_ids, key_ids), or offset=… where the queries stand among them"
        offset = _offset(self, scores, fix)
        if not 0 <= offset <= s - t:
            raise ValueError(
                f"{self!r}: T = {t} queries from offset {offset} on are not all among the "
                f"S = {s} keys; give documents(query_ids, key_ids)"
            )
        key = numbered(key)
        return key[..., offset : offset + t], key

    def _array(self, scores: _Scores) -> Array:
        query, key = self._ids(scores)
        return scores.queries(query[..., scores.rows]) == scores.keys(key)

    def _bounds(self, scores: _Scores, rows: int, columns: int) -> tuple[Array, Array]:
        query, key = self._ids(scores, _numbered)
        xp, query, key = namespace(key), _blocked(query, rows), _blocked(key, columns)
        first, last = (scores.queries(how(query, axis=-1)) for how in (xp.min, xp.max))
        least, largest = (scores.keys(how(key, axis=-1)) for how in (xp.min, xp.max))
        overlap = (first <= largest) & (least <= last)
        return overlap, (first == last) & (least == largest) & (first == least)

    def _spans(self, scores: _Scores) -> Spans:
        query, key = self._ids(scores)
        first, last, whole = occurrences(query, key)
        return self._around(scores.over_heads(first), scores.over_heads(last), whole)

    def _wants(self) -> tuple[int, ...]:
        t = 0 if self.query_ids is None else self.query_ids.shape[-1]
        return _wanted(self.key_ids.shape[:-1], t, self.key_ids.shape[-1])

    def __repr__(self) -> str:
        given = [] if self.query_ids is None else [_brief(self.query_ids)]
        return f"documents({', '.join([*given, _brief(self.key_ids)])})"


class _Dense(Mask):
    def __init__(self, array: Any) -> None:
        self.dense = _boolean(array, "dense: the mask")

    def _array(self, scores: _Scores) -> Array:
        if not broadcasts(self.dense.shape, scores.shape):
            raise ValueError(
                f"mask has shape {tuple(self.dense.shape)}, which does not broadcast to "
                f"(…, H, T, S) {scores.shape}; to hide keys of each sequence write "
                "masks.padding(lengths) or masks.keys(valid)"
            )
        shared = self.dense.ndim < 2 or self.dense.shape[-2] != scores.t
        if shared or scores.rows == slice(None):
            return scores.bring(self.dense)
        return scores.bring(self.dense[..., scores.rows, :])

    def _wants(self) -> tuple[int, ...]:
        return tuple(0 if n == 1 else n for n in self.dense.shape)

    def __repr__(self) -> str:
        return f"dense({_brief(self.dense)})"


def causal(*, offset: int | None = None, align: str | None = None) -> Mask:
    """Query i sees key j where j ≤ i + offset: no look into the future.

    With T = S the offset is 0. Otherwise it must be said, since libraries disagree: offset=…, or
    align="top-left" (offset 0: both sequences start together) or align="bottom-right" (S − T: they
    end together). Raises ValueError naming all three when it is left out.
    """
    return _Causal(None, 0, offset, align)


def sliding_window(
    left: int | None, right: int | None, *, offset: int | None = None, align: str | None = None
) -> Mask:
    """Query i sees key j where i + offset − left ≤ j ≤ i + offset + right.

    left and right are integers of at least 0, or None for no end on that side. The offset is that
    of `causal`. Raises ValueError as `causal` does, and for a negative left or right.
    """
    return _SlidingWindow(left, right, offset, align)


def padding(lengths: Array | Sequence[int]) -> Mask:
    """Every query sees the first lengths[b] keys of its sequence b. lengths: integers (…), 0 to S.

    Hides keys, never queries. Raises TypeError unless lengths are integers, ValueError where they
    do not match the batch or exceed S.
    """
    return _Padding(lengths)


def keys(valid: Array) -> Mask:
    """Every query sees the keys where valid (…, S) is True: padding anywhere in the sequence."""
    return _Keys(valid)


def documents(ids: Array | Sequence[int], key_ids: Array | Sequence[int] | None = None) -> Mask:
    """Query i sees key j where both are of the same document: several packed into one sequence.

    ids      (…, S) integers, the document of each key. The queries are those at the same positions:
             all if T = S, else ids[offset : offset + T] with the offset that `Mask.array` is told
    key_ids  for queries of another sequence: documents(query_ids, key_ids), (…, T) and (…, S)

    Its `blocks` are exact where equal ids stand next to each other. Otherwise, and always if
    key_ids are given, a block counts as empty only if the ids of its queries are all below or all
    above those of its keys; which blocks are full is exact.

    Raises TypeError unless the ids are integers, ValueError where they do not fit the scores, or
    T ≠ S and it is not known where the queries stand.
    """
    return _Documents(ids, key_ids)


def prefix(n: int | Array | Sequence[int]) -> Mask:
    """Every query sees the first n keys: causal() | prefix(n) is the mask of a prefix-LM.

    n is one integer, or integers (…), one a sequence, at least 0; beyond S it means all keys.
    Raises TypeError unless n is integers, ValueError if it is negative or does not match the batch.
    """
    return _Prefix(n)


def dense(array: Array) -> Mask:
    """A boolean array that broadcasts to (…, H, T, S). Raises TypeError unless it is boolean."""
    return _Dense(array)


def resolve(
    mask: Mask | Array | None, query: Array, key: Array, *, offset: int | None = None
) -> Array | None:
    """The boolean array of a mask, typed or bare, for these shapes; None for no mask.

    query (…, H, T, D), key (…, G, S, D); the array broadcasts to (…, H, T, S). offset as in
    `Mask.array`. A bare array is taken as `dense`, unless it could be (B, S): that is refused,
    since it would be broadcast over queries instead of the batch without a word.
    """
    if mask is None:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    return typed(mask, shape).array(shape, offset=offset, like=query)


def spans(
    mask: Mask | Array | None, query: Array, key: Array, *, offset: int | None = None
) -> Spans | None:
    """Where the keys that each query sees begin and end; None for no mask.

    For attention in blocks: it skips the keys that no query of a block sees, and asks for an array,
    by `Mask.rows` of the rest, only where an interval is not the whole truth. It needs O(T + S)
    memory a sequence, beside the arrays that `dense` was given. query, key, offset, what a bare
    array is taken for and the errors are those of `resolve`.

    causal, sliding_window, padding and prefix have no rest, nor have keys, documents and dense if
    each query sees one run of keys. a & b has the rests of its parts, within the interval that they
    share. a | b and ~a have none if their parts have none and one run remains for each query, as
    with causal() | prefix(n); sliding_window(…) | prefix(n) leaves a gap, and has one.
    """
    if mask is None:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    return typed(mask, shape)._spans(_Scores.of(shape, offset, query))


def empty_rows(
    mask: Mask | Array, shape: Sequence[int], *, offset: int | None = None, like: Any = None
) -> Array:
    """The queries that may attend to nothing, boolean (…, H, T): their output is 0.

    shape is that of the scores, (…, H, T, S) or (T, S); offset and like as in `Mask.array`. A bare
    boolean array is taken as by `resolve`, and answered in its own library.
    """
    if not isinstance(mask, Mask):
        mask = _boolean(mask, "mask")
        like = mask if like is None else like
    seen = typed(mask, shape).array(shape, offset=offset, like=like)
    xp = namespace(seen)
    return ~xp.any(xp.broadcast_to(seen, tuple(shape)), axis=-1)


def broadcasts(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the shape of the scores (…, H, T, S)."""
    return len(shape) <= len(scores) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(scores), strict=False)
    )


def typed(mask: Mask | Array, scores: Sequence[int]) -> Mask:
    """A mask as it is; a bare boolean array as `dense`, refused where it could be (B, S)."""
    if isinstance(mask, Mask):
        return mask
    array = _boolean(mask, "mask")
    shape, batch = tuple(array.shape), tuple(scores[:-3])
    if batch and shape == (*batch, scores[-1]):
        b, t = ("B", "(T, S)") if len(batch) == 1 else ("…", "for heads and queries")
        raise ValueError(
            f"mask of shape {shape} could be ({b}, S): write masks.keys(mask) or "
            f"masks.padding(lengths); if it is {t}, write masks.dense(mask)"
        )
    over_heads = broadcasts(shape[:-2], tuple(scores[:-2]))
    if batch and shape[:-2] == batch and over_heads and max(batch) > 1:
        b, h = ("B", "H") if len(batch) == 1 else ("…", "…, H")
        raise ValueError(
            f"mask of shape {shape} could be ({b}, T, S) or ({h}, T, S): write "
            "mask[..., None, :, :] for one mask a sequence, masks.dense(mask) for one a head"
        )
    return dense(array)


def _offset(mask: Mask, scores: _Scores, fix: str) -> int:
    """Where the first query stands among the keys: at 0 if T = S and nothing else was said."""
    if scores.offset is not None:
        return scores.offset
    if scores.t != scores.s:
        raise ValueError(
            f"{mask!r}: with T = {scores.t} query and S = {scores.s} key positions, {fix}"
        )
    return 0


def _fitting(
    mask: Mask, name: str, x: Array, meaning: str, scores: _Scores, *positions: int
) -> Array:
    """x, which must have the shape of the batch and the positions, so far as there are any yet."""
    if scores.growing and positions and x.ndim:
        x = x[..., : min(positions[-1], x.shape[-1])]
    if tuple(x.shape) != (expected := (*scores.batch, *positions)):
        what = f"{meaning} is" if not positions else f"not {meaning}"
        raise ValueError(f"{mask!r}: {name} has shape {tuple(x.shape)}, {what} {expected}")
    return x


def _blocked(x: Array, size: int) -> Array:
    """(…, n) as (…, ⌈n/size⌉, size). The last entry fills up the last block: it changes no any,
    all, min or max. A last axis of length 1, which may stand for any length, stays a single one."""
    xp, n = namespace(x), x.shape[-1]
    size = min(size, max(1, n))
    count = -(-n // size)
    if count * size > n:
        places = xp.clip(xp.arange(count * size, device=x.device), max=n - 1)
        x = xp.take(x, places, axis=-1)
    return xp.reshape(x, (*x.shape[:-1], count, size))


def _numbered(ids: Array) -> Array:
    """Ids (…, S) by which the same positions are equal, in ascending order where they can be.

    Where equal ids stand next to each other, as many runs as different ids, each run has its
    number. The numbers in a block then follow each other without a gap.
    """
    xp = namespace(ids)
    if not ids.shape[-1]:
        return ids

    def runs(x: Array) -> Array:
        changes = xp.astype(x != xp.roll(x, 1, axis=-1), xp.int64)
        count = xp.cumulative_sum(changes, axis=-1)
        return count - count[..., :1]

    by_place, sorted_ = runs(ids), runs(xp.sort(ids, axis=-1))
    contiguous = by_place[..., -1:] == sorted_[..., -1:]
    return xp.where(contiguous, by_place, xp.astype(ids, xp.int64))


def _boolean(array: Any, what: str) -> Array:
    if callable(array):
        raise TypeError(f"{what} is a function: call it, as in masks.causal()")
    array = backend.asarray(array_of(array))
    if not namespace(array).isdtype(array.dtype, "bool"):
        raise TypeError(
            f"{what} has dtype {array.dtype} and must be boolean, True = may attend: write "
            "mask != 0 for zeros and ones, or pass numbers to add to the scores as bias"
        )
    return array


def _integers(x: Any, must: str, fix: str) -> Array:
    x = backend.asarray(array_of(x))
    if not backend.is_integral(x):
        raise TypeError(f"{must}, not {x.dtype}{fix}")
    return x


def _wanted(batch: tuple[int, ...], t: int, s: int) -> tuple[int, ...]:
    """The shape (…, H, T, S) for a batch, whatever H is; (T, S) without a batch."""
    return (*batch, 0, t, s) if batch else (t, s)


def _largest(x: Array) -> int:
    return int(namespace(x).max(x)) if 0 not in x.shape else 0


def _brief(x: Array) -> str:
    """Short integers as they are, other arrays by dtype and shape."""
    if x.ndim <= 1 and sum(x.shape) <= 12 and backend.is_integral(x):
        return str(backend.to_numpy(x).tolist())
    return f"{str(x.dtype).rpartition('.')[2]} {tuple(x.shape)}"
