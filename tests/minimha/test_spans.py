"""Spans: where the keys that a query sees begin and end, and what is asked for besides."""

import tracemalloc

import numpy as np
import pytest
from drawn_masks import KINDS_DRAWN, by_hand, drawn, fits, shapes, single
from hypothesis import given, settings
from hypothesis import strategies as st

import minimha as mh
from minimha import masks as m
from minimha_autograd import backend

B, H, T, S, D = 2, 3, 4, 6, 5


def spans(mask, shape, offset=None):
    query, key = np.zeros((*shape[:-1], 0)), np.zeros((*shape[:-2], shape[-1], 0))
    return m.spans(mask, query, key, offset=offset)


def spread(told, shape, offset=None):
    """What spans say of each key, as a kernel reads them: (…, H, T, S)."""
    first, last = (np.broadcast_to(x, shape[:-1])[..., None] for x in (told.first, told.last))
    assert ((first >= 0) & (first <= last) & (last <= shape[-1])).all()
    assert isinstance(told.first, np.ndarray)
    assert isinstance(told.last, np.ndarray)
    assert told.first.dtype == told.last.dtype == np.int64
    j = np.arange(shape[-1])
    seen = (first <= j) & (j < last)
    return seen if told.rest is None else seen & told.rest.array(shape, offset=offset)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(drawn())
def test_spans_and_the_rest_are_the_mask(case):
    shape, offset, mask, rule, _ = case
    expected = by_hand(shape, rule)
    np.testing.assert_array_equal(spread(spans(mask, shape, offset), shape, offset), expected)
    if offset is None or offset >= 0:
        placed = mask.at(offset or 0)
        np.testing.assert_array_equal(spread(spans(placed, shape), shape), expected)


def runs(seen):
    """How many runs of True each row has."""
    return (np.diff(seen, axis=-1, prepend=False) & seen).sum(-1)


@pytest.mark.parametrize("kind", KINDS_DRAWN)
@settings(deadline=None, max_examples=150, derandomize=True)
@given(data=st.data())
def test_each_kind_has_a_rest_only_where_a_query_sees_several_runs_of_keys(kind, data):
    """And its interval is no wider than what is seen."""
    shape, offset = data.draw(
        shapes([(), (2, 3)]).filter(lambda x: fits(kind, *x) and x[0][-2] > 0)
    )
    mask, rule, _ = data.draw(single(shape, offset, [kind]))
    told, seen = spans(mask, shape, offset), by_hand(shape, rule)
    assert (told.rest is None) == (runs(seen) <= 1).all()
    first, last = (np.broadcast_to(x, shape[:-1]) for x in (told.first, told.last))
    np.testing.assert_array_equal(first == last, ~seen.any(-1))
    edges = seen & (np.cumsum(seen, -1) == 1), seen & (seen[..., ::-1].cumsum(-1)[..., ::-1] == 1)
    for place in np.argwhere(seen.any(-1)):
        i = tuple(place)
        assert (first[i], last[i] - 1) == tuple(edge[i].argmax() for edge in edges)


