"""Tests of the gradient check: wrong gradients fail, and correct gradients pass."""

import contextlib
import importlib
import subprocess
import sys

import numpy as np
import pytest

import minimha as mh


def scaled_softmax(scale, damage=1.0, absolute=False):
    """Softmax times a scale, with a damaged gradient; not analytic if `absolute`."""

    def f(x):
        y, pullback = mh.functional.softmax.with_pullback(x)
        y = np.abs(y) if absolute else y
        return scale * y, lambda dy: (damage * scale * pullback(dy)[0],)

    return f


def test_a_single_wrong_entry_is_found_and_named(rng):
    def f(query):
        def pullback(dy):
            dx = 2 * dy * query
            dx[1, 2, 0] *= 1 + 1e-9
            return (dx,)

        return query * query, pullback

    place, ratio = r"\[1, 2, 0\]  \(head, query, width\)", r"ratio        1\.000000001\n"
    with pytest.raises(
        mh.GradcheckError, match=rf"(?s)the gradient of query is wrong.*{place}.*{ratio}"
    ):
        mh.gradcheck(f, 1 + rng.random((2, 3, 2)), axes=["head query width"])


def test_structural_zeros_raise_no_alarm_at_any_scale():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scale = 10.0 ** rng.integers(-6, 7)
        x, shift = (mh.Tensor(rng.standard_normal((3, n))) for n in (5, 1))
        f = lambda x, shift: scale * mh.functional.softmax(x + shift)  # noqa: B023, E731
        report = mh.gradcheck(f, x, shift, rng=seed)
        assert {r.input for r in report.rows if r.note == "structural zero"} == {"shift"}


CUBE_ROOT = lambda x: (np.cbrt(x), lambda dy: (dy / (3 * np.cbrt(x) ** 2),))  # noqa: E731
FLAT = lambda x: (1 + 0 * np.cbrt(x), lambda dy: (0 * dy,))  # noqa: E731
REAL_SINE = lambda x: (np.sin(x.real), lambda dy: (dy * np.cos(x),))  # noqa: E731


@pytest.mark.parametrize(("f", "note"), [
    (scaled_softmax(1.0, absolute=True), "no complex step: not analytic"),
    (CUBE_ROOT, "no complex step: TypeError"),
    (REAL_SINE, "no complex step: not analytic"),
    (FLAT, "structural zero; no complex step: TypeError"),
])  # fmt: skip
def test_differences_replace_the_complex_step_where_it_fails(f, note):
    rows = mh.gradcheck(f, np.array([1.0, -2.0, 3.0])).rows
    assert [(row.method, row.note) for row in rows] == [("richardson", note), ("central", note)]


def test_names_come_from_the_function_or_the_caller(rng):
    x, w = (mh.Tensor(rng.standard_normal(3), requires_grad=True) for _ in range(2))

    def f(first, second):
        return first * second

    def names(f, *inputs, **settings):
        return {row.input for row in mh.gradcheck(f, *inputs, **settings).rows}

    assert names(f, x, x) == {"first", "second"}
    assert names(f, x, x, names=["a", "b"]) == {"a", "b"}
    assert names(lambda x: x * w, x, parameters={"x": w}) == {"x", "parameter x"}
    with pytest.raises(ValueError, match="2 inputs, 1 names"):
        mh.gradcheck(f, x, x, names=["a"])
    with pytest.raises(ValueError, match="names: a, a: each name can occur only once"):
        mh.gradcheck(f, x, x, names=["a", "a"])


def test_arrays_passed_with_tensors_are_constants(rng):
    mask = rng.random((3, 4)) < 0.5

    def f(x, mask, weights):
        return mh.functional.softmax(x, mask=mask) * weights

    report = mh.gradcheck(f, mh.Tensor(rng.standard_normal((3, 4))), mask, rng.random((3, 4)))
    assert {row.input for row in report.rows} == {"x"}


def test_several_values_each_get_a_cotangent(rng):
    def sin_and_cos(x, second=1):
        return (np.sin(x), np.cos(x)), lambda a, b: (a * np.cos(x) - second * b * np.sin(x),)

    mh.gradcheck(sin_and_cos, rng.standard_normal(3))
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(lambda x: sin_and_cos(x, second=0), rng.standard_normal(3))


def changes_x(x):
    x *= x
    return 1.0 * x, lambda dy: (2 * x * dy,)


