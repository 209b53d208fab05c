"""Functions with a correct backward in which every rule can be replaced.

A function is a forward, which passes its intermediates through tap, and a table of rules, one for
the gradient of each input and intermediate: n.weights is a value by name, n.dweights a gradient.
Everything supports complex numbers. A rule runs only if its result is used.
"""

import functools
import inspect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

INF = math.inf
HEALTHY = []


class Gradients:
    """Values by name, and gradients by rules: n.dscores is rules["scores"](n), computed once."""

    def __init__(self, values, rules, dout):
        self.__dict__.update(values, rules=rules, dout=dout)

    def __getattr__(self, name):
        if name[:1] != "d" or name[1:] not in self.rules:
            raise AttributeError(name)
        gradient = self.rules[name[1:]](self)
        setattr(self, name, gradient)
        return gradient


@dataclass(frozen=True, eq=False)
class Base:
    """A function: draw(rng) returns its inputs and settings; taps are the visible intermediates."""

    name: str
    forward: Any
    rules: dict
    draw: Any
    taps: tuple

    def make(self, rng, **fault):
        """The function with these rules replaced, and new inputs for it."""
        assert fault.keys() <= self.rules.keys(), fault
        inputs, settings = self.draw(rng)
        rules, parameters = self.rules | fault, inspect.signature(self.forward).parameters

        @functools.wraps(self.forward)  # so that the names of the inputs can be read from it
        def f(*inputs, tap=lambda _, x: x):
            seen = lambda name, x: tap(name, x) if name in self.taps else x  # noqa: E731
            values = self.forward(*inputs, tap=seen, **settings)
            memory = {}  # for rules that should not remember anything

            def pullback(dout):
                n = Gradients({**values, "memory": memory}, rules, dout)
                names = [k for k, x in zip(parameters, inputs, strict=False) if x.dtype.kind != "i"]
                gradients = [getattr(n, "d" + name) for name in names]
                return *gradients, {name: getattr(n, "d" + name) for name in self.taps}

            return values["out"], pullback

        return f, inputs


def base(name, forward, rules, draw, taps=""):
    """Register a correct function."""
    made = Base(name, forward, rules, draw, tuple(taps.split()))
    HEALTHY.append(made)
    return made


def softmax(x, sink=None):
    peak = x.real.max(axis=-1, keepdims=True)
    e = np.exp(x - peak)
    total = e.sum(axis=-1, keepdims=True)
    return e / (total if sink is None else total + np.exp(sink[:, None, None] - peak))


def through_softmax(y, dy):
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def turned(x, way=1, offset=0):
    """RoPE: pairs are columns i and i + D/2. way=-1 rotates back."""
    t, half = np.arange(x.shape[-2])[:, None] + offset, x.shape[-1] // 2
    angle = way * t / 3.0 ** np.arange(half)
    a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angle), np.sin(angle)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def split(x, heads):
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2)


