"""Generation: the same with and without a cache, reproducible, and limited to likely tokens."""

import numpy as np
import pytest
from layers import far

import minimha as mh
from minimha.transformers import probabilities, stream

PROMPT = np.array([[3, 1, 4], [1, 5, 2]])


@pytest.fixture
def gpt():
    """A GPT with large weights, so that its predictions differ between tokens."""
    model = mh.GPT(11, context=8, d_model=12, num_heads=3, num_layers=2, dtype="float64")
    return far(model, np.random.default_rng(5))


def test_the_cache_changes_nothing_even_beyond_the_context(gpt):
    for settings in ({}, {"temperature": 0}, {"top_k": 3, "temperature": 0.7}, {"top_p": 0.8}):
        cached = mh.generate(gpt, PROMPT, 20, rng=7, **settings)
        np.testing.assert_array_equal(
            cached, mh.generate(gpt, PROMPT, 20, rng=7, cache=False, **settings)
        )
        assert cached.shape == (2, 23)
        np.testing.assert_array_equal(cached[:, :3], PROMPT)


@pytest.mark.thorough
def test_a_cache_that_evicts_changes_nothing():
    layers = [{"window": 3, "sinks": 1}, {"window": 5}]
    model = mh.GPT(11, context=160, d_model=12, num_heads=3, num_layers=2, layers=layers)
    far(model, np.random.default_rng(5))
    cached, without = (mh.generate(model, PROMPT, 157, rng=7, cache=c) for c in (True, False))
    np.testing.assert_array_equal(cached, without)


def test_at_temperature_0_each_token_has_the_largest_logit_of_the_context_before_it(gpt):
    """The context of 8 tokens restarts with its newest half, also in a prompt that is too long."""
    tokens = mh.generate(gpt, PROMPT, 8, temperature=0)
    for end in range(3, 11):
        before = tokens[:, 5 if end > 8 else 0 : end]
        np.testing.assert_array_equal(tokens[:, end], gpt(before).data[:, -1].argmax(axis=-1))
    np.testing.assert_array_equal(mh.generate(gpt, tokens[:, :9], 2, temperature=0), tokens)


def test_the_seed_determines_the_tokens(gpt):
    drawn = [mh.generate(gpt, PROMPT, 9, rng=seed).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_sequence_ends_at_a_token_of_stop_and_is_filled_up_with_it(gpt):
    many = np.repeat(PROMPT, 3, axis=0)
    free = mh.generate(gpt, many, 12, rng=4)
    stop = [int(free[0, 5]), int(free[1, 8])]
    ended = mh.generate(gpt, many, 12, rng=4, stop=stop)
    lengths = []
    for mine, without in zip(ended, free, strict=True):
        ends = np.flatnonzero(np.isin(without[3:], stop))
        lengths.append(4 + ends[0] if len(ends) else 15)
        np.testing.assert_array_equal(mine[: lengths[-1]], without[: lengths[-1]])
        np.testing.assert_array_equal(mine[lengths[-1] :], mine[lengths[-1] - 1])
    assert ended.shape == (6, max(lengths))
    assert len(set(lengths)) > 2
    with pytest.raises(TypeError, match="a token of stop"):
        mh.generate(gpt, PROMPT, 1, stop=[1.0])


def test_tokens_come_as_soon_as_they_are_drawn_and_gradients_stay_on_in_between(gpt):
    steps = stream(gpt, PROMPT, 5, rng=3)
    first = next(steps)
    assert gpt(PROMPT).requires_grad
    np.testing.assert_array_equal(
        np.stack([first, *steps], axis=1), mh.generate(gpt, PROMPT, 5, rng=3)[:, 3:]
    )


def test_tokens_are_drawn_as_often_as_their_probability(gpt):
    many = np.repeat(PROMPT[:1], 4000, axis=0)
    drawn = mh.generate(gpt, many, 1, temperature=1.5, top_k=4)[:, -1]
    expected = probabilities(gpt(PROMPT[:1]).data[:, -1], temperature=1.5, top_k=4)[0]
    assert (expected > 0).sum() == 4
    counts = np.bincount(drawn, minlength=11) / 4000
    assert abs(counts - expected).max() < 4 * 0.5 / np.sqrt(4000)  # four standard deviations


def test_probabilities_by_hand():
    logits = np.log([[0.5, 0.2, 0.2, 0.1]])
    for settings, expected in (
        ({}, [0.5, 0.2, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([25, 4, 4, 1]) / 34),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_k": 2}, np.array([5, 2, 2, 0]) / 9),  # as likely as the second
        ({"top_k": 9}, [0.5, 0.2, 0.2, 0.1]),
        ({"top_p": 0.4}, [1, 0, 0, 0]),
        ({"top_p": 0.55}, np.array([5, 2, 2, 0]) / 9),
        ({"top_p": 1.0}, [0.5, 0.2, 0.2, 0.1]),
    ):
        np.testing.assert_allclose(probabilities(logits, **settings)[0], expected, atol=1e-15)


@pytest.mark.parametrize(
    ("logits", "temperature", "expected"),
    [
        ([1.0, np.inf, -np.inf, 2.0], 1.0, [0, 1, 0, 0]),
        ([np.inf, 1.0, np.inf, 2.0], 0.5, [0.5, 0, 0.5, 0]),
        ([1.0, 3.0, 2.0, 3.0], 1e-320, [0, 0.5, 0, 0.5]),
        ([1.0, 3.0, 2.0, -np.inf], 1e300, [1 / 3, 1 / 3, 1 / 3, 0]),
    ],
)
def test_infinite_logits_and_extreme_temperatures_have_the_probabilities_of_the_limit(
    logits, temperature, expected
):
    p = probabilities(np.array([logits], "float32"), temperature, top_k=3, top_p=0.999)
    np.testing.assert_allclose(p, [expected], rtol=1e-15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 must be at least 0"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p = 0.0 must be above 0"),
        ({"top_p": 1.1}, "top_p = 1.1 must be above 0 and at most 1"),
        ({"tokens": np.array([1, 2])}, r"\(2,\), but must be \(B, T\)"),
        ({"tokens": np.zeros((1, 0), int)}, "T at least 1"),
    ],
)
def test_invalid_settings_are_refused(gpt, settings, message):
    with pytest.raises(ValueError, match=message):
        mh.generate(gpt, settings.pop("tokens", PROMPT), 1, **settings)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_settings_that_are_not_numbers_are_refused(gpt, name):
    with pytest.raises(TypeError, match=rf"^{name} must be an? .*, not '1'$"):
        mh.generate(gpt, PROMPT, 1, **{name: "1"})


def test_a_model_whose_logits_are_nan_is_refused(gpt):
    gpt.norm.weight.data = gpt.norm.weight.data * np.nan
    with pytest.raises(ValueError, match="logits are NaN"):
        mh.generate(gpt, np.zeros((1, 1), int), 1, temperature=0)


def test_generated_tokens_do_not_wrap_around_in_a_small_dtype():
    model = mh.GPT(300, context=8, d_model=12, num_heads=3, num_layers=1, dtype="float64")
    expected = mh.generate(model, PROMPT, 12, rng=1)
    assert expected.max() > 255
    np.testing.assert_array_equal(mh.generate(model, PROMPT.astype("uint8"), 12, rng=1), expected)
