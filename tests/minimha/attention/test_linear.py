"""Linear attention and the gated delta rule: their forms, their gradients and their state."""

import tracemalloc

import numpy as np
import pytest
from references import remembered

import minimha as mh

B, H, D, DV = 2, 3, 5, 4
LINEAR, DELTA = mh.linear_attention, mh.gated_delta_rule
RULES = pytest.mark.parametrize("rule", [LINEAR, DELTA], ids=["linear", "delta"])
FORMS = {
    "recurrent": {"form": "recurrent"},
    "parallel": {"form": "parallel"},
    "chunked": {"chunk": 4},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def inputs(rng, rule, length, *, log_decay=-1.0, heads=(B, H), d=D, dv=DV):
    """Arguments of a rule by name, with decays between log_decay and 0."""
    key = rng.standard_normal((*heads, length, d))
    given = {
        "query": rng.standard_normal(key.shape),
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "value": rng.standard_normal((*heads, length, dv)),
        "beta": rng.random((*heads, length)),
        "log_decay": log_decay * rng.random((*heads, length)),
        "state": rng.standard_normal((*heads, d, dv)),
    }
    if rule is LINEAR:
        del given["beta"]
    return given


def all_of(rule, given, dout=None, dstate=None, **form):
    """The output, the last state and all gradients by name."""
    (out, state), pull = rule.with_pullback(*given.values(), **form)
    rng = np.random.default_rng(7)
    drawn = [rng.standard_normal(y.shape).astype(y.dtype) for y in (out, state)]
    dout, dstate = (b if a is None else a for a, b in zip((dout, dstate), drawn, strict=True))
    gradients = pull(dout, dstate)
    return {"out": out, "last": state} | dict(zip(given, gradients, strict=True))


def assert_same(found, expected, bound=1e-12):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].shape == x.shape, name
        assert abs(found[name] - x).max(initial=0) <= bound * abs(x).max(initial=0), name


@RULES
@pytest.mark.parametrize("log_decay", [0.0, -0.1, -30.0, -2000.0])
def test_every_form_equals_the_recurrence_forward_and_backward(rule, log_decay, rng):
    given = inputs(rng, rule, 13, log_decay=log_decay)
    out, state = remembered(**given)
    expected = all_of(rule, given, form="recurrent")
    assert_same({k: expected[k] for k in ("out", "last")}, {"out": out, "last": state})
    for form in FORMS.values():
        assert_same(all_of(rule, given, **form), expected)


@EVERY_FORM
def test_the_output_has_the_dtype_of_a_product_of_all_inputs(form, rng):
    """An output as wide as the values alone would be cut to integers, or to its real part."""
    given = inputs(rng, DELTA, 6)
    for name, dtype in (("value", int), ("query", complex)):
        narrow = given | {name: (9 * given[name]).astype(dtype) * (1j if dtype is complex else 1)}
        wide = {k: x.astype(complex) for k, x in narrow.items()}
        out, expected = (DELTA(**some, **form)[0] for some in (narrow, wide))
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 * abs(expected).max())


@RULES
@pytest.mark.parametrize("seed", range(4))
def test_forms_agree_for_all_sizes_and_without_decay_and_state(rule, seed):
    rng = np.random.default_rng(seed)
    length, chunk, d, dv = map(int, rng.permutation(np.arange(1, 24))[:4])
    given = inputs(rng, rule, length, d=d, dv=dv)
    for left_out in ((), ("log_decay",), ("state",), ("log_decay", "state")):
        some = {k: None if k in left_out else x for k, x in given.items()}
        expected, found = (
            {k: x for k, x in all_of(rule, some, **form).items() if x is not None}
            for form in (FORMS["recurrent"], {"chunk": chunk})
        )
        assert_same(found, expected)
        assert {"log_decay", "state"} - found.keys() == set(left_out)


@RULES
@EVERY_FORM
def test_gradcheck_passes(rule, form, rng):
    given = inputs(rng, rule, 6, heads=(), d=2, dv=3)
    tensors = [mh.Tensor(x) for x in given.values()]
    mh.gradcheck(lambda *x: rule(*x, **form), *tensors, names=list(given))


@RULES
@EVERY_FORM
def test_pieces_that_pass_the_state_on_equal_the_whole(rule, form, rng):
    given = inputs(rng, rule, 13)
    cotangent, results = rng.standard_normal((B, H, 13, DV)), []
    for steps in ([13], [5, 0, 1, 7], [1] * 13):
        leaves = {k: mh.Tensor(x, requires_grad=True) for k, x in given.items()}
        state, at, total, outs = leaves["state"], 0, 0.0, []
        for n in steps:
            rows = np.s_[..., at : at + n, :]
            parts = {k: x[rows if x.ndim == 4 else rows[:-1]] for k, x in leaves.items()}
            y, state = rule(**parts | {"state": state}, **form)
            total, at = total + (y * cotangent[rows]).sum(), at + n
            outs.append(y.data)
        (total + (state * given["state"]).sum()).backward()
        gradients = {k: x.grad for k, x in leaves.items()}
        results.append({"out": np.concatenate(outs, -2), "last": state.data} | gradients)
    for pieces in results[1:]:
        assert_same(pieces, results[0])


