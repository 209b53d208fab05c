"""Masks: which query may attend to which key."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_records import RECORDS, VALID, by_hand, drawn, examples

import minimha as mh
from minimha_autograd import backend

EXAMPLES = examples()
B, H, T, S, D = 2, 3, 4, 6, 5
QUERY, KEY = np.zeros((B, H, T, D)), np.zeros((B, H, S, D))


def spread(mask, query=QUERY, key=KEY):
    """The mask as a full array (B, H, T, S)."""
    shape = (*query.shape[:-1], key.shape[-2])
    return np.broadcast_to(mh.masks.resolve(mask, query, key), shape)


def blocks_by_hand(seen, height, width):
    *lead, t, s = seen.shape
    grid = (*lead, -(-t // height), -(-s // width))
    empty, full = np.zeros(grid, dtype=bool), np.zeros(grid, dtype=bool)
    for *place, r, c in np.ndindex(*grid):
        inside = slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)
        empty[*place, r, c] = not seen[*place, *inside].any()
        full[*place, r, c] = seen[*place, *inside].all()
    return empty, full


@settings(max_examples=4 * settings().max_examples)
@given(drawn(), st.data())
def test_every_mask_and_combination_follows_its_rule(case, data):
    shape, mask, rule = case
    expected = by_hand(shape, rule)
    made = mask.array(shape)
    assert made.dtype == bool
    np.testing.assert_array_equal(np.broadcast_to(made, shape), expected)
    nothing = mh.masks.empty_rows(mask, shape)
    np.testing.assert_array_equal(nothing, ~expected.any(-1))
    queries = slice(*sorted(data.draw(st.tuples(*[st.integers(0, shape[-2])] * 2))))
    some = mask.array(shape, queries=queries)
    rows = expected[..., queries, :]
    np.testing.assert_array_equal(np.broadcast_to(some, rows.shape), rows)
    block = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 11)))
    found = mask.blocks(shape, block)
    for one, true in zip(found, blocks_by_hand(expected, *block), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(one, true.shape), true)


def test_a_mask_shared_by_all_queries_is_one_row():
    for mask in (mh.masks.padding([3, 6]), mh.masks.keys(VALID), mh.masks.prefix([1, 4])):
        made = mask.array((B, H, T, S), queries=slice(1, 3))
        np.testing.assert_array_equal(made, mask.array((B, H, T, S)))
    assert mh.masks.dense(np.ones((1, S), dtype=bool)).array(
        (B, H, T, S), queries=slice(1, 3)
    ).shape == (1, S)


def test_rows_and_blocks_of_long_masks_need_little_memory(rng):
    n, m = 20_000, mh.masks
    every = [
        m.causal() & m.sliding_window(500, 500) & m.documents(np.repeat(np.arange(400), 50)),
        m.causal() | m.prefix(5),
        m.keys(rng.random(n) < 0.5),
        m.documents(np.arange(n), rng.integers(0, 9, n)),
        m.dense(np.broadcast_to(rng.random((n, 1)) < 0.5, (n, n))),
    ]
    whole = every[0]
    for mask in every[1:]:
        whole = (whole & mask) | ~mask
    tracemalloc.start()
    for mask in [*every, whole, whole.at(0)]:
        assert mask.array((n, n), queries=slice(n - 32, n)).shape in {(32, n), (1, n)}
    rows = tracemalloc.get_traced_memory()[1]
    for mask in every[:3]:
        empty, full = mask.blocks((n, n), (128, 128))
        assert empty.shape == full.shape == (157, 157)
    blocks = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows < 8e6  # bytes: the array would have 400e6, the rows have 0.64e6
    assert blocks < 20e6


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_mask_accepts_arrays_of_any_library_and_is_created_on_the_device_of_the_query(
    name, place
):
    shape, like, there = (B, H, T, S), place(QUERY), examples(place)[name]
    assert repr(there) == repr(EXAMPLES[name])

    def made(mask, **settings):
        mask = (mask & ~mh.masks.prefix(1)).at(1)
        array = mask.array(shape, **settings)
        some = mask.array(shape, queries=slice(1, 3), **settings)
        return array, some, *mask.blocks(shape, (3, 4), **settings)

    expected = made(EXAMPLES[name])
    for mask in (EXAMPLES[name], there):
        for one, other in zip(expected, made(mask, like=like), strict=True):
            assert backend.namespace(other) is place.xp
            assert other.device == like.device
            np.testing.assert_array_equal(backend.to_numpy(other), one)


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 0, 0), (2, 3, 5, 0), (0, 3, 4, 4)])
def test_masks_with_empty_axes_work_in_every_library(shape, place):
    b, _, t, s = shape
    zeros, like = (lambda *n: place(np.zeros(n, dtype=np.int64))), place(QUERY)
    query, key = (place(np.zeros((*shape[:2], n, D))) for n in (t, s))
    every = [
        mh.masks.causal(),
        mh.masks.sliding_window(1, 1),
        mh.masks.padding(zeros(b)),
        mh.masks.keys(zeros(b, s) > 0),
        mh.masks.documents(zeros(b, s)) if t <= s else mh.masks.prefix(0),
        mh.masks.documents(zeros(b, t), zeros(b, s)),
        mh.masks.prefix(1),
        mh.masks.dense(zeros(b, 1, t, s) > 0),
    ]
    grid = (*shape[:2], -(-t // 2), -(-s // 3))
    for mask in (mask.at(0) for mask in every):
        made = mask.array(shape, like=like)
        assert np.broadcast_to(backend.to_numpy(made), shape).shape == shape
        start, stop, _ = mh.masks.key_intervals(mask, query, key)
        assert bool(mh.backend.namespace(like).all((start >= 0) & (start <= stop) & (stop <= s)))
        for known in mask.blocks(shape, (2, 3), like=like):
            assert np.broadcast_to(backend.to_numpy(known), grid).shape == grid


def test_offsets_beyond_64_bit_integers_work():
    far = 10**30
    assert mh.masks.causal(offset=far).array((T, S)).all()
    assert not mh.masks.causal(offset=-far).array((T, S)).any()
    assert mh.masks.causal(offset=far).blocks((T, S), (far, far))[1].all()


def test_empty_rows_marks_the_queries_whose_output_is_zero(place, rng):
    mask = mh.masks.padding([3, 0]) & mh.masks.causal(offset=-1)
    empty = mh.masks.empty_rows(mask, (B, H, T, S))
    out = mh.scaled_dot_product_attention(*(1 + rng.random((3, B, H, T, D))), mask)
    np.testing.assert_array_equal((out == 0).all(-1), empty)
    bare = place(np.broadcast_to(mask.array((B, H, T, S)), (B, H, T, S)).copy())
    found = mh.masks.empty_rows(bare, (B, H, T, S))
    assert backend.namespace(found) is place.xp
    np.testing.assert_array_equal(backend.to_numpy(found), empty)


def test_with_no_keys_every_row_is_empty():
    assert mh.masks.empty_rows(mh.masks.dense(np.True_), (H, T, 0)).all()
    assert mh.masks.empty_rows(np.ones((T, 1), dtype=bool), (H, T, 0)).shape == (H, T)
    with pytest.raises(ValueError, match=r"could be \(B, S\)"):
        mh.masks.empty_rows(np.ones((B, S), dtype=bool), (B, H, T, S))


@pytest.mark.parametrize(("mask", "expected"), [
    (mh.masks.causal(), "causal()"),
    (mh.masks.padding(np.arange(13)), "padding(int64 (13,))"),
    (mh.masks.padding(3) & ~mh.masks.prefix([1]), "padding(3) & ~prefix([1])"),
    (~(mh.masks.causal() & mh.masks.prefix(1)), "~(causal() & prefix(1))"),
    ((mh.masks.causal() | mh.masks.prefix(1)) & mh.masks.keys(VALID), "(causal() | prefix(1)) & keys(bool (2, 6))"),
    (mh.masks.documents([1], [1, 2]) & mh.masks.keys(VALID), "documents([1], [1, 2]) & keys(bool (2, 6))"),
    (mh.masks.causal() & mh.masks.prefix(1) & mh.masks.padding(2), "causal() & prefix(1) & padding(2)"),
])  # fmt: skip
def test_the_repr_of_a_mask_is_its_code(mask, expected):
    assert repr(mask) == expected


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: mh.masks.causal() and mh.masks.prefix(2), TypeError, r"combine masks with & \| ~"),
    (lambda: mh.masks.causal() & np.ones((T, S), dtype=bool), TypeError, "not with ndarray"),
    (lambda: np.ones((T, S), dtype=bool) & mh.masks.causal(), TypeError, r"masks\.dense\(array\)"),
    (lambda: None | mh.masks.causal(), TypeError, r"masks\.dense\(array\)"),
    (lambda: mh.masks.causal(offset=1).array((S,)), ValueError, r"shape is that of the scores.* not \(6,\)"),
    (lambda: mh.masks.causal(offset=1).at(0.5), TypeError, "offset must be an integer"),
    (lambda: mh.masks.causal(offset=1).blocks((T, S), (0, 4)), ValueError, r"both at least 1, not \(0, 4\)"),
    *(call for record in RECORDS for call in record.refused),
])  # fmt: skip
def test_invalid_masks_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_ambiguous_mask_of_three_axes_is_refused():
    query, key = np.zeros((3, 3, T, D)), np.zeros((3, 3, S, D))
    seen = np.ones((3, T, S), dtype=bool)
    with pytest.raises(ValueError, match=r"\(3, 4, 6\) could be \(B, T, S\) or \(H, T, S\)"):
        mh.masks.resolve(seen, query, key)
    np.testing.assert_array_equal(mh.masks.resolve(mh.masks.dense(seen), query, key), seen)
    assert mh.masks.resolve(seen[:, None], query, key).shape == (3, 1, T, S)
    assert mh.masks.resolve(seen, QUERY, KEY).shape == (H, T, S)  # B is not H: not ambiguous


def test_ambiguous_arrays_with_several_batch_axes_are_refused(rng):
    """For scores (4, 5, 4, 5, 6), a row for each sequence would broadcast over heads and queries."""
    x, keys = rng.standard_normal((4, 5, 4, 5, 3)), rng.standard_normal((4, 5, 4, 6, 3))
    with pytest.raises(ValueError, match=r"\(4, 5, 6\) could be \(B, S\): write masks.keys"):
        mh.scaled_dot_product_attention(x, keys, keys, rng.random((4, 5, 6)) < 0.5)
    seen = rng.random((4, 4, 5, 6)) < 0.5
    with pytest.raises(ValueError, match=r"could be \(B, T, S\) or \(H, T, S\): write mask"):
        mh.masks.empty_rows(seen, (4, 4, 4, 5, 6))
    empty = mh.masks.empty_rows(seen[..., None, :, :], (4, 4, 4, 5, 6))
    np.testing.assert_array_equal(empty, ~seen.any(-1)[:, :, None].repeat(4, 2))
    assert mh.masks.empty_rows(seen[0], (2, 3, 4, 5, 6)).shape == (2, 3, 4, 5)  # no batch: heads


def test_a_placed_mask_may_describe_later_keys():
    seen = np.arange(6) != 3
    for mask in (mh.masks.keys(seen), mh.masks.padding(5), mh.masks.documents([0, 0, 0, 1, 1, 1])):
        whole = np.broadcast_to(mask.array((6, 6)), (6, 6))
        placed = np.broadcast_to(mask.at(2).array((2, 4)), (2, 4))
        np.testing.assert_array_equal(placed, whole[2:4, :4])
        with pytest.raises(ValueError, match=r"shape|from 0 to S"):  # an error without placing
            mask.array((2, 4))
    with pytest.raises(ValueError, match=r"not \(…, S\) \(8,\)"):
        mh.masks.keys(seen).at(6).array((2, 8))  # it may not describe fewer keys than there are
    with pytest.raises(ValueError, match="from 0 to S"):
        mh.masks.padding(-1).at(2).array((2, 4))
    with pytest.raises(ValueError, match="the queries' ids"):
        mh.masks.documents([0, 0, 1], [0, 0, 1, 1]).at(2).array((2, 4))


def test_a_placed_band_is_the_band_with_this_offset_unless_it_has_its_own():
    for own in (mh.masks.causal, lambda **at: mh.masks.sliding_window(2, 1, **at)):
        assert own().at(3) == own(offset=3)
        for placed in (own(offset=0), own(align="top-left")):
            assert placed.at(3) == placed


def test_masks_made_from_equal_integers_are_equal():
    causal, window = mh.masks.causal, mh.masks.sliding_window
    makes = [causal, lambda: causal(offset=0), lambda: causal(offset=1), lambda: causal(align="top-left")]  # fmt: skip
    makes += [lambda: window(0, 1), lambda: window(1, 0), lambda: window(1, 0, offset=1)]
    for make in makes:
        assert make() == make()
        assert len({make(), make()}) == 1
    assert len({make() for make in makes}) == len(makes)
