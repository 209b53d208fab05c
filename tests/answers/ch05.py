"""Chapter 05: attention."""

# fmt: off
from . import right, wrong

ROOT = r"√ ?D|√\d|sqrt"
AXIS = r"axis|over the (queries|keys|rows|columns)|each column"
MEAN = r"weighted|plain mean|weights of the row|Σ ?(y|P|w)"

dots, *_ = right("scores", """
def scores(query, key):
    root = query.shape[-1] ** 0.5

    def pullback(dy):
        return dy @ key / root, dy.mT @ query / root

    return query @ key.mT / root, pullback
""", """
import math

def scores(query, key):
    c = 1 / math.sqrt(query.shape[-1])
    y = c * np.einsum("...td,...sd->...ts", query, key)
    def pullback(dy):
        g = c * dy
        return np.einsum("...ts,...sd->...td", g, key), np.einsum("...ts,...td->...sd", g, query)
    return y, pullback
""", """
def scores(query, key):
    q = query * query.shape[-1] ** -0.5
    s = query.shape[-1] ** -0.5
    return q @ np.swapaxes(key, -1, -2), lambda dy: (s * (dy @ key), np.swapaxes(dy, -2, -1) @ q)
""", """
def scores(query, key):
    d = float(np.sqrt(query.shape[-1]))
    t = lambda z: np.moveaxis(z, -1, -2)
    return np.matmul(query, t(key)) / d, lambda dy: (np.matmul(dy, key) / d, t(np.matmul(t(query), dy)) / d)
""", """
class Scores:
    def __init__(self, q, k):
        self.q, self.k, self.scale = q, k, q.shape[-1] ** -0.5
    def forward(self):
        return (self.q[..., :, None, :] * self.k[..., None, :, :]).sum(-1) * self.scale
    def __call__(self, dy):
        dy = dy * self.scale
        return dy @ self.k, dy.mT @ self.q

def scores(query, key):
    s = Scores(query, key)
    return s.forward(), s
""")
dots.wrong("no √D", ROOT, " / root", "")
dots.wrong("np.dot", r"all pairs", "query @ key.mT", "np.dot(query, key.mT)")
dots.wrong("np.inner", r"all pairs", "query @ key.mT", "np.inner(query, key)")
dots.wrong("dot in the backward", r"all pairs", "dy @ key", "dy.dot(key)", "dy.mT @ query", "dy.mT.dot(query)")
dots.wrong("np.dot without a transpose", r"all pairs", "query @ key.mT", "np.dot(query, key)")
dots.wrong("√D missing in the backward", ROOT, "key / root, dy.mT @ query / root", "key, dy.mT @ query")
dots.wrong("divided by D", ROOT, " ** 0.5", "")
dots.wrong("dkey with dy not transposed", r"transpos|\.mT|swapaxes|dyᵀ|dscoresᵀ", "dy.mT", "dy")
dots.wrong("the gradients exchanged", r"swap|exchang|interchang|order",
    "dy @ key / root, dy.mT @ query / root", "dy.mT @ query / root, dy @ key / root")
dots.wrong("np.sqrt makes float64", r"float64|float32|dtype",
    "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])")
dots.wrong(".T reverses all axes", r"\.T\b|mT|swapaxes|last two", "key.mT", "key.T")
dots.wrong("PyTorch's transpose(-2, -1)", r"swapaxes|mT", "key.mT", "key.transpose(-2, -1)")

dots.wrong("the root of the number of keys", r"√ ?D|√\d|number of keys|width|sqrt", "query.shape[-1]", "key.shape[-2]")
dots.wrong("times √D", r"√ ?D|√\d|divid|multipl", "key.mT / root", "key.mT * root")
dots.wrong("dkey comes out transposed", r"transpos|mT|axes|order|swapaxes", "dy.mT @ query", "query.mT @ dy")
wrong("scores", "a scale only in the value", r"√D|scale|factor", """
def scores(query, key):
    def pullback(dy):
        return dy @ key, dy.mT @ query

    return query @ key.mT / np.sqrt(query.shape[-1]), pullback
""")
wrong("scores", "the root of the root", r"√D|root|scale|factor", """
def scores(query, key):
    s = query.shape[-1] ** 0.25

    def pullback(dy):
        return dy @ key / s, dy.mT @ query / s

    return query @ key.mT / s, pullback
""")
wrong("scores", "the sum over the queries in dkey is lost", r"transpos|dyᵀ|mT|aligned|core dim|k is", """
def scores(query, key):
    root = np.sqrt(query.shape[-1])

    def pullback(dy):
        return dy @ key / root, dy @ query / root

    return query @ key.mT / root, pullback
""")

