"""Every path through attention, random inputs, and the formula that all paths must agree with."""

import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import minimha as mh
from minimha.attention import IMPLEMENTATIONS, attention_steps
from minimha_autograd import backend

KERNELS = frozenset(IMPLEMENTATIONS) - {"loop", "reference"}
"""The implementations by kernels: their weights come from the reference."""
INPUTS = "query", "key", "value", "bias", "sink", "scale", "softcap"
BARS = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3}
"""The allowed difference of two paths, relative to the largest entry, for scores up to 8."""


@dataclasses.dataclass(frozen=True)
class Case:
    """The inputs of attention, on the host, with cotangents for the output and the weights."""

    query: np.ndarray  # (…, H, T, D)
    key: np.ndarray  # (…, G, S, D)
    value: np.ndarray  # (…, G, S, Dv)
    dout: np.ndarray  # (…, H, T, Dv)
    dweights: np.ndarray  # (…, H, T, S)
    mask: Any = None
    bias: Any = None
    sink: Any = None
    scale: Any = None
    softcap: Any = None
    keep: Any = None
    dropout: float = 0.0
    seed: int = 0

    def but(self, **changes):
        return dataclasses.replace(self, **changes)

    def masked(self, visible):
        """With another mask: a boolean array."""
        return self.but(mask=mh.masks.dense(visible))

    @property
    def allowed(self):
        """The mask as an array that broadcasts to (…, H, T, S)."""
        return self.mask is None or mh.masks.resolve(self.mask, self.query, self.key)

    @property
    def shape(self):
        """The shape of the scores, (…, H, T, S)."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    @property
    def dtype(self):
        return self.query.dtype

    @property
    def visible(self):
        """Whether each query may attend to each key, (…, H, T, S)."""
        bias = 0.0 if self.bias is None else self.bias
        return np.broadcast_to(self.allowed & (bias > -math.inf), self.shape)

    @property
    def every_bias(self):
        """The bias, zeros for none, in the shape of the scores."""
        bias = 0.0 if self.bias is None else self.bias
        return np.broadcast_to(bias, self.shape).astype(self.dtype)

    @property
    def rng(self):
        return np.random.default_rng(self.seed)


class Result(NamedTuple):
    """The result of a path, on the host; None and empty for values that it does not return."""

    out: np.ndarray
    weights: Any = None
    dropped: Any = None
    gradients: Any = types.MappingProxyType({})


def same(x):
    return x


@dataclasses.dataclass(frozen=True)
class Path:
    """One way to call attention: run(case, place) gives a Result. `place` moves arrays to a library."""

    family: str
    form: str
    run: Callable[..., Result]
    gives: frozenset = frozenset()
    place: Callable[..., Any] = same

    def __call__(self, case, place=None):
        return self.run(case, place or self.place)

    def __str__(self):
        return f"{self.family}, {self.form}"


def host(x):
    return None if x is None else backend.to_numpy(mh.Tensor(x).data)


def given(case, place, wrap=lambda x: x):
    """The inputs of a case, its arrays placed and wrapped."""
    inputs = {name: getattr(case, name) for name in INPUTS}
    return {k: wrap(place(x)) if isinstance(x, np.ndarray) else x for k, x in inputs.items()}


def leaf(x):
    return mh.Tensor(x, requires_grad=True)


def pulled(case, place, leaves, out, weights):
    """The gradients, by name, for the cotangents of out and weights."""
    with np.errstate(all="ignore"):  # a scalar to start backward() from
        total = (out * place(case.dout)).sum()
        if weights is not None:
            dweights = place(case.dweights.astype(host(weights).dtype))  # float32 in steps of half
            total = total + mh.ops.astype((weights * dweights).sum(), dtype=total.dtype)
    total.backward()
    return {k: host(x.grad) for k, x in leaves.items() if isinstance(x, mh.Tensor)}


def called(implementation, ask, wrap):
    """The public function, with a value of return_weights."""

    def run(case, place):
        inputs = given(case, place, wrap)
        y = mh.scaled_dot_product_attention(
            **inputs, mask=case.mask, keep=place(case.keep), dropout=case.dropout,
            return_weights=ask, implementation=implementation,
        )  # fmt: skip
        out, weights = y if ask else (y, None)
        gradients = pulled(case, place, inputs, out, weights) if wrap is leaf else {}
        answer = {"dropped" if ask == "dropped" else "weights": host(weights)}
        return Result(host(out), **answer, gradients=gradients)

    return run


def computed(implementation, *inputs, mask=None, keep=None, p=0.0, **settings):
    """The values on arrays, and the pullback to the seven inputs."""
    values, pull = mh.scaled_dot_product_attention.with_pullback(
        *inputs[:3], mask, *inputs[3:], keep=keep, dropout=p, implementation=implementation,
        **settings,
    )  # fmt: skip

    def pullback(*cotangents):
        gradients = pull(*cotangents)
        return *gradients[:3], *gradients[4:]

    return values, pullback


def results(implementation, case, place=same):
    """The output and the gradients of the seven inputs, on the host."""
    inputs = given(case, place).values()
    keep = None if case.keep is None else place(case.keep)
    out, pull = computed(implementation, *inputs, mask=case.mask, keep=keep, p=case.dropout)
    return [None if x is None else backend.to_numpy(x) for x in (out, *pull(place(case.dout)))]


def raw(implementation):
    """The operation on arrays, with its pullback."""

    def run(case, place):
        inputs = given(case, place)
        (out, weights), pull = computed(
            implementation, *inputs.values(), mask=case.mask, keep=place(case.keep), p=case.dropout,
            return_weights=True,
        )  # fmt: skip
        gradients = pull(place(case.dout), place(case.dweights))
        named = zip(inputs, map(host, gradients), strict=True)
        return Result(host(out), host(weights), None, {k: x for k, x in named if x is not None})

    return run


def steps(wrap):
    def run(case, place):
        inputs = given(case, place, wrap)
        made = attention_steps(
            **inputs, mask=case.mask, keep=place(case.keep), dropout=case.dropout
        )
        gradients = {}
        if wrap is leaf:
            gradients = pulled(case, place, inputs, made.out, made.weights)
        return Result(*map(host, (made.out, made.weights, made.get("dropped"))), gradients)

    return run


BOTH = frozenset({"weights", "gradients"})
PATHS = []
for name in IMPLEMENTATIONS:
    PATHS.append(Path(name, "arrays", called(name, False, same)))
    if name in KERNELS:
        PATHS.append(Path(name, "Tensors", called(name, False, leaf), frozenset({"gradients"})))
    else:
        dropped = frozenset({"dropped", "gradients"})
        PATHS.append(Path(name, "Tensors", called(name, True, leaf), BOTH))
        PATHS.append(Path(name, "dropped weights", called(name, "dropped", leaf), dropped))
    PATHS.append(Path(name, "its pullback", raw(name), BOTH))
PATHS += [
    Path("steps", "arrays", steps(same), frozenset({"weights"})),
    Path("steps", "Tensors", steps(leaf), BOTH),
]


class Exact(NamedTuple):
    result: Result
    scores: np.ndarray  # −∞ where hidden
    magnitude: float  # the largest sum of absolute terms of a score
    sizes: dict  # the largest entry of each gradient computed from absolute terms

    @property
    def largest_score(self):
        return float(np.max(abs(self.scores), where=self.scores > -math.inf, initial=0.0))


def formula(case, *, cotangent="weights", dtype=np.longdouble):
    """Attention in long double, with the absolute sizes of the terms of its gradients.

    cotangent  the output that case.dweights is for: "weights", "dropped" or neither
    """
    inputs = given(case, same)
    wide = {k: None if x is None else np.asarray(x, dtype) for k, x in inputs.items()}
    q, k, v, bias, sink, scale, softcap = wide.values()
    if k.ndim > 2 and k.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], axis=-3) for x in (k, v))
    scale = 1 / np.sqrt(dtype(q.shape[-1])) if scale is None else scale
    bias = dtype(0) if bias is None else np.where(bias > -math.inf, bias, 0)
    product, sizes = q @ k.mT, abs(q) @ abs(k).mT
    u = scale * product
    t = u if softcap is None else np.tanh(u / softcap)
    capped, slope = (u, 1) if softcap is None else (softcap * t, 1 - t * t)
    scores = np.where(case.visible, capped + bias, -math.inf)
    sink = -math.inf if sink is None else sink[..., None, None]
    peak = np.maximum(np.max(scores, axis=-1, keepdims=True, initial=-math.inf), sink)
    peak = np.where(peak > -math.inf, peak, 0)
    e, rest = np.exp(scores - peak), np.exp(sink - peak)
    total = e.sum(axis=-1, keepdims=True) + rest
    total = np.where(total > 0, total, 1)
    weights, share = e / total, rest / total
    kept = dtype(1)
    if case.keep is not None:
        kept = case.keep * dtype(0 if case.dropout == 1 else 1 / (1 - case.dropout))
    dropped = kept * weights

    def gradients(q, k, v, dout, dweights, scale, slope, product, by_softcap, sign):
        """The gradients of the inputs; for sign = 1 and absolute values, every term is positive."""
        ddropped = dout @ v.mT + (dweights if cotangent == "dropped" else 0)
        dweights = kept * ddropped + (dweights if cotangent == "weights" else 0)
        mean = (weights * dweights).sum(axis=-1, keepdims=True)
        dscores = weights * (dweights + sign * mean)
        draw = dscores * slope * scale
        found = {
            "query": draw @ k, "key": draw.mT @ q, "value": dropped.mT @ dout, "bias": dscores,
            "sink": sign * (share * mean).sum(axis=(-2, -1)), "scale": dscores * slope * product,
            "softcap": dscores * by_softcap,
        }  # fmt: skip
        arrays = {k: x for k, x in inputs.items() if isinstance(x, np.ndarray)}
        return {k: folded(found[k], x.shape) for k, x in arrays.items()}, dweights

    dout, direct = case.dout.astype(dtype), case.dweights.astype(dtype)
    by_softcap = 0 if softcap is None else t - u / softcap * slope
    exact, _ = gradients(q, k, v, dout, direct, scale, slope, product, by_softcap, -1)
    positive = map(abs, (q, k, v, dout, direct, scale))
    terms, dweights = gradients(*positive, 1, sizes, abs(t), 1)
    terms |= {"weights": dweights, "out": dropped @ abs(v)}
    return Exact(
        Result(dropped @ v, weights, dropped, exact),
        scores,
        float(np.max(abs(scale) * sizes + abs(bias), where=case.visible, initial=0.0)),
        {k: x.max(initial=0) for k, x in terms.items()},
    )


def folded(dx, shape):
    """The gradient of an array of this shape that was broadcast or repeated for each group."""
    if len(shape) > 2 and dx.ndim == len(shape) and shape[-3] and dx.shape[-3] % shape[-3] == 0:
        split = (*dx.shape[:-3], shape[-3], dx.shape[-3] // shape[-3], *dx.shape[-2:])
        dx = dx.reshape(split).sum(axis=-3)
    extra = dx.ndim - len(shape)
    dx = dx.sum(axis=tuple(range(extra)))
    thin = tuple(k for k, n in enumerate(shape) if n == 1 != dx.shape[k])
    return dx.sum(axis=thin, keepdims=True).reshape(shape)


def excess(actual, expected, dtype, largest_score, size=None):
    """The error of an array in bars, relative to size if given, else to the largest entry."""
    assert np.shape(actual) == np.shape(expected)
    if not np.size(expected):
        return 0.0
    off = float(np.max(abs(np.asarray(actual, np.longdouble) - expected)))
    size = float(np.max(abs(expected)) if size is None else size)
    bar = BARS[str(dtype)] * size * max(1.0, largest_score / 8)
    return off / bar if off else 0.0


def assert_exact(found, case, *, dtype=np.float64, bars=1.0):
    """The output and the gradients, in the order of INPUTS, agree with the formula in a dtype."""
    exact = formula(case, cotangent=None, dtype=dtype)
    expected = {"out": exact.result.out, **exact.result.gradients}
    for what, x in zip(("out", *INPUTS), found, strict=False):
        assert (x is None) == (what not in expected), what
        if x is not None:
            assert x.dtype == case.dtype, what
            off = excess(x, expected[what], case.dtype, exact.largest_score, exact.sizes[what])
            assert off <= bars, f"{what} is {off:.3g} bars off"


def case_of(rng, t, s, *, batch=(1,), heads=(4, 2), d=5, dv=3, dtype="float64", **more):
    """A case with these numbers of heads of queries and of keys."""
    h, g = heads
    sizes = (h, t, d), (g, s, d), (g, s, dv), (h, t, dv), (h, t, s)
    return Case(*(rng.standard_normal((*batch, *size)).astype(dtype) for size in sizes), **more)


@st.composite
def cases(
    draw,
    *,
    dtypes=("float64", "float32", "float16"),
    without=(),
    require=(),
    sharpness=(0.3, 1.0, 4.0),
    queries=(0, 1, 5, 8),
    keys=(0, 1, 3, 7),
    widths=((1, 2, 4), (1, 6, 9)),
    leads=("no heads", (), (1,), (2,), (3, 2), (0,)),
    groups=((1, 1), (3, 1), (1, 2), (2, 3)),
    biases=("full", "heads", "pairs", "keys"),
    factors=("number", "array", "heads"),
    masks=None,
):
    """A case; without and require name options. T, S, D, Dv are all different, but for 0 and 1."""
    lead = draw(st.sampled_from(leads))
    g, r = draw(st.sampled_from(groups))
    t, s = draw(st.sampled_from(queries)), draw(st.sampled_from(keys))
    d, dv = (draw(st.sampled_from(width)) for width in widths)
    dtype = draw(st.sampled_from(dtypes))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return np.asarray(rng.standard_normal(shape), dtype)

    batch = () if lead == "no heads" else lead
    heads, grouped = ((), ()) if lead == "no heads" else ((*lead, g * r), (*lead, g))
    scores, per_head = (*heads, t, s), (*heads[-1:], 1, 1)

    def choice(option, *choices):
        if option in without:
            return None
        return draw(st.sampled_from((*choices,) if option in require else (None, *choices)))

    mask, made, masks = None, {}, masks or MASKS
    if kind := choice("mask", *masks):
        mask = masks[kind](rng, batch, scores)
    if kind := choice("bias", *biases):
        shape = {
            "full": scores, "heads": (*heads[-1:], 1, s), "pairs": (t, s), "keys": (s,),
            "queries": (t, 1), "one": (),
        }[kind]  # fmt: skip
        bias = np.round(16 * normal(*shape)) / 16  # sums with integers are exact
        if draw(st.booleans()):
            bias = np.where(rng.random(shape) < 0.2, -math.inf, bias)
        made["bias"] = np.asarray(bias, dtype)
    if kind := choice("sink", "full", "heads", "one"):
        made["sink"] = normal(*{"full": heads, "heads": heads[-1:], "one": ()}[kind])
    if kind := choice("scale", *factors):
        made["scale"] = {"number": -0.3, "array": normal(), "heads": normal(*per_head)}[kind]
    if kind := choice("softcap", *factors):
        softcap = {"number": 1.5, "array": np.asarray(2.5, dtype)}
        made["softcap"] = softcap[kind] if kind in softcap else 0.5 + abs(normal(*per_head))
    if p := choice("dropout", 0.3, 0.5, 1.0):
        made["dropout"] = p
        made["keep"] = rng.random(scores if draw(st.booleans()) else (t, s)) < 1 - p
    query = normal(*heads, t, d) * np.asarray(draw(st.sampled_from(sharpness)), dtype)
    return Case(
        query, normal(*grouped, s, d), normal(*grouped, s, dv), normal(*heads, t, dv),
        normal(*scores), mask, **made, seed=seed,
    )  # fmt: skip


def keys(rng, batch, shape):
    return mh.masks.keys(rng.random((*batch, shape[-1])) < 0.6)


def dense(rng, _, shape):
    return mh.masks.dense(rng.random(shape[-2:]) < 0.6)


def padding(rng, batch, shape):
    return mh.masks.padding(rng.integers(0, shape[-1] + 1, batch))


MASKS = {
    "causal": lambda *_: mh.masks.causal(align="top-left"),
    "causal, ends together": lambda *_: mh.masks.causal(align="bottom-right"),
    "causal, not itself": lambda *_: mh.masks.causal(offset=-1),
    "padding": padding,
    "keys": keys,
    "dense": dense,
    "bare": lambda rng, _, shape: rng.random(shape) < 0.4,
    "nothing": lambda _, __, shape: np.zeros(shape, bool),
    "causal & padding": lambda *about: mh.masks.causal(offset=1) & padding(*about),
    "~(keys | dense)": lambda *about: ~(keys(*about) | dense(*about)),
}
MORE_MASKS = MASKS | {
    "window": lambda *_: mh.masks.sliding_window(3, 20, align="bottom-right"),
    "documents": lambda rng, batch, shape: mh.masks.documents(
        *(np.sort(rng.integers(0, 4, (*batch, n)), axis=-1) for n in shape[-2:])
    ),
}
