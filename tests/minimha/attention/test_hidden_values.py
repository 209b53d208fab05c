"""NaN and infinity spread only through pairs of a query and a key that it may attend to."""

import itertools
import math

import numpy as np
import pytest
from attention_paths import BARS, PATHS, Case, results

import minimha as mh

B, H, G, T, S, D, DV = 2, 4, 2, 5, 7, 3, 6
READS = np.arange(H) // (H // G)
WITH_GRADIENTS = [path for path in PATHS if "gradients" in path.gives]
POISONED = "query", "key", "value", "bias", "scale", "softcap", "dout", "dweights"


def case_of(seed, *, options, masked):
    """A case and its generator; with `options`, it has every input of attention."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal
    scores = (B, H, T, S)
    case = Case(
        normal((B, H, T, D)), normal((B, G, S, D)), normal((B, G, S, DV)), normal((B, H, T, DV)),
        normal(scores), bias=normal(scores), scale=normal(scores), softcap=1 + rng.random(scores),
    )  # fmt: skip
    if options:
        keep = rng.random(scores) < 0.6
        case = case.but(sink=normal(H), keep=keep, dropout=0.4)
    if masked:
        allowed = rng.random(scores) < 0.5
        allowed[:, :, 2] = False  # a query that sees nothing
        allowed[..., 4] = False  # a key that no query sees
        case = case.masked(allowed)
    return case, rng


def poison(case, name, at, number):
    """The case with a number at one place, and that place: a row, or a pair for the bias etc."""
    x = getattr(case, name).copy()
    x[at] = number
    where = np.zeros(x.shape, bool)
    where[at] = True
    return case.but(**{name: x}), where


def place_of(rng, name, unseen):
    """A random row of an input, or a random pair; if `unseen`, a hidden one."""
    b, h, i, j = (int(rng.integers(n)) for n in (B, H, T, S))
    i, j = (2, 4) if unseen else (i, j)
    if name in ("key", "value"):
        return b, READS[h], j
    return (b, h, i) if name in ("query", "dout") else (b, h, i, j)


def reach(case, name, where, cotangent):
    """The entries that a NaN reaches, as booleans: the formulas of attention with `or` for `+`."""
    tainted = {n: np.zeros((B, H, T, S), bool) for n in POISONED}
    if name in ("key", "value"):
        tainted[name] |= where[:, READS].any(-1)[..., None, :]
    elif name in ("query", "dout"):
        tainted[name] |= where.any(-1)[..., None]
    else:
        tainted[name] |= where
    query, key, value, bias, scale, softcap, dout, dweights = (tainted[n] for n in POISONED)
    keep = np.ones((B, H, T, S), bool) if case.keep is None else case.keep
    visible = case.visible
    scores = visible & (query | key | bias | scale | softcap)
    weights = visible & scores.any(-1, keepdims=True)
    dropped = weights & keep
    direct = dweights & keep if cotangent == "dropped" else dweights if cotangent else False
    dw = visible & ((dout | value) & keep | direct)
    sums = (weights | dw).any(-1, keepdims=True)
    dscores = visible & sums

    def of_keys(pairs):
        return pairs.reshape(B, G, H // G, T, S).any(axis=(2, 3))

    return {
        "out": (dropped | visible & value).any(-1),
        "weights": weights,
        "dropped": dropped,
        "query": (dscores | visible & key).any(-1),
        "key": of_keys(dscores | visible & query),
        "value": of_keys(dropped | visible & dout),
        "sink": sums.any(axis=(0, 2, 3)),
        **dict.fromkeys(("bias", "scale", "softcap"), dscores),
    }


def same(x, y):
    """Whether results with and without a hidden NaN agree to the bar. They may differ by rounding:
    if some entries are not finite, matrices with other layouts are multiplied."""
    return abs(x - y).max(initial=0) <= BARS[str(y.dtype)] * abs(y).max(initial=0)


def check(path, place, case, name, number, rng, unseen):
    cotangent = next((k for k in ("weights", "dropped") if k in path.gives), None)
    at = place_of(rng, name, unseen)
    (sick, where), (well, _) = (poison(case, name, at, x) for x in (number, 0.5))
    reached = reach(case, name, where, cotangent)
    with np.errstate(all="ignore"):  # a visible infinity may cause a warning
        bad, good = (r._asdict() | r.gradients for r in (path(sick, place), path(well, place)))
    named = [k for k, x in bad.items() if k != "gradients" and x is not None]
    for k in named:
        here, x = reached[k], bad[k]
        assert np.isfinite(x[~here]).all()
        assert same(x[~here], good[k][~here]), f"{k}: touched what sees no {name} {at}"
        if math.isnan(number):
            assert np.isnan(x[here]).all(), f"{k}: what sees {name} {at} is not NaN"
    return any(reached[k].any() for k in named)


@pytest.mark.parametrize(("name", "number"), [
    pytest.param(name, x, marks=[pytest.mark.thorough][math.isnan(x) :])
    for name in POISONED
    for x in (math.nan, math.inf, -math.inf)
    if (name, x) != ("bias", -math.inf)  # a bias of −∞ acts as a mask
])  # fmt: skip
def test_nan_and_infinity_reach_only_outputs_and_gradients_that_depend_on_them(name, number, place):
    if place.name != "numpy" and number == -math.inf:
        return  # a library that lets ∞ through an array would let −∞ through
    rng, touched = np.random.default_rng(5), set()
    for path in PATHS:
        if place.name != "numpy" and path.form != "Tensors":
            continue  # the same functions, called differently
        for options in (False, True):
            for masked, unseen in ((False, False), (True, False), (True, True)):
                case, _ = case_of(int(rng.integers(1000)), options=options, masked=masked)
                touched.add(check(path, place, case, name, number, rng, unseen))
    assert touched == {False, True}


@pytest.mark.parametrize(("name", "number"), [
    ("bias", math.nan), ("value", math.nan), ("value", math.inf), ("value", -math.inf),
])  # fmt: skip
@pytest.mark.parametrize("implementation", mh.attention.IMPLEMENTATIONS)
def test_one_entry_spoils_the_same_entries_as_in_the_reference(implementation, name, number):
    for options, masked in itertools.product((False, True), repeat=2):
        case, _ = case_of(12, options=options, masked=masked)
        case = case.but(scale=None, softcap=None)  # no kernel takes one for each pair
        case = case.but(keep=None, dropout=0.0)  # in tiles, Σ dout · out has 0 · NaN if dropped
        case, _ = poison(case, name, (1, 1, 3, 1), number)
        with np.errstate(all="ignore"):
            found, expected = (results(x, case) for x in (implementation, "reference"))
        for x, y in zip(found, expected, strict=True):
            assert (x is None and y is None) or np.array_equal(np.isfinite(x), np.isfinite(y))


@pytest.mark.parametrize("name", POISONED)
@pytest.mark.parametrize("path", WITH_GRADIENTS, ids=str)
def test_hidden_nan_and_infinity_change_nothing_and_raise_no_warning(path, name):
    """Padding must cause no NumPy warning; warnings are errors here."""
    for options, number in itertools.product((False, True), (math.nan, math.inf, -math.inf)):
        case, _ = case_of(11, options=options, masked=True)
        at = {
            "query": np.s_[:, :, 2], "dout": np.s_[:, :, 2], "key": np.s_[:, :, 4],
            "value": np.s_[:, :, 4],
        }.get(name, ~case.allowed)  # fmt: skip
        sick, well = (poison(case, name, at, x)[0] for x in (number, 0.5))
        bad, good = path(sick), path(well)
        assert same(bad.out, good.out)
        assert all(same(bad.gradients[k], good.gradients[k]) for k in good.gradients)


@pytest.mark.parametrize("path", WITH_GRADIENTS, ids=str)
def test_hidden_scores_that_overflow_have_no_effect(path):
    """Padding may be uninitialised memory, and scale and softcap still get gradients."""
    case, _ = case_of(13, options=True, masked=True)
    case = case.but(scale=np.asarray(0.7), softcap=np.asarray(2.0))
    sick, well = (poison(case, "key", np.s_[:, :, 4], x)[0] for x in (1.7e308, 0.5))
    with np.errstate(over="ignore", invalid="ignore"):
        bad, good = path(sick), path(well)
    assert same(bad.out, good.out)
    for name, gradient in good.gradients.items():
        assert same(bad.gradients[name], gradient), name


def test_a_nan_scale_does_not_reach_padding():
    case, _ = case_of(14, options=False, masked=True)
    case = case.but(scale=np.asarray(math.nan))
    for path in PATHS:
        result = path(case)
        assert not result.out[:, :, 2].any()
        if "gradients" in path.gives:
            assert not result.gradients["key"][:, :, 4].any()
            assert not result.gradients["query"][:, :, 2].any()


@pytest.mark.parametrize("implementation", mh.attention.IMPLEMENTATIONS)
def test_padding_in_a_causal_batch_may_contain_anything(implementation, place):
    rng = np.random.default_rng(3)
    q, k, v, dout = (
        rng.standard_normal(n) for n in [(B, H, S, D), (B, G, S, D), (B, G, S, DV), (B, H, S, DV)]
    )
    mask = mh.masks.causal() & mh.masks.padding([3, S])
    results = []
    for number in (0.0, math.nan, math.inf):
        key, value = k.copy(), v.copy()
        key[0, :, 3:] = value[0, :, 3:] = number
        x = [mh.Tensor(place(x), requires_grad=True) for x in (q, key, value)]
        with np.errstate(invalid="warn" if mh.backend.on_host(x[0].data) else "ignore"):
            out = mh.scaled_dot_product_attention(*x, mask, implementation=implementation)
            out.backward(place(dout))  # a GPU multiplies NaN without a warning
        results.append([mh.backend.to_numpy(y) for y in (out.data, *(leaf.grad for leaf in x))])
    # with NaN, the reference computes instead of a kernel
    for first, *others in zip(*results, strict=True):
        assert all(same(other, first) for other in others)
