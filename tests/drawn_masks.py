"""Random masks for a shape, alone and combined, and one of each kind.

Each kind draws a mask and its rule (place, i, j), where place is (…, h).
"""

import numpy as np
from hypothesis import strategies as st

import minimha as mh


def band(draw, rng, shape, offset):
    t, s = shape[-2:]
    left, right = (draw(st.none() | st.integers(0, 4)) for _ in "lr")
    number = draw(st.integers(-9, 9))
    aligned = ({"align": "top-left"}, 0), ({"align": "bottom-right"}, s - t)
    ways = [({"offset": number}, number), *aligned]
    if t == s or offset is not None:
        ways.append(({}, offset or 0))
    settings, by = draw(st.sampled_from(ways))
    if draw(st.booleans()):
        return mh.masks.causal(**settings), lambda p, i, j: j <= i + by

    def near(p, i, j):
        return (left is None or i + by - left <= j) and (right is None or j <= i + by + right)

    return mh.masks.sliding_window(left, right, **settings), near


def padding(draw, rng, shape, offset):
    n = rng.integers(0, shape[-1] + 1, shape[:-3])
    return mh.masks.padding(n), lambda p, i, j: j < n[p[:-1]]


def prefix(draw, rng, shape, offset):
    n = rng.integers(0, shape[-1] + 3, draw(st.sampled_from([shape[:-3], ()])))
    return mh.masks.prefix(n), lambda p, i, j: j < (n[p[:-1]] if n.ndim else n)


def keys(draw, rng, shape, offset):
    valid = rng.random((*shape[:-3], shape[-1])) < 0.5
    return mh.masks.keys(valid), lambda p, i, j: valid[p[:-1]][j]


def documents(draw, rng, shape, offset):
    apart, places = draw(st.booleans()), rng.integers(0, 5, (*shape[:-3], shape[-1]))
    ids = rng.permutation(5)[places if apart else np.sort(places, axis=-1)]
    start = offset or 0
    return mh.masks.documents(ids), lambda p, i, j: ids[p[:-1]][i + start] == ids[p[:-1]][j]


def documents_of_two(draw, rng, shape, offset):
    one, other = (rng.integers(-2, 3, (*shape[:-3], n)) for n in shape[-2:])
    return mh.masks.documents(one, other), lambda p, i, j: one[p[:-1]][i] == other[p[:-1]][j]


def dense(draw, rng, shape, offset):
    axes = shape[draw(st.integers(0, len(shape))) :]
    seen = rng.random([n if draw(st.booleans()) else 1 for n in axes]) < 0.5
    whole = np.broadcast_to(seen, shape)
    return mh.masks.dense(seen), lambda p, i, j: whole[p][i, j]


KINDS_DRAWN = [band, padding, prefix, keys, documents, documents_of_two, dense]


def shapes(leads):
    """Shapes of scores and offsets."""
    lengths = st.tuples(st.integers(0, 7), st.integers(0, 9))
    lead_and_lengths = st.tuples(st.sampled_from(leads), lengths)
    return st.tuples(lead_and_lengths.map(lambda x: x[0] + x[1]), st.none() | st.integers(0, 9))


def possible(kind, shape, offset):
    """For documents of one sequence, the queries are among the keys."""
    t, s = shape[-2:]
    among = t == s if offset is None else 0 <= offset <= s - t
    return among or kind is not documents


@st.composite
def single(draw, shape, offset, kinds=KINDS_DRAWN):
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from([kind for kind in kinds if possible(kind, shape, offset)]))
    mask, rule = kind(draw, rng, shape, offset)
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
    seen = np.zeros(shape, dtype=bool)
    for *place, i, j in np.ndindex(*shape):
        seen[*place, i, j] = rule(tuple(place), i, j)
    return seen


def kinds(place=np.asarray):
    """A mask of each kind, made from arrays of a library."""
    m, valid = mh.masks, np.array([[1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=bool)
    ids, few = (
        np.array([[7, 7, 2, 2, 2, 5], [1, 2, 1, 2, 1, 2]]),
        np.array([[1, 1, 2, 2], [3, 1, 2, 9]]),
    )
    return {
        "causal": m.causal(offset=1),
        "window": m.sliding_window(2, 1, align="bottom-right"),
        "window, open": m.sliding_window(None, None, offset=0),
        "padding": m.padding(place(np.array([3, 6]))),
        "keys": m.keys(place(valid)),
        "documents": m.documents(place(ids)),
        "documents, two": m.documents(place(few), place(np.arange(12).reshape(2, 6))),
        "prefix": m.prefix(2),
        "prefixes": m.prefix(mh.Tensor(place(np.array([1, 4])))),
        "dense": m.dense(place(np.arange(24).reshape(4, 6) % 5 == 0)),
    }
