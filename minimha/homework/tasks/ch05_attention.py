"""Tasks of chapter 05: attention, forward and backward."""

import numpy as np

from ..checks.comparisons import (
    recorded,
    same,
    same_gradients,
    same_operation,
    same_pullback,
    same_steps,
    tap_is_used,
    value_of,
)
from ..checks.task import task


@task(chapter=5, difficulty=1, minutes=10, hints=(
    "For a product C = A Bᵀ the gradients are dA = dC B and dB = dCᵀ A. A constant factor of C is "
    "a factor of both gradients.",
    "key.mT swaps the last two axes of key, whatever comes before them; key.T reverses "
    "all axes. The width is query.shape[-1]. width**0.5 is a Python number and keeps float32, but "
    "np.sqrt(width) turns float32 into float64.",
    "The value is query @ key.mT / query.shape[-1] ** 0.5. The gradients are dy @ key and dy.mT @ "
    "query, both divided by the same root.",
))  # fmt: skip
def scores(query, key):
    """The scaled scores of every query with every key, and their pullback.

    query  (…, T, D)
    key    (…, S, D), with the same leading axes
    Returns y (…, T, S) with y = Q Kᵀ / √D, and a function that takes dy (…, T, S) and returns a
    tuple of two gradients, (dquery, dkey). For float32 inputs all results are float32.
    """
    # BEGIN SOLUTION: return y and its pullback
    root = query.shape[-1] ** 0.5

    def pullback(dy):
        return dy @ key / root, dy.mT @ query / root

    return query @ key.mT / root, pullback
    # END SOLUTION


@scores.check
def the_scaled_product(yours, rng):
    query, key = rng.standard_normal((2, 4, 3, 7)), rng.standard_normal((2, 4, 5, 7))
    expected, _ = scores(query, key)
    y = value_of(yours(query, key), "scores")
    same(
        y, expected, "scores", "batch head query key",
        advice="here D = 7, so √D = 2.646",
    )  # fmt: skip


@scores.check(weight=2)
def both_gradients(yours, rng):
    query, key, _ = _random_inputs(rng, 2, 1)
    axes = ["batch head query width", "batch head key width"]
    large = _wide_inputs(rng)
    same_operation(yours, scores, query, key, large=large, name="scores", axes=axes)


@scores.check(hidden=True)
def float32_stays_float32(yours, rng):
    query, key = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 5, 8))
    query, key, dy = (x.astype("float32") for x in (query, key, rng.standard_normal((2, 3, 5))))
    y, pullback = yours(query, key)
    same(y, scores(query, key)[0], "scores", "batch query key", tolerance=1e-5)
    _same_dtypes({"scores": y, **dict(zip(("dquery", "dkey"), pullback(dy), strict=True))})
    large = [x.astype("float32") for x in _wide_inputs(rng)]
    same_pullback(yours, scores, *large, name="scores", tolerance=1e-4)


def _wide_inputs(rng):
    """Query and key with T = 4, S = 5, D = 18000."""
    return rng.standard_normal((4, 18000)), rng.standard_normal((5, 18000))


@task(chapter=5, difficulty=2, minutes=15, hints=(
    "Look at the section on the Jacobian: what is subtracted from each dy before it is multiplied "
    "by y?",
    "dx = Jᵀ dy with J = diag(y) − y yᵀ. Multiply this out for one row, then write it for all "
    "rows at once with keepdims=True.",
    "y * (dy - (dy * y).sum(axis=-1, keepdims=True)), in a tuple with one gradient.",
))  # fmt: skip
def softmax(x):
    """Softmax over the last axis, and its pullback.

    x  (…, S)
    Returns y (…, S) with y = exp(x) / Σ exp(x), and a function that takes dy (…, S) and returns a
    tuple with one gradient, (dx,). Large entries, such as 1000, must not overflow.
    """
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))  # real: gradient checks use complex x
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple with one gradient, (dx,)
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)
        # END SOLUTION

    return y, pullback


@softmax.check
def each_row_is_exp_x_over_its_sum(yours, rng):
    x = rng.standard_normal((3, 5))
    expected, _ = softmax(x)
    advice = "divide each row by its own sum, along the last axis"
    same(value_of(yours(x), "softmax"), expected, axes="row column", advice=advice)


@softmax.check(weight=2)
def dx_matches_the_numeric_gradient(yours, rng):
    x = rng.standard_normal((2, 3, 5))
    large = [rng.standard_normal((700, 90))]
    same_operation(yours, softmax, x, large=large, name="the result", axes=["batch row column"])


@softmax.check(hidden=True)
def large_entries_do_not_overflow(yours, rng):
    x = np.array([[1000.0, 0.0, 999.0], [-1000.0, -1000.0, -1001.0]])
    with np.errstate(all="ignore"):
        (y, pullback), (expected, pull) = yours(x), softmax(x)
        dy = rng.standard_normal(x.shape)
        advice = "exp(1000) is infinite: subtract the largest entry of each row first"
        same(y, expected, axes="row column", advice=advice)
        same(pullback(dy)[0], pull(dy)[0], "dx", "row column", tolerance=1e-9)
        many = 1000 * rng.standard_normal((700, 90))
        same_pullback(yours, softmax, many, name="the result", tolerance=1e-9)


