"""Speculative decoding has the distribution of plain generation, and rewinds both caches."""

import itertools

import numpy as np
import pytest
from layers import far

import minimha as mh
from minimha.transformers import probabilities, speculation

V, COUNT = 4, 3
WINDOWS = {"context": 300, "layers": [{"window": 3, "sinks": 1}, {"window": 9}]}
PROMPT = np.array([[3, 1, 2]])


def gpt(seed, scale=6, **settings):
    """A GPT whose most likely token changes from place to place."""
    sizes = {"context": 40, "d_model": 12, "num_heads": 3, "num_layers": 2, "dtype": "float64"}
    model = far(mh.GPT(V, **sizes | settings), np.random.default_rng(seed))
    for embedding in (model.tokens, model.positions):
        embedding.table.data = scale * embedding.table.data
    return model


def like(model, noise):
    """A copy of a model with some noise in its weights, so that it often agrees with it."""
    copied, rng = mh.GPT(**model.settings), np.random.default_rng(8)
    for p, other in zip(copied.parameters(), model.parameters(), strict=True):
        p.data = other.data + noise * rng.standard_normal(p.shape)
    return copied


class Prefix(list):
    """In place of a cache, the tokens themselves."""

    def rewind(self, n):
        del self[len(self) - n :]


class Table:
    """A GPT that looks up its logits, computed beforehand, for speed."""

    def __init__(self, model):
        self.settings, self.context, parameters = model.settings, model.context, model.parameters()
        self.parameters = lambda: parameters
        every = list(itertools.product(range(V), repeat=COUNT))
        self.logits = {}
        for tokens, logits in zip(every, model(np.array(every)).data, strict=True):
            self.logits |= {tokens[: n + 1]: logits[n] for n in range(COUNT)}

    def new_caches(self, reserve):
        return [Prefix()]

    def __call__(self, tokens, caches):
        rows = []
        for token in tokens[0].tolist():
            caches[0].append(token)
            rows.append(self.logits[tuple(caches[0])])
        return mh.Tensor(np.array([rows]))


def chi_squared(samples=10_000, **settings):
    """χ² of the continuations drawn, over its bound: below 1 for the right distribution.

    Continuations expected less than 10 times are counted together. With d degrees of freedom, χ²
    has the mean d and the variance 2 d; the bound is 4 standard deviations above the mean.
    """
    table, draft = Table(gpt(1, scale=1)), Table(gpt(2, scale=1))
    rng = np.random.default_rng(0)
    counts, expected = np.zeros((V,) * COUNT), np.full((V,) * COUNT, float(samples))
    sampling = {name: x for name, x in settings.items() if name != "ahead"}
    for tokens in np.ndindex(expected.shape):
        for n, token in enumerate(tokens):
            p = probabilities(table.logits[(1, *tokens[:n])][None], **sampling)
            expected[tokens] *= p[0, token]
    for _ in range(samples):
        drawn = mh.speculate(table, draft, np.array([[1]]), COUNT, rng=rng, **settings).tokens
        counts[tuple(drawn[0, 1:])] += 1
    rare = expected <= np.sort(expected, axis=None)[(expected < 10).sum()]  # one is frequent
    found = np.append(counts[~rare], counts[rare].sum())
    due = np.append(expected[~rare], expected[rare].sum())
    freedom = len(due) - 1
    return ((found - due) ** 2 / due).sum() / (freedom + 4 * np.sqrt(2 * freedom))


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [
    {"temperature": 0.7, "ahead": 1}, {"temperature": 1.0, "ahead": 2},
    {"temperature": 1.6, "ahead": 4}, {"temperature": 1.2, "top_k": 3, "top_p": 0.95, "ahead": 2},
])  # fmt: skip
def test_continuations_are_drawn_as_often_as_by_the_model_alone(settings):
    assert chi_squared(**settings) < 1


def always(p, q, drafted, rng):
    return len(drafted), speculation.sample(p[-1:], rng)[0]


def reversed_ratio(p, q, drafted, rng):
    return right(np.concatenate([q.reshape(-1, V), p[-1:]]), p[:-1], drafted, rng)


