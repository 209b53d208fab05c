"""Tasks of chapter 05: attention, forward and backward."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import recorded, same, same_gradients, same_steps, tap_is_used, value_of
from ..inferred import product
from ..task import task


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
        guess=product("scores", y, expected, {"query": query, "key": key}),
        advice="here D = 7, so √D = 2.646",
    )  # fmt: skip


@scores.check(weight=2)
def both_gradients(yours, rng):
    query, key, _ = _random_inputs(rng, 2, 1)
    gradcheck(
        yours, query, key, names=_NAMES[:2],
        axes=["batch head query width", "batch head key width"],
    )  # fmt: skip
    same(value_of(yours(query, key), "scores"), scores(query, key)[0], "scores")


@scores.check
def float32_stays_float32(yours, rng):
    query, key = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 5, 8))
    query, key, dy = (x.astype("float32") for x in (query, key, rng.standard_normal((2, 3, 5))))
    y, pullback = yours(query, key)
    same(y, scores(query, key)[0], "scores", "batch query key", tolerance=1e-5)
    _same_dtypes({"scores": y, **dict(zip(("dquery", "dkey"), pullback(dy), strict=True))})


scores.mistake(
    "query.shape[-1] ** 0.5",
    "1.0",
    "the factor 1/√D is missing: divide Q Kᵀ by query.shape[-1] ** 0.5",
)
scores.mistake("query.shape[-1] ** 0.5", "query.shape[-1]", "Q Kᵀ is divided by D; divide by √D")
scores.mistake(
    "query.shape[-1] ** 0.5",
    "query.shape[-2] ** 0.5",
    "Q Kᵀ is divided by the root of T, the number of queries; divide by √D, the width of a query",
)
scores.mistake(
    "query.shape[-1] ** 0.5",
    "key.shape[-2] ** 0.5",
    "Q Kᵀ is divided by the root of S, the number of keys; divide by √D, the width of a key",
)
scores.mistake(
    "return query @ key.mT / root, pullback",
    "y = np.exp(query @ key.mT / root)\n    return y / y.sum(axis=-1, keepdims=True), pullback",
    "this is softmax of the scores; return the scores themselves, Q Kᵀ / √D",
)
for _new in ("query.shape[0] ** 0.5", "np.log(query.shape[-1])", "(query.shape[-1] / 2) ** 0.5"):
    scores.mistake(
        "query.shape[-1] ** 0.5",
        _new,
        "Q Kᵀ is divided by another number; divide by √D, query.shape[-1] ** 0.5",
    )
for _new in (
    "query * key / root",
    "query * key.mT / root",
    "np.dot(query, key.mT) / root",
):
    scores.mistake(
        "query @ key.mT / root",
        _new,
        "a score is the dot product of a query and a key, for every query with every key: "
        "query @ key.mT",
    )
scores.mistake(
    "return query @ key.mT / root, pullback",
    "return key @ query.mT / root, pullback",
    "this is K Qᵀ, with a row for each key; Q Kᵀ has a row for each query",
)
scores.mistake(
    "query @ key.mT / root",
    "query @ key.mT * root",
    "Q Kᵀ is multiplied by √D; divide by it",
)
for _new in ("key", "key.T", "key.swapaxes(1, 2)", "key.transpose(0, 2, 1)"):
    scores.mistake(
        "key.mT",
        _new,
        "swap the last two axes of key and no others: key.mT does this for any number of axes",
    )
for _old, _new in (
    ("dy.mT @ query", "dy @ query"),
    ("dy.mT @ query", "dy.T @ query"),
    ("dy @ key", "dy @ key.mT"),
    ("dy @ key", "dy.mT @ key"),
    ("dy.mT @ query", "query.mT @ dy"),
    ("dy @ key", "key.mT @ dy.mT"),
):
    scores.mistake(
        _old,
        _new,
        "for y = Q Kᵀ / √D the gradients are dquery = dy K / √D and dkey = dyᵀ Q / √D; write dy.mT "
        "for dyᵀ",
    )
scores.mistake(
    "return dy @ key / root, dy.mT @ query / root",
    "return dy.mT @ query / root, dy @ key / root",
    "the two gradients are in the wrong order: return dquery first, then dkey",
)
scores.mistake(
    "return dy @ key / root, dy.mT @ query / root",
    "return dy @ key, dy.mT @ query",
    "the factor 1/√D of the scores is missing in both gradients",
)


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
    gradcheck(yours, x, names=["x"], axes=["batch row column"])
    same(value_of(yours(x), "softmax"), softmax(x)[0], axes="batch row column")


@softmax.check
def large_entries_do_not_overflow(yours, rng):
    x = np.array([[1000.0, 0.0, 999.0], [-1000.0, -1000.0, -1001.0]])
    with np.errstate(all="ignore"):
        (y, pullback), (expected, pull) = yours(x), softmax(x)
        dy = rng.standard_normal(x.shape)
        advice = "exp(1000) is infinite: subtract the largest entry of each row first"
        same(y, expected, axes="row column", advice=advice)
        same(pullback(dy)[0], pull(dy)[0], "dx", "row column", tolerance=1e-9)


_ROW_SUM = "(dy * y).sum(axis=-1, keepdims=True)"
softmax.mistake(
    _ROW_SUM,
    "(dy * y).sum(axis=-1)",
    "the sum has lost its last axis, so it does not fit dy: keepdims=True keeps it",
)
softmax.mistake(
    f"y * (dy - {_ROW_SUM})",
    "(np.diag(y) - np.outer(y, y)) @ dy",
    "this builds the Jacobian of a single row, but y has many; the formula for dx needs none",
)
softmax.mistake(
    f"y * (dy - {_ROW_SUM})",
    f"x * (dy - {_ROW_SUM})",
    "dx = x · (dy − Σ dy · y): the factor is y, the output of softmax, not x",
)
softmax.mistake(
    f"y * (dy - {_ROW_SUM})",
    "y * (dy - (dy * x).sum(axis=-1, keepdims=True))",
    "dx = y · (dy − Σ dy · x): dy is weighted by y, the output of softmax, not by x",
)
softmax.mistake(
    f"y * (dy - {_ROW_SUM})",
    f"y * {_ROW_SUM}",
    "dx = y · Σ dy · y is only the part that is subtracted: dx = y · (dy − Σ dy · y)",
)


for _new, _what in (
    (f"y * dy - {_ROW_SUM}", "the factor y is missing in the second term"),
    ("dy - y * dy.sum(axis=-1, keepdims=True)", "y and dy are exchanged"),
    ("e * (dy - (dy * e).sum(axis=-1, keepdims=True))", "e stands for y, but is not divided yet"),
    ("y * (dy - (dy * e).sum(axis=-1, keepdims=True))", "e stands for y, but is not divided yet"),
    ("y * (dy - (dy * y**2).sum(axis=-1, keepdims=True))", "y is squared in the sum"),
    ("y * (dy - y)", "only dy · y is subtracted from dy, not its sum over the row"),
    ("y * (dy - dy.max(axis=-1, keepdims=True))", "the maximum stands for the sum"),
    ("y * (dy - np.stack([(a * b).sum() for a, b in zip(dy, y, strict=True)])[:, None, None])",
     "the sum runs over all rows of a batch"),
):  # fmt: skip
    softmax.mistake(
        f"y * (dy - {_ROW_SUM})",
        _new,
        f"{_what}: dx = y · (dy − Σ dy · y), with the sum over each row",
    )
softmax.mistake(
    f"return (y * (dy - {_ROW_SUM}),)",
    "jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., :, None])\n"
    "        return ((jacobian @ dy[..., None])[..., 0],)",
    "the second term has y² in place of y yᵀ: the Jacobian is y_i (δ_ij − y_j), diag(y) − y yᵀ",
)
for _new in ("dy.dot(y)", "np.dot(dy, y)", "dy @ y", "np.dot(y, dy)", "y @ dy", "dy @ y.T"):
    softmax.mistake(
        _ROW_SUM,
        _new,
        "a matrix product does not give the sum over each row if x has more than one axis: "
        "write (dy * y).sum(axis=-1, keepdims=True)",
    )


@task(chapter=5, difficulty=1, minutes=10, hints=(
    "Write three lines, one for each formula of the chapter's first section. Pass each "
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


@attention_forward.check
def large_scores_do_not_overflow(yours, rng):
    query = np.array([[1000.0], [-1000.0]])
    key, value = np.array([[1.0, 0.999, 0.0], [8.0, 4.0, 2.0]])[..., None]
    for rows in (query[:1], query[1:], query):
        with np.errstate(all="ignore"):
            out = yours(rows, key, value)
        expected = attention_forward(rows, key, value)
        same(out, expected, "out", "query width", advice="subtract each row's largest score")


_SCORES = 'scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)'
_EXP = "e = np.exp(scores - scores.max(axis=-1, keepdims=True))"
_WEIGHTS = 'weights = tap("weights", e / e.sum(axis=-1, keepdims=True))'
_UNSCALED = _SCORES.replace(" / query.shape[-1] ** 0.5", "")
_STEPS = f"{_SCORES}\n    {_EXP}\n    {_WEIGHTS}"
_ROOT = "query.shape[-1] ** 0.5"
attention_forward.mistake(
    _SCORES,
    _UNSCALED,
    "the factor 1/√D is missing: divide Q Kᵀ by query.shape[-1] ** 0.5",
)
for _new, _what in (
    ("query.shape[-1]", "D"),
    ("query.shape[-2] ** 0.5", "the root of the number of queries or keys"),
    ("key.shape[-2] ** 0.5", "the root of the number of queries or keys"),
    ("value.shape[-1] ** 0.5", "√Dv, the root of the width of a value"),
):
    attention_forward.mistake(
        _ROOT,
        _new,
        f"Q Kᵀ is divided by {_what}; divide by √D, the root of the width of a query",
    )
attention_forward.mistake(
    _SCORES,
    _SCORES.replace(" / query", ") / query")[:-1],
    "the output is right, but tap gets Q Kᵀ without the scale: divide by √D before you call tap",
)
attention_forward.mistake(
    "query @ key.mT / query", "query @ key.mT * query", "Q Kᵀ is multiplied by √D; divide by it"
)
attention_forward.mistake(
    _STEPS,
    f"{_UNSCALED}\n    {_EXP}\n    {_WEIGHTS} / {_ROOT}",
    "the weights or the output are divided by √D instead of the scores: divide Q Kᵀ by √D, before "
    "exp",
)
attention_forward.mistake(
    _STEPS,
    _STEPS.replace("axis=-1", "axis=-2"),
    "softmax runs along the queries, so the columns sum to 1: run it along the keys, axis=-1, "
    "keepdims=True",
)
attention_forward.mistake(
    "e.sum(axis=-1, keepdims=True)",
    "e.sum(axis=-2, keepdims=True)",
    "the sum runs along the queries: the weights of each query must sum to 1, along axis=-1",
)
attention_forward.mistake(
    "e.sum(axis=-1, keepdims=True)",
    "e.sum()",
    "e.sum() is the sum of the whole array; each row needs its own: axis=-1, keepdims=True",
)
for _old in ("e.sum(axis=-1, keepdims=True)", "scores.max(axis=-1, keepdims=True)"):
    attention_forward.mistake(
        _old,
        _old.replace(", keepdims=True", ""),
        "the maximum or the sum has lost its last axis, so it applies to columns instead of rows, "
        "or does not fit: keepdims=True keeps that axis",
    )
attention_forward.mistake(
    _STEPS,
    _STEPS.replace(", keepdims=True", ""),
    "the maximum or the sum has lost its last axis, so it applies to columns instead of rows, "
    "or does not fit: keepdims=True keeps that axis",
)
for _new in ("scores.max(axis=-2, keepdims=True)", "scores.max(axis=0, keepdims=True)"):
    attention_forward.mistake(
        "scores.max(axis=-1, keepdims=True)",
        _new,
        "the maximum is that of each column; subtract the largest score of each row, axis=-1",
    )
for _new in (
    "np.clip(scores, -50, 50)", "np.clip(scores, -100, 100)", "np.clip(scores, -700, 700)",
    "np.minimum(scores, 50)", "np.minimum(scores, 100)", "np.minimum(scores, 700)",
):  # fmt: skip
    attention_forward.mistake(
        "scores - scores.max(axis=-1, keepdims=True)",
        _new,
        "large scores are cut off, so their differences are lost: subtract the largest score of "
        "each row instead",
    )
attention_forward.mistake(
    "scores - scores.max(axis=-1, keepdims=True)",
    "scores - abs(scores).max(axis=-1, keepdims=True)",
    "the largest absolute value is subtracted; where all scores are below −1000, every exp is 0. "
    "Subtract the largest score of each row",
)
for _old, _new in (
    ("query @ key.mT", "key @ query.mT"),
    ("query @ key.mT", "query @ value.mT"),
    ("query @ key.mT", "query @ key"),
    ("weights @ value", "weights.mT @ value"),
    ("weights @ value", "weights @ value.mT"),
    ("weights @ value", "value @ weights"),
):
    attention_forward.mistake(
        _old,
        _new,
        "a product has the wrong arrays or a wrong transpose: scores = Q Kᵀ / √D is (…, T, S), "
        "and out = weights V is (…, T, Dv)",
    )
attention_forward.mistake(
    _SCORES,
    'scores = tap(query @ key.mT / query.shape[-1] ** 0.5, "scores")',
    'tap takes the name first: tap("scores", scores)',
)
attention_forward.mistake(
    _EXP,
    "e = 2.0 ** (scores - scores.max(axis=-1, keepdims=True))",
    "softmax takes powers of e, not of 2: np.exp",
)
attention_forward.mistake(
    _SCORES,
    "scores = query @ key.mT / query.shape[-1] ** 0.5\n"
    "    visible = np.tri(*scores.shape[-2:], dtype=bool)\n"
    '    scores = tap("scores", np.where(visible, scores, -np.inf))',
    "later keys are hidden, but there is no mask here: every query sees every key",
)
attention_forward.mistake(
    _SCORES,
    "lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key)]\n"
    '    scores = tap("scores", (query / lengths[0]) @ (key / lengths[1]).mT)',
    "query and key are divided by their lengths: divide Q Kᵀ by √D instead",
)
attention_forward.mistake(
    "return weights @ value",
    "return weights @ value, weights",
    "the weights are returned as well: return out alone",
)
attention_forward.mistake(
    _WEIGHTS,
    'weights = tap("weights", e) / e.sum(axis=-1, keepdims=True)',
    "tap gets e, before it is divided by the row sums: pass the weights to tap",
)
attention_forward.mistake(
    f"{_SCORES}\n    {_EXP}",
    "scores = query @ key.mT / query.shape[-1] ** 0.5\n"
    '    scores = tap("scores", scores - scores.max(axis=-1, keepdims=True))\n'
    "    e = np.exp(scores)",
    "tap gets the scores after the maximum was subtracted: pass Q Kᵀ / √D to tap, and subtract "
    "afterwards",
)
attention_forward.mistake(
    _WEIGHTS,
    'weights = tap("weights", e / e.sum(axis=(-2, -1), keepdims=True))',
    "the sum runs over the whole matrix of weights: each row needs its own, axis=-1",
)
attention_forward.mistake(
    "scores.max(axis=-1, keepdims=True)",
    "scores.max()",
    "scores.max() is the largest score of all; in a row far below it, every exp is 0. Subtract the "
    "largest score of each row",
)
attention_forward.mistake(
    _EXP,
    "e = scores",
    "exp is missing: softmax divides the exponentials of the scores by their sum",
)
attention_forward.mistake(
    _EXP,
    "e = np.exp(scores)",
    "exp of a large score overflows: subtract the largest score of each row before exp",
)
attention_forward.mistake(
    "return weights @ value",
    "return scores @ value",
    "the output is computed from the scores; use the weights, softmax of the scores",
)


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
    inputs = _random_inputs(rng, 2, 1)
    gradcheck(yours, *inputs, names=_NAMES, axes=axes)
    same(value_of(yours(*inputs), "attention"), attention(*inputs)[0], "out")


@attention.check
def the_dictionary_holds_the_gradients_of_the_steps(yours, rng):
    inputs, dout = _random_inputs(rng, 2), rng.standard_normal((2, 3, 4))
    *_, expected = attention(*inputs)[1](dout)
    *_, steps = yours(*inputs)[1](dout)
    same_gradients(steps, expected, recorded(attention, *inputs)[1])


@attention.check
def float32_stays_float32_in_each_gradient(yours, rng):
    inputs = [x.astype("float32") for x in _random_inputs(rng, 2)]
    out, pullback = yours(*inputs)
    same(out, attention(*inputs)[0], "out", tolerance=1e-5)
    *gradients, _ = pullback(rng.standard_normal(out.shape).astype("float32"))
    _same_dtypes(dict(zip(("dquery", "dkey", "dvalue"), gradients, strict=True)))


for _new, _what in (("1.0", "1"), ("query.shape[-1]", "D"), ("query.shape[-2] ** 0.5", "√T")):
    attention.mistake(
        "root = query.shape[-1] ** 0.5",
        f"root = {_new}",
        f"the scores are divided by {_what}, forward and backward; divide by √D",
    )
attention.mistake(
    'tap("scores", query @ key.mT / root)',
    'tap("scores", query @ key.mT)',
    "the forward lacks the factor 1/√D: scores = Q Kᵀ / √D",
)
attention.mistake(
    "        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))\n"
    "        dquery = dscores @ key / root\n"
    "        dkey = dscores.mT @ query / root\n",
    "        dscores = (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) / root\n"
    "        dscores *= weights\n"
    "        dquery = dscores @ key\n"
    "        dkey = dscores.mT @ query\n",
    "dscores is divided by √D, but it is the gradient of the scaled scores: divide in the next "
    "step, in dquery and dkey",
)
attention.mistake(
    "dscores @ key / root\n        dkey = dscores.mT @ query / root",
    "dscores @ key\n        dkey = dscores.mT @ query",
    "the factor 1/√D of the scores is missing in dquery and dkey",
)
attention.mistake(
    "(dweights * weights).sum(axis=-1, keepdims=True)",
    "(dweights * weights).sum(axis=-1)",
    "the row sum in dscores has lost its last axis, so it does not fit: keepdims=True keeps it",
)
for _old, _new in (
    ("dout @ value.mT", "dout @ value"),
    ("dout @ value.mT", "value @ dout.mT"),
    ("weights.mT @ dout", "weights @ dout"),
    ("dscores @ key", "dscores.mT @ key"),
    ("dscores @ key", "dscores @ key.mT"),
    ("dscores.mT @ query", "dscores @ query"),
):
    attention.mistake(
        _old,
        _new,
        "a transpose is missing, or there is one too many. out = weights V gives dweights = dout "
        "Vᵀ and dvalue = weightsᵀ dout; scores = Q Kᵀ / √D gives dquery = dscores K / √D and dkey "
        "= dscoresᵀ Q / √D",
    )
attention.mistake(
    "weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))",
    "scores * (dweights - (dweights * scores).sum(axis=-1, keepdims=True))",
    "the pullback of softmax uses its output, the weights, not its input, the scores",
)
for _transposed in ("value.T", "value.swapaxes(1, 2)", "value.transpose(0, 2, 1)"):
    attention.mistake(
        "value.mT",
        _transposed,
        "the wrong axes are swapped: .mT swaps the last two, whatever comes before them",
    )
for _array in ("weights", "dscores"):
    attention.mistake(
        f"{_array}.mT",
        f"{_array}.T",
        ".T reverses all axes, the batch as well: .mT swaps only the last two",
    )


_NAMES = ["query", "key", "value"]


def _random_inputs(rng, *lead):
    """Query, key and value with these leading axes, T = 3, S = 5, D = 7, Dv = 4."""
    return [rng.standard_normal((*lead, *shape)) for shape in [(3, 7), (5, 7), (5, 4)]]


def _same_dtypes(arrays):
    for name, x in arrays.items():
        if x.dtype != np.float32:
            raise AssertionError(
                f"the inputs are float32, but {name} is {x.dtype}. np.sqrt(8) is a NumPy float64;\n"
                "8**0.5 is a Python number, which keeps the dtype of the array"
            )