@EVERY_FORM
def test_no_later_key_or_value_reaches_earlier_positions_even_if_it_is_nan(form, rng):
    at, earlier = 6, np.s_[..., :6]
    given = inputs(rng, LINEAR, 13)
    well = all_of(LINEAR, given, **form)
    for names in (["key"], ["value"], ["key", "value"]):
        sick = {k: x.copy() for k, x in given.items()}
        for name in names:
            sick[name][..., at, :] = np.nan
        found = all_of(LINEAR, sick, **form)
        for name in ("out", "query"):
            assert_close_rows(found[name][..., :at, :], well[name][..., :at, :])
        for name in ("key", "value"):  # positions after it do not read the others through it
            others = np.arange(13) != at
            assert_close_rows(found[name][..., others, :], well[name][..., others, :])
        assert_close_rows(found["log_decay"][earlier], well["log_decay"][earlier])
        assert_close_rows(found["state"], well["state"])
        assert np.isnan(found["out"][..., at:, :]).all()


def assert_close_rows(found, expected):
    """Equal up to rounding: with a NaN, other products are computed."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * abs(expected).max())


@RULES
@EVERY_FORM
def test_nothing_later_reaches_earlier_outputs_and_gradients_of_queries(rule, form, rng):
    given = inputs(rng, rule, 13)
    well = all_of(rule, given, **form)
    sick = {k: x.copy() for k, x in given.items()}
    for name, x in sick.items():
        if name != "state":
            x[..., 6:, :] = np.nan if x.ndim == 4 else 0
        if x.ndim == 3:
            x[..., 6:] = np.nan
    found = all_of(rule, sick, **form)
    for name in ("out", "query"):
        assert_close_rows(found[name][..., :6, :], well[name][..., :6, :])
        assert np.isnan(found[name][..., 6:, :]).all()


@RULES
@EVERY_FORM
def test_strong_decay_forgets_and_loses_no_precision(rule, form, rng):
    """Sums of logarithms are of the decays between two positions alone: differences of sums from
    the start would be −∞ + ∞, or lose the small decays beside a large one."""
    for strong in (-1e5, -np.inf):
        given = inputs(rng, rule, 13, log_decay=-0.1)
        given["log_decay"][..., 4] = strong
        whole = all_of(rule, given, **form)
        assert all(np.isfinite(x).all() for x in whole.values())
        after = {k: x[..., 4:, :] if x.ndim == 4 else x[..., 4:] for k, x in given.items()}
        out, _ = rule(**after | {"state": None}, **form)
        assert_close_rows(whole["out"][..., 4:, :], out)
        single = {k: x.astype("float32") for k, x in given.items()}
        assert_same(all_of(rule, single, **form), whole, bound=3e-6)


@EVERY_FORM
def test_the_delta_rule_returns_the_newest_value_of_a_key_and_linear_attention_the_sum(form, rng):
    keys, newest = np.linalg.qr(rng.standard_normal((D, D)))[0][:3], {}
    seen = [0, 1, 0, 2, 1, 0]
    values = rng.standard_normal((len(seen), DV))
    given = [keys[seen], keys[seen], values]
    out, state = DELTA(*given, np.ones(len(seen)), **form)
    np.testing.assert_allclose(out, values, atol=1e-14)
    for k, v in zip(seen, values, strict=True):
        newest[k] = v
    for k, v in newest.items():
        np.testing.assert_allclose(keys[k] @ state, v, atol=1e-14)
    _, state = LINEAR(*given, **form)
    for k in newest:
        np.testing.assert_allclose(keys[k] @ state, values[np.equal(seen, k)].sum(0), atol=1e-14)


@EVERY_FORM
def test_a_column_of_ones_gives_the_normaliser(form, rng):
    feature_map = lambda x: np.where(x > 0, x + 1, np.exp(x))  # noqa: E731  elu + 1
    query, key = feature_map(rng.standard_normal((2, 13, D)))
    value = rng.standard_normal((13, DV))
    weights = np.tril(query @ key.T)
    weights /= weights.sum(-1, keepdims=True)
    out, _ = LINEAR(query, key, np.concatenate([value, np.ones((13, 1))], axis=-1), **form)
    np.testing.assert_allclose(out[:, :-1] / out[:, -1:], weights @ value, rtol=1e-12)


@RULES
@EVERY_FORM
def test_sixteen_bits_are_computed_in_float32(rule, form, rng):
    given = {k: x.astype("float16") for k, x in inputs(rng, rule, 13).items()}
    wide = all_of(rule, {k: x.astype("float32") for k, x in given.items()}, **form)
    narrow = all_of(rule, given, **form)
    for name in ("out", "last"):
        np.testing.assert_array_equal(narrow[name], wide[name].astype("float16"))


@RULES
def test_memory_grows_linearly_with_the_length(rule, rng):
    def peak(length):
        given = inputs(rng, rule, length, heads=(1, 2), d=16, dv=16)
        tracemalloc.start()
        all_of(rule, given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    with mh.implementation("reference"):
        assert peak(2048) < 2.2 * peak(1024)
