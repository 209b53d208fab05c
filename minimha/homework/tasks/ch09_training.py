"""Tasks of chapter 09: cross entropy, layer norm, a step of AdamW, and top-p sampling."""

import numpy as np

from ..checks.comparisons import instead, same, same_operation, same_pullback, value_of
from ..checks.task import task


@task(chapter=9, difficulty=2, minutes=10, hints=(
    "Write softmax first, as in chapter 05. The loss needs one probability of each row, that of "
    "the target.",
    "log softmax(x) = (x − max) − log Σ exp(x − max) never takes the logarithm of 0. For the "
    "gradient, build an array with a one at each target and zeros elsewhere.",
    "With np.eye(C)[targets] as one-hot, of the shape of logits: the loss is -(log_p * one_hot)"
    ".sum() / targets.size, and dlogits = dy * (np.exp(log_p) - one_hot) / targets.size.",
))  # fmt: skip
def cross_entropy(logits, targets):
    """The mean of −log softmax(logits)[target] over all targets, and its pullback.

    logits   (…, C), one row of scores for each target
    targets  (…) integers from 0 to C − 1
    Returns the loss, a number, and a function that takes dy, a number, and returns a tuple with one
    gradient, (dlogits,), of the shape of logits. Logits as large as 1000 must not overflow.
    """
    # BEGIN SOLUTION: return the loss and its pullback; use logits.real.max
    shifted = logits - logits.real.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    one_hot = np.eye(logits.shape[-1])[targets]

    def pullback(dy):
        return (dy * (np.exp(log_p) - one_hot) / targets.size,)

    return -(log_p * one_hot).sum() / targets.size, pullback
    # END SOLUTION


@cross_entropy.check
def the_loss_of_one_target(yours, rng):
    _same_loss(yours, rng.standard_normal((1, 5)), rng.integers(5, size=1))
    _same_loss(yours, np.array([[0.0, 30.0]]), np.array([0]))  # p is 1e-13


@cross_entropy.check
def the_mean_over_all_targets(yours, rng):
    _same_loss(yours, rng.standard_normal((4, 3)), rng.integers(3, size=4))
    _same_loss(yours, rng.standard_normal((2, 4, 3)), rng.integers(3, size=(2, 4)))


def _same_loss(yours, logits, targets, right=cross_entropy):
    loss = value_of(yours(logits, targets), "cross_entropy")
    name = f"the loss for logits of shape {logits.shape}"
    same(loss, right(logits, targets)[0], name, tolerance=1e-9)


@cross_entropy.check(weight=2)
def the_gradient_of_the_logits(yours, rng):
    for axes, small, large in (
        ("row class", (4, 3), (700, 90)),
        ("batch position class", (2, 4, 3), (3, 2, 9)),
    ):
        inputs, others = _logits(rng, small), _logits(rng, large)
        same_operation(
            yours, cross_entropy, *inputs, large=others, name="the loss", axes=[axes, None]
        )


def _logits(rng, shape):
    """Logits of this shape, and targets."""
    return rng.standard_normal(shape), rng.integers(shape[-1], size=shape[:-1])


@cross_entropy.check(hidden=True)
def large_logits_do_not_overflow(yours, rng):
    infinite = "exp(1000) is infinite: subtract the largest logit of each row first"
    of_all = "subtract the largest logit of each row, not of all rows"
    zero = "exp(-1000) is rounded to 0, and log 0 is −∞: log p = (x − max) − log Σ exp(x − max)"
    for rows, classes, advice in (
        ([[1000, 999, 998]], [1], infinite),
        ([[1000, 999, 998], [0, 1, 2]], [0, 1], of_all),
        ([[0, -1000, -1001]], [1], zero),
    ):
        logits, targets = np.array(rows, dtype=float), np.array(classes)
        with np.errstate(all="ignore"):
            (loss, pullback), (right, pull) = (f(logits, targets) for f in (yours, cross_entropy))
            name = f"the loss of logits {rows} and targets {classes}"
            same(loss, right, name, tolerance=1e-9, advice=advice)
            dlogits, expected = pullback(1.0)[0], pull(1.0)[0]
        same(dlogits, expected, "dlogits", "row class", tolerance=1e-9, advice=advice)
    logits, targets = _logits(rng, (700, 90))
    with np.errstate(all="ignore"):
        same_pullback(yours, cross_entropy, 1000 * logits, targets, name="the loss", tolerance=1e-9)


