"""Chapter 05: attention."""

# fmt: off
from . import right, wrong

ROOT = r"√ ?D|√\d|sqrt"
AXIS = r"axis|over the (queries|keys|rows|columns)|each column"
MEAN = r"weighted|plain mean|weights of the row|Σ ?(y|P|w)"

dots = right("scores", """
def scores(query, key):
    root = query.shape[-1] ** 0.5

    def pullback(dy):
        return dy @ key / root, dy.mT @ query / root

    return query @ key.mT / root, pullback
""")
right("scores", """
import math

def scores(query, key):
    c = 1 / math.sqrt(query.shape[-1])
    y = c * np.einsum("...td,...sd->...ts", query, key)
    def pullback(dy):
        g = c * dy
        return np.einsum("...ts,...sd->...td", g, key), np.einsum("...ts,...td->...sd", g, query)
    return y, pullback
""")
right("scores", """
def scores(query, key):
    q = query * query.shape[-1] ** -0.5
    s = query.shape[-1] ** -0.5
    return q @ np.swapaxes(key, -1, -2), lambda dy: (s * (dy @ key), np.swapaxes(dy, -2, -1) @ q)
""")
right("scores", """
def scores(query, key):
    d = float(np.sqrt(query.shape[-1]))
    t = lambda z: np.moveaxis(z, -1, -2)
    return np.matmul(query, t(key)) / d, lambda dy: (np.matmul(dy, key) / d, t(np.matmul(t(query), dy)) / d)
""")
right("scores", """
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
wrong("scores", "no √D", ROOT, dots, " / root", "")
wrong("scores", "√D missing in the backward", ROOT,
      dots, "dy @ key / root, dy.mT @ query / root", "dy @ key, dy.mT @ query")
wrong("scores", "divided by D", ROOT, dots, " ** 0.5", "")
wrong("scores", "dkey with dy not transposed", r"transpos|\.mT|swapaxes|dyᵀ|dscoresᵀ",
      dots, "dy.mT @ query", "dy @ query")
wrong("scores", "the gradients exchanged", r"swap|exchang|interchang|order",
      dots, "dy @ key / root, dy.mT @ query / root", "dy.mT @ query / root, dy @ key / root")
wrong("scores", "np.sqrt makes float64", r"float64|float32|dtype",
      dots, "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])")
wrong("scores", ".T reverses all axes", r"\.T\b|mT|swapaxes|last two",
      dots, "key.mT", "key.T")
wrong("scores", "PyTorch's transpose(-2, -1)", r"swapaxes|mT",
      dots, "key.mT", "key.transpose(-2, -1)")

rows = right("softmax", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
right("softmax", """
def softmax(x):
    z = np.exp(x - np.max(x.real, -1)[..., None])
    y = z / np.sum(z, -1)[..., None]
    def pullback(dy):
        inner = np.einsum("...s,...s->...", y, dy)
        return (y * dy - y * inner[..., np.newaxis],)
    return y, pullback
""")
right("softmax", """
def softmax(x):
    shifted = x - x.real.max(-1, keepdims=True)
    y = np.exp(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
    def pullback(dy):
        jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
        return ((jacobian.mT @ dy[..., None])[..., 0],)
    return y, pullback
""")
right("softmax", """
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
""")
right("softmax", """
def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    total = e.sum(axis=-1, keepdims=True)
    def pullback(dy):
        de = dy / total
        dtotal = -(dy * e / total**2).sum(axis=-1, keepdims=True)
        return (e * (de + dtotal),)
    return e / total, pullback
""")
wrong("softmax", "sums another axis", AXIS, rows, "e.sum(axis=-1", "e.sum(axis=0")
wrong("softmax", "softmax along another axis", AXIS, rows, "axis=-1", "axis=0")
wrong("softmax", "the plain mean in the backward", MEAN,
      rows, "(y * dy).sum(axis=-1, keepdims=True)", "dy.mean(axis=-1, keepdims=True)")
wrong("softmax", "the derivative of a sigmoid", r"diagonal|sigmoid|all entries|other entries|off|Σ ?y|weighted",
      rows, "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * (1 - y) * dy,)")
wrong("softmax", "nothing subtracted", r"subtract|weighted|Σ ?y|sum|mean",
      rows, "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * dy,)")
wrong("softmax", "y missing in front", r"times y|factor [yP]|y \*|multipl|\by · \(",
      rows, "(y * (dy - ", "((dy - ")
wrong("softmax", "subtracts a sum over everything", r"axis|keepdims|each row|whole array|everything|one sum",
      rows, "(y * dy).sum(axis=-1, keepdims=True)", "(y * dy).sum()")
wrong("softmax", "large entries overflow", r"overflow|maximum|largest|max",
      rows, "np.exp(x - x.real.max(axis=-1, keepdims=True))", "np.exp(x)")
wrong("softmax", "the Jacobian of a single row", r"(single|one|each) row",
      rows, "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)",
      "((np.diag(y) - np.outer(y, y)) @ dy,)")
wrong("softmax", "subtracts the maximum of all rows", r"each row|own (max|row)|whole array|row's|axis",
      rows, "x.real.max(axis=-1, keepdims=True)", "x.real.max()")
wrong("softmax", "an array instead of a tuple", r"tuple",
      rows, "keepdims=True)),)", "keepdims=True)))")

steps = right("attention_forward", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = tap("scores", scores)
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
    return weights @ value
""")
right("attention_forward", """
def _softmax(z):
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)

def attention_forward(query, key, value, *, tap=lambda name, x: x):
    s = tap("scores", np.einsum("...td,...sd->...ts", query, key) * query.shape[-1] ** -0.5)
    return np.einsum("...ts,...sv->...tv", tap("weights", _softmax(s)), value)
""")
right("attention_forward", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    D = key.shape[-1]
    scores = tap("scores", np.matmul(query / np.sqrt(D), np.swapaxes(key, -1, -2)))
    top = np.amax(scores.real, axis=-1)[..., None]
    log_total = np.log(np.exp(scores - top).sum(-1))[..., None] + top
    weights = tap("weights", np.exp(scores - log_total))
    return np.matmul(weights, value)
""")
right("attention_forward", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    scale = np.sqrt(query.shape[-1])
    scores = (query[..., :, None, :] * key[..., None, :, :]).sum(axis=-1) / scale
    scores = tap("scores", scores)
    weights = np.exp(scores - np.max(scores.real, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    weights = tap("weights", weights)
    return (weights[..., None] * value[..., None, :, :]).sum(axis=-2)
""")
right("attention_forward", """
def attention_forward(query, key, value, *, tap=lambda name, x: x):
    root = query.shape[-1] ** 0.5
    scores = tap("scores", (key @ query.mT).mT / root)
    columns = scores.mT
    e = np.exp(columns - columns.real.max(axis=-2, keepdims=True))
    weights = tap("weights", (e / e.sum(-2, keepdims=True)).mT)
    return (value.mT @ weights.mT).mT
""")
wrong("attention_forward", "no √D", ROOT, steps, " / query.shape[-1] ** 0.5", "")
wrong("attention_forward", "divided by D", ROOT, steps, "query.shape[-1] ** 0.5", "query.shape[-1]")
wrong("attention_forward", "the root of the number of keys", ROOT,
      steps, "query.shape[-1] **", "key.shape[-2] **")
wrong("attention_forward", "softmax over the queries", AXIS, steps, "axis=-1", "axis=-2")
wrong("attention_forward", "goes on without what tap returns", r"\btap\b",
      steps, "scores = tap(", "tap(")
wrong("attention_forward", "taps scores that are not scaled", r"scaled|√ ?D|√\d|sqrt|before",
      steps, " / query.shape[-1] ** 0.5", "", "scores = tap(\"scores\", scores)",
      "scores = tap(\"scores\", scores) / query.shape[-1] ** 0.5")
wrong("attention_forward", "large scores overflow", r"overflow|maximum|largest|max",
      steps, "scores - scores.real.max(axis=-1, keepdims=True)", "scores")
wrong("attention_forward", "no softmax", r"softmax",
      steps, "np.exp(scores - scores.real.max(axis=-1, keepdims=True))", "scores")
wrong("attention_forward", "PyTorch's softmax with dim", r"axis",
      steps, "e.sum(axis=-1, keepdims=True)", "e.sum(dim=-1, keepdim=True)")
wrong("attention_forward", "all axes of key reversed", r"\.T reverses|all axes", steps, ".mT", ".T")
wrong("attention_forward", "the sum loses its axis", r"keepdims|None\]|newaxis",
      steps, "e.sum(axis=-1, keepdims=True)", "e.sum(axis=-1)")

whole = right("attention", """
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
""")
right("attention", """
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
""")
right("attention", """
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
""")
right("attention", """
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
""")
right("attention", """
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
wrong("attention", "√D missing in dquery and dkey", ROOT,
      whole, "dscores @ key / root", "dscores @ key", "dscores.mT @ query / root", "dscores.mT @ query")
wrong("attention", "√D missing in dkey alone", ROOT, whole, "dscores.mT @ query / root", "dscores.mT @ query")
wrong("attention", "no √D in the forward", r"forward|scores (are|is) not|scores lack|missing from the scores", whole, "query @ key.mT / root", "query @ key.mT")
wrong("attention", "the plain mean in the backward of softmax", MEAN,
      whole, "(dweights * weights).sum(", "dweights.mean(")
wrong("attention", "nothing subtracted in the backward of softmax", r"subtract|Σ|weighted|mean|sum",
      whole, "weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))", "weights * dweights")
wrong("attention", "sums the queries in the backward of softmax", AXIS, whole, "axis=-1", "axis=-2")
wrong("attention", "the backward of softmax with dweights alone", r"weights \*|times|factor|multipl|weighted",
      whole, "weights * (dweights - ", "(dweights - ")
wrong("attention", "dvalue from weights that are not transposed", r"transpos|\.mT|swapaxes|weightsᵀ",
      whole, "weights.mT @ dout", "weights @ dout")
wrong("attention", "dquery and dkey exchanged", r"swap|exchang|interchang|order",
      whole, "return dquery, dkey,", "return dkey, dquery,")
wrong("attention", "dkey from query weights of the wrong side", r"transpos|\.mT|swapaxes|dscoresᵀ",
      whole, "dscores.mT @ query", "dscores @ query")
wrong("attention", "np.sqrt makes float64", r"float64|float32|dtype",
      whole, "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])")

wrong("scores", "the root of the number of keys", r"√ ?D|√\d|number of keys|width|sqrt", dots, "query.shape[-1]", "key.shape[-2]")
wrong("scores", "times √D", r"√ ?D|√\d|divid|multipl", dots, "key.mT / root", "key.mT * root")
wrong("scores", "dkey comes out transposed", r"transpos|mT|axes|order|swapaxes", dots, "dy.mT @ query", "query.mT @ dy")
wrong("softmax", "the derivative without dy", r"\bdy\b|cotangent", rows, "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * (1 - y),)")
wrong("softmax", "plus the sum", r"sign|subtract|minus|added|plus", rows, "dy - (y", "dy + (y")
wrong("softmax", "the plain sum of dy", r"weighted|plain|Σ ?(y|P|w)|(without|lacks) y", rows, "(y * dy).sum(", "dy.sum(")
wrong("softmax", "the sum in the backward loses its axis", r"keepdims|None\]|newaxis", rows, "(y * dy).sum(axis=-1, keepdims=True)", "(y * dy).sum(axis=-1)")
wrong("attention_forward", "the weights are scaled, not the scores", r"√|scale|before", steps, " / query.shape[-1] ** 0.5", "", "keepdims=True))", "keepdims=True) / query.shape[-1] ** 0.5)")
wrong("attention_forward", "weights transposed", r"transpos|order|mT|weightsᵀ", steps, "weights @ value", "weights.mT @ value")
wrong("attention_forward", "tap before the division", r"normali|divid|sum|before|exp", steps, "tap(\"weights\", e / e.sum(axis=-1, keepdims=True))", "tap(\"weights\", e) / e.sum(axis=-1, keepdims=True)")
wrong("attention", "dweights from value", r"transpos|mT|swapaxes|valueᵀ", whole, "value.mT", "value")
wrong("attention", "√D twice", r"twice|√ ?D|√\d|scale|root", whole, "        dquery =", "        dscores = dscores / root\n        dquery =")
wrong("attention", "dvalue from the scores", r"weights|scores (instead|in place)|softmax", whole, "weights.mT @ dout", "scores.mT @ dout")
wrong("attention", "the names exchanged", r"swap|exchang|dictionary", whole, "\"weights\": dweights, \"scores\": dscores", "\"weights\": dscores, \"scores\": dweights")
wrong("attention", "the sum loses its axis", r"keepdims|None\]|newaxis", whole, "axis=-1, keepdims=True", "axis=-1")
wrong("attention_forward", "nothing returned", r"return missing", steps, "return weights @ value", "weights @ value")
wrong("attention_forward", "no tap", r"weights is missing", steps, "tap(\"weights\", e / e.sum(axis=-1, keepdims=True))", "e / e.sum(axis=-1, keepdims=True)")
wrong("attention", "no steps", r"a dictionary", whole, ", {\"weights\": dweights, \"scores\": dscores}", "")
wrong("attention", "weights in place of dscores", r"between key and scores|dscores", whole, "dscores.mT @ query", "weights.mT @ query")