rows, *_ = right("softmax", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)

    return y, pullback
""", """
def softmax(x):
    z = np.exp(x - np.max(x.real, -1)[..., None])
    y = z / np.sum(z, -1)[..., None]
    def pullback(dy):
        inner = np.einsum("...s,...s->...", y, dy)
        return (y * dy - y * inner[..., np.newaxis],)
    return y, pullback
""", """
def softmax(x):
    shifted = x - x.real.max(-1, keepdims=True)
    y = np.exp(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
    def pullback(dy):
        jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
        return ((jacobian.mT @ dy[..., None])[..., 0],)
    return y, pullback
""", """
def softmax(x):
    y = np.empty_like(x)
    for i in np.ndindex(x.shape[:-1]):
        e = np.exp(x[i] - max(x[i].real))
        y[i] = e / sum(e)
    def pullback(dy):
        dx = np.empty_like(y)
        for i in np.ndindex(y.shape[:-1]):
            dx[i] = y[i] * (dy[i] - y[i] @ dy[i])
        return (dx,)
    return y, pullback
""", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    total = e.sum(axis=-1, keepdims=True)
    def pullback(dy):
        de = dy / total
        dtotal = -(dy * e / total**2).sum(axis=-1, keepdims=True)
        return (e * (de + dtotal),)
    return e / total, pullback
""")
rows.wrong("sums another axis", AXIS, "e.sum(axis=-1", "e.sum(axis=0")
rows.wrong("softmax along another axis", AXIS, "axis=-1", "axis=0")
rows.wrong("the plain mean in the backward", MEAN, "(y * dy).sum", "dy.mean")
rows.wrong("the derivative of a sigmoid", r"diagonal|sigmoid|all entries|other entries|off|Σ ?y|weighted",
    "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * (1 - y) * dy,)")
rows.wrong("nothing subtracted", r"subtract|weighted|Σ ?y|sum|mean",
    "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * dy,)")
rows.wrong("y missing in front", r"times y|factor [yP]|y \*|multipl|\by · \(", "(y * (dy - ", "((dy - ")
rows.wrong("subtracts a sum over everything", r"axis|keepdims|each row|whole array|everything|one sum",
    "(y * dy).sum(axis=-1, keepdims=True)", "(y * dy).sum()")
rows.wrong("large entries overflow", r"overflow|maximum|largest|max",
    "np.exp(x - x.real.max(axis=-1, keepdims=True))", "np.exp(x)")