@task(chapter=9, difficulty=3, minutes=15, hints=(
    "In the forward pass, give a name to each array of the formula: the centred x, σ and x̂. The "
    "mean and σ are different numbers in each row, so keep their axis with keepdims=True.",
    "The weight multiplies x̂, so the gradient of x̂ is g = dy · weight. It reaches x in three "
    "ways: directly, through the mean, and through σ. weight and bias are used in every row, so "
    "their gradients are sums over all rows.",
    "dx = (g - mean(g) - x_hat * mean(g * x_hat)) / sigma, with means along the last axis; "
    "dweight = (dy * x_hat).sum(axis=rows) and dbias = dy.sum(axis=rows) with rows = "
    "tuple(range(x.ndim - 1)).",
))  # fmt: skip
def layer_norm(x, weight, bias, eps=1e-5):
    """Layer norm along the last axis, and its pullback.

    x       (…, M), with any number of axes in front
    weight  (M,)
    bias    (M,)
    eps     added to the variance of each row
    Returns y (…, M) with y = x̂ · weight + bias, where x̂ = (x − mean) / σ, σ = √(variance + eps)
    and the variance is the mean of (x − mean)²; and a function that takes dy (…, M) and returns a
    tuple of three gradients, (dx, dweight, dbias).
    """
    # BEGIN SOLUTION: return y and the pullback
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    sigma = np.sqrt(variance + eps)
    x_hat = centred / sigma

    def pullback(dy):
        g = dy * weight
        through_mean = g.mean(axis=-1, keepdims=True)
        through_sigma = x_hat * (g * x_hat).mean(axis=-1, keepdims=True)
        dx = (g - through_mean - through_sigma) / sigma
        rows = tuple(range(x.ndim - 1))
        return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)

    return x_hat * weight + bias, pullback
    # END SOLUTION


@layer_norm.check
def each_row_has_mean_0_and_variance_1(yours, rng):
    x = 2 + 3 * rng.standard_normal((3, 5))
    y = value_of(yours(x, np.ones(5), np.zeros(5), 0.0), "layer_norm")
    same(y, layer_norm(x, np.ones(5), np.zeros(5), 0.0)[0], "y", "row width")


@layer_norm.check
def weight_and_bias_act_on_the_columns(yours, rng):
    x, weight, bias = rng.standard_normal((2, 5, 5)), 1 + rng.random(5), rng.standard_normal(5)
    y = value_of(yours(x, weight, bias, 0.0), "layer_norm")
    same(y, layer_norm(x, weight, bias, 0.0)[0], "y", "batch row width")


@layer_norm.check(hidden=True)
def eps_is_added_to_the_variance(yours, rng):
    x = np.stack([1e-3 * rng.standard_normal(4), np.full(4, rng.integers(1, 9))])
    with np.errstate(all="ignore"):
        y = value_of(yours(x, np.ones(4), np.zeros(4)), "layer_norm")
    advice = "σ = √(variance + eps): row 0 has a small variance, and in row 1 it is 0"
    same(y, layer_norm(x, np.ones(4), np.zeros(4))[0], "y", "row width", advice=advice)


@layer_norm.check(weight=2)
def all_three_gradients(yours, rng):
    for rows, small, large in (("row", (3, 5), (750, 100)), ("batch row", (2, 3, 4), (3, 2, 7))):
        inputs, others = _x_weight_bias(rng, small), _x_weight_bias(rng, large)
        axes = [f"{rows} width", "width", "width", None]
        same_operation(yours, layer_norm, *inputs, 0.1, large=[*others, 0.1], axes=axes)


def _x_weight_bias(rng, shape):
    """x of this shape, and a weight and a bias for its last axis."""
    x, bias = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    return x, 1 + rng.random(shape[-1]), bias


@task(chapter=9, difficulty=2, minutes=10, hints=(
    "Compute in this order: both averages, the two corrected averages, then the parameter. The "
    "decay acts on the parameter alone and never enters the averages.",
    "m and v start at 0, so after t steps they hold only the shares 1 − β₁ᵗ and 1 − β₂ᵗ: divide "
    "by these. Only the parameter uses the corrected averages; return m and v uncorrected.",
    "m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g**2, m_hat = m / (1 - "
    "beta1**t), v_hat = v / (1 - beta2**t), and p - lr * (m_hat / (np.sqrt(v_hat) + eps) + "
    "weight_decay * p).",
))  # fmt: skip
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    """One step of AdamW for one parameter.

    p, g          (…) the parameter and its gradient
    m, v          (…) the averages of g and of g² before this step; zeros before the first
    t             the number of this step: 1 for the first
    lr            the learning rate
    weight_decay  the step also subtracts lr · weight_decay · p
    Returns the new p, m and v, in new arrays.
    """
    # BEGIN SOLUTION: return the new p, m and v
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p)
    return p, m, v
    # END SOLUTION