def from_p(p, q, drafted, rng):
    kept, _ = right(p, q, drafted, rng)
    return kept, speculation.sample(p[[kept]], rng)[0]


right = speculation.judge


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [always, reversed_ratio, from_p])
def test_a_wrong_rule_of_acceptance_fails_the_same_test(wrong, monkeypatch):
    monkeypatch.setattr(speculation, "judge", wrong)
    assert chi_squared(samples=3000, ahead=2) > 2


@pytest.mark.parametrize(("settings", "context", "ahead"), [
    ({}, 9, 3), ({}, 3, 6), ({"context": 9}, 40, 1), ({"context": 9}, 8, 6),
    pytest.param(WINDOWS, 300, 4, marks=pytest.mark.thorough),
])  # fmt: skip
def test_at_temperature_0_the_tokens_are_those_of_generate(settings, context, ahead):
    """With caches that are rewound and evict, and when the context of either model is full."""
    model = gpt(3, **settings)
    draft, count = like(model, 0.1), 250 if settings is WINDOWS else 60
    draft.context = min(draft.context, context)
    found = mh.speculate(model, draft, PROMPT, count, ahead=ahead, temperature=0)
    np.testing.assert_array_equal(found.tokens, mh.generate(model, PROMPT, count, temperature=0))
    assert 0 < found.accepted < found.judged <= found.draft_calls


def test_a_draft_that_is_the_model_is_always_accepted():
    model = gpt(3, **WINDOWS)
    found = mh.speculate(model, model, PROMPT, 150, ahead=4)
    assert found.acceptance == 1
    assert (found.calls, found.draft_calls, found.judged) == (30, 120, 120)
    assert found.tokens.shape == (1, 153)


def test_the_speed_up_is_predicted_from_the_acceptance():
    """Of models whose predictions ignore the tokens before, so that the rounds are independent."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.4, 0.1, 0.4])
    model, draft = gpt(1, context=2100), gpt(1, context=2100)
    for one, row in ((model, p), (draft, q)):
        one.new_caches = lambda reserve: [Prefix()]
        one.__class__ = type("Fixed", (mh.GPT,), {
            "__call__": lambda self, tokens, caches, row=row: mh.Tensor(
                np.broadcast_to(np.log(row), (*tokens.shape, V)) + 0.0
            )
        })  # fmt: skip
    found = mh.speculate(model, draft, PROMPT, 2000, ahead=3)
    expected = np.minimum(p, q).sum()
    assert abs(found.acceptance - expected) < 4 * np.sqrt(expected / found.judged)
    predicted = mh.cost.speculation(expected, 3, ratio=0)
    assert abs(2000 / found.calls / predicted - 1) < 0.05
    assert found.draft_calls >= 3 * (found.calls - 1)


def test_it_ends_at_a_token_of_stop():
    model = gpt(4)
    free = mh.speculate(model, like(model, 0.1), PROMPT, 30, rng=6).tokens[0]
    for stop in range(V):
        found = mh.speculate(model, like(model, 0.1), PROMPT, 30, rng=6, stop=[stop]).tokens[0]
        ends = np.flatnonzero(free[3:] == stop)
        np.testing.assert_array_equal(found, free[: 4 + ends[0]] if len(ends) else free)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"tokens": np.repeat(PROMPT, 2, axis=0)}, r"\(2, 3\), but must be \(1, T\)"),
    ({"ahead": 0}, "ahead = 0 must be at least 1"),
    ({"temperature": -1.0}, "temperature = -1.0 must be at least 0"),
    ({"draft": mh.GPT(5, context=4, d_model=4, num_heads=1, num_layers=1)}, "vocabularies of 4 and 5 tokens"),
])  # fmt: skip
def test_invalid_arguments_are_refused(arguments, message):
    settings = {"model": gpt(1), "draft": gpt(2), "tokens": PROMPT, "count": 4} | arguments
    with pytest.raises(ValueError, match=message):
        mh.speculate(**settings)
