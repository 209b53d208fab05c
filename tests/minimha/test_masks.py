"""Masks: who may attend to whom."""

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend

B, H, T, S, D = 2, 3, 4, 6, 5
QUERY, KEY = np.zeros((B, H, T, D)), np.zeros((B, H, S, D))


def spread(mask, query=QUERY, key=KEY):
    """The mask as a full array (B, H, T, S)."""
    shape = (*query.shape[:-1], key.shape[-2])
    return np.broadcast_to(mh.masks.resolve(mask, query, key), shape)


@pytest.mark.parametrize(
    ("mask", "offset"),
    [
        (mh.masks.causal(offset=0), 0),
        (mh.masks.causal(offset=-2), -2),
        (mh.masks.causal(align="top-left"), 0),
        (mh.masks.causal(align="bottom-right"), S - T),
    ],
)
def test_causal_sees_up_to_the_offset(mask, offset):
    for i in range(T):
        for j in range(S):
            assert spread(mask)[1, 2, i, j] == (j <= i + offset)


def test_causal_on_a_square_needs_no_offset():
    np.testing.assert_array_equal(spread(mh.masks.causal(), key=QUERY)[0, 0], np.tri(T, dtype=bool))


def test_causal_takes_one_way_of_saying_it():
    with pytest.raises(ValueError, match="not both"):
        mh.masks.causal(offset=1, align="top-left")
    with pytest.raises(ValueError, match="not 'left'"):
        mh.masks.causal(align="left")


@pytest.mark.parametrize("lengths", [[2, 6], np.array([2, 6], dtype=np.int32), mh.Tensor([2, 6])])
def test_padding_hides_keys_of_its_own_sequence_and_never_queries(lengths):
    seen = spread(mh.masks.padding(lengths))
    assert seen[0, :, :, :2].all()
    assert not seen[0, :, :, 2:].any()
    assert seen[1].all()


def test_keys_are_padding_anywhere():
    valid = np.array([[1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=bool)
    seen = spread(mh.masks.keys(valid))
    for b in range(B):
        np.testing.assert_array_equal(seen[b], np.broadcast_to(valid[b], (H, T, S)))


def test_masks_combine(rng):
    a, b = rng.random((T, S)) < 0.5, rng.random((H, 1, S)) < 0.5
    one, other = mh.masks.dense(a), mh.masks.dense(b)
    np.testing.assert_array_equal(spread(one & other)[1], a & b)
    np.testing.assert_array_equal(spread(one | ~other)[1], a | ~b)
    with pytest.raises(TypeError, match="not with ndarray"):
        one & a


def test_without_heads_or_batch():
    query, key = QUERY[0, 0], KEY[0, 0]
    assert spread(mh.masks.padding(4), query, key).sum() == 4 * T
    assert spread(mh.masks.keys(np.arange(S) > 1), query, key).sum() == 4 * T


def test_masks_are_made_in_the_library_and_on_the_device_of_the_query(place):
    query, key = place(QUERY), place(KEY)
    mask = mh.masks.causal(offset=1) & (
        mh.masks.padding([3, 6]) | mh.masks.keys(np.ones((B, S), dtype=bool))
    )
    made = mh.masks.resolve(mask, query, key)
    assert backend.namespace(made) is place.xp
    assert made.device == query.device
    np.testing.assert_array_equal(backend.to_numpy(made), mh.masks.resolve(mask, QUERY, KEY))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mh.masks.padding([2.0, 3.0]), TypeError, "lengths are integers"),
        (lambda: mh.masks.padding([True, False]), TypeError, r"masks\.keys\(valid\)"),
        (lambda: mh.masks.keys([[1, 0]]), TypeError, "keys: valid has dtype int64"),
        (lambda: mh.masks.dense(np.ones((T, S))), TypeError, "must be boolean"),
        (lambda: spread(mh.masks.padding([1, 2, 3])), ValueError, r"shape \(3,\), the batch .* \(2,\)"),
        (lambda: spread(mh.masks.padding([1, 7])), ValueError, "from 0 to S = 6"),
        (lambda: spread(mh.masks.padding([-1, 2])), ValueError, "from 0 to S = 6"),
        (lambda: spread(mh.masks.keys(np.ones((B, T), dtype=bool))), ValueError, r"not \(…, S\) \(2, 6\)"),
    ],
)  # fmt: skip
def test_masks_that_do_not_fit_say_why(make, error, message):
    with pytest.raises(error, match=message):
        make()