def _same_step(yours, arguments, settings=None, tolerance=1e-7, advice=""):
    with np.errstate(all="ignore"):
        returned = yours(*arguments, **(settings or {}))
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise AssertionError(instead("yours returns", returned, "return three arrays: p, m, v"))
    names = ("m, the average of g,", "v, the average of g²,", "p")
    expected = adamw_step(*arguments, **(settings or {}))
    for k in (1, 2, 0):  # p follows from m and v
        same(returned[k], expected[k], names[k - 1], tolerance=tolerance, advice=advice)


@adamw_step.check
def the_first_step_has_the_size_of_the_learning_rate(yours, rng):
    p, g = rng.standard_normal(3), rng.permutation([-5.0, 20.0, 10.0])
    advice = "the first step is lr · sign(g): m̂ = g and v̂ = g²"
    _same_step(yours, (p, g, 0 * g, 0 * g, 1), advice=advice)


@adamw_step.check
def later_steps_use_the_averages(yours, rng):
    p, g, m = rng.standard_normal((3, 2, 4))
    for t in (2, 7):
        settings = {"lr": 0.03, "beta1": 0.8, "beta2": 0.95}
        _same_step(yours, (p, g, m, m**2 + rng.random(m.shape), t), settings)


@adamw_step.check
def the_decay_is_separate_from_the_averages(yours, rng):
    p, g, m = rng.standard_normal((3, 5))
    _same_step(yours, (p, g, m, m**2, 3), {"lr": 0.03, "weight_decay": 0.4})
    _same_step(yours, (p, 0 * g, 0 * g, 0 * g, 1), {"lr": 0.03, "weight_decay": 0.4})


@adamw_step.check(hidden=True)
def eps_is_added_to_the_root(yours, rng):
    p, g = rng.standard_normal(3), 1e-3 * (1 + rng.random(3))
    _same_step(yours, (p, g, 0 * g, 0 * g, 1), {"eps": 1e-2})


@task(chapter=9, difficulty=2, minutes=10, hints=(
    "Which tokens stay is decided from the largest probability down. np.argsort sorts from the "
    "smallest up.",
    "A token stays if the more probable tokens together have less than p. Then set the "
    "others to 0, in the original order, and divide by what is left.",
    "order = np.argsort(-probabilities), before = np.cumsum(probabilities[order]) - "
    "probabilities[order], and kept[order] = before < p.",
))  # fmt: skip
def top_p(probabilities, p):
    """Keep the most probable tokens: the fewest whose probabilities add up to at least p.

    probabilities  (V,), positive; they sum to 1 and no two are equal
    p              above 0, below 1
    Returns an array (V,) in the same order: 0 for a token that is not kept; the probabilities of
    the others are divided by their sum, so that they sum to 1 again.
    """
    # BEGIN SOLUTION: return the new probabilities
    order = np.argsort(-probabilities)
    largest = probabilities[order]
    before = np.cumsum(largest) - largest
    kept = np.zeros(len(probabilities))
    kept[order] = np.where(before < p, largest, 0.0)
    return kept / kept.sum()
    # END SOLUTION


@top_p.check
def the_most_probable_tokens_share_all_probability(yours, rng):
    _same_tokens(yours, np.array([0.3, 0.28, 0.22, 0.2]), 0.45, 0.71)


@top_p.check
def the_order_of_the_tokens_does_not_matter(yours, rng):
    for size in (5, 9):
        sizes = rng.permutation(np.arange(1.0, size + 1)) ** 2
        _same_tokens(yours, sizes / sizes.sum(), 0.35, 0.65, 0.95)


@top_p.check(hidden=True)
def exactly_p_is_enough(yours, rng):
    _same_tokens(yours, rng.permutation([0.5, 0.25, 0.15625, 0.09375]), 0.5, 0.75)


def _same_tokens(yours, probabilities, *limits, right=top_p):
    with np.errstate(all="ignore"):
        found = [yours(probabilities, p) for p in limits]  # all calls, then compare
    for p, returned in zip(limits, found, strict=True):
        name = f"top_p({np.round(probabilities, 3).tolist()}, {p})"
        same(returned, right(probabilities, p), name, "token")