def changes_x_later(x):
    def pullback(dy):
        x[:] = 0
        return (2 * dy,)

    return 2 * x, pullback


def changes_dy(x):
    y = np.exp(x)

    def pullback(dy):
        dy *= y
        return (dy,)

    return y, pullback


def adds_up(x, kept=np.zeros(3)):  # noqa: B008  what it is tested for
    def pullback(dy):
        kept[:] += dy
        return (kept.copy(),)

    kept[:] = 0
    return 1 * x, pullback


def hands_out(x, kept=np.zeros(3)):  # noqa: B008
    def pullback(dy):
        kept[:] = 2 * dy
        return (kept,)

    return 2 * x, pullback


def hands_out_values(x, kept=np.zeros(3)):  # noqa: B008
    kept[:] = 2 * x.real
    return kept, lambda dy: (2 * dy,)


draws = np.random.default_rng(0)


def rounded_anew(x):
    """x with other last bits in each call, as from a library whose order of a sum varies."""
    last_bits = draws.integers(-4, 5, x.shape) * np.finfo(x.dtype).eps
    return x * (1 + last_bits).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_calls_that_differ_in_rounding_only_are_no_mistake(dtype, rng):
    def square(x):
        return rounded_anew(x * x), lambda dy: (rounded_anew(2 * dy * x),)

    mh.gradcheck(square, rng.standard_normal(5).astype(dtype))


def sums_in_any_order(x):
    """Σ x along the last axis, in another order in each call."""
    return x[..., draws.permutation(x.shape[-1])].sum(axis=-1, keepdims=True)


