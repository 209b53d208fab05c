"""Tasks of chapter 10: checks that show why a model does not learn."""

import textwrap

import numpy as np

from ..checks.comparisons import same
from ..checks.shown import shown
from ..checks.task import task


@task(chapter=10, difficulty=1, minutes=10, hints=(
    "The entropy of one row P is −Σ P log P, with the natural logarithm. The sum is over the keys.",
    "log 0 is −∞, and 0 · ∞ is NaN. A weight of 0 should contribute 0, so take the logarithm of 1 "
    "there, or of any other positive number.",
    "logs = np.log(np.where(weights > 0, weights, 1.0)), then −(weights * logs).sum(axis=-1)",
))  # fmt: skip
def attention_entropy(weights):
    """The entropy of each row of attention weights, in nats.

    weights  (…, T, S): each row is at least 0 and sums to 1; hidden keys have a weight of 0
    Returns −Σ P log P over the keys, (…, T). A weight of 0 contributes 0.
    """
    # BEGIN SOLUTION
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logs).sum(axis=-1)
    # END SOLUTION


@attention_entropy.check
def the_two_tokens(yours, rng):
    two, three = np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([[0.5, 0.3, 0.2]])
    for entropy, weights in [(yours(weights), weights) for weights in (two, three)]:
        same(entropy, attention_entropy(weights), "the entropy", "query")


@attention_entropy.check
def one_number_for_each_query(yours, rng):
    weights = rng.dirichlet(np.ones(5), (2, 3, 4))
    same(yours(weights), attention_entropy(weights), "the entropy", "batch head query")


@attention_entropy.check
def small_weights_contribute_too(yours, rng):
    small = np.array([1e-4, 1e-7, 1e-10])
    weights = np.stack([small, 1 - small], axis=-1)
    entropy, without = yours(weights), -(1 - small) * np.log1p(-small)
    left_out = np.shape(entropy) == (3,) and any(np.isclose(entropy, without, rtol=1e-5, atol=0))
    same(
        entropy, attention_entropy(weights), "the entropy of a row (w, 1 − w)", "query",
        guess="the small weight w is left out: only a weight of 0 contributes 0" * left_out,
    )  # fmt: skip


@attention_entropy.check(hidden=True)
def hidden_keys_contribute_nothing(yours, rng):
    weights = np.tril(0.1 + rng.random((3, 4, 4)))
    weights /= weights.sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        entropy = yours(weights)
    same(entropy, attention_entropy(weights), "the entropy under a causal mask", "head query")


@task(chapter=10, difficulty=2, minutes=15, hints=(
    "First find the largest absolute value among the entries of all gradients. A gradient that is "
    "None has no entries.",
    "np.abs(gradient).max() is the largest entry of one gradient. Compare it with 1e-6 times the "
    "largest of all; if all gradients are 0, both are 0.",
    "[name for name, g in gradients.items() if g is None or np.abs(g).max() <= 1e-6 * largest]",
))  # fmt: skip
def without_gradient(gradients):
    """The names of the parameters that no gradient reaches.

    gradients  a dictionary: for each name of a parameter its gradient, an array of any shape, or
               None if the backward pass did not reach the parameter
    Returns a list of the names whose gradient is None or zero up to rounding, in the order of the
    dictionary. Zero up to rounding means that no absolute value of an entry is above 1e-6 times the
    largest absolute value in all gradients.
    """
    # BEGIN SOLUTION
    sizes = {name: np.abs(g).max() for name, g in gradients.items() if g is not None}
    least = 1e-6 * max(sizes.values(), default=0.0)
    return [name for name in gradients if name not in sizes or sizes[name] <= least]
    # END SOLUTION


def _named(yours, gradients):
    """Compare the names that a function returns for these gradients with the right ones."""
    found, expected = yours(gradients), without_gradient(gradients)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise AssertionError(
            f"without_gradient should return a list of names, not {shown(found):.60}"
        )
    largest = max((np.max(abs(g)) for g in gradients.values() if g is not None), default=0.0)
    for name, g in gradients.items():
        if (name in found) != (name in expected):
            is_listed = "lists" if name in found else "does not list"
            size = "None" if g is None else f"{np.max(abs(g)):.1e} at its largest entry"
            raise AssertionError(textwrap.fill(
                f"without_gradient {is_listed} {name!r}, whose gradient is {size}; the largest "
                f"entry of all gradients is {largest:.1e}", 80,
            ))  # fmt: skip
    if found != expected:
        raise AssertionError(f"the names should be {expected}, in this order, not {found}")


@without_gradient.check
def none_and_zeros_are_found(yours, rng):
    head, norm = rng.standard_normal((4, 5)), rng.standard_normal(4)
    _named(yours, {"head": head, "tokens": None, "norm": norm, "unused": np.zeros((3, 4))})
    _named(yours, {"head": head, "norm": norm})


@without_gradient.check
def a_real_gradient_is_not_listed(yours, rng):
    one, table = np.zeros((200, 40)), np.zeros((5, 4))
    one[3, 1], table[2] = 0.005, rng.standard_normal(4)
    negative, cancelling = -0.1 - rng.random(4), np.array([1.0, -1.0])
    small = 1e-4 * rng.standard_normal((2, 3, 4))
    gradients = {
        "large": 2 + rng.random((3, 4)), "one entry": one, "one row": table, "negative": negative,
        "sum 0": cancelling, "small": small,
    }  # fmt: skip
    _named(yours, gradients)
    _named(yours, {name: 1e-7 * g for name, g in gradients.items()})


