"""Functions with a correct backward, in which the gradient of any step can be replaced.

A function is a forward, which passes its steps through tap; the tape derives the backward. A fault
is a formula for the gradient of an input or a step: n.weights is a value by name, n.dweights a
gradient, and n.dweights in the formula for weights the right one.
"""

import functools
import inspect
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from minimha import functional, ops
from minimha_autograd import Tensor, array_of

INF = math.inf
HEALTHY = []


@dataclass(frozen=True, eq=False)
class Base:
    """A function: draw(rng) returns its inputs and settings; the check sees the steps in taps."""

    name: str
    forward: Any
    draw: Any
    taps: tuple

    def make(self, rng, **fault):
        """The function with the gradients of these faults, and new inputs for it."""
        inputs, settings = self.draw(rng)
        names = list(inspect.signature(self.forward).parameters)[: len(inputs)]

        @functools.wraps(self.forward)  # so that the names of the inputs can be read from it
        def f(*inputs, tap=lambda _, x: x):
            seen = lambda name, x: tap(name, x) if name in self.taps else x  # noqa: E731
            values = self.forward(*inputs, tap=seen, **settings)
            memory = {}  # for faults that should not remember anything

            def pullback(dout):
                n = SimpleNamespace(**values, memory=memory, dout=dout)

                def replaced(name, gradient):
                    setattr(n, f"d{name}", gradient)
                    if name in fault:
                        setattr(n, f"d{name}", fault[name](n))
                    return getattr(n, f"d{name}")

                def step(name, x):
                    if name in self.taps:  # with what the tap, or a fault, made of it
                        made, changed = values[name], values[name] != x.data
                        x = x + np.where(changed, made, 0) - np.where(changed, x.data, 0)
                    steps.add(name)
                    x.register_hook(functools.partial(replaced, name))
                    return x

                steps = set()
                leaves = [
                    Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in inputs
                ]
                self.forward(*leaves, tap=step, **settings)["out"].backward(dout)
                floats = {k: x for k, x in zip(names, leaves, strict=True) if isinstance(x, Tensor)}
                assert fault.keys() <= steps | floats.keys(), fault
                for name, leaf in floats.items():
                    setattr(n, f"d{name}", leaf.grad)
                gradients = [replaced(name, leaf.grad) for name, leaf in floats.items()]
                return *gradients, {name: getattr(n, f"d{name}") for name in self.taps}

            return values["out"], pullback

        return f, inputs


def base(name, forward, draw, taps=""):
    """Register a correct function."""
    made = Base(name, forward, draw, tuple(taps.split()))
    HEALTHY.append(made)
    return made


def softmax(x, sink=None):
    peak = np.real(array_of(x)).max(axis=-1, keepdims=True)
    e = ops.exp(x - peak)
    total = e.sum(axis=-1, keepdims=True)
    return e / (total if sink is None else total + ops.exp(sink[:, None, None] - peak))


def through_softmax(y, dy):
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def turned(x, way=1, offset=0):
    """RoPE; way=-1 rotates back."""
    t = np.arange(x.shape[-2]) + offset
    return functional.rope(x, positions=way * t, base=3.0 ** (x.shape[-1] / 2))


def swapped(x):
    """(…, H, T, D) -> (…, T, H, D)."""
    return x.swapaxes(-3, -2) if isinstance(x, np.ndarray) else x.transpose(-3, -2)


def split(x, heads):
    """(B, T, H·D) -> (B, H, T, D)."""
    return swapped(x.reshape(*x.shape[:-1], heads, -1))


def merge(x):
    """(B, H, T, D) -> (B, T, H·D)."""
    x = swapped(x)
    return x.reshape(*x.shape[:-2], -1)


def shared(x, q):
    """(…, G, S, D) -> (…, H, S, D)."""
    count = q.shape[-3] // x.shape[-3]
    return x if count == 1 else ops.repeat(x, count, axis=-3)


def members(dx, x):
    """(…, H, S, D) -> (…, G, H/G, S, D)."""
    return dx.reshape(*x.shape[:-2], -1, *x.shape[-2:])


def product(x, dy):
    """The gradient of w in x w: (B, T, M), (B, T, N) -> (M, N)."""
    return (x.mT @ dy).sum(axis=0)


