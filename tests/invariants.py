"""Invariants of attention: statements about a path, forward and backward, and a random case."""

import itertools
import math

import numpy as np
from attention_paths import PATHS, Result, cases, excess, formula
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn

import minimha as mh

INVARIANTS = {}
DRAWS = settings().max_examples
FEW = settings(
    max_examples=min(DRAWS // 2, 30),  # 28 find every mistake in wrong_attention.py
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
FEWER = settings(FEW, max_examples=DRAWS // 4)


def invariant(*, needs=(), **draws):
    """Register a statement about a path and a case, with the cases that it applies to."""

    def register(statement):
        INVARIANTS[statement.__name__] = statement, frozenset(needs), draws
        return statement

    return register


def hold(name, path, profile=FEW, **more):
    """Check an invariant of a path on random cases."""
    statement, _, draws = INVARIANTS[name]

    @profile
    @drawn(cases(**{**draws, **more}))
    def check(case):
        statement(path, case)

    check()


def eps(case):
    return float(np.finfo(case.dtype).eps)


def close(actual, expected, *about, times=1):
    """Within the bar, which is relative to the largest entry. A gradient may be a small difference
    of large terms, so its bar is relative to those."""
    if not isinstance(actual, Result):
        actual, expected = Result(actual), Result(expected)
    exact = [formula(case) for case in about]
    score, dtype = max(e.largest_score for e in exact), about[0].dtype
    for name, one, other in both(actual, expected):
        gradient = name in actual.gradients
        size = max(e.sizes.get(name, 0) for e in exact) if gradient else None
        off = excess(one, other, dtype, score, size)
        assert off <= times, f"{name}: {off:.3g} bars off"


def both(one, other):
    """The name and both values of each array that both results contain."""
    for name, x, y in zip(Result._fields, one[:3], other[:3], strict=False):
        if x is not None and y is not None:
            yield name, x, y
    for name in sorted(one.gradients.keys() & other.gradients.keys()):
        yield name, one.gradients[name], other.gradients[name]


def equal(actual, expected):
    """Bitwise equal, except for the sign of zero."""
    for name, one, other in both(actual, expected):
        assert np.array_equal(one, other), name


def with_gradients(result, change, *names):
    """The result with these of its gradients changed."""
    changed = {k: change(x) if k in names else x for k, x in result.gradients.items()}
    return result._replace(gradients=changed)


def ones_for_values(case):
    """Values of 1, so that the outputs are the sums of the dropped weights."""
    return case.but(value=np.ones_like(case.value))


def rows(x, shape):
    """x broadcast to the shape of the scores."""
    return np.broadcast_to(x, shape)


@invariant()
def the_result_equals_the_formula(attend, case):
    cotangent = next((k for k in ("weights", "dropped") if k in attend.gives), None)
    result = attend(case)
    assert result.out.dtype == case.dtype
    for name, gradient in result.gradients.items():
        assert gradient.dtype == case.dtype, f"the gradient of {name} is {gradient.dtype}"
    expected = formula(case, cotangent=cotangent)
    close(result, expected.result, case, times=0.5)  # so any two paths differ by at most one bar


@invariant(without=("sink", "dropout"))
def weights_sum_to_one(attend, case):
    result = attend(ones_for_values(case))
    seen = case.visible.any(axis=-1)
    bar = (case.shape[-1] + 4) * eps(case)
    assert (abs(result.out - 1)[seen] <= bar).all()
    if result.weights is not None:
        assert (abs(result.weights.sum(axis=-1, dtype=float) - 1)[seen] <= bar).all()


def attention_to_each_key(attend, case):
    """The result with the identity as value: then the output equals the weights."""
    s = case.shape[-1]
    eye = np.broadcast_to(np.eye(s, dtype=case.dtype), (*case.key.shape[:-1], s))
    dout = np.zeros((*case.query.shape[:-1], s), case.dtype)
    return attend(case.but(value=eye.copy(), dout=dout))


@invariant(without=("dropout",), leads=((), (2,)))
def weights_are_positive_exactly_where_visible(attend, case):
    weights = [w for w in attention_to_each_key(attend, case)[:3] if w is not None]
    seen = formula(case).result.weights > np.finfo(case.dtype).smallest_normal
    for w in weights:
        assert (w >= 0).all(), "a weight is negative"
        assert not w[~case.visible].any(), "a hidden key has a weight"
        assert (w[seen] > 0).all(), "a visible key has no weight"


@invariant(without=("sink",))
def shifting_the_scores_of_a_query_changes_nothing(attend, case):
    shift = case.rng.integers(-4, 5, (*case.shape[:-1], 1)).astype(case.dtype)
    bias = case.every_bias
    moved, still = case.but(bias=bias + shift), case.but(bias=bias)
    close(attend(moved), attend(still), moved, still)


@invariant(needs=("gradients",), without=("sink",))
def rows_of_dscores_sum_to_zero(attend, case):
    dscores = attend(case.but(bias=case.every_bias)).gradients["bias"].astype(float)
    # A sum of S terms y (dy − mean), each with a mean of S terms
    bar = (3 * case.shape[-1] + 8) * eps(case) * formula(case).sizes["weights"]
    assert (abs(dscores.sum(axis=-1)) <= bar).all()


@invariant(without=("bias", "sink", "dropout"))
def a_query_of_zeros_gets_the_mean_of_the_visible_values(attend, case):
    case = case.but(query=np.zeros_like(case.query))
    count = case.visible.sum(axis=-1, keepdims=True)
    weights = case.visible / np.where(count, count, 1)
    value = case.value.astype(float)
    if value.ndim > 2:
        value = np.repeat(value, case.shape[-3] // value.shape[-3], axis=-3)
    close(attend(case).out, weights @ value, case)


@invariant()
def permuting_keys_with_their_values_changes_nothing(attend, case):
    s = case.shape[-1]
    order = case.rng.permutation(s)

    def moved(x):
        return x[..., order] if np.shape(x)[-1:] == (s,) else x

    pairs = {k: moved(getattr(case, k)) for k in ("bias", "scale", "softcap", "keep", "dweights")}
    allowed = rows(case.allowed, case.shape)
    other = case.masked(moved(allowed)).but(
        key=case.key[..., order, :], value=case.value[..., order, :], **pairs
    )
    one = attend(case.masked(allowed))
    expected = with_gradients(one, lambda dx: dx[..., order, :], "key", "value")
    expected = with_gradients(expected, moved, "bias", "scale", "softcap")
    weights = [None if x is None else x[..., order] for x in one[1:3]]
    close(attend(other), Result(one.out, *weights, expected.gradients), case)


@invariant(without=("dropout",), keys=(1, 3))
def the_mean_over_dropout_masks_equals_no_dropout(attend, case):
    p, s = 0.25, case.shape[-1]
    total = None
    for keep in itertools.product((False, True), repeat=s):  # every draw, with its probability
        chance = math.prod(1 - p if k else p for k in keep)
        result = attend(case.but(keep=np.array(keep), dropout=p))
        parts = {"out": result.out, **result.gradients}
        parts = {k: chance * x.astype(float) for k, x in parts.items()}
        total = {k: x + (total[k] if total else 0) for k, x in parts.items()}
    # relative to the bar without dropout; each mask scales up the weights it keeps
    close(Result(total.pop("out"), gradients=total), attend(case), case, times=1 / (1 - p))


@invariant(without=("mask",), keys=(3, 7))
def nothing_leaks_from_the_future(attend, case):
    t, s = case.shape[-2:]
    offset, cut = int(case.rng.integers(-1, 4)), int(case.rng.integers(1, s))
    past = np.arange(t) + offset < cut
    dout = np.where(past[:, None], case.dout, 0)
    case = case.but(mask=mh.masks.causal(offset=offset), dout=dout, dweights=0 * case.dweights)
    key, value = case.key.copy(), case.value.copy()
    key[..., cut:, :], value[..., cut:, :] = 7, -5
    one, other = attend(case), attend(case.but(key=key, value=value))
    for name, x, y in both(one, other):
        if name in ("out", "weights", "dropped"):
            assert np.array_equal(x[..., past, :], y[..., past, :])
        elif name == "query":
            assert np.array_equal(x, y)
        elif name in ("key", "value"):
            assert not x[..., cut:, :].any()


@invariant(without=("mask", "sink", "dropout"), keys=(1, 3, 7))
def padding_is_invisible_and_hides_no_query(attend, case):
    s, batch = case.shape[-1], case.query.shape[:-3]
    lengths = case.rng.integers(0, s + 1, batch)
    valid = np.arange(s) < lengths[..., None]  # (…, S)
    if case.query.ndim > 2:
        valid = valid[..., None, :]  # (…, 1, S)
    case = case.but(mask=mh.masks.padding(lengths))
    hidden = ~rows(valid, case.key.shape[:-1])
    key, value = case.key.copy(), case.value.copy()
    key[hidden], value[hidden] = 3, -4
    one = attend(case)
    equal(one, attend(case.but(key=key, value=value)))
    for name in one.gradients.keys() & {"key", "value"}:
        assert not one.gradients[name][hidden].any()
    if case.bias is None:
        seen = rows(
            (lengths > 0).reshape(*batch, *[1] * (case.query.ndim - len(batch))), one.out.shape
        )
        total = attend(ones_for_values(case)).out
        assert (abs(total - seen) <= (s + 4) * eps(case)).all()


@invariant(leads=((), (2,), (3, 2)), groups=((2, 1), (3, 1), (2, 3)), keys=(1, 3, 7))
def heads_are_independent(attend, case):
    h, g = case.query.shape[-3], case.key.shape[-3]
    group = int(case.rng.integers(g))
    others = np.arange(h) // (h // g) != group
    query, key, value = case.query.copy(), case.key.copy(), case.value.copy()
    query[..., ~others, :, :], key[..., group, :, :], value[..., group, :, :] = 2, -3, 4
    one, other = attend(case), attend(case.but(query=query, key=key, value=value))
    for name, x, y in both(one, other):
        if name in ("key", "value"):
            kept = np.arange(g) != group
        elif name in ("out", "weights", "dropped", "query"):
            kept = others
        else:
            continue
        assert np.array_equal(x[..., kept, :, :], y[..., kept, :, :])


@invariant(leads=((), (2,), (3, 2), (0,)), groups=((2, 3), (3, 2), (1, 2)))
def query_head_h_reads_key_head_h_div_group_size(attend, case):
    h, g = case.query.shape[-3], case.key.shape[-3]
    reads = np.array([head // (h // g) for head in range(h)])
    whole = attend(case.but(key=case.key[..., reads, :, :], value=case.value[..., reads, :, :]))

    def over_group(dx):
        return np.stack([dx[..., reads == k, :, :].sum(-3, dtype=float) for k in range(g)], axis=-3)

    close(attend(case), with_gradients(whole, over_group, "key", "value"), case, times=h / g)


@invariant()
def an_empty_row_gives_zeros_and_zero_gradients(attend, case):
    hidden = case.rng.random(case.shape[-2]) < 0.5
    allowed = rows(case.allowed, case.shape) & ~hidden[:, None]
    if case.shape[-1]:
        allowed[..., case.rng.integers(case.shape[-1])] = False  # a key that no query sees
    case = case.masked(allowed)
    result, visible = attend(case), case.visible
    empty = ~visible.any(axis=-1)
    for x in result[:3]:
        assert x is None or not x[empty].any()
    for name, x in result.gradients.items():
        assert np.isfinite(x).all(), name
    g = case.key.shape[:-2]
    unseen = ~visible.any(axis=-2)  # (…, H, S)
    unseen = unseen.reshape(*g, -1, case.shape[-1]).all(axis=-2) if visible.size else unseen[:0]
    for name in result.gradients.keys() & {"key", "value"}:
        assert not visible.size or not result.gradients[name][unseen].any()
    if "query" in result.gradients:
        assert not result.gradients["query"][empty].any()
    if "bias" in result.gradients and case.bias.shape == case.shape:
        assert not result.gradients["bias"][~visible].any()


@invariant()
def a_bias_of_minus_infinity_equals_a_mask(attend, case):
    visible = case.visible
    bias = np.where(visible, case.every_bias, 0).astype(case.dtype)
    by_mask = attend(case.masked(visible).but(bias=bias))
    hidden = np.where(visible, bias, -np.inf).astype(case.dtype)
    by_bias = attend(case.but(bias=hidden, mask=None))
    if attend.family in ("tiled", "microkernel"):  # a mask shifts where tiles begin
        close(by_mask, by_bias, case)
    else:
        equal(by_mask, by_bias)


@invariant(without=("dropout",), require=("sink",))
def the_sink_takes_its_share_of_the_weights(attend, case):
    exact = formula(ones_for_values(case))
    expected = 1 - np.exp(-np.logaddexp(0, lse(exact.scores) - case.sink[..., None]))
    result = attend(ones_for_values(case))
    close(result.out, expected[..., None] * np.ones_like(case.dout), case)
    if result.weights is not None:
        bar = (case.shape[-1] + 4) * eps(case) * max(1, exact.largest_score)
        assert (abs(result.weights.sum(axis=-1, dtype=float) - expected) <= bar).all()


@invariant(needs=("gradients",), require=("sink",))
def gradients_of_scores_and_sink_sum_to_zero(attend, case):
    gradients = attend(case.but(bias=case.every_bias)).gradients
    total = gradients["bias"].astype(float).sum() + gradients["sink"].astype(float).sum()
    t, s = case.shape[-2:]
    # Each row as above, and sums over T
    bar = (3 * s + t + 16) * eps(case) * math.prod(case.shape[:-1])
    assert abs(total) <= bar * formula(case).sizes["weights"]


@invariant(without=("sink",))
def a_sink_of_minus_infinity_equals_no_sink(attend, case):
    plain, heads = attend(case), case.query.shape[:-2]
    for sink in (-np.inf, -60000.0):
        sunk = attend(case.but(sink=np.full(heads, sink, case.dtype)))
        close(sunk, plain, case)
        assert not sunk.gradients.get("sink", np.zeros(1)).any()


@invariant(without=("softcap",))
def a_large_softcap_has_no_effect(attend, case):
    # tanh u ≈ u − u³/3: for u = 1e-8 the relative difference is below the precision of a double
    cap = 1e8 * max(1.0, float(formula(case).magnitude))
    close(attend(case.but(softcap=cap)), attend(case), case)


@invariant(require=("softcap",), without=("bias", "scale"), sharpness=(50.0,))
def the_softcap_bounds_the_scores(attend, case):
    # weights of a row differ by a factor of at most e^(2 softcap)
    cap = np.asarray(case.softcap, float)
    s, case = case.shape[-1], case.but(keep=None, dropout=0.0)
    weights, visible = attention_to_each_key(attend, case).out.astype(float), case.visible
    top = weights.max(axis=-1, keepdims=True, initial=0)
    low = np.where(visible, weights, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    seen = visible.any(axis=-1, keepdims=True)
    bound = low * rows(np.exp(2 * cap), case.shape)[..., :1] if s else low
    slack = 1 + 64 * eps(case) * max(1, cap.max())
    assert (
        top <= bound * slack + 64 * np.finfo(case.dtype).smallest_subnormal * np.exp(2 * cap.max())
    )[seen].all()


@invariant()
def repeated_calls_are_bitwise_identical(attend, case):
    equal(attend(case), attend(case))


@invariant()
def requesting_more_does_not_change_the_output(attend, case):
    out = attend(case).out
    for other in (*PATHS, *getattr(attend, "siblings", ())):
        if other.family == attend.family:
            assert np.array_equal(other(case, attend.place).out, out), str(other)


@invariant(without=("softcap",), sharpness=(1e3, 1e4), keys=(1, 3, 7))
def large_scores_stay_finite_and_accurate(attend, case):
    exact, (s, d) = formula(case), (case.shape[-1], case.query.shape[-1])
    result = attend(case)
    # A score is a sum of D products, scaled and biased, minus the largest; each step rounds to eps
    # relative to its terms. An error of at most δ in the scores changes weights by a factor e^±2δ.
    inner = min(eps(case), float(np.finfo("float32").eps))
    delta = (d + 6) * inner * exact.magnitude
    kept = 1 / (1 - case.dropout) if 0 < case.dropout < 1 else 1
    off = min(math.expm1(2 * delta) if delta < 1 else 2.0, 2.0) + (2 * s + 8) * inner + eps(case)
    largest = abs(case.value.astype(float)).max(initial=0)
    assert np.isfinite(result.out).all()
    assert (abs(result.out - exact.result.out) <= kept * off * largest).all()
    for name, gradient in result.gradients.items():
        assert np.isfinite(gradient).all(), f"the gradient of {name} is not finite"


def lse(scores):
    """log Σ exp over the last axis."""
    peak = scores.max(axis=-1, initial=-math.inf)
    peak = np.where(peak > -math.inf, peak, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - peak[..., None]).sum(axis=-1)) + peak