rows.wrong("the Jacobian of a single row", r"(single|one|each) row",
    "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "((np.diag(y) - np.outer(y, y)) @ dy,)")
rows.wrong("subtracts the maximum of all rows", r"each row|own (max|row)|whole array|row's|axis",
    "x.real.max(axis=-1, keepdims=True)", "x.real.max()")
rows.wrong("an array instead of a tuple", r"tuple", "keepdims=True)),)", "keepdims=True)))")
rows.wrong("the derivative without dy", r"\bdy\b|cotangent", "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * (1 - y),)")
rows.wrong("plus the sum", r"sign|subtract|minus|added|plus", "dy - (y", "dy + (y")
rows.wrong("the plain sum of dy", r"weighted|plain|Σ ?(y|P|w)|(without|lacks) y", "(y * dy).sum(", "dy.sum(")
rows.wrong("the sum in the backward loses its axis", r"keepdims|None\]|newaxis", "(y * dy).sum(axis=-1, keepdims=True)", "(y * dy).sum(axis=-1)")
wrong("softmax", "the sum outside", r"sum|mean|y \*|row|product", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * dy - (y * dy).sum(axis=-1, keepdims=True),)

    return y, pullback
""")
wrong("softmax", "the gradient of exp alone", r"sum|term|diagonal|missing", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (dy * y,)

    return y, pullback
""")
wrong("softmax", "the factor y twice", r"y |factor|twice|square|y²|sum", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy * y - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
wrong("softmax", "e in place of y", r"e |exp|normal|sum|divided|y\b", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (e * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
wrong("softmax", "the mean instead of the sum", r"mean", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy - (dy * y).mean(axis=-1, keepdims=True)),)

    return y, pullback
""")

steps, *_ = right("attention_forward", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = tap("scores", scores)
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
    return weights @ value
""", """
def _softmax(z):
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)

def attention_forward(query, key, value, *, tap=lambda name, x: x):
    s = tap("scores", np.einsum("...td,...sd->...ts", query, key) * query.shape[-1] ** -0.5)
    return np.einsum("...ts,...sv->...tv", tap("weights", _softmax(s)), value)
""", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    D = key.shape[-1]
    scores = tap("scores", np.matmul(query / np.sqrt(D), np.swapaxes(key, -1, -2)))
    top = np.amax(scores.real, axis=-1)[..., None]
    log_total = np.log(np.exp(scores - top).sum(-1))[..., None] + top
    weights = tap("weights", np.exp(scores - log_total))
    return np.matmul(weights, value)
""", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scale = np.sqrt(query.shape[-1])
    scores = (query[..., :, None, :] * key[..., None, :, :]).sum(axis=-1) / scale
    scores = tap("scores", scores)
    weights = np.exp(scores - np.max(scores.real, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    weights = tap("weights", weights)
    return (weights[..., None] * value[..., None, :, :]).sum(axis=-2)
""", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", (key @ query.mT).mT / root)
    columns = scores.mT
    e = np.exp(columns - columns.real.max(axis=-2, keepdims=True))
    weights = tap("weights", (e / e.sum(-2, keepdims=True)).mT)
    return (value.mT @ weights.mT).mT
""")
steps.wrong("no √D", ROOT, " / query.shape[-1] ** 0.5", "")
steps.wrong("divided by D", ROOT, "query.shape[-1] ** 0.5", "query.shape[-1]")
steps.wrong("the root of the number of keys", ROOT, "query.shape[-1] **", "key.shape[-2] **")
steps.wrong("softmax over the queries", AXIS, "axis=-1", "axis=-2")
steps.wrong("goes on without what tap returns", r"\btap\b", "scores = tap(", "tap(")
steps.wrong("taps scores that are not scaled", r"scaled|√ ?D|√\d|sqrt|before",
    " / query.shape[-1] ** 0.5", "",
    "scores = tap(\"scores\", scores)", "scores = tap(\"scores\", scores) / query.shape[-1] ** 0.5")
steps.wrong("large scores overflow", r"overflow|maximum|largest|max",
    "scores - scores.real.max(axis=-1, keepdims=True)", "scores")
steps.wrong("no softmax", r"softmax", "np.exp(scores - scores.real.max(axis=-1, keepdims=True))", "scores")
steps.wrong("PyTorch's softmax with dim", r"axis", "sum(axis=-1, keepdims=True)", "sum(dim=-1, keepdim=True)")
steps.wrong("all axes of key reversed", r"\.T reverses|all axes", ".mT", ".T")
steps.wrong("the sum loses its axis", r"keepdims|None\]|newaxis",
    "e.sum(axis=-1, keepdims=True)", "e.sum(axis=-1)")
steps.wrong("the weights are scaled, not the scores", r"√|scale|before", " / query.shape[-1] ** 0.5", "", "keepdims=True))", "keepdims=True) / query.shape[-1] ** 0.5)")
steps.wrong("weights transposed", r"transpos|order|mT|weightsᵀ", "weights @ value", "weights.mT @ value")
steps.wrong("tap before the division", r"normali|divid|sum|before|exp", "tap(\"weights\", e / e.sum(axis=-1, keepdims=True))", "tap(\"weights\", e) / e.sum(axis=-1, keepdims=True)")
steps.wrong("nothing returned", r"return missing", "return weights @ value", "weights @ value")
steps.wrong("no tap", r"not pass weights", "tap(\"weights\", e / e.sum(axis=-1, keepdims=True))", "e / e.sum(axis=-1, keepdims=True)")
wrong("attention_forward", "the weights of the raw scores", r"without the scale", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    raw = query @ key.mT
    tap("scores", raw / query.shape[-1] ** 0.5)
    e = np.exp(raw - raw.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
    return weights @ value
""")
wrong("attention_forward", "value before softmax", r"softmax|weights|value", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)
    weights = tap("weights", scores / scores.sum(axis=-1, keepdims=True))
    return weights @ value
""")
wrong("attention_forward", "1/√D after softmax", r"√5 times", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scores = tap("scores", query @ key.mT)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True) / query.shape[-1] ** 0.5)
    return weights @ value
""")