def attend(q, k, v, bias, sink, tap, *, visible=True, fill=-INF, softcap=INF, keep=1.0, p=0.0):
    """q (…, H, T, D), k (…, G, S, D), v (…, G, S, Dv) -> heads (…, H, T, Dv), and its steps."""
    raw = tap("raw", q @ shared(k, q).mT)
    scaled = tap("scaled", raw / math.sqrt(q.shape[-1]))
    capped = scaled if softcap == INF else softcap * ops.tanh(scaled / softcap)
    biased = tap("biased", capped + (0 if bias is None else bias))
    hidden = visible is not True
    scores = tap("scores", ops.where(visible, biased, fill) if hidden else 1 * biased)
    weights = tap("weights", softmax(scores, sink))
    dropped = tap("dropped", weights * keep / (1 - p))
    heads = tap("heads", dropped @ shared(v, q))
    return locals()


def attention(query, key, value, bias=None, sink=None, *, tap, rope=False, **settings):
    q, k = (tap(n, turned(x) if rope else 1 * x) for n, x in (("q", query), ("k", key)))
    steps = attend(q, k, tap("v", 1 * value), bias, sink, tap, **settings)
    return {**steps, **locals(), "out": steps["heads"]}


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
PLAIN = base("attention", attention, pairs(), USUAL)
FEW = base("attention, raw untapped", attention, pairs(), "scores weights")
SQUARE = base("attention, T = S", attention, pairs(T=5), USUAL)
EVEN = base("attention, D = Dv", attention, pairs(Dv=6), USUAL)
GROUPED = base("grouped heads", attention, pairs(B=0, H=6, G=2, D=7, Dv=8), USUAL)
DROPPED = base("dropout", attention, pairs(more=keeps(2, 3, 4, 5)), USUAL + " dropped")
MASKED = base("mask", attention, pairs(T=5, more=causal), LONGER)
FILLED = base("filled mask", attention, pairs(more=filled), LONGER)
TURNED = base("RoPE", attention, pairs(more=lambda _: {"rope": True}), "q k " + USUAL)
CAPPED = base("softcap", attention, pairs(more=lambda _: {"softcap": 1.5}), LONGER)
BIASED = base("bias and sink", attention, pairs(bias=True, sink=True), LONGER)
ALIKE = base("bias, B = H", attention, pairs(B=3, bias=True), LONGER)


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
HEADS = base("multi-head", multi_head_attention, projected(), PARTS)
WIDE = base("multi-head, M = H·Dv", multi_head_attention,
    projected(B=3, T=5, H=2, G=2, D=6, Dv=4, M=8), PARTS)  # fmt: skip
WHOLE = base("multi-head with groups, mask, dropout, RoPE", multi_head_attention,
    projected(B=3, T=5, H=4, G=2, D=6, Dv=7, M=8, more=everything), PARTS + " dropped")  # fmt: skip


def fused_attention(x, w_qkv, b_qkv, *, tap, H):
    qkv = tap("qkv", x @ w_qkv + b_qkv)  # (B, T, 3·H·D)
    parts = ops.split(qkv, sections=3, axis=-1)
    q, k, v = (tap(name, split(y, H)) for name, y in zip("qkv", parts, strict=True))
    steps = attend(q, k, v, None, None, tap)
    return {**steps, **locals(), "out": merge(steps["heads"])}


def joined(*parts):
    """The matrices that `fused_attention` splits."""
    return np.concatenate([merge(part) for part in parts], axis=-1)


FUSED = base("fused projection", fused_attention,
    lambda rng: (tuple(map(rng.standard_normal, ((2, 4, 7), (7, 45), 45))), {"H": 3}),
    "qkv q k v scores weights")  # fmt: skip


def norm(x, gamma, beta=None, *, tap, rms=False):
    centred = x if rms else x - x.mean(axis=-1, keepdims=True)
    sigma = ((centred**2).mean(axis=-1, keepdims=True) + 1e-5) ** 0.5
    unit = tap("unit", centred / sigma)
    out = normed = tap("normed", unit * gamma if beta is None else unit * gamma + beta)
    return locals()


