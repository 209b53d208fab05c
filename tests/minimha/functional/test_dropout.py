"""Dropout: masks are drawn from the given generator and can be replayed exactly."""

import numpy as np
import pytest

import minimha as mh
from minimha.functional import drop, dropout
from minimha_autograd import backend

B, T, M = 2, 5, 8


@pytest.fixture
def x(rng):
    return rng.standard_normal((B, T, M))


def test_the_mean_over_draws_equals_the_input():
    p, n = 0.3, 40_000
    x = np.array([-2.0, 0.5, 1.0, 3.0])
    y = drop(np.broadcast_to(x, (n, 4)), p, rng=np.random.default_rng(1))
    deviation = abs(x) * np.sqrt(p / (1 - p) / n)  # for the mean of n draws
    assert (abs(y.mean(axis=0) - x) <= 5 * deviation).all()
    assert set(np.unique(y[:, 3])) == {0, 3 / (1 - p)}


def test_entries_are_dropped_independently():
    kept = drop(np.ones((300, 400)), 0.5, rng=np.random.default_rng(2)) != 0
    for other in (kept[1:] == kept[:-1], kept[:, 1:] == kept[:, :-1]):
        assert abs(other.mean() - 0.5) < 0.01  # 120,000 draws: 7 standard deviations


def test_a_seed_draws_the_same_mask_in_every_library_and_it_can_be_reused(x, place):
    like = place(x.astype("float32"))
    keep = backend.bernoulli(np.random.default_rng(3), x.shape, 0.7, like=like)
    assert (backend.namespace(keep), keep.device) == (place.xp, like.device)
    host = np.random.default_rng(3).random(x.shape) < 0.7
    np.testing.assert_array_equal(backend.to_numpy(keep), host)
    y = backend.to_numpy(drop(like, 0.3, rng=np.random.default_rng(3)))
    np.testing.assert_array_equal(y != 0, host)
    generator = np.random.default_rng(8)
    for settings in ({}, {"rng": generator}):
        np.testing.assert_array_equal(backend.to_numpy(drop(like, 0.3, keep=keep, **settings)), y)
    assert generator.random() == np.random.default_rng(8).random()  # unchanged


def test_each_call_draws_a_new_mask_without_global_state(x):
    before, generator = np.random.get_state()[1].copy(), np.random.default_rng(0)
    assert (drop(x, 0.5, rng=generator) != drop(x, 0.5, rng=generator)).any()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_p_0_returns_the_input_and_draws_nothing(x):
    q, generator = mh.Tensor(x, requires_grad=True), np.random.default_rng(4)
    assert drop(q, 0.0, rng=generator) is q
    assert drop(x, 0) is x
    assert generator.random() == np.random.default_rng(4).random()


def test_p_1_gives_zeros_and_zero_gradients(x, rng):
    x[0, 0, 0] = np.nan  # dropped entries are 0, whatever they were
    q = mh.Tensor(x, requires_grad=True)
    y = drop(q, 1, rng=rng)
    y.backward(np.full(x.shape, np.inf))
    assert not y.data.any()
    assert not q.grad.any()
    y = dropout(np.array([np.nan, np.inf, 2.0]), np.array([False, False, True]), p=0.5)
    np.testing.assert_array_equal(y, [0, 0, 4])


SEEDED = np.random.default_rng(0)


@pytest.mark.parametrize(("x", "p", "rng", "error", "message"), [
    (np.ones(3), 0.1, None, ValueError, r"p = 0\.1 needs rng, .* or keep, .* global state"),
    (np.ones(3), 0.1, 3, TypeError, "rng must be a generator, not 3: .*default_rng"),
    (np.ones(3), SEEDED, None, TypeError, "p must be a number from 0 to 1, not a Generator"),
    ([1.0], 0.5, SEEDED, TypeError, "x must be an array or a Tensor, not list"),
])  # fmt: skip
def test_invalid_arguments_raise_an_error_with_the_reason(x, p, rng, error, message):
    with pytest.raises(error, match=message):
        drop(x, p, rng=rng)
