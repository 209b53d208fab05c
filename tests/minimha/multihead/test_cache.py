"""A cache with a window and sinks: the same as the mask without a cache, in bounded memory."""

import contextlib
import copy

import numpy as np
import pytest
from layers import drawn

import minimha as mh
from minimha.kernels.attention.layout import positions_first
from minimha.multihead.cache import window_mask
from minimha_autograd import array_of

B, N, M = 2, 14, 16
SETTINGS = {
    "plain": {},
    "rope, grouped": {"rope": mh.positions.Rope(), "num_kv_heads": 2},
    "alibi, sink": {"alibi": True, "sink": True},
}
STEPS = [1] * N, [5, 1, 1, 3, 1, 2, 1], [2, 6, 6]  # tokens fed at a time
CASES = [
    (1, 0, 0),
    (3, 0, 1),
    (4, 2, 0),
    (2, 3, 2),
    (1, 1, 0),
    (20, 1, 0),
]  # window, sinks, reserve


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def fed(mha, x, cache, steps, **settings):
    """The outputs (B, N, M) of x fed in steps, and the (weights, held positions) of each."""
    at, outputs, weights = 0, [], []
    for n in steps:
        gone = range(cache.sinks, cache.sinks + cache.evicted)
        y, w = mha(x[:, at : at + n], cache=cache, return_weights=True, **settings)
        at += n
        held = [j for j in range(at) if j not in gone]
        outputs.append(y.data)
        weights.append((w.data, held))
    return np.concatenate(outputs, axis=1), weights


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("window", "sinks", "reserve"), CASES)
def test_a_cache_with_a_window_equals_the_mask_without_a_cache(
    window, sinks, reserve, settings, rng
):
    """Whatever the mask of the call adds, and even if it leaves the window to the cache."""
    mha, x = drawn(rng, settings, d_model=M), rng.standard_normal((B, N, M))
    near = window_mask(window, sinks)
    for mask in (
        mh.masks.causal(),
        near & mh.masks.padding([N, 5]),
        mh.masks.causal() & mh.masks.documents([[0] * 4 + [1] * 10, [0] * 9 + [2] * 5]),
        None,
    ):
        expected, all_weights = mha(
            x, mask=near if mask is None else mask & near, return_weights=True
        )
        for steps, gradients in zip(STEPS, (True, False, True), strict=True):
            cache = mh.KeyValueCache(window, sinks=sinks, reserve=reserve)
            if gradients:
                y, weights = fed(mha, x, cache, steps, mask=mask)
            else:
                with mh.no_grad():
                    y, weights = fed(mha, x, cache, steps, mask=mask)
            assert len(cache) == N
            assert cache.keys.shape[-2] == N - cache.evicted <= window - 1 + sinks + 2 * reserve
            assert abs(y - expected.data).max() <= 1e-12 * abs(expected.data).max()
            rows = np.split(all_weights.data, np.cumsum(steps)[:-1], axis=-2)
            for (w, held), row in zip(weights, rows, strict=True):
                assert abs(w - row[..., held]).max() <= 1e-12


def test_each_query_sees_the_window_and_the_sinks_before_it():
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 1, 1],
    ]
    np.testing.assert_array_equal(window_mask(2, 1).array((6, 6)), np.array(expected, bool))


def test_bias_and_keep_have_entries_for_all_positions(rng):
    mha, x = drawn(rng, {"dropout": 0.4}, d_model=M), rng.standard_normal((B, N, M))
    bias, keep = rng.standard_normal((4, N, N)), rng.random((B, 4, N, N)) < 0.6
    mask = mh.masks.causal().array((N, N)) & (rng.random((N, N)) < 0.7)
    near = window_mask(3, 1) & mh.masks.dense(mask)
    expected = mha(x, mask=near, bias=bias, keep=keep).data
    cache = mh.KeyValueCache(3, sinks=1)
    for at in range(N):
        rows = (..., slice(at, at + 1), slice(0, at + 1))
        y = mha(x[:, [at]], mask=mask[rows], bias=bias[rows], keep=keep[rows], cache=cache)
        assert abs(y.data - expected[:, [at]]).max() <= 1e-12 * abs(expected).max()
    assert cache.evicted == N - 3


