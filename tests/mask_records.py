"""A record for each mask: random ones with their rules, examples, and calls that must be refused.

The tests of `masks/` loop over these records. They compare arrays, intervals and messages, and run
each mask through every implementation of attention. A public mask without a record fails the suite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import minimha as mh
from minimha import masks
from minimha.masks import kinds


def not_public() -> str:
    """Which masks of kinds.py are not public, and what to do; "" if all are."""
    made = [name for name, x in vars(kinds).items() if inspect.isfunction(x) and name[0] != "_"]
    made = [x for x in made if getattr(kinds, x).__annotations__.get("return") == "Mask"]
    hidden = [x for x in made if x not in masks.__all__ or not hasattr(masks, x)]
    where = "import it in minimha/masks/__init__.py and list it in __all__ there"
    return f"{', '.join(hidden)} of minimha/masks/kinds.py: {where}" if hidden else ""


if not_public():  # or the records below would end in an AttributeError
    raise ImportError(not_public())

SHAPE = B, H, T, S = 2, 3, 4, 6
"""Of the scores that the examples are made for."""


@dataclass
class Record:
    """A mask and how to test it.

    mask      the public function
    drawn     functions (choose, rng, shape, offset) that return any mask for scores of this shape
              and its rule: whether, at `place` (…, h), query i may attend to key j. `choose`
              selects one of several settings, `rng` draws arrays. The rule is written anew, without
              the package, and holds for the mask placed by `at(offset)`, unless offset is None
    examples  by their repr, functions that make masks for SHAPE from arrays of any library
    refused   calls that raise an error, its type and a pattern of its message
    among     those functions of `drawn` whose queries have to be among the keys
    anywhere  those functions of `drawn` whose masks ignore the positions of queries, and so the
              offset of `Mask.at`. All other masks have to depend on it, and without it refuse T ≠ S
    """

    mask: Callable[..., Any]
    drawn: Sequence[Callable[..., Any]]
    examples: dict[str, Callable[..., Any]]
    refused: Sequence[tuple[Callable[[], Any], type[Exception], str]]
    among: Sequence[Callable[..., Any]] = ()
    anywhere: Sequence[Callable[..., Any]] = ()

    @property
    def name(self) -> str:
        return self.mask.__name__


def settings_of_a_band(choose, shape, offset):
    """An offset or an alignment, and the key position of the first query."""
    t, s = shape[-2:]
    number = choose(range(-9, 10))
    ways = [
        ({"offset": number}, number),
        ({"align": "top-left"}, 0),
        ({"align": "bottom-right"}, s - t),
    ]
    if t == s or offset is not None:
        ways.append(({}, offset or 0))
    return choose(ways)


def causal(choose, rng, shape, offset):
    settings, first = settings_of_a_band(choose, shape, offset)
    return masks.causal(**settings), lambda place, i, j: j <= i + first


def sliding_window(choose, rng, shape, offset):
    settings, first = settings_of_a_band(choose, shape, offset)
    left, right = (choose([None, 0, 1, 2, 3, 4]) for _ in "lr")

    def near(place, i, j):
        right_of_left_end = left is None or i + first - left <= j
        return right_of_left_end and (right is None or j <= i + first + right)

    return masks.sliding_window(left, right, **settings), near


def padding(choose, rng, shape, offset):
    n = rng.integers(0, shape[-1] + 1, shape[:-3])
    return masks.padding(n), lambda place, i, j: j < n[place[:-1]]


def keys(choose, rng, shape, offset):
    valid = rng.random((*shape[:-3], shape[-1])) < 0.5
    return masks.keys(valid), lambda place, i, j: valid[place[:-1]][j]


def documents(choose, rng, shape, offset):
    """In one run each, in any order, or in several pieces."""
    numbers = rng.integers(0, 5, (*shape[:-3], shape[-1]))
    numbers = numbers if choose([False, True]) else np.sort(numbers, axis=-1)
    ids, first = rng.permutation(5)[numbers], offset or 0

    def same(place, i, j):
        return ids[place[:-1]][i + first] == ids[place[:-1]][j]

    return masks.documents(ids), same


def documents_of_two(choose, rng, shape, offset):
    one, other = (rng.integers(-2, 3, (*shape[:-3], n)) for n in shape[-2:])
    same = lambda place, i, j: one[place[:-1]][i] == other[place[:-1]][j]  # noqa: E731
    return masks.documents(one, other), same


def prefix(choose, rng, shape, offset):
    n = rng.integers(0, shape[-1] + 3, choose([shape[:-3], ()]))
    return masks.prefix(n), lambda place, i, j: j < (n[place[:-1]] if n.ndim else n)


def dense(choose, rng, shape, offset):
    axes = shape[choose(range(len(shape) + 1)) :]
    seen = rng.random([n if choose([False, True]) else 1 for n in axes]) < 0.5
    whole = np.broadcast_to(seen, shape)
    return masks.dense(seen), lambda place, i, j: whole[place][i, j]


VALID = np.array([[1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=bool)
IDS = np.array([[7, 7, 2, 2, 2, 5], [1, 2, 1, 2, 1, 2]])
QUERY_IDS = np.array([[1, 1, 2, 2], [3, 1, 2, 9]])
KEY_IDS = np.arange(12).reshape(2, 6)
SOME = np.arange(24).reshape(4, 6) % 5 == 0


def fitted(mask):
    """Its array, for SHAPE."""
    return mask.array(SHAPE)


RECORDS = [
    Record(
        masks.causal,
        [causal],
        {
            "causal(offset=1)": lambda place: masks.causal(offset=1),
            'causal(align="top-left")': lambda place: masks.causal(align="top-left"),
        },
        [
            (lambda: masks.causal(offset=1.0), TypeError, "causal: offset must be an integer"),
            (lambda: masks.causal(offset=1, align="top-left"), ValueError, "not both"),
            (lambda: masks.causal(align="left"), ValueError, "not 'left'"),
            (lambda: fitted(masks.causal()), ValueError, r"causal\(\): .*T = 4 .*S = 6 "),
        ],
    ),
    Record(
        masks.sliding_window,
        [sliding_window],
        {
            'sliding_window(2, 1, align="bottom-right")': (
                lambda place: masks.sliding_window(2, 1, align="bottom-right")
            ),
            "sliding_window(None, 2, offset=1)": (
                lambda place: masks.sliding_window(None, 2, offset=1)
            ),
            "sliding_window(None, None, offset=0)": (
                lambda place: masks.sliding_window(None, None, offset=0)
            ),
        },
        [
            (lambda: masks.sliding_window(-1, 0), ValueError, "left = -1 must be at least 0"),
            (lambda: masks.sliding_window(0.5, 0), TypeError, "sliding_window: left must be an integer"),
            (lambda: fitted(masks.sliding_window(1, 1)), ValueError, 'sliding_window\\(1, 1\\): .*T = 4 .*S = 6 .*offset=….*"top-left".*"bottom-right"'),
        ],
    ),
    Record(
        masks.padding,
        [padding],
        {"padding([3, 6])": lambda place: masks.padding(place(np.array([3, 6])))},
        [
            (lambda: masks.padding([2.0, 3.0]), TypeError, "lengths are integers"),
            (lambda: masks.padding([True, False]), TypeError, r"masks\.keys\(valid\)"),
            (lambda: fitted(masks.padding([1, 2, 3])), ValueError, r"shape \(3,\), the batch .* \(2,\)"),
            (lambda: fitted(masks.padding([1, 7])), ValueError, "from 0 to S = 6"),
            (lambda: fitted(masks.padding([-1, 2])), ValueError, "from 0 to S = 6"),
        ],
        anywhere=[padding],
    ),
    Record(
        masks.keys,
        [keys],
        {"keys(bool (2, 6))": lambda place: masks.keys(place(VALID))},
        [
            (lambda: masks.keys([[1, 0]]), TypeError, "keys: valid has dtype int64"),
            (lambda: fitted(masks.keys(np.ones((B, T), dtype=bool))), ValueError, r"not \(…, S\) \(2, 6\)"),
        ],
        anywhere=[keys],
    ),
    Record(
        masks.documents,
        [documents, documents_of_two],
        {
            "documents(int64 (2, 6))": lambda place: masks.documents(place(IDS)),
            "documents(int64 (2, 4), int64 (2, 6))": (
                lambda place: masks.documents(place(QUERY_IDS), place(KEY_IDS))
            ),
        },
        [
            (lambda: masks.documents([0.0, 1.0]), TypeError, "ids are integers"),
            (lambda: fitted(masks.documents([0, 1])), ValueError, r"\(2,\), not \(…, S\) \(2, 6\)"),
            (lambda: fitted(masks.documents([0], IDS)), ValueError, r"\(1,\), not \(…, T\) \(2, 4\)"),
            (lambda: fitted(masks.documents(IDS)), ValueError, r"T = 4 .*S = 6 .*documents\(query_ids, key_ids\)"),
            (lambda: fitted(masks.documents(IDS).at(3)), ValueError, "T = 4 queries at offset 3 are not all among the S = 6"),
        ],
        among=[documents],
        anywhere=[documents_of_two],
    ),
    Record(
        masks.prefix,
        [prefix],
        {
            "prefix(2)": lambda place: masks.prefix(2),
            "prefix([1, 4])": lambda place: masks.prefix(mh.Tensor(place(np.array([1, 4])))),
        },
        [
            (lambda: masks.prefix(1.5), TypeError, "n is an integer"),
            (lambda: fitted(masks.prefix(-1)), ValueError, "n must be at least 0"),
            (lambda: fitted(masks.prefix([1, 2, 3])), ValueError, r"prefix\(\[1, 2, 3\]\): n has shape \(3,\), the batch"),
        ],
        anywhere=[prefix],
    ),
    Record(
        masks.dense,
        [dense],
        {"dense(bool (4, 6))": lambda place: masks.dense(place(SOME))},
        [
            (lambda: masks.dense(np.ones((T, S))), TypeError, "must be boolean"),
            (lambda: fitted(masks.dense(np.ones((T, T), dtype=bool))), ValueError, r"shape \(4, 4\), which does not"),
        ],
        anywhere=[dense],
    ),
]  # fmt: skip
BY_NAME = {record.name: record for record in RECORDS}
KINDS_DRAWN = {draw.__name__: (record, draw) for record in RECORDS for draw in record.drawn}


def examples(place=np.asarray):
    """All examples by their repr, made from arrays of a library."""
    return {text: make(place) for record in RECORDS for text, make in record.examples.items()}


def shapes(leads):
    """Shapes of scores and offsets."""
    lengths = st.tuples(st.integers(0, 7), st.integers(0, 9))
    lead_and_lengths = st.tuples(st.sampled_from(leads), lengths)
    return st.tuples(lead_and_lengths.map(lambda x: x[0] + x[1]), st.none() | st.integers(0, 9))


def possible(kind, shape, offset):
    """Whether this kind has masks for the shape and the offset."""
    record, draw = KINDS_DRAWN[kind]
    t, s = shape[-2:]
    among = t == s if offset is None else 0 <= offset <= s - t
    return among or draw not in record.among


@st.composite
def single(draw, shape, offset, kinds=tuple(KINDS_DRAWN)):
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from([kind for kind in kinds if possible(kind, shape, offset)]))
    _, of_kind = KINDS_DRAWN[kind]
    mask, rule = of_kind(lambda options: draw(st.sampled_from(options)), rng, shape, offset)
    return mask if offset is None else mask.at(offset), rule


@st.composite
def drawn(draw):
    """A shape, and a mask, alone or combined, with its rule. Masks may be placed by `at`."""
    shape, offset = draw(shapes([(), (3,), (2, 3), (2, 1, 3)]))

    def combine(parts):
        def both(two):
            (a, f), (b, g) = two
            return a & b, lambda p, i, j: f(p, i, j) and g(p, i, j)

        def either(two):
            (a, f), (b, g) = two
            return a | b, lambda p, i, j: f(p, i, j) or g(p, i, j)

        two = st.tuples(parts, parts)
        inverted = parts.map(lambda x: (~x[0], lambda p, i, j: not x[1](p, i, j)))
        return two.map(both) | two.map(either) | inverted

    return shape, *draw(st.recursive(single(shape, offset), combine, max_leaves=4))


def by_hand(shape, rule):
    """The array of a rule, entry by entry."""
    seen = np.zeros(shape, dtype=bool)
    for *place, i, j in np.ndindex(*shape):
        seen[*place, i, j] = rule(tuple(place), i, j)
    return seen


def sample(kind, rng, shape):
    """A mask of this kind that hides some pairs, not all, and its array by its rule. Without
    Hypothesis, whose first draws are the simplest. The first query is at key S − T."""
    offset = max(0, shape[-1] - shape[-2])
    for _ in range(20):
        mask, rule = KINDS_DRAWN[kind][1](chooser(rng), rng, shape, offset)
        seen = by_hand(shape, rule)
        if 0 < seen.mean() < 1:
            return mask.at(offset), seen
    raise AssertionError(f"tests/mask_records.py: {kind} hides nothing or everything, 20 times")


def certain(kind, times=20) -> Iterator[tuple[Any, Any, Any, slice, slice]]:
    """Masks of this kind for several shapes, each with its rule and a part of the scores that does
    not begin at the first query or key, or all. The same ones whichever tests run."""
    _, of_kind = KINDS_DRAWN[kind]
    for shape, offset in CERTAIN:
        for seed in range(times * possible(kind, shape, offset)):
            rng = np.random.default_rng(seed)
            mask, rule = of_kind(chooser(rng), rng, shape, offset)
            mask = mask if offset is None else mask.at(offset)
            yield shape, mask, rule, slice(None), slice(None)
            yield shape, mask, rule, slice(1, 5), slice(2 + seed % 3, shape[-1] - seed % 2)


CERTAIN = [((5, 8), None), ((7, 7), None), ((5, 8), 2), ((2, 3, 5, 8), 3), ((2, 3, 6, 6), None)]
"""Shapes and offsets."""


def chooser(rng):
    """The argument `choose` of the functions that draw masks, without Hypothesis."""
    return lambda options: options[rng.integers(len(options))]