def test_sums_in_another_order_are_no_mistake_even_where_their_terms_cancel(rng):
    """The gradient of the shift is 0, rounded otherwise in each call; so are digits of the value."""

    def shifted_softmax(x, shift):
        e = np.exp(x + shift)
        y = e / sums_in_any_order(e)

        def pullback(dy):
            dx = y * (dy - sums_in_any_order(y * dy))
            return dx, sums_in_any_order(dx)

        return y, pullback

    def centred(x):
        n = x.shape[-1]
        return x - sums_in_any_order(x) / n, lambda dy: (dy - sums_in_any_order(dy) / n,)

    for dtype in ("float64", "float32"):
        mh.gradcheck(
            shifted_softmax, *(rng.standard_normal(s).astype(dtype) for s in ((3, 20), (3, 1)))
        )
        mh.gradcheck(centred, (1e4 + rng.standard_normal((3, 20))).astype(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rounding_that_two_calls_do_not_show_is_no_mistake(rng, dtype):
    """The first calls may add in the same order by chance, and later ones in another order."""
    factors = rng.standard_normal((1, 64))
    factors -= factors.mean()
    orders = [np.arange(64)] * 3

    def sums_to_zero(x):
        f = factors.astype(x.dtype)

        def pullback(dy):
            order = orders.pop() if orders else draws.permutation(64)
            terms = (f * dy)[..., order]
            return (np.cumsum(terms, axis=-1)[..., -1:],)  # one term after another

        return (x * f).sum(axis=-1, keepdims=True), pullback

    mh.gradcheck(sums_to_zero, rng.standard_normal((3, 1)).astype(dtype))


def test_draws_are_found_beside_masked_scores(rng):
    visible = np.tri(5, dtype=bool)

    def dropped(scores):
        keep = draws.random(scores.shape) < 0.8
        return np.where(visible, scores * keep, -1e9), lambda dy: (dy * visible * keep,)

    with pytest.raises(mh.GradcheckError, match=r"two calls .* does it draw random"):
        mh.gradcheck(dropped, rng.standard_normal((5, 5)))


def test_calls_that_differ_by_little_more_than_rounding_are_found(rng):
    def noisy(x):
        return x * (1 + 1e-6 * draws.standard_normal(x.shape)), lambda dy: (dy,)

    for seed in range(20):  # the noise is float64, and so is the result for inputs in float32
        draws = np.random.default_rng(seed)
        with pytest.raises(mh.GradcheckError, match="two calls"):
            mh.gradcheck(noisy, rng.standard_normal(5))


def returning(pullback):
    """The function x → 1.0 · x with this pullback."""
    return lambda x: (1.0 * x, pullback)


def tapped(dy):
    """A function whose pullback returns this value for its intermediate, whose name is a number."""

    def f(x, *, tap=lambda _, x: x):
        y = tap(1, 2 * x)
        return y, lambda dx: (3 * dx, {1: dy})

    return f


@pytest.mark.parametrize(("f", "message"), [
    (returning(lambda dy: dy), r"a tuple of gradients, not an array; \(dx,\), with a comma"),
    (returning(lambda dy: None), "not None: is a return missing"),
    (returning(lambda dy: (dy, dy)), "2 gradients for 1 input that"),
    (returning(lambda dy: (dy.sum(),)), r"shape +\(\), but the input has \(3,\)"),
    (returning(lambda dy: (dy.astype("float32"),)), "has dtype float32, the input float64"),
    (returning(lambda dy: (mh.Tensor(dy),)), "of x is a Tensor: a pullback returns arrays"),
    (returning(lambda dy: ([1.0, 2.0, 3.0],)), "of x is a list: a pullback returns arrays"),
    (tapped("one"), "of 1 is a str: a pullback returns arrays"),
    (returning(lambda dy: (dy * np.nan,)), "the gradient of x is wrong"),
    (returning(lambda dy: (None,)), "the gradient of x is wrong"),
    (np.sin, r"\(value, pullback\), not an array; to check a function of Tensors"),
    (lambda x: None, r"\(value, pullback\), not None: is a return missing"),
    (lambda x: (x, x), r"\(value, pullback\), not a tuple of array, array$"),
    (lambda x: ([x, x], lambda a, b: (a,)), "as a tuple, not a list"),
    (lambda x: (x > 0, lambda dy: (dy,)), "the values have dtype bool"),
    (lambda x: (x * np.nan, lambda dy: (dy,)), "NaN or infinite at these inputs"),
    (lambda x: (x * draws.random(), lambda dy: (dy,)), "two calls .* gave different values"),
    (lambda x: (np.ones(3), lambda dy: (dy,)), "times the noise, which is all there should be"),
    (changes_x, "changes_x: x was changed in place"),
    (changes_x_later, "changes_x_later: x was changed in place"),
    (changes_dy, "changed its cotangent in place"),
    (adds_up, "the pullback gave two gradients of x"),
    (hands_out, "returns the same array each time"),
    (hands_out_values, "changed the value that the first had returned"),
])  # fmt: skip
def test_an_invalid_pullback_raises_an_error_with_the_reason(f, message, rng):
    x = rng.standard_normal(3)
    before = x.copy()
    with pytest.raises(mh.GradcheckError, match=message):
        mh.gradcheck(f, x)
    np.testing.assert_array_equal(x, before)


def test_a_function_of_tensors_must_return_tensors(rng):
    x = mh.Tensor(rng.standard_normal(3))
    with pytest.raises(mh.GradcheckError, match="must return Tensors, not Tensor, function"):
        mh.gradcheck(lambda x: (x, lambda dy: dy), x)


def test_plain_numbers_may_be_values_and_gradients():
    mh.gradcheck(lambda x: (float(x) ** 2, lambda dy: (2.0 * float(x) * float(dy),)), np.array(3.0))


def test_axis_names_are_validated(rng):
    x = rng.standard_normal((2, 3))
    mh.gradcheck(mh.ops.tanh, x, axes="row column")
    with pytest.raises(ValueError, match=r"3 names for x, which has shape \(2, 3\)"):
        mh.gradcheck(mh.ops.tanh, x, axes=["a b c"])


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 100), marks=pytest.mark.thorough)]
)
def test_no_seed_gives_a_false_alarm(seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(s) for s in [(2, 3, 4), (2, 5, 4), (2, 5, 3)]]
        mh.gradcheck(mh.scaled_dot_product_attention, *inputs, rng=rng)


@pytest.mark.parametrize("seed", range(4))
def test_a_pullback_that_is_not_linear_fails_whatever_the_cotangent(seed, rng):
    """For a scalar, half of the random cotangents are positive."""
    wrong = lambda x: (np.sum(x**2), lambda dy: (2 * x * abs(dy),))  # noqa: E731
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(wrong, rng.standard_normal(4), rng=seed)


def test_a_pullback_that_ignores_its_cotangent_is_named_even_if_it_is_rounded_anew(rng):
    calls = []

    def ignores(x):
        return x**2, lambda dy: (calls.append(dy), (2 * x * (1 + 2e-16 * len(calls)),))[1]

    with pytest.raises(mh.GradcheckError, match="is the same whatever the cotangent is"):
        mh.gradcheck(ignores, rng.standard_normal(4))