def test_a_window_changes_no_bit_where_hidden_keys_are_skipped(rng):
    """The tiled kernel reads only visible keys; before anything is evicted, nothing differs."""
    mha, x = drawn(rng, SETTINGS["rope, grouped"], d_model=M), rng.standard_normal((B, 30, M))
    for name, window, sinks, reserve in (("tiled", 4, 0, 1), ("reference", 9, 2, 20)):
        mask = mh.masks.causal() & window_mask(window, sinks)
        plain, cache = mh.KeyValueCache(), mh.KeyValueCache(window, sinks=sinks, reserve=reserve)
        with mh.no_grad():
            for t in range(30):
                step = x[:, t : t + 1]
                one, other = (
                    mha(step, mask=mask, cache=some, implementation=name).data
                    for some in (plain, cache)
                )
                np.testing.assert_array_equal(one, other)
                for held, everything in ((cache.keys, plain.keys), (cache.values, plain.values)):
                    first, last = np.split(everything.data, [sinks], axis=-2)
                    last = last[..., cache.evicted :, :]
                    np.testing.assert_array_equal(held.data, np.concatenate([first, last], axis=-2))


@pytest.mark.parametrize("settings", [{}, {"window": 3, "sinks": 1}])
@pytest.mark.parametrize("width", [None, 2])
def test_gradients_flow_through_a_cache(width, settings, rng):
    mha = drawn(rng, {"rope": mh.positions.Rope(width=width)}, d_model=M)
    x = rng.standard_normal((B, N, M))
    cotangent, gradients = rng.standard_normal((B, N, M)), []
    for steps in ([N], STEPS[1]):
        leaf, cache = mh.Tensor(x, requires_grad=True), mh.KeyValueCache(**settings)
        at, total = 0, 0.0
        for n in steps:
            y = mha(leaf[:, at : at + n], mask=mh.masks.causal(), cache=cache)
            total, at = total + (y * cotangent[:, at : at + n]).sum(), at + n
        total.backward()
        gradients.append(leaf.grad)
    assert abs(gradients[1] - gradients[0]).max() <= 1e-12 * abs(gradients[0]).max()


@pytest.mark.parametrize("cache", [
    mh.KeyValueCache(), mh.KeyValueCache(3, reserve=4), mh.KeyValueCache(2, sinks=1, reserve=5),
])  # fmt: skip
def test_after_rewinding_it_is_as_if_the_positions_had_never_been_given(cache, rng):
    mha, x = drawn(rng, SETTINGS["rope, grouped"], d_model=M), rng.standard_normal((B, 30, M))
    other, rewound = copy.copy(cache), copy.copy(cache)
    with mh.no_grad():
        for at in range(0, 30, 3):
            step, wrong = x[:, at : at + 3], rng.standard_normal((B, 4, M))
            expected = mha(step, mask=mh.masks.causal(), cache=other).data
            mixed = np.concatenate([step[:, :2], wrong], axis=1)
            mha(mixed, mask=mh.masks.causal(), cache=rewound)
            rewound.rewind(4)
            found = mha(step[:, 2:], mask=mh.masks.causal(), cache=rewound).data
            assert abs(found - expected[:, 2:]).max() <= 1e-12 * abs(expected).max()
            assert len(rewound) == len(other) == at + 3
    shared = min(some.keys.shape[-2] - some.sinks for some in (other, rewound))
    one, two = (some.keys.data[..., -shared:, :] for some in (other, rewound))
    assert abs(one - two).max() <= 1e-12 * abs(two).max()


@pytest.mark.parametrize("recorded", range(1, 6))
def test_steps_within_and_outside_no_grad_can_be_mixed(recorded, rng):
    mha, x = drawn(rng, SETTINGS["rope, grouped"], d_model=M), rng.standard_normal((B, 6, M))
    expected, cache = mha(x, mask=mh.masks.causal()).data, mh.KeyValueCache()
    for t in range(6):
        with contextlib.nullcontext() if t == recorded else mh.no_grad():
            y = mha(x[:, t : t + 1], mask=mh.masks.causal(), cache=cache).data
        assert abs(y - expected[:, t : t + 1]).max() <= 1e-12 * abs(expected).max()