@task(chapter=5, difficulty=1, minutes=10, hints=(
    "Write three steps, one for each formula of the chapter's first section. Pass each "
    "intermediate through tap as soon as you have it.",
    "The scores are Q Kᵀ divided by the root of the width of a query. Take exp and the sum along "
    "the last axis, the keys, with keepdims=True. Subtract the largest score of each row first.",
    'scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5), then e = np.exp(scores - '
    'scores.max(axis=-1, keepdims=True)), weights = tap("weights", e / its sum), and weights @ '
    "value.",
))  # fmt: skip
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    """The forward pass of attention.

    query  (…, T, D)
    key    (…, S, D)
    value  (…, S, Dv), all with the same leading axes
    tap    call it with the scaled scores and with the weights, both (…, T, S), and continue with
           what it returns: scores = tap("scores", scores), weights = tap("weights", weights)
    Returns out (…, T, Dv), softmax(Q Kᵀ / √D) V. Scores as large as 1000 must not overflow.
    """
    # BEGIN SOLUTION: return out
    scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
    return weights @ value
    # END SOLUTION


@attention_forward.check(weight=2)
def each_step_of_the_forward(yours, rng):
    same_steps(yours, attention_forward, *_random_inputs(rng, 2, 3))


@attention_forward.check
def what_tap_returns_is_used(yours, rng):
    tap_is_used(yours, attention_forward, *_random_inputs(rng, 2))


@attention_forward.check(hidden=True)
def large_scores_do_not_overflow(yours, rng):
    query = np.array([[1000.0], [-1000.0]])
    key, value = np.array([[1.0, 0.999, 0.0], [8.0, 4.0, 2.0]])[..., None]
    for rows in (query[:1], query[1:], query):
        with np.errstate(all="ignore"):
            out = yours(rows, key, value)
        expected = attention_forward(rows, key, value)
        same(out, expected, "out", "query width", advice="subtract each row's largest score")


def softmax_rows(x):
    """Softmax over the last axis, without its pullback."""
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))  # real: gradient checks use complex x
    return e / e.sum(axis=-1, keepdims=True)


@task(chapter=5, difficulty=3, minutes=25, given=(softmax_rows,), hints=(
    "Go through the three lines of the forward in reverse order: out, weights, scores. Each line "
    "gives the gradients of the arrays on its right-hand side.",
    "For C = A B the gradients are dA = dC Bᵀ and dB = Aᵀ dC; .mT swaps the last two axes. For "
    "softmax, subtract from each dweights the sum Σ dweights · weights of its row, then multiply "
    "by the weights. dquery and dkey are divided by the root, as the scores are.",
    "dvalue = weights.mT @ dout, dweights = dout @ value.mT, dscores = weights * (dweights - "
    "(dweights * weights).sum(axis=-1, keepdims=True)), dquery = dscores @ key / root, dkey = "
    "dscores.mT @ query / root.",
))  # fmt: skip
def attention(query, key, value, *, tap=lambda name, x: x):
    """Attention, with its backward pass by hand.

    query  (…, T, D)
    key    (…, S, D)
    value  (…, S, Dv), all with the same leading axes
    tap    called with the name and the value of each intermediate
    Returns out (…, T, Dv), softmax(Q Kᵀ / √D) V, and a function that takes dout (…, T, Dv) and
    returns (dquery, dkey, dvalue, steps). steps is a dictionary with the gradients of the
    intermediates, {"weights": dweights, "scores": dscores}, which lets the check find the step
    that is wrong. For float32 inputs all results are float32.
    """
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))
    out = weights @ value

    def pullback(dout):
        # BEGIN SOLUTION: return dquery, dkey, dvalue and the dictionary
        dvalue = weights.mT @ dout
        dweights = dout @ value.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        dquery = dscores @ key / root
        dkey = dscores.mT @ query / root
        return dquery, dkey, dvalue, {"weights": dweights, "scores": dscores}
        # END SOLUTION

    return out, pullback


@attention.check(weight=3)
def each_gradient_matches_the_numeric_one(yours, rng):
    axes = {"query": "batch head query width"}
    axes |= dict.fromkeys(["key", "value"], "batch head key width")
    axes |= dict.fromkeys(["scores", "weights"], "batch head query key")
    inputs, large = _random_inputs(rng, 2, 1), _large_inputs(rng)
    same_operation(yours, attention, *inputs, large=large, name="out", axes=axes)


@attention.check
def the_dictionary_holds_the_gradients_of_the_steps(yours, rng):
    inputs, dout = _large_inputs(rng, 1), rng.standard_normal((1, 150, 40))
    *_, expected = attention(*inputs)[1](dout)
    *_, steps = yours(*inputs)[1](dout)
    same_gradients(steps, expected, recorded(attention, *inputs)[1])


@attention.check(hidden=True)
def float32_stays_float32_in_each_gradient(yours, rng):
    inputs = [x.astype("float32") for x in _random_inputs(rng, 2)]
    out, pullback = yours(*inputs)
    same(out, attention(*inputs)[0], "out", tolerance=1e-5)
    *gradients, _ = pullback(rng.standard_normal(out.shape).astype("float32"))
    _same_dtypes(dict(zip(("dquery", "dkey", "dvalue"), gradients, strict=True)))
    large = [x.astype("float32") for x in _large_inputs(rng)]
    same_pullback(yours, attention, *large, name="out", tolerance=1e-4)


def _random_inputs(rng, *lead):
    """Query, key and value with these leading axes, T = 3, S = 4, D = 5, Dv = 2."""
    return [rng.standard_normal((*lead, *shape)) for shape in [(3, 5), (4, 5), (4, 2)]]


def _large_inputs(rng, *lead):
    """Query, key and value with these leading axes, T = S = 150, D = 120, Dv = 40."""
    shapes = (150, 120), (150, 120), (150, 40)
    return [rng.standard_normal((*lead, *shape)) for shape in shapes]


def _same_dtypes(arrays):
    for name, x in arrays.items():
        if x.dtype != np.float32:
            raise AssertionError(
                f"{name} is {x.dtype}; it should be float32, as the inputs are: np.sqrt(8) is a\n"
                "NumPy float64; 8**0.5 is a Python number, which keeps the dtype of the array"
            )