def through_norm(n, mean=1, variance=1, sigma=None):
    """The gradient of the input of the norm; terms can be left out."""
    row = mean * (not n.rms) * n.dunit.mean(axis=-1, keepdims=True)
    along = variance * n.unit * (n.dunit * n.unit).mean(axis=-1, keepdims=True)
    return (n.dunit - row - along) / (n.sigma if sigma is None else sigma)


def rows(B=2, T=3, M=5, rms=False):
    """Random x (B, T, M), gamma (M,), beta (M,)."""

    def draw(rng):
        x, gamma, beta = 3 * rng.standard_normal((B, T, M)), rng.uniform(0.5, 2, M), rng.random(M)
        return (x, gamma, beta)[: 2 if rms else 3], {"rms": rms}

    return draw


LAYER_NORM = base("layer norm", norm, rows(), "unit")
UNTAPPED = base("layer norm, untapped", norm, rows())
RMS_NORM = base("RMS norm", norm, rows(rms=True), "unit")

CURVE = math.sqrt(2 / math.pi)


def block(x, gamma, beta, w_1, b_1, w_2, b_2, *, tap):
    """Pre-norm: x + gelu(norm(x) w_1 + b_1) w_2 + b_2."""
    steps = norm(x, gamma, beta, tap=tap)
    inner = tap("inner", steps["normed"] @ w_1 + b_1)
    t = ops.tanh(CURVE * (inner + 0.044715 * inner**3))
    hidden = tap("hidden", 0.5 * inner * (1 + t))
    return {**steps, **locals(), "out": x + hidden @ w_2 + b_2}


def layer(rng, B=2, T=3, M=5, F=7):
    """Random x (B, T, M), gamma, beta (M,), w_1 (M, F), b_1 (F,), w_2 (F, M), b_2 (M,)."""
    shapes = (B, T, M), M, M, (M, F), F, (F, M), M
    return tuple(rng.uniform(0.3, 1.5, n) * rng.choice((-1, 1), n) for n in shapes), {}


BLOCK = base("block", block, layer, "normed inner hidden")


def language(table, w_out, tokens, targets, *, tap, temperature=0.7):
    """The mean of −log softmax(table[tokens] w_out / temperature) at the targets (−1: none)."""
    embedded = tap("embedded", table[tokens])  # (B, T, M)
    logits = tap("logits", embedded @ w_out)  # (B, T, N)
    counts = (targets >= 0)[..., None]
    onehot = (targets[..., None] == np.arange(w_out.shape[-1])) * 1.0
    probabilities = softmax(logits / temperature)
    out = -(ops.log(probabilities) * onehot).sum() / float(counts.sum())
    return locals()


def scattered(n):
    table = np.zeros_like(n.table)
    np.add.at(table, n.tokens, n.dembedded)
    return table


def through_losses(p, y, n):
    """The gradient of the logits, for probabilities p and target y."""
    return n.dout * n.counts * (p - y) / n.counts.sum() / n.temperature


def words(rng, N=8, M=5, ignored=False):
    """Random table (N, M), w_out (M, N), tokens (B, T), one of them twice, and targets."""
    tokens, targets = rng.integers(N, size=(2, 2, 3))
    tokens[1, 2] = tokens[0, 0]
    targets[1, 1] = -1 if ignored else targets[1, 1]
    return (1.5 * rng.standard_normal((N, M)), rng.standard_normal((M, N)), tokens, targets), {}


LANGUAGE = base("cross entropy", language, words, "embedded logits")
IGNORED = base("cross entropy, a target ignored", language,
    functools.partial(words, ignored=True), "embedded logits")  # fmt: skip


def tied_language(table, tokens, targets, *, tap):
    return language(table, ops.matrix_transpose(table), tokens, targets, tap=tap)


def words_alone(rng):
    (table, _, *indices), settings = words(rng)
    return (table, *indices), settings


TIED = base("tied weights", tied_language, words_alone, "embedded logits")

NOISE = np.random.default_rng(0)


def restless(query, key, value, *, tap, p=0.25):
    """Dropout that draws a new mask in each forward."""
    keep = NOISE.random((*query.shape[:-1], key.shape[-2])) > p
    return attention(query, key, value, tap=tap, keep=keep, p=p)


RESTLESS = Base("dropout drawn anew", restless, pairs(), DROPPED.taps)  # not correct
