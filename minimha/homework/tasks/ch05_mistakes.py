"""The usual mistakes in the tasks of chapter 05, as changes of their solutions."""

from .ch05_attention import (
    attention,
    attention_forward,
    scores,
    softmax,
)

scores.mistake(
    "query.shape[-1] ** 0.5",
    "1.0",
    "the factor 1/√D is missing: divide Q Kᵀ by query.shape[-1] ** 0.5",
)
scores.mistake("query.shape[-1] ** 0.5", "query.shape[-1]", "Q Kᵀ is divided by D; divide by √D")
scores.mistake(
    "query.shape[-1] ** 0.5",
    "query.shape[-2] ** 0.5",
    "Q Kᵀ is divided by the root of T, the number of queries; divide by √D, the root of the width "
    "of a query",
)
scores.mistake(
    "query.shape[-1] ** 0.5",
    "key.shape[-2] ** 0.5",
    "Q Kᵀ is divided by the root of S, the number of keys; divide by √D, the root of the width "
    "of a key",
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
        "Q Kᵀ is divided by the wrong number; divide by √D, query.shape[-1] ** 0.5",
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

_ROW_SUM = "(dy * y).sum(axis=-1, keepdims=True)"
softmax.mistake(
    f"y * (dy - {_ROW_SUM})",
    f"e * (dy - {_ROW_SUM})",
    "dx = e · (dy − Σ dy · y): the factor is y, the output of softmax, not e: y · (dy − Σ dy · y)",
)
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
    ("e * (dy - (dy * e).sum(axis=-1, keepdims=True))", "e is used for y, but is not divided yet"),
    ("y * (dy - (dy * e).sum(axis=-1, keepdims=True))", "e is used for y, but is not divided yet"),
    ("y * (dy - (dy * y**2).sum(axis=-1, keepdims=True))", "y is squared in the sum"),
    ("y * (dy - y)", "only dy · y is subtracted from dy, not its sum over the row"),
    ("y * (dy - dy.max(axis=-1, keepdims=True))", "the maximum is taken instead of the sum"),
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