N = 20_000
ONE_RUN = {
    "causal": m.causal(),
    "window": m.sliding_window(100, 3),
    "window, open": m.sliding_window(None, None),
    "padding": m.padding([0, 700]),
    "prefix": m.prefix([3, N]),
    "keys": m.keys((np.arange(N) > 50) & (np.arange(N) < [[60], [0]])),
    "documents": m.documents(np.arange(2 * N).reshape(2, N) // 77 % 5000),
    "documents of two": m.documents(
        np.arange(2 * N).reshape(2, N) % 300, np.arange(2 * N).reshape(2, N) // 77
    ),
    "causal & padding": m.causal() & m.padding([0, 700]),
    "causal & documents": m.causal() & m.documents(np.arange(2 * N).reshape(2, N) // 77),
    "window & padding & prefix": m.sliding_window(9, 9) & m.padding([70, 700]) & m.prefix(99),
    "causal | prefix": m.causal() | m.prefix([3, 900]),
    "later | nothing": ~m.causal() | m.padding([0, 0]) & m.sliding_window(3, 3),
    "nothing | later": m.padding([0, 0]) & m.sliding_window(3, 3) | ~m.causal(),
    "nothing | nothing": m.padding([0, 0]) & m.sliding_window(3, 3) | m.causal(offset=-N),
    "window | window": m.sliding_window(10, 0, offset=-5) | m.sliding_window(3, 20, offset=-1),
    "~causal": ~m.causal(),
    "~padding": ~m.padding([0, 700]),
    "~(causal | prefix)": ~(m.causal() | m.prefix(80)),
    "~(causal & padding)": ~(m.causal() & m.padding([5, 700])),
    "~nothing": ~(m.causal() & ~m.causal()),
    "placed": (m.causal() & m.padding([1, 700]) & ~m.prefix(20)).at(0),
}
SEVERAL_RUNS = {
    "~window": ~m.sliding_window(9, 9),
    "window | prefix": m.sliding_window(9, 0) | m.prefix(4),
    "keys": m.keys(np.arange(2 * N).reshape(2, N) % 3 > 0),
    "documents": m.documents(np.arange(2 * N).reshape(2, N) % 77),
    "causal & keys": m.causal() & m.keys(np.arange(2 * N).reshape(2, N) % 3 > 0),
    "placed": (m.causal() & m.documents(np.arange(2 * N).reshape(2, N) % 77)).at(0),
}


def peak_of(call):
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ONE_RUN)
def test_where_a_query_sees_one_run_no_array_is_needed(name):
    told, peak = peak_of(lambda: spans(ONE_RUN[name], (2, 1, N, N)))
    assert told.rest is None
    assert peak < 8e6  # the array would be 400e6, an integer for each query 0.32e6
    for i in (0, 1, 49, 77, 700, N - 1):  # against the array, of one row
        row = ONE_RUN[name].rows((2, 1, N, N), i, i + 1)
        first, last = (np.broadcast_to(x, (2, 1, N))[:, 0, i] for x in (told.first, told.last))
        seen = (np.arange(N) >= first[:, None]) & (np.arange(N) < last[:, None])
        np.testing.assert_array_equal(seen[:, None, None], np.broadcast_to(row, (2, 1, 1, N)))


@pytest.mark.parametrize("name", SEVERAL_RUNS)
def test_where_a_query_sees_several_the_rest_is_made_by_blocks(name):
    mask, shape = SEVERAL_RUNS[name], (2, 1, N, N)

    def block():
        told = spans(mask, shape)
        return told, told.rest.rows(shape, N - 64, N)

    (told, rest), peak = peak_of(block)
    assert peak < 24e6  # the array would be 400e6, the block is 2.56e6
    first, last = (
        np.broadcast_to(x, shape[:-1])[..., N - 64 :, None] for x in (told.first, told.last)
    )
    seen = (np.arange(N) >= first) & (np.arange(N) < last) & rest
    np.testing.assert_array_equal(seen, np.broadcast_to(mask.rows(shape, N - 64, N), (2, 1, 64, N)))


def test_an_array_of_the_caller_is_copied_but_not_blown_up(rng):
    array = rng.random((3000, 3000)) < 0.5
    _, peak = peak_of(lambda: spans(m.dense(array), array.shape))
    assert peak < 3 * array.nbytes  # one byte an entry, read twice


def test_a_part_without_a_rest_adds_nothing_to_that_of_the_whole():
    valid = m.keys(np.array([True, False, True, True, True, True]))
    seen = m.dense(np.arange(S) % 2 == 0)
    told = spans(m.causal(offset=0) & valid & m.prefix(5), (T, S))
    assert told.rest is valid
    np.testing.assert_array_equal(told.last, [1, 2, 3, 4])
    assert repr(spans(m.causal(offset=0) & valid & seen, (T, S)).rest) == repr(valid & seen)


def test_rest_of_keys_is_thin():
    told = spans(m.causal(offset=0) & m.keys(np.arange(B * S).reshape(B, S) % 3 > 0), (B, H, T, S))
    assert told.rest.rows((B, H, T, S), 1, 3).shape == (B, 1, 1, S)


def test_spans_of_what_heads_and_queries_share_are_single():
    for mask in (m.padding([3, 6]), m.prefix([1, 2]), m.keys(np.ones((B, S), dtype=bool))):
        assert spans(mask, (B, H, T, S)).first.shape == (B, 1, 1)
    assert spans(m.documents(np.zeros((B, S), dtype=int)), (B, H, S, S)).last.shape == (B, 1, S)
    assert spans(m.causal(offset=0), (B, H, T, S)).last.shape == (T,)


def test_ids_too_large_for_signed_integers_are_told_apart():
    large = np.array([2**64 - 1, 2**64 - 1, 2**63, 5], dtype=np.uint64)
    assert spans(m.documents(large), (4, 4)).rest is None
    mask = m.documents(np.array([-1, -1, 5]), large)
    np.testing.assert_array_equal(spread(spans(mask, (3, 4)), (3, 4)), mask.array((3, 4)))


def test_bare_arrays_and_no_mask_are_taken_as_by_resolve(rng):
    query, key = np.zeros((B, H, T, D)), np.zeros((B, 1, S, D))
    assert m.spans(None, query, key) is None
    bare = rng.random((T, S)) < 0.5
    told = m.spans(bare, query, key)
    np.testing.assert_array_equal(spread(told, (B, H, T, S)), np.broadcast_to(bare, (B, H, T, S)))
    told = m.spans(m.causal(), query, key, offset=2)
    np.testing.assert_array_equal(told.last, [3, 4, 5, 6])
    tensors = m.spans(m.causal(), mh.Tensor(query), mh.Tensor(key), offset=2)
    np.testing.assert_array_equal(tensors.last, told.last)


MISFITS = {
    "a bare array (B, S)": np.ones((B, S), dtype=bool),
    "a bare array of numbers": np.ones((T, S)),
    "a function": m.causal,
    "dense": m.dense(np.ones((T, T), dtype=bool)),
    "causal": m.causal(),
    "window": m.sliding_window(1, 1),
    "padding, batch": m.padding([1, 2, 3]),
    "padding, too long": m.padding([1, S + 1]),
    "prefix": m.prefix([1, 2, 3]),
    "keys": m.keys(np.ones((B, T), dtype=bool)),
    "documents": m.documents(np.zeros((B, S), dtype=int)),
    "documents of two": m.documents([0], np.zeros((B, S), dtype=int)),
    "left of two": m.causal() & m.padding([1, 2, 3]),
    "right of two": m.prefix(0) & ~m.padding([1, 2, 3]),
    "placed": m.keys(np.ones((B, T), dtype=bool)).at(1),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_resolve_refuses_spans_refuse_in_the_same_words(name):
    query, key = np.zeros((B, H, T, D)), np.zeros((B, H, S, D))
    with pytest.raises((TypeError, ValueError)) as one:
        m.resolve(MISFITS[name], query, key)
    with pytest.raises((TypeError, ValueError)) as other:
        m.spans(MISFITS[name], query, key)
    assert (type(one.value), str(one.value)) == (type(other.value), str(other.value))


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (2, 3, 0, 6), (2, 3, 4, 0), (2, 3, 0, 0), (0, 3, 4, 4), (4, 6)])  # fmt: skip
def test_spans_are_made_where_the_query_lives(shape, place):
    (*lead, t, s), batch, rng = shape, shape[:-3], np.random.default_rng(3)
    query, key = (place(np.zeros((*lead, n, D))) for n in (t, s))

    def draw(high, *n):
        return rng.integers(0, high, (*batch, *n))

    every = [
        m.causal(offset=1),
        m.sliding_window(1, 1, offset=0),
        m.padding(draw(s + 1)),
        m.keys(draw(2, s) > 0),
        m.documents(draw(3, t), draw(3, s)),
        m.documents(np.sort(draw(3, t)), np.sort(draw(3, s))),
        m.prefix(2),
        m.dense(rng.integers(0, 2, (t, s)) > 0),
        m.dense(rng.integers(0, 2, (t, 1)) > 0),
        m.dense(np.True_),
    ]
    every += [~every[0], ~every[4], every[0] & every[2], every[1] & every[3], every[0] | every[6]]
    for mask in every:
        first, last, rest = m.spans(mask, query, key)
        for x in (first, last):
            assert backend.namespace(x) is place.xp
            assert x.device == query.device
        told = m.Spans(backend.to_numpy(first), backend.to_numpy(last), rest)
        expected = np.broadcast_to(mask.array(shape), shape)
        np.testing.assert_array_equal(spread(told, shape), expected)