def test_the_sequences_in_a_cache_can_be_reordered(rng):
    mha, x = drawn(rng, SETTINGS["rope, grouped"], d_model=M), rng.standard_normal((2, 6, M))
    expected, cache = mha(x, mask=mh.masks.causal()).data, mh.KeyValueCache()
    with mh.no_grad():
        for t in range(5):
            mha(x[:, t : t + 1], mask=mh.masks.causal(), cache=cache)
        cache.keys, cache.values = cache.keys[::-1], cache.values[::-1]
        y = mha(x[::-1, 5:], mask=mh.masks.causal(), cache=cache).data
    assert abs(y - expected[::-1, 5:]).max() <= 1e-12 * abs(expected).max()


@pytest.mark.parametrize(("window", "n", "message"), [
    (None, 11, "rewind: n = 11 is more than the 10 positions in the cache"),
    (3, 4, "rewind: n = 4 is more than 3: the positions before those are evicted; .* reserve"),
    (3, -1, "rewind: n = -1 must be at least 0"),
])  # fmt: skip
def test_what_cannot_be_forgotten_is_refused_and_nothing_changes(window, n, message, rng):
    mha, x = drawn(rng, d_model=M), rng.standard_normal((B, N, M))
    cache = mh.KeyValueCache(window, sinks=1, reserve=3)
    cache.rewind(0)
    mha(x[:, :10], mask=mh.masks.causal(), cache=cache)
    with pytest.raises(ValueError, match=message):
        cache.rewind(n)
    assert len(cache) == 10
    cache.rewind(3)
    assert len(cache) == 7


@pytest.mark.parametrize("form", ["stacked", "bilinear"])
def test_rewinding_overwrites_nothing_that_a_pullback_or_a_copy_holds(form, rng):
    """The keys of the bilinear form are the inputs: no gradient flows to them."""
    mha, x = drawn(rng, {"form": form}, d_model=M), rng.standard_normal((B, 6, M))
    causal, cache = mh.masks.causal(), mh.KeyValueCache()
    mha(x[:, :3], mask=causal, cache=cache)
    copied, before = copy.copy(cache), array_of(cache.keys).copy()
    y = mha(x[:, 3:4], mask=causal, cache=cache)
    cache.rewind(2)
    mha(x[:, 4:], mask=causal, cache=cache)
    y.sum().backward()
    found = mha.parameters()[0].grad
    mha.zero_grad()
    mha(x[:, :4], mask=causal)[:, 3:].sum().backward()
    np.testing.assert_allclose(found, mha.parameters()[0].grad, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(array_of(copied.keys), before)
    with mh.no_grad():
        cache = mh.KeyValueCache()
        for t in range(3):
            mha(x[:, t : t + 1], mask=causal, cache=cache)
        copied, before = copy.copy(cache), array_of(cache.keys).copy()
        cache.rewind(2)
        mha(x[:, 4:], mask=causal, cache=cache)
    np.testing.assert_array_equal(array_of(copied.keys), before)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"window": 0}, "window = 0 must be at least 1"),
    ({"window": 2, "sinks": -1}, "sinks = -1 must be at least 0"),
    ({"reserve": -1}, "reserve = -1 must be at least 0"),
])  # fmt: skip
def test_invalid_settings_of_a_cache_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mh.KeyValueCache(**arguments)


def test_kernels_read_the_keys_and_values_of_a_sequence_where_the_cache_holds_them(rng):
    """A step of decoding would otherwise copy all of them."""
    cache, (k, v) = mh.KeyValueCache(), rng.standard_normal((2, 1, 3, 9, 4))
    with mh.no_grad():
        cache.store(k[..., :8, :], v[..., :8, :])
        for held, given in zip(cache.joined(k[..., 8:, :], v[..., 8:, :]), (k, v), strict=True):
            assert np.shares_memory(positions_first(held), held)
            np.testing.assert_array_equal(held, given)