def test_the_parameters_of_a_module_are_checked(rng):
    layer = mh.MultiHeadAttention(6, 2, dtype="float64")
    report = mh.gradcheck(layer, mh.Tensor(rng.standard_normal((2, 3, 6))))
    assert {row.input for row in report.rows} == {"query", *dict(layer.named_parameters())}
    some = {"w": dict(layer.named_parameters())["w_q"]}
    x = mh.Tensor(rng.standard_normal((2, 3, 6)))
    report = mh.gradcheck(lambda x: layer(x), x, parameters=some)
    assert {row.input for row in report.rows} == {"x", "w"}


def test_a_wrong_gradient_of_a_parameter_is_found(rng):
    x, w = (mh.Tensor(rng.standard_normal(3), requires_grad=True) for _ in range(2))
    with pytest.raises(mh.GradcheckError, match="the gradient of w is wrong; that of x is right"):
        mh.gradcheck(lambda x: x * w + 0.1 * w.detach(), x, parameters={"w": w})


@pytest.mark.parametrize("fails_at", [None, 1, 2, 3, 30])
def test_the_check_leaves_parameters_unchanged(fails_at, rng):
    """Whether they are checked or only used, and also if the function raises an error."""
    layer = mh.MultiHeadAttention(6, 2, dtype="float64")
    parameters = dict(layer.named_parameters())
    for p in parameters.values():
        p.grad = np.full(p.shape, 0.5)
    before = {name: (p.data, p.data.copy()) for name, p in parameters.items()}
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyError("midway")
        return layer(x)

    x = mh.Tensor(rng.standard_normal((1, 2, 6)))
    checked = {"w_q": parameters["w_q"]}
    with contextlib.suppress(KeyError):  # could also be a step outside the domain
        mh.gradcheck(f, x, parameters=checked)
    for name, p in parameters.items():
        assert p.data is before[name][0]
        np.testing.assert_array_equal(p.data, before[name][1])
        np.testing.assert_array_equal(p.grad, np.full(p.shape, 0.5))


def test_a_large_module_is_checked_along_random_directions(rng):
    layer = mh.MultiHeadAttention(66, 2, dtype="float64")
    report = mh.gradcheck(layer, mh.Tensor(rng.standard_normal((1, 2, 66))))
    methods = {row.input: row.method for row in report.rows}
    assert methods["w_q"] == "adjoint"
    assert methods["b_q"] == "central"


def test_a_nan_input_without_effect_raises_no_alarm():
    def f(x):
        known = ~np.isnan(x)
        return np.where(known, x, 0), lambda dy: (np.where(known, dy, 0.0),)

    mh.gradcheck(f, np.array([np.nan, 1.0, 2.0]))


def test_every_failing_method_explains_the_failure(rng):
    """Even where "auto" would let the gradient pass."""
    x, wrong = rng.standard_normal(3), lambda x: (x**2, lambda dy: (2.002 * x * dy,))
    for method in ("central", "fourth-order", "richardson", "complex step", "adjoint"):
        with pytest.raises(mh.GradcheckError, match=r"ratio +1\.001, the same in every entry"):
            mh.gradcheck(wrong, x, method=method)
    with pytest.raises(ValueError, match="x: no complex step: not analytic"):
        mh.gradcheck(scaled_softmax(1.0, absolute=True), x, method="complex step")
    with pytest.raises(ValueError, match="method 'exact' is not one of auto, central"):
        mh.gradcheck(mh.ops.tanh, x, method="exact")


def test_the_curve_of_a_wrong_gradient_stops_at_its_error(rng):
    pytest.importorskip("matplotlib")

    def f(x, y):
        return np.exp(x) + y * y, lambda dy: ((1 + 1e-5) * dy * np.exp(x), 2 * y * dy)

    with pytest.raises(mh.GradcheckError) as failure:
        mh.gradcheck(f, rng.standard_normal(3), rng.standard_normal(3))
    figure = failure.value.report.plot()
    wrong, right = figure.axes
    assert (wrong.get_title(), right.get_title()) == ("x", "y")
    for line in wrong.lines:
        assert 0.9e-5 < np.median(line.get_ydata()) < 1.1e-5
    assert [line.get_label() for line in right.lines] == [
        "central", "fourth-order", "richardson", "complex step",
    ]  # fmt: skip
    assert right.lines[-1].get_ydata().min() < 1e-15
    (axes,) = mh.gradcheck(scaled_softmax(1.0, absolute=True), rng.standard_normal(3)).plot().axes
    assert "complex step" not in [line.get_label() for line in axes.lines]