whole, *_ = right("attention", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))
    out = weights @ value

    def pullback(dout):
        dvalue = weights.mT @ dout
        dweights = dout @ value.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        dquery = dscores @ key / root
        dkey = dscores.mT @ query / root
        return dquery, dkey, dvalue, {"weights": dweights, "scores": dscores}

    return out, pullback
""", """
def attention(query, key, value, *, tap=lambda name, x: x):
    c = query.shape[-1] ** -0.5
    S = tap("scores", c * np.einsum("...td,...sd->...ts", query, key))
    P = tap("weights", softmax_rows(S))
    O = np.einsum("...ts,...sv->...tv", P, value)
    def pullback(dO):
        dP = np.einsum("...tv,...sv->...ts", dO, value)
        delta = np.einsum("...tv,...tv->...t", dO, O)
        dS = P * (dP - delta[..., None])
        return (c * np.einsum("...ts,...sd->...td", dS, key), c * np.einsum("...ts,...td->...sd", dS, query),
                np.einsum("...ts,...tv->...sv", P, dO), dict(weights=dP, scores=dS))
    return O, pullback
""", """
def attention(query, key, value, *, tap=lambda name, x: x):
    d = float(query.shape[-1])
    scaled = query / d**0.5
    scores = tap("scores", scaled @ key.swapaxes(-1, -2))
    w = tap("weights", softmax_rows(scores))
    def pullback(g):
        steps = {}
        steps["weights"] = g @ value.swapaxes(-1, -2)
        weighted = w * steps["weights"]
        steps["scores"] = weighted - w * weighted.sum(-1)[..., None]
        dscaled = steps["scores"] @ key
        return dscaled / d**0.5, steps["scores"].swapaxes(-1, -2) @ scaled, w.swapaxes(-1, -2) @ g, steps
    return w @ value, pullback
""", """
def _matmul(a, b):
    return a @ b, lambda dy: (dy @ b.mT, a.mT @ dy)

def _soft(x):
    y = softmax_rows(x)
    return y, lambda dy: y * (dy - np.sum(y * dy, axis=-1, keepdims=True))

def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    s, back_s = _matmul(query, key.mT)
    w, back_w = _soft(tap("scores", s / root))
    w = tap("weights", w)
    out, back_o = _matmul(w, value)
    def pullback(dout):
        dw, dv = back_o(dout)
        ds = back_w(dw)
        dq, dkt = back_s(ds / root)
        return dq, dkt.mT, dv, {"weights": dw, "scores": ds}
    return out, pullback
""", """
def attention(query, key, value, *, tap=lambda name, x: x):
    scale = 1 / query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT * scale)
    weights = tap("weights", softmax_rows(scores))
    def pullback(dout):
        dweights = np.matmul(dout, value.mT)
        eye = np.eye(weights.shape[-1], dtype=weights.dtype)
        J = weights[..., None] * (eye - weights[..., None, :])
        dscores = np.einsum("...ij,...i->...j", J, dweights)
        z = dscores * scale
        return z @ key, z.mT @ query, weights.mT @ dout, {"weights": dweights, "scores": dscores}
    return weights @ value, pullback