@without_gradient.check
def rounding_counts_as_zero(yours, rng):
    for scale in (1.0, 1e4):
        head, small = -scale * (1 + rng.random((4, 5))), scale * rng.random((2, 200, 40))
        gradients = {
            "b_k": 1e-8 * small[0, 0], "tokens": None, "head": head, "table": 3e-7 * small[0],
            "b_q": 1e-3 * small[1, 0], "scale": 1e-15 * small[1, 1], "shift": 1e-10 * small[1, 2],
        }  # fmt: skip
        _named(yours, gradients)


@without_gradient.check(hidden=True)
def perhaps_no_gradient_arrives_at_all(yours, rng):
    _named(yours, {"tokens": None, "head": np.zeros((2, 3))})
    _named(yours, {"tokens": None, "head": None})


@task(chapter=10, difficulty=2, minutes=15, hints=(
    "Change what a position must not see, and look at the logits of that position: they must stay "
    "exactly the same. Do this for each t from 1 on.",
    "Copy the tokens, replace those from t on with others, such as (token + 1) % vocabulary, and "
    "compare the logits before t.",
    "np.any(model(changed)[:, :t] != model(tokens)[:, :t]) for some t: the model leaks.",
))  # fmt: skip
def leaks(model, tokens, vocabulary):
    """Whether the logits of a position depend on later tokens.

    model       a function of tokens (B, T) that returns logits (B, T, V)
    tokens      (B, T) integers from 0 to V − 1
    vocabulary  V
    Returns True if, for some t, other tokens at the positions t, t + 1, … change the logits at a
    position before t, in any sequence and however little; False otherwise. In the checks, the
    logits of a model without a leak stay equal bit for bit.
    """
    # BEGIN SOLUTION
    before = model(tokens)
    for t in range(1, tokens.shape[1]):
        changed = tokens.copy()
        changed[:, t:] = (changed[:, t:] + 1) % vocabulary
        if np.any(model(changed)[:, :t] != before[:, :t]):
            return True
    return False
    # END SOLUTION


def _models(rng, vocabulary, first):
    """Functions of tokens (B, T) that return logits (B, T, V), by what each position looks at, and
    whether they leak. One leaks in sequences with this first token only."""
    table = rng.standard_normal((vocabulary, vocabulary))

    def looking(others, share=1.0, start=None):
        """Each position adds the other tokens to its own, with the weights others(T), (T, T)."""

        def model(tokens):
            if np.min(tokens) < 0 or np.max(tokens) >= vocabulary:
                raise ValueError(f"tokens must be from 0 to {vocabulary - 1}")
            x = table[tokens]
            chosen = True if start is None else (tokens[:, :1] == start)[..., None]
            return x + share * chosen * (others(tokens.shape[1]) @ x)

        return model

    def everything(t):
        return np.ones((t, t))

    def ahead(position):
        return looking(lambda t: np.eye(t, k=1) * (np.arange(t) == position % t)[:, None])

    return {
        "only at their own token": (looking(np.eye), False),
        "at all tokens up to their own": (looking(np.tri), False),
        "at all tokens": (looking(everything), True),
        "at their own token and the next": (looking(lambda t: np.eye(t, k=1)), True),
        "at their own token and the next but one": (looking(lambda t: np.eye(t, k=2)), True),
        "at the last token of the sequence": (
            looking(lambda t: np.maximum(np.tri(t), np.arange(t) == t - 1)), True,
        ),
        "at their own token, and only the first at the next one": (ahead(0), True),
        "at their own token, and only the third at the next one": (ahead(2), True),
        "at their own token, and only the second to last at the next one": (ahead(-2), True),
        "at all tokens, in one of the sequences": (looking(everything, start=first), True),
        "at all tokens, too little to change which logit is the largest": (
            looking(everything, 1e-4), True,
        ),
        "a little at all tokens, for a single class": (
            looking(everything, 1e-6 * (np.arange(vocabulary) == 1)), True,
        ),
    }  # fmt: skip


def _answered(yours, tokens, vocabulary, models, which=""):
    """Compare what a function returns for each model with the right answer."""
    answers = {name: yours(model, tokens, vocabulary) for name, (model, _) in models.items()}
    for name, answer in answers.items():
        if not isinstance(answer, bool | np.bool_):
            raise AssertionError(f"leaks should return True or False, not {shown(answer):.60}")
        if answer != models[name][1]:
            text = f"leaks returns {answer} for a model whose positions look {name}{which}"
            raise AssertionError(textwrap.fill(text, 80))


@leaks.check
def every_leak_is_found_and_nothing_else(yours, rng):
    vocabulary, (b, t) = int(rng.integers(5, 9)), (3, 6)
    tokens = rng.integers(1, vocabulary, (b, t))
    tokens[1:, 0] = [0, 1 + tokens[0, 0] % (vocabulary - 1)]  # three different first tokens
    _answered(yours, tokens, vocabulary, _models(rng, vocabulary, first=0))


@leaks.check
def a_leak_is_found_whatever_the_tokens(yours, rng):
    vocabulary = int(rng.integers(5, 9))
    for token in (0, vocabulary - 1):
        models = _models(rng, vocabulary, first=token)
        which = f", if every token is {token}"
        _answered(yours, np.full((2, 6), token), vocabulary, models, which)
