"""The checker is checked: what must fail fails, what is right raises no alarm."""

import numpy as np
import pytest

import minimha as mh

SCALES = [1e-6, 1e-3, 1.0, 1e3, 1e6]


def scaled_softmax(scale, damage=1.0, absolute=False):
    """Softmax times a scale, whose gradient is damaged; made not analytic if absolute."""

    def f(x):
        y, pullback = mh.functional.softmax.with_pullback(x)
        y = np.abs(y) if absolute else y
        return scale * y, lambda dy: (damage * scale * pullback(dy)[0],)

    return f


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("damage", [0.0, 2.0, 0.5, -1.0])
def test_zeros_and_factors_fail_at_every_scale(scale, absolute, dtype, damage, rng):
    x = rng.standard_normal((3, 5)).astype(dtype)
    mh.gradcheck(scaled_softmax(scale, absolute=absolute), x)
    with pytest.raises(mh.GradcheckError, match="the gradient of x is wrong"):
        mh.gradcheck(scaled_softmax(scale, damage, absolute), x)


@pytest.mark.parametrize("scale", SCALES)
def test_a_backward_of_zeros_fails_on_tensors_too(scale, rng):
    def f(x):
        return scale * mh.functional.softmax(x).detach() + 0.0 * x

    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(f, mh.Tensor(rng.standard_normal((3, 5))))


def test_one_wrong_entry_is_found_and_named(rng):
    def f(query):
        def pullback(dy):
            dx = 2 * dy * query
            dx[1, 2, 0] *= 1 + 1e-9
            return (dx,)

        return query * query, pullback

    with pytest.raises(mh.GradcheckError) as failure:
        mh.gradcheck(f, 1 + rng.random((2, 3, 2)), axes=["head query width"])
    message = str(failure.value)
    assert "the gradient of query is wrong" in message
    assert "head 1, query 2, width 0" in message
    assert "yours" in message
    assert "numeric" in message
    assert "ratio        1.000000001\n" in message


def test_a_constant_ratio_is_said(rng):
    def f(x):
        return np.tanh(x), lambda dy: (-dy * (1 - np.tanh(x) ** 2),)

    with pytest.raises(mh.GradcheckError, match="ratio        -1, the same in every entry"):
        mh.gradcheck(f, rng.standard_normal(4))


def test_structural_zeros_raise_no_alarm_at_any_scale():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scale = 10.0 ** rng.integers(-6, 7)

        def f(x, shift):
            return scale * mh.functional.softmax(x + shift)  # noqa: B023

        report = mh.gradcheck(
            f,
            mh.Tensor(rng.standard_normal((3, 5))),
            mh.Tensor(rng.standard_normal((3, 1))),
            rng=seed,
        )
        assert {r.input for r in report.rows if r.note == "structural zero"} == {"shift"}


def test_what_is_not_analytic_is_held_to_differences(rng):
    report = mh.gradcheck(scaled_softmax(1.0, absolute=True), rng.standard_normal(5))
    assert [(row.method, row.note) for row in report.rows] == [
        ("richardson", "no complex step: not analytic"),
        ("central", "no complex step: not analytic"),
    ]


def test_what_refuses_complex_numbers_is_held_to_differences(rng):
    def f(x):
        return np.cbrt(x), lambda dy: (dy / (3 * np.cbrt(x) ** 2),)

    report = mh.gradcheck(f, 1 + rng.random(3))
    assert [(row.method, row.note) for row in report.rows] == [
        ("richardson", "no complex step: TypeError"),
        ("central", "no complex step: TypeError"),
    ]


def test_the_report_is_a_table(rng):
    table = str(
        mh.gradcheck(mh.ops.matmul, rng.standard_normal((2, 3)), rng.standard_normal((3, 4)))
    )
    assert table.splitlines()[1].split() == ["input", "shape", "method", "error", "allowed", "note"]
    assert len(table.splitlines()) == 6


def test_names_come_from_the_function_or_the_caller(rng):
    x = mh.Tensor(rng.standard_normal(3))

    def f(first, second):
        return first * second

    assert {r.input for r in mh.gradcheck(f, x, x).rows} == {"first", "second"}
    assert {r.input for r in mh.gradcheck(f, x, x, names=["a", "b"]).rows} == {"a", "b"}
    with pytest.raises(ValueError, match="2 inputs, 1 names"):
        mh.gradcheck(f, x, x, names=["a"])


def test_arrays_beside_tensors_are_constants(rng):
    mask = rng.random((3, 4)) < 0.5

    def f(x, mask, weights):
        return mh.functional.softmax(x, mask=mask) * weights

    report = mh.gradcheck(f, mh.Tensor(rng.standard_normal((3, 4))), mask, rng.random((3, 4)))
    assert {row.input for row in report.rows} == {"x"}


