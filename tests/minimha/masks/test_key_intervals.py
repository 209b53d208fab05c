"""Key intervals: the range of keys that each query sees, and the keys hidden within it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_records import KINDS_DRAWN, by_hand, certain, drawn, examples

import minimha as mh
from minimha import masks as m
from minimha.masks.kinds import Band
from minimha_autograd import backend

B, H, T, S, D = 2, 3, 4, 6, 5


def key_intervals(mask, shape):
    query, key = np.zeros((*shape[:-1], 0)), np.zeros((*shape[:-2], shape[-1], 0))
    return m.key_intervals(mask, query, key)


def seen_by(intervals, shape):
    """The keys that each query sees by its interval, as a kernel reads it, (…, H, T, S)."""
    start, stop = (np.broadcast_to(x, shape[:-1])[..., None] for x in intervals[:2])
    assert ((start >= 0) & (start <= stop) & (stop <= shape[-1])).all()
    assert start.dtype == stop.dtype == np.int64
    j = np.arange(shape[-1])
    seen = (start <= j) & (j < stop)
    return seen if intervals.inside is None else seen & intervals.inside.array(shape)


@settings(max_examples=4 * settings().max_examples)
@given(drawn())
def test_intervals_and_their_inner_mask_reproduce_the_mask(case):
    shape, mask, rule = case
    found = seen_by(key_intervals(mask, shape), shape)
    np.testing.assert_array_equal(found, by_hand(shape, rule))


@pytest.mark.parametrize("kind", KINDS_DRAWN)
def test_the_array_of_a_part_of_every_mask_follows_the_rule(kind):
    for shape, mask, rule, queries, keys in certain(kind):
        seen = by_hand(shape, rule)[..., queries, keys]
        part = mask.part(shape, queries, keys)
        found = np.broadcast_to(part.array(seen.shape), seen.shape)
        assert np.array_equal(found, seen), (
            f"_array of {part!r} in minimha/masks/kinds.py, for scores {seen.shape}, is\n{found}\nand by "
            f"the rule in tests/mask_records.py\n{seen}"
        )


@pytest.mark.parametrize("kind", KINDS_DRAWN)
def test_intervals_are_as_short_as_possible_and_need_no_inner_mask_for_one_run_of_keys(kind):
    """Of whole masks, and of parts in which neither queries nor keys begin at the first one."""
    several = 0
    for shape, mask, rule, queries, keys in certain(kind):
        seen = by_hand(shape, rule)[..., queries, keys]
        scores = seen.shape
        first = range(shape[-1])[keys].start
        part = mask.part(shape, queries, keys)
        start, stop, inside = key_intervals(part, scores)
        where = f"_intervals of {part!r} in minimha/masks/kinds.py, for scores {scores}: "
        starts = (np.diff(seen, axis=-1, prepend=False) & seen).sum(-1)
        one_run = bool((starts <= 1).all())
        found = np.stack([np.broadcast_to(x, scores[:-1]) for x in (start, stop)], -1)
        length = seen.any(-1) * (scores[-1] - seen[..., ::-1].argmax(-1) - seen.argmax(-1))
        shortest = np.stack([seen.argmax(-1), seen.argmax(-1) + length], -1)
        for place in zip(*np.nonzero((found != shortest).any(-1)), strict=True):
            query = tuple(map(int, place))
            has, least = tuple(map(int, found[query])), tuple(map(int, shortest[query]))
            if length[query]:
                said = f"query {query} has {has}, the shortest is {least}"
                if has == (least[0] + first, least[1] + first):
                    said += (
                        ". Intervals count from the first wanted key: subtract keys_wanted.start"
                    )
                pytest.fail(where + said)
            assert has[0] == has[1], f"{where}query {query} sees nothing, but has {has}"
        need = f"each query sees one run of keys: {one_run}, but inside is {inside!r}"
        assert (inside is None) == one_run, where + need
        several += first > 0 and length.any()
    assert several >= 8, f"tests/mask_records.py: the masks of {kind} hide nearly all keys"


N = 20_000
IDS = np.arange(2 * N).reshape(2, N)
ONE_RUN = {
    "window": m.sliding_window(100, 3),
    "window, open": m.sliding_window(None, None),
    "keys": m.keys((np.arange(N) > 50) & (np.arange(N) < [[60], [0]])),
    "documents of two": m.documents(IDS % 300, IDS // 77),
    "causal & documents": m.causal() & m.documents(IDS // 77),
    "causal | prefix": m.causal() | m.prefix([3, 900]),
    "nothing | nothing": m.padding([0, 0]) & m.sliding_window(3, 3) | m.causal(offset=-N),
    "placed": (m.causal() & m.padding([1, 700])).at(0),
}
SEVERAL_RUNS = {
    "~window": ~m.sliding_window(9, 9),
    "window | prefix": m.sliding_window(9, 0) | m.prefix(4),
    "documents": m.documents(IDS % 77),
    "causal & keys": m.causal() & m.keys(IDS % 3 > 0),
    "placed": (m.causal() & m.documents(IDS % 77)).at(0),
}


@pytest.mark.parametrize("name", [*ONE_RUN, *SEVERAL_RUNS])
def test_only_a_few_rows_of_a_long_mask_are_computed(name):
    one_run = name in ONE_RUN
    mask = (ONE_RUN if one_run else SEVERAL_RUNS)[name]
    queries = slice(N - 64, N)
    tracemalloc.start()
    start, stop, inside = key_intervals(mask, (2, 1, N, N))
    rows = True if inside is None else inside.array((2, 1, N, N), queries=queries)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (inside is None) == one_run  # if each query sees one run of keys, no array is needed
    assert peak < (8e6 if one_run else 24e6)  # bytes: of the array 400e6, of the rows 2.56e6
    start, stop = (np.broadcast_to(x, (2, 1, N))[..., queries, None] for x in (start, stop))
    seen = (np.arange(N) >= start) & (np.arange(N) < stop) & rows
    expected = mask.array((2, 1, N, N), queries=queries)
    np.testing.assert_array_equal(seen, np.broadcast_to(expected, seen.shape))


def test_the_inner_mask_contains_only_masks_with_gaps():
    valid = m.keys(np.array([True, False, True, True, True, True]))
    odd = m.dense(np.arange(S) % 2 == 0)
    intervals = key_intervals(m.causal(offset=0) & valid & m.prefix(5), (T, S))
    assert intervals.inside is valid
    np.testing.assert_array_equal(intervals.stop, [1, 2, 3, 4])
    both = key_intervals(m.causal(offset=0) & valid & odd, (T, S)).inside
    assert repr(both) == repr(valid & odd)


def test_heads_and_queries_with_equal_keys_share_one_interval():
    for mask in (m.padding([3, 6]), m.prefix([1, 2]), m.keys(np.ones((B, S), dtype=bool))):
        assert key_intervals(mask, (B, H, T, S)).start.shape == (B, 1, 1)
    documents = m.documents(np.zeros((B, S), dtype=int))
    assert key_intervals(documents, (B, H, S, S)).stop.shape == (B, 1, S)
    assert key_intervals(m.causal(offset=0), (B, H, T, S)).stop.shape == (T,)


def test_on_a_device_the_interval_is_enough_for_bands_first_keys_and_documents_of_the_host():
    xp = pytest.importorskip("array_api_strict")
    query = xp.ones((B, H, S, D), device=xp.Device("device1"))
    bands, first = (m.causal(), m.sliding_window(1, 2)), (m.padding([3, 6]), m.prefix(2))
    documents = m.documents(np.zeros((B, S), dtype=int))
    for mask in (*bands, *first, m.prefix([1, 2]), documents, m.causal() & first[0]):
        intervals = m.key_intervals(mask, query, query)
        assert intervals.inside is None
        host = key_intervals(mask, (B, H, S, S))
        for x, expected in zip(intervals[:2], host[:2], strict=True):
            np.testing.assert_array_equal(backend.to_numpy(x), expected)
    for mask in (m.keys(np.ones((B, S), dtype=bool)), m.causal() | first[1]):
        assert m.key_intervals(mask, query, query).inside is not None  # all of it is one run


def test_bare_arrays_and_no_mask_are_interpreted_as_by_resolve(rng):
    query, key = np.zeros((B, H, T, D)), np.zeros((B, 1, S, D))
    assert m.key_intervals(None, query, key) is None
    bare = rng.random((T, S)) < 0.5
    found = seen_by(m.key_intervals(bare, query, key), (B, H, T, S))
    np.testing.assert_array_equal(found, np.broadcast_to(bare, found.shape))
    for make in (np.asarray, mh.Tensor):
        intervals = m.key_intervals(m.causal().at(2), make(query), make(key))
        np.testing.assert_array_equal(intervals.stop, [3, 4, 5, 6])


@pytest.mark.parametrize("mask", [
    np.ones((B, S), dtype=bool),
    np.ones((T, S)),
    m.causal,
    m.causal(),
    m.documents(np.zeros((B, S), dtype=int)),
    m.documents([0], np.zeros((B, S), dtype=int)),
    m.prefix(0) & ~m.padding([1, 2, 3]),
    m.keys(np.ones((B, T), dtype=bool)).at(1),
])  # fmt: skip
def test_masks_that_resolve_refuses_raise_the_same_error_here(mask):
    query, key = np.zeros((B, H, T, D)), np.zeros((B, H, S, D))
    with pytest.raises((TypeError, ValueError)) as one:
        m.resolve(mask, query, key)
    with pytest.raises((TypeError, ValueError)) as other:
        m.key_intervals(mask, query, key)
    assert (type(one.value), str(one.value)) == (type(other.value), str(other.value))


def test_a_rule_with_the_intervals_of_another_one_is_refused():
    """As when a window that skips keys derives from the band: kernels would see all its keys."""
    with pytest.raises(
        TypeError, match="Odd defines _array and inherits the _intervals of another"
    ):

        class Odd(Band):
            def _array(self, scores):
                return super()._array(scores) & (np.arange(scores.s) % 2 == 1)


class Even(Band):
    """A band that hides more than its fields say, by which it is equal to others."""

    def __init__(self, first):
        super().__init__("even", None, None, 0, None)
        object.__setattr__(self, "first", first)

    def _array(self, scores):
        return super()._array(scores) & (np.arange(scores.s) % 2 == self.first)

    _intervals = m.Mask._intervals


@pytest.mark.parametrize("name", ["fused", "tiled", "microkernel", "simulated"])
def test_kernels_take_no_subclass_of_a_band_for_a_band(name, rng):
    query, key, value = rng.standard_normal((3, H, S, D))
    for mask in (Even(0), Even(1)):
        found, expected = (
            mh.scaled_dot_product_attention(query, key, value, mask, implementation=x)
            for x in (name, "reference")
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@st.composite
def slices(draw, length):
    first, last = sorted(draw(st.integers(0, length)) for _ in "ab")
    return slice(first, last)


@settings(max_examples=4 * settings().max_examples)
@given(drawn(), st.data())
def test_the_part_of_every_mask_and_combination_is_cut_from_the_whole(case, data):
    shape, mask, rule = case
    *heads, queries, keys = places = [data.draw(slices(n)) for n in shape[-3:]]
    part = mask.part(shape, queries, keys, *heads)
    cut = by_hand(shape, rule)[(..., *places)]
    rows = data.draw(slices(cut.shape[-2]))
    found = np.broadcast_to(part.array(cut.shape, queries=rows), cut[..., rows, :].shape)
    np.testing.assert_array_equal(found, cut[..., rows, :])
    np.testing.assert_array_equal(seen_by(key_intervals(part, cut.shape), cut.shape), cut)


def test_a_part_does_not_build_the_array_of_the_whole():
    for mask in (*ONE_RUN.values(), *SEVERAL_RUNS.values()):
        tracemalloc.start()
        part = mask.part((2, 1, N, N), slice(40, 140), slice(N - 50, N))
        key_intervals(part, (2, 1, 100, 50))
        part.array((2, 1, 100, 50))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2e6


def test_a_part_refuses_scores_of_another_shape():
    part = (m.causal() & m.prefix(2)).part((T, T), slice(2, 4), slice(0, 3))
    with pytest.raises(
        ValueError, match=r"\.part\(queries=2:4, keys=0:3\) is .* \(2, 3\), not \(3, 3\)"
    ):
        part.array((3, 3))


@pytest.mark.parametrize("name", examples())
def test_intervals_are_created_on_the_device_of_the_query(name, place):
    shape, mask = (B, H, T, S), examples(place)[name]
    query, key = (place(np.zeros((B, H, n, D))) for n in (T, S))
    both = mask & m.causal(offset=1), mask | m.prefix(2)
    for combined in (x.at(1) for x in (mask, ~mask, *both)):
        start, stop, inside = m.key_intervals(combined, query, key)
        for x in (start, stop):
            assert backend.namespace(x) is place.xp
            assert x.device == query.device
        found = m.KeyIntervals(backend.to_numpy(start), backend.to_numpy(stop), inside)
        expected = np.broadcast_to(combined.array(shape), shape)
        np.testing.assert_array_equal(seen_by(found, shape), expected)
