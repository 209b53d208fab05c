"""Tasks of chapter 10: checks that show why a model does not learn."""

import numpy as np

from ..comparisons import same
from ..task import task


@task(chapter=10, difficulty=1, minutes=5, hints=(
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


@attention_entropy.check(hidden=True)
def hidden_keys_contribute_nothing(yours, rng):
    weights = np.tril(0.1 + rng.random((3, 4, 4)))
    weights /= weights.sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        entropy = yours(weights)
    same(entropy, attention_entropy(weights), "the entropy under a causal mask", "head query")


@task(chapter=10, difficulty=1, minutes=5, hints=(
    "The norm of an array is the root of the sum of the squares of all entries.",
    "np.linalg.norm(x) computes it for vectors and matrices; for more axes, pass x.ravel().",
    "np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())",
))  # fmt: skip
def update_ratio(before, after):
    """How far a step moved a parameter, relative to its norm: ‖after − before‖ / ‖before‖.

    before, after  the parameter before and after a step of the optimiser: arrays of one shape, with
                   any number of axes. ‖x‖ is the root of the sum of the squares of all entries
    Returns one number.
    """
    # BEGIN SOLUTION
    moved = np.sqrt(np.sum((after - before) ** 2))
    return moved / np.sqrt(np.sum(before**2))
    # END SOLUTION


@update_ratio.check
def two_numbers_by_hand(yours, rng):
    before, after = np.array([4.0, -3.0]), np.array([4.14, -2.52])  # the step has the norm 0.5
    name = "the ratio for (4, −3) and (4.14, −2.52)"
    same(yours(before, after), update_ratio(before, after), name)


@update_ratio.check
def parameters_of_any_shape(yours, rng):
    for shape in ((4,), (3, 5), (2, 4, 3)):
        before, step = rng.standard_normal((2, *shape))
        after = before + 0.01 * step
        same(yours(before, after), update_ratio(before, after), f"the ratio for shape {shape}")


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
    position before t, and False otherwise.
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


def _models(rng, vocabulary, length):
    """Functions of tokens (B, T) that return logits (B, T, V), by what each position looks at, and
    whether they leak."""
    table = rng.standard_normal((vocabulary, vocabulary))

    def looking(others, share=1.0):
        """Each position adds the other tokens to its own, with the weights others(T), (T, T)."""

        def model(tokens):
            if np.min(tokens) < 0 or np.max(tokens) >= vocabulary:
                raise ValueError(f"tokens must be from 0 to {vocabulary - 1}")
            x = table[tokens]
            return x + share * (others(tokens.shape[1]) @ x)

        return model

    def ahead(position):
        return looking(lambda t: np.eye(t, k=1) * (np.arange(t) == position)[:, None])

    return {
        "only at their own token": (looking(np.eye), False),
        "at all tokens up to their own": (looking(np.tri), False),
        "at all tokens": (looking(lambda t: np.ones((t, t))), True),
        "at their own token and the next": (looking(lambda t: np.eye(t, k=1)), True),
        "at the last token of the sequence": (
            looking(lambda t: np.maximum(np.tri(t), np.arange(t) == t - 1)), True,
        ),
        "at their own token, and only the first at the next one": (ahead(0), True),
        "at their own token, and only the third at the next one": (ahead(2), True),
        "at their own token, and only the second to last at the next one": (
            ahead(length - 2), True,
        ),
        "a little at all tokens, for a single class": (
            looking(lambda t: np.ones((t, t)), 1e-6 * (np.arange(vocabulary) == 1)), True,
        ),
    }  # fmt: skip


@leaks.check
def every_leak_is_found_and_nothing_else(yours, rng):
    vocabulary, (b, t) = int(rng.integers(5, 9)), (2, 6)
    tokens = rng.integers(0, vocabulary, (b, t))
    models = _models(rng, vocabulary, t)
    answers = {name: yours(model, tokens, vocabulary) for name, (model, _) in models.items()}
    for name, answer in answers.items():
        if not isinstance(answer, bool | np.bool_):
            raise AssertionError(f"leaks should return True or False, not {answer!r}")
        if answer != models[name][1]:
            raise AssertionError(f"leaks returns {answer} for a model whose positions look {name}")