def test_several_values_each_get_a_cotangent(rng):
    def f(x):
        return np.sin(x), np.cos(x)

    def right(x):
        return f(x), lambda da, db: (da * np.cos(x) - db * np.sin(x),)

    def forgets_one(x):
        return f(x), lambda da, db: (da * np.cos(x),)

    mh.gradcheck(right, rng.standard_normal(3))
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(forgets_one, rng.standard_normal(3))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda dy: dy, "must return a tuple"),
        (lambda dy: (dy, dy), "2 gradients for 1 inputs"),
        (lambda dy: (dy.sum(),), r"has shape \(\), the input \(3,\)"),
        (lambda dy: (dy.astype("float32"),), "has dtype float32, the input float64"),
        (lambda dy: (mh.Tensor(dy),), "is a Tensor"),
        (lambda dy: (dy * np.nan,), "wrong"),
        (lambda dy: (None,), "wrong"),
    ],
)
def test_gradients_of_the_wrong_kind_are_named(returned, message, rng):
    with pytest.raises(mh.GradcheckError, match=message):
        mh.gradcheck(lambda x: (x * 1.0, returned), rng.standard_normal(3))


def test_a_function_of_arrays_without_a_pullback_is_told_what_to_return():
    with pytest.raises(mh.GradcheckError, match=r"\(value, pullback\)"):
        mh.gradcheck(np.sin, np.ones(3))


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


draws = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (changes_x, "changes_x: x was changed in place"),
        (changes_x_later, "changes_x_later: x was changed in place"),
        (changes_dy, "changed its cotangent in place"),
        (lambda x: (x * draws.random(), lambda dy: (dy,)), "two calls .* gave different values"),
        (lambda x: (np.full_like(x, np.nan), lambda dy: (dy,)), "NaN or infinite at these inputs"),
        (lambda x: ([x, x], lambda a, b: (a,)), "as a tuple, not a list"),
        (lambda x: (x > 0, lambda dy: (dy,)), "the values have dtype bool"),
        (
            lambda x: (2 * x, lambda dy: ([1.0, 2.0, 3.0],)),
            "of x is a list: a pullback returns arrays",
        ),
    ],
)
def test_what_is_no_question_of_numbers_is_said(f, message, rng):
    x = rng.standard_normal(3)
    before = x.copy()
    with pytest.raises(mh.GradcheckError, match=message):
        mh.gradcheck(f, x)
    np.testing.assert_array_equal(x, before)


def test_a_function_of_tensors_must_return_tensors(rng):
    x = mh.Tensor(rng.standard_normal(3))
    with pytest.raises(mh.GradcheckError, match="must return Tensors, not Tensor, function"):
        mh.gradcheck(lambda x: (x, lambda dy: dy), x)


def test_numbers_are_values_and_gradients_too():
    mh.gradcheck(lambda x: (float(x) ** 2, lambda dy: (2.0 * float(x) * float(dy),)), np.array(3.0))


@pytest.mark.parametrize("dtype", ["float16", "longdouble"])
def test_other_floats_are_refused(dtype, rng):
    x = rng.random(3).astype(dtype)
    if x.dtype == np.float64:
        pytest.skip("longdouble is float64 on this platform")
    with pytest.raises(TypeError, match=f"x is {x.dtype}; only float64 and float32"):
        mh.gradcheck(lambda x: (x, lambda dy: (dy,)), x)


def test_a_row_that_proves_nothing_says_so_without_a_complex_step_too():
    def constant(x):
        return np.abs(np.ones(3)) + 0 * np.abs(x), lambda dy: (0 * dy,)

    (row,) = mh.gradcheck(constant, np.array([1.0, -2.0, 3.0])).rows[-1:]
    assert row.note.startswith("structural zero")

    def cube_root(x):
        return 1 + 0 * np.cbrt(x), lambda dy: (0 * dy,)

    for row in mh.gradcheck(cube_root, np.array([1.0, -2.0, 3.0])).rows:
        assert row.note == "structural zero; no complex step: TypeError"


def test_axes_are_looked_at_before_anything_else(rng):
    x = rng.standard_normal((2, 3))
    mh.gradcheck(mh.ops.tanh, x, axes="row column")
    with pytest.raises(ValueError, match=r"3 names for x, which has shape \(2, 3\)"):
        mh.gradcheck(mh.ops.tanh, x, axes=["a b c"])


def test_a_gradient_where_none_should_be_is_called_that(rng):
    with pytest.raises(mh.GradcheckError, match="times the noise, which is all there should be"):
        mh.gradcheck(lambda x: (np.ones(3), lambda dy: (dy,)), rng.standard_normal(3))


def test_nothing_to_check_is_an_error():
    with pytest.raises(TypeError, match="none of the inputs"):
        mh.gradcheck(np.sin, np.arange(3))


def test_a_hundred_seeds_and_no_false_alarm():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(s) for s in [(2, 3, 4), (2, 5, 4), (2, 5, 3)]]
        mh.gradcheck(mh.functional.attention, *inputs, rng=rng)