@pytest.mark.parametrize("factor", [0.0, 2.0, 1.01])
def test_a_mistake_only_in_float32_is_found(factor, rng):
    def f(x):
        y = np.tanh(x)

        def pullback(dy):
            dx = dy * (1 - y * y)
            return (dx * np.float32(factor) if dx.dtype == np.float32 else dx,)

        return y, pullback

    mh.gradcheck(f, rng.standard_normal(5))
    with pytest.raises(mh.GradcheckError, match="the gradient of x is wrong"):
        mh.gradcheck(f, rng.standard_normal(5).astype("float32"))


def test_cotangents_do_not_repeat_the_numbers_of_the_caller():
    """A cotangent equal to the input of a norm gives a gradient of zero."""
    rms = lambda x: np.sqrt((x * x).mean(axis=-1, keepdims=True))  # noqa: E731
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 5))
        with pytest.raises(mh.GradcheckError):
            mh.gradcheck(lambda x: (x / rms(x), lambda dy: (0 * dy,)), x, rng=seed)


PARAMETERS = "parameters must be Tensors by name, or a module, not"


@pytest.mark.parametrize(("f", "x", "settings", "message"), [
    (np.sin, np.arange(3), {}, "none of the inputs"),
    (np.sin, np.ones(3, "float16"), {}, "x is float16; only float64 and float32"),
    ((np.sin, None), np.ones(3), {}, "f is a tuple: pass a function"),
    (mh.Linear, mh.Tensor(np.ones(3)), {}, "f is the class Linear: pass a function"),
    (mh.ops.exp, mh.Tensor(np.ones(3)), {"parameters": [1]}, PARAMETERS),
    (mh.ops.exp, mh.Tensor(np.ones(3)), {"parameters": {"w": np.ones(3)}}, PARAMETERS),
])  # fmt: skip
def test_functions_that_cannot_be_checked_are_refused(f, x, settings, message):
    with pytest.raises(TypeError, match=message):
        mh.gradcheck(f, x, names=["x"], **settings)


def test_a_gradient_that_the_tape_refuses_fails_the_check(rng):
    @mh.operation
    def wrong(x):
        return 2 * x, lambda dy: (dy[:2],)

    with pytest.raises(
        mh.GradcheckError, match=r"a gradient of shape \(2,\) for an argument of \(3,\)"
    ):
        mh.gradcheck(lambda x: wrong(x) * 1.0, mh.Tensor(rng.standard_normal(3)))


def test_the_engine_without_minimha_states_only_the_facts(rng):
    explain = importlib.import_module("minimha_autograd.gradcheck.check").explain
    with explain.replaced_by(explain.default), pytest.raises(mh.GradcheckError) as failure:
        mh.gradcheck(lambda a, b: (a * b, lambda dy: (-dy * b, 3 * dy * a)), *rng.random((2, 3)))
    assert [line.split()[0] for line in str(failure.value).splitlines()] == [
        "<lambda>:", *("The", "worst", "yours", "numeric", "ratio", "error") * 2,
    ]  # fmt: skip
    assert failure.value.diagnosis is None


def test_the_diagnosis_is_loaded_when_a_check_fails():
    program = """
import sys
import numpy as np
import minimha as mh
x = np.ones(3)
mh.gradcheck(lambda x: (x, lambda dy: (dy,)), x)
assert "minimha.diagnosis" not in sys.modules
try:
    mh.gradcheck(lambda x: (x, lambda dy: (2 * dy,)), x)
except mh.GradcheckError:
    assert "minimha.diagnosis" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("last_bits", [0, 1e-9, -1e-9])
def test_of_entries_that_are_equally_wrong_the_first_is_the_worst_whatever_their_last_bits(
    last_bits,
):
    x = np.array([0.5, 1.5, 2.5])
    wrong = np.array([1.0, 1.0 + last_bits, 1.0 - last_bits])
    with pytest.raises(mh.GradcheckError, match=r"worst entry  \[0\]"):
        mh.gradcheck(lambda x: (x + 0, lambda dy: (dy + wrong,)), x)