""")
whole.wrong("√D missing in dquery and dkey", ROOT, "key / root", "key", "mT @ query / root", "mT @ query")
whole.wrong("√D missing in dkey alone", ROOT, "dscores.mT @ query / root", "dscores.mT @ query")
whole.wrong("no √D in the forward", r"1/√D is missing: divide the scores", "query @ key.mT / root", "query @ key.mT")
whole.wrong("the plain mean in the backward of softmax", MEAN, "(dweights * weights).sum(", "dweights.mean(")
whole.wrong("nothing subtracted in the backward of softmax", r"subtract|Σ|weighted|mean|sum",
    "weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))", "weights * dweights")
whole.wrong("sums the queries in the backward of softmax", AXIS, "axis=-1", "axis=-2")
whole.wrong("the backward of softmax with dweights alone", r"weights \*|times|factor|multipl|weighted",
    "weights * (dweights - ", "(dweights - ")
whole.wrong("dvalue from weights that are not transposed", r"transpos|\.mT|swapaxes|weightsᵀ",
    "weights.mT @ dout", "weights @ dout")
whole.wrong("dquery and dkey exchanged", r"swap|exchang|interchang|order", "dquery, dkey", "dkey, dquery")
whole.wrong("dkey from query weights of the wrong side", r"transpos|\.mT|swapaxes|dscoresᵀ",
    "dscores.mT @ query", "dscores @ query")
whole.wrong("np.sqrt makes float64", r"float64|float32|dtype",
    "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])")
whole.wrong("dweights from value", r"transpos|mT|swapaxes|valueᵀ", "value.mT", "value")
whole.wrong("√D twice", r"twice|√ ?D|√\d|scale|root", "        dquery =", "        dscores = dscores / root\n        dquery =")
whole.wrong("dvalue from the scores", r"weights|scores (instead|in place)|softmax", "weights.mT @ dout", "scores.mT @ dout")
whole.wrong("the names exchanged", r"swap|exchang|dictionary", "\"weights\": dweights, \"scores\": dscores", "\"weights\": dscores, \"scores\": dweights")
whole.wrong("the sum loses its axis", r"keepdims|None\]|newaxis", "axis=-1, keepdims=True", "axis=-1")
whole.wrong("no steps", r"a dictionary", ", {\"weights\": dweights, \"scores\": dscores}", "")
whole.wrong("weights in place of dscores", r"between key and scores|dscores", "dscores.mT @ query", "weights.mT @ query")
whole.wrong("np.dot for the scores", r"all pairs", "query @ key.mT", "np.dot(query, key.mT)")
whole.wrong("dot for the output", r"all pairs", "weights @ value", "weights.dot(value)")
wrong("attention", "the scale twice in dquery", r"√D|scale|root|factor", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))
    out = weights @ value

    def pullback(dout):
        dweights = dout @ value.mT
        dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))
        return (dscores / root) @ key / root, dscores.mT @ query / root, weights.mT @ dout, {"weights": dweights, "scores": dscores}

    return out, pullback
""")
wrong("attention", "dscores without the sum", r"sum|softmax|dscores|scores", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))

    def pullback(dout):
        dweights = dout @ value.mT
        dscores = weights * dweights
        return dscores @ key / root, dscores.mT @ query / root, weights.mT @ dout, {"weights": dweights, "scores": dscores}

    return weights @ value, pullback
""")
wrong("attention", "the scale within dscores", r"√D|root|scale|dscores|scores", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))

    def pullback(dout):
        dweights = dout @ value.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) / root
        return dscores @ key, dscores.mT @ query, weights.mT @ dout, {"weights": dweights, "scores": dscores}

    return weights @ value, pullback
""")
wrong("attention", "dvalue from dweights", r"dvalue|weightsᵀ|gradient of value", """
def attention(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", query @ key.mT / root)
    weights = tap("weights", softmax_rows(scores))

    def pullback(dout):
        dweights = dout @ value.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        return dscores @ key / root, dscores.mT @ query / root, dweights.mT @ dout, {"weights": dweights, "scores": dscores}

    return weights @ value, pullback
""")