def merge(x):
    """(B, H, T, D) -> (B, T, H·D)."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def shared(x, q):
    """(…, G, S, D) -> (…, H, S, D)."""
    return np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3)


def members(dx, x):
    """(…, H, S, D) -> (…, G, H/G, S, D)."""
    return dx.reshape(*x.shape[:-2], -1, *x.shape[-2:])


def product(x, dy):
    """The gradient of w in x w: (B, T, M), (B, T, N) -> (M, N)."""
    return (x.mT @ dy).sum(axis=0)


def attend(q, k, v, bias, sink, tap, *, visible=True, fill=-INF, softcap=INF, keep=1, p=0.0):
    """q (…, H, T, D), k (…, G, S, D), v (…, G, S, Dv) -> heads (…, H, T, Dv), and intermediates."""
    raw = tap("raw", q @ shared(k, q).mT)
    scaled = tap("scaled", raw / math.sqrt(q.shape[-1]))
    bent = softcap < INF
    t = np.tanh(scaled / softcap) if bent else 0 * scaled
    biased = (softcap * t if bent else scaled) + (0 if bias is None else bias)
    scores = tap("scores", np.where(visible, biased, fill))
    weights = tap("weights", softmax(scores, sink))
    dropped = tap("dropped", weights * keep / (1 - p))
    heads = tap("heads", dropped @ shared(v, q))
    return locals()


ATTEND = {
    "dropped": lambda n: n.dheads @ shared(n.v, n.q).mT,
    "weights": lambda n: n.ddropped * n.keep / (1 - n.p),
    "scores": lambda n: through_softmax(n.weights, n.dweights),
    "biased": lambda n: np.where(n.visible, n.dscores, 0),
    "scaled": lambda n: n.dbiased * (1 - n.t**2),
    "raw": lambda n: n.dscaled / math.sqrt(n.q.shape[-1]),
    "q": lambda n: n.draw @ shared(n.k, n.q),
    "k": lambda n: members(n.draw.mT @ n.q, n.k).sum(axis=-3),
    "v": lambda n: members(n.dropped.mT @ n.dheads, n.v).sum(axis=-3),
}


def attention(query, key, value, bias=None, sink=None, *, tap, rope=False, **settings):
    q, k = (tap("q", turned(query)), tap("k", turned(key))) if rope else (query, key)
    steps = attend(q, k, value, bias, sink, tap, **settings)
    return {**steps, **locals(), "out": steps["heads"]}


def through_sink(n):
    """For each row, the weight of the sink, (B, H, T), and its pullback."""
    return -(1 - n.weights.sum(axis=-1)) * (n.dweights * n.weights).sum(axis=-1)


ATTENTION = {
    "heads": lambda n: n.dout,
    **ATTEND,
    "query": lambda n: turned(n.dq, -1) if n.rope else n.dq,
    "key": lambda n: turned(n.dk, -1) if n.rope else n.dk,
    "value": lambda n: n.dv,
    "bias": lambda n: n.dbiased.sum(axis=0),
    "sink": lambda n: through_sink(n).sum(axis=(0, -1)),
}


def pairs(H=3, G=3, T=4, S=5, D=6, Dv=7, B=2, bias=False, sink=False, more=lambda rng: {}):
    """Random query (B, H, T, D), key (B, G, S, D), value (B, G, S, Dv), bias (H, T, S), sink."""

    def draw(rng):
        lead = (B,) if B else ()
        shapes = [(*lead, H, T, D), (*lead, G, S, D), (*lead, G, S, Dv)]
        shapes += [(H, T, S)] * bias + [(H,)] * sink
        return tuple(1.5 * rng.standard_normal(shape) for shape in shapes), more(rng)

    return draw


def keeps(*shape, p=0.25):
    """A dropout mask that drops some entries of each row, but not all."""

    def more(rng):
        keep = rng.random(shape) >= p
        keep[..., 0], keep[..., 1] = False, True
        return {"keep": rng.permuted(keep, axis=-1), "p": p}

    return more


def causal(_):
    return {"visible": np.tri(5, dtype=bool)}


def filled(rng):
    """A large negative number instead of −∞, and a query that sees nothing."""
    visible = rng.random((4, 5)) < 0.7
    visible[:, 0], visible[2] = True, False
    return {"visible": visible, "fill": -20.0}


USUAL, LONGER = "raw scores weights", "raw scaled scores weights"
PLAIN = base("attention", attention, ATTENTION, pairs(), USUAL)
FEW = base("attention, raw untapped", attention, ATTENTION, pairs(), "scores weights")
SQUARE = base("attention, T = S", attention, ATTENTION, pairs(T=5), USUAL)
EVEN = base("attention, D = Dv", attention, ATTENTION, pairs(Dv=6), USUAL)
GROUPED = base("grouped heads", attention, ATTENTION, pairs(B=0, H=6, G=2, D=7, Dv=8), USUAL)
DROPPED = base("dropout", attention, ATTENTION, pairs(more=keeps(2, 3, 4, 5)), USUAL + " dropped")
MASKED = base("mask", attention, ATTENTION, pairs(T=5, more=causal), LONGER)
FILLED = base("filled mask", attention, ATTENTION, pairs(more=filled), LONGER)
TURNED = base("RoPE", attention, ATTENTION, pairs(more=lambda _: {"rope": True}), "q k " + USUAL)
CAPPED = base("softcap", attention, ATTENTION, pairs(more=lambda _: {"softcap": 1.5}), LONGER)
BIASED = base("bias and sink", attention, ATTENTION, pairs(bias=True, sink=True), LONGER)
ALIKE = base("bias, B = H", attention, ATTENTION, pairs(B=3, bias=True), LONGER)


def multi_head_attention(
    x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, *, tap, H, G, rope=False, **settings
):
    turn = turned if rope else lambda y: y
    q_merged = tap("q_merged", x @ w_q + b_q)  # (B, T, H·D)
    k_merged = tap("k_merged", x @ w_k + b_k)
    v_merged = tap("v_merged", x @ w_v + b_v)
    q, k = tap("q", turn(split(q_merged, H))), tap("k", turn(split(k_merged, G)))
    v = tap("v", split(v_merged, G))
    steps = attend(q, k, v, None, None, tap, **settings)
    merged = tap("merged", merge(steps["heads"]))
    return {**steps, **locals(), "out": merged @ w_o + b_o}


MULTI_HEAD = {
    "merged": lambda n: n.dout @ n.w_o.T,
    "heads": lambda n: split(n.dmerged, n.H),
    **ATTEND,
    "q_merged": lambda n: merge(turned(n.dq, -1) if n.rope else n.dq),
    "k_merged": lambda n: merge(turned(n.dk, -1) if n.rope else n.dk),
    "v_merged": lambda n: merge(n.dv),
    "x": lambda n: n.dq_merged @ n.w_q.T + n.dk_merged @ n.w_k.T + n.dv_merged @ n.w_v.T,
    "w_q": lambda n: product(n.x, n.dq_merged),
    "w_k": lambda n: product(n.x, n.dk_merged),
    "w_v": lambda n: product(n.x, n.dv_merged),
    "w_o": lambda n: product(n.merged, n.dout),
    "b_q": lambda n: n.dq_merged.sum(axis=(0, 1)),
    "b_k": lambda n: n.dk_merged.sum(axis=(0, 1)),
    "b_v": lambda n: n.dv_merged.sum(axis=(0, 1)),
    "b_o": lambda n: n.dout.sum(axis=(0, 1)),
}


def projected(B=2, T=4, H=3, G=3, D=5, Dv=6, M=7, more=lambda rng: {}):
    """Random x (B, T, M), w_q (M, H·D), w_k (M, G·D), w_v (M, G·Dv), w_o (H·Dv, M), biases."""
    weights = (M, H * D), (M, G * D), (M, G * Dv), (H * Dv, M)

    def draw(rng):
        shapes = (B, T, M), *weights, *(columns for _, *columns in weights)
        inputs = tuple(rng.standard_normal(shape) * shape[0] ** -0.3 for shape in shapes)
        return inputs, {"H": H, "G": G, **more(rng)}

    return draw


def everything(rng):
    return {**keeps(3, 4, 5, 5)(rng), **causal(rng), "rope": True}


PARTS = "q_merged k_merged v_merged q k v scores weights heads merged"
HEADS = base("multi-head", multi_head_attention, MULTI_HEAD, projected(), PARTS)
WIDE = base(
    "multi-head, M = H·Dv", multi_head_attention, MULTI_HEAD,
    projected(B=3, T=5, H=2, G=2, D=6, Dv=4, M=8), PARTS,
)  # fmt: skip
WHOLE = base(
    "multi-head with groups, mask, dropout, RoPE", multi_head_attention, MULTI_HEAD,
    projected(B=3, T=5, H=4, G=2, D=6, Dv=7, M=8, more=everything), PARTS + " dropped",
)  # fmt: skip


def fused_attention(x, w_qkv, b_qkv, *, tap, H):
    qkv = tap("qkv", x @ w_qkv + b_qkv)  # (B, T, 3·H·D)
    q, k, v = (
        tap(name, split(y, H)) for name, y in zip("qkv", np.split(qkv, 3, axis=-1), strict=True)
    )
    steps = attend(q, k, v, None, None, tap)
    return {**steps, **locals(), "out": merge(steps["heads"])}


def joined(*parts):
    """The matrices that `fused_attention` splits."""
    return np.concatenate([merge(part) for part in parts], axis=-1)


FUSED_ATTENTION = {
    "heads": lambda n: split(n.dout, n.H),
    **ATTEND,
    "qkv": lambda n: joined(n.dq, n.dk, n.dv),
    "x": lambda n: n.dqkv @ n.w_qkv.T,
    "w_qkv": lambda n: product(n.x, n.dqkv),
    "b_qkv": lambda n: n.dqkv.sum(axis=(0, 1)),
}
FUSED = base(
    "fused projection", fused_attention, FUSED_ATTENTION,
    lambda rng: (tuple(map(rng.standard_normal, ((2, 4, 7), (7, 45), 45))), {"H": 3}),
    "qkv q k v scores weights",
)  # fmt: skip


def norm(x, gamma, beta=None, *, tap, rms=False):
    centred = x if rms else x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    unit = tap("unit", centred / sigma)
    out = normed = tap("normed", unit * gamma + (0 if beta is None else beta))
    return locals()


def through_norm(n, mean=1, variance=1, sigma=None):
    """The gradient of the input of the norm; terms can be left out."""
    row = mean * (not n.rms) * n.dunit.mean(axis=-1, keepdims=True)
    along = variance * n.unit * (n.dunit * n.unit).mean(axis=-1, keepdims=True)
    return (n.dunit - row - along) / (n.sigma if sigma is None else sigma)


NORM = {
    "normed": lambda n: n.dout,
    "unit": lambda n: n.dnormed * n.gamma,
    "x": through_norm,
    "gamma": lambda n: (n.dnormed * n.unit).sum(axis=(0, 1)),
    "beta": lambda n: n.dnormed.sum(axis=(0, 1)),
}


def rows(B=2, T=3, M=5, rms=False):
    """Random x (B, T, M), gamma (M,), beta (M,)."""

    def draw(rng):
        x, gamma, beta = 3 * rng.standard_normal((B, T, M)), rng.uniform(0.5, 2, M), rng.random(M)
        return (x, gamma, beta)[: 2 if rms else 3], {"rms": rms}

    return draw


LAYER_NORM = base("layer norm", norm, NORM, rows(), "unit")
UNTAPPED = base("layer norm, untapped", norm, NORM, rows())
RMS_NORM = base("RMS norm", norm, NORM, rows(rms=True), "unit")

CURVE = math.sqrt(2 / math.pi)


def block(x, gamma, beta, w_1, b_1, w_2, b_2, *, tap):
    """Pre-norm: x + gelu(norm(x) w_1 + b_1) w_2 + b_2."""
    steps = norm(x, gamma, beta, tap=tap)
    inner = tap("inner", steps["normed"] @ w_1 + b_1)
    t = np.tanh(CURVE * (inner + 0.044715 * inner**3))
    hidden = tap("hidden", 0.5 * inner * (1 + t))
    return {**steps, **locals(), "out": x + hidden @ w_2 + b_2}


def gelu_slope(n):
    return 0.5 * (1 + n.t) + 0.5 * n.inner * (1 - n.t**2) * CURVE * (1 + 0.134145 * n.inner**2)


BLOCK_RULES = {
    **NORM,
    "hidden": lambda n: n.dout @ n.w_2.T,
    "inner": lambda n: n.dhidden * gelu_slope(n),
    "normed": lambda n: n.dinner @ n.w_1.T,
    "x": lambda n: n.dout + through_norm(n),
    "w_1": lambda n: product(n.normed, n.dinner),
    "b_1": lambda n: n.dinner.sum(axis=(0, 1)),
    "w_2": lambda n: product(n.hidden, n.dout),
    "b_2": lambda n: n.dout.sum(axis=(0, 1)),
}


def layer(rng, B=2, T=3, M=5, F=7):
    """Random x (B, T, M), gamma, beta (M,), w_1 (M, F), b_1 (F,), w_2 (F, M), b_2 (M,)."""
    shapes = (B, T, M), M, M, (M, F), F, (F, M), M
    return tuple(rng.uniform(0.3, 1.5, n) * rng.choice((-1, 1), n) for n in shapes), {}


BLOCK = base("block", block, BLOCK_RULES, layer, "normed inner hidden")


def language(table, w_out, tokens, targets, *, tap, temperature=0.7):
    """The mean of −log softmax(table[tokens] w_out / temperature) at the targets (−1: none)."""
    embedded = tap("embedded", table[tokens])  # (B, T, M)
    logits = tap("logits", embedded @ w_out)  # (B, T, N)
    counts = (targets >= 0)[..., None]
    onehot = (targets[..., None] == np.arange(w_out.shape[-1])) * 1.0
    probabilities = softmax(logits / temperature)
    out = -(np.log(probabilities) * onehot).sum() / counts.sum()
    return locals()


def scattered(n):
    table = np.zeros_like(n.table)
    np.add.at(table, n.tokens, n.dembedded)
    return table


def through_losses(p, y, n):
    """The gradient of the logits, for probabilities p and target y."""
    return n.dout * n.counts * (p - y) / n.counts.sum() / n.temperature


LANGUAGE_RULES = {
    "logits": lambda n: through_losses(n.probabilities, n.onehot, n),
    "embedded": lambda n: n.dlogits @ n.w_out.T,
    "table": scattered,
    "w_out": lambda n: product(n.embedded, n.dlogits),
}


def words(rng, N=8, M=5, ignored=False):
    """Random table (N, M), w_out (M, N), tokens (B, T), one of them twice, and targets."""
    tokens, targets = rng.integers(N, size=(2, 2, 3))
    tokens[1, 2] = tokens[0, 0]
    targets[1, 1] = -1 if ignored else targets[1, 1]
    return (1.5 * rng.standard_normal((N, M)), rng.standard_normal((M, N)), tokens, targets), {}


LANGUAGE = base("cross entropy", language, LANGUAGE_RULES, words, "embedded logits")
IGNORED = base(
    "cross entropy, a target ignored", language, LANGUAGE_RULES,
    functools.partial(words, ignored=True), "embedded logits",
)  # fmt: skip


def tied_language(table, tokens, targets, *, tap):
    return language(table, table.T, tokens, targets, tap=tap)


def words_alone(rng):
    (table, _, *indices), settings = words(rng)
    return (table, *indices), settings


TIED_RULES = LANGUAGE_RULES | {"table": lambda n: scattered(n) + n.dw_out.T}
TIED = base("tied weights", tied_language, TIED_RULES, words_alone, "embedded logits")

NOISE = np.random.default_rng(0)


def restless(query, key, value, *, tap, p=0.25):
    """Dropout that draws a new mask in each forward."""
    keep = NOISE.random((*query.shape[:-1], key.shape[-2])) > p
    return attention(query, key, value, tap=tap, keep=keep, p=p)


RESTLESS = Base("dropout drawn anew", restless, ATTENTION, pairs(), DROPPED.taps)  # not correct
