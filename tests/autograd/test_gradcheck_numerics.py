"""Correct gradients of difficult functions pass, and damaged ones fail.

Inputs of all magnitudes, in float64 and float32: where differences need small steps, where they
need large ones, where the output is much larger than its derivative, and where only rounding is
left.
"""

import contextlib
import itertools

import numpy as np
import pytest

import minimha as mh
from minimha import functional, ops

DTYPES = ["float64", "float32"]
R = np.random.default_rng(11)


def n(*shape):
    return R.standard_normal(shape)


def chain(x):
    """Eight layers of tanh."""
    xs = [x]
    for _ in range(8):
        xs.append(np.tanh(1.5 * xs[-1]) + 0.1 * xs[-1])
    slope = np.prod([1.5 * (1 - np.tanh(1.5 * x) ** 2) + 0.1 for x in xs[:-1]], axis=0)
    return xs[-1], lambda dy: (dy * slope,)


def size(x):
    """|x|, which is not analytic."""
    return np.abs(x), lambda dy: (dy * np.sign(x),)


attend = mh.scaled_dot_product_attention
AWKWARD = {
    "attention, tiny": (attend, 1e-4 * n(2, 3, 4), 1e-4 * n(2, 5, 4), n(2, 5, 3)),
    "attention, large scores": (attend, 6 * n(2, 3, 4), 3 * n(2, 5, 4), n(2, 5, 3)),
    "layer norm, tiny": (functional.layer_norm, 1e-3 * n(3, 6), n(6), n(6)),
    "layer norm, far from zero": (functional.layer_norm, 1e3 + n(3, 6), n(6), n(6)),
    "layer norm, huge": (functional.layer_norm, 1e6 * n(3, 6), n(6), n(6)),
    "log, tiny": (ops.log, 1e-6 * (0.5 + R.random(5))),
    "log, of all sizes": (ops.log, np.array([100.0, 0.01])),
    "sqrt, of all sizes": (ops.sqrt, np.array([100.0, 0.01])),
    "tanh, flat and steep": (ops.tanh, np.array([1e3, 1.0])),
    "divide, by tiny": (ops.divide, n(5), 1e-6 * (0.5 + R.random(5))),
    "pow, tiny": (ops.pow, 1e-6 * (0.5 + R.random(5)), n(5)),
    "max, tiny": (ops.max, 1e-6 * n(5)),
    "add, to large": (ops.add, 1e5 * n(8, 4), n(4)),
    "gelu, far below zero": (functional.gelu, R.uniform(-6, -5, 4)),
    "chain": (chain, n(6)),
    "size": (size, n(6)),
    "size, tiny": (size, 1e-6 * n(6)),
}


def sampled(cases, step=3):
    """Every third case by default, all with --thorough."""
    return [
        pytest.param(
            *case, marks=() if n % step == 0 else pytest.mark.thorough, id="-".join(map(str, case))
        )
        for n, case in enumerate(cases, 1)  # the first is the slowest
    ]


@pytest.mark.parametrize(("name", "dtype"), sampled(itertools.product(AWKWARD, DTYPES), 5))
def test_a_correct_gradient_passes_and_a_damaged_one_fails(name, dtype):
    f, *inputs = AWKWARD[name]
    inputs = [x.astype(dtype) for x in inputs]
    call = getattr(f, "with_pullback", f)
    for seed in range(3):
        mh.gradcheck(f, *inputs, rng=seed)
    for damaged in range(len(inputs)):
        for factor in (0, 2):

            def wrong(*arrays):
                value, pullback = call(*arrays)
                return value, lambda *dy: tuple(
                    dx * arrays[k].dtype.type(factor) if k == damaged else dx  # noqa: B023
                    for k, dx in enumerate(pullback(*dy))
                )

            with pytest.raises(mh.GradcheckError, match=f"of input {damaged} is wrong"):
                mh.gradcheck(wrong, *inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [
    lambda x: functional.softmax(x + 1e3),
    lambda x: functional.softmax(x).sum() - 3.0,
    lambda x: ops.log(functional.softmax(x).sum(axis=-1)),
    lambda x: functional.softmax(20.0 * x),
    lambda x: functional.softmax(200.0 * x),
    lambda x: 1.0 + 0.0 * x,
    lambda x: (0.0 * x) ** 2,
])  # fmt: skip
def test_gradients_lost_in_rounding_raise_no_alarm(f, dtype):
    """The gradient of a saturated softmax is a difference of large terms and has their rounding."""
    for seed in (1, 5, 8, 23, 51):
        x = np.random.default_rng(seed).standard_normal((3, 5)).astype(dtype)
        mh.gradcheck(f, mh.Tensor(x), rng=seed)


def test_a_gradient_lost_in_rounding_is_reported_as_such():
    """In float32, around a million, layer norm has hardly any correct digits."""
    x = (1e6 + np.random.default_rng(0).standard_normal((3, 6))).astype("float32")
    weight, bias = np.ones((2, 6), dtype="float32")
    report = mh.gradcheck(functional.layer_norm, x, weight, bias)
    assert {row.note for row in report.rows if row.input == "x"} == {"lost in rounding"}


def elementwise(value, slope):
    """A function of arrays, given by its value and its derivative."""
    return lambda x: (value(x), lambda dy: (dy * slope(x),))


sine = elementwise(lambda x: 1e200 * np.sin(x), lambda x: 1e200 * np.cos(x))
log = elementwise(np.log, lambda x: 1 / x)
sqrt = elementwise(np.sqrt, lambda x: 0.5 / np.sqrt(x))
arccos = elementwise(np.arccos, lambda x: -1 / np.sqrt(1 - x * x))
reciprocal = elementwise(lambda x: 1 / x, lambda x: -1 / x**2)
beside_one = elementwise(lambda x: 1 / (x - 1), lambda x: -1 / (x - 1) ** 2)


SIDES = [(log, 0, 1), (sqrt, 0, 1), (arccos, 1, -1), (reciprocal, 0, 1), (reciprocal, 0, -1)]


@pytest.mark.parametrize(
    ("f", "edge", "side", "distance"),
    [
        *((*case, distance) for distance in (1e-3, 1e-8, 1e-12) for case in SIDES),
        *((beside_one, 1, side, 1e-8) for side in (1, -1)),
        (sine, 0, 1, 1e-3),  # the squares of its values would overflow
    ],
)
def test_a_correct_gradient_near_a_domain_edge_or_a_pole_passes(f, edge, side, distance):
    mh.gradcheck(f, np.array([edge + side * distance, 0.3, 0.5]))


@pytest.mark.parametrize(
    ("unit", "scale"),
    sampled(
        itertools.product([1e-100, 1e-30, 1e-12, 1e6, 1e30], [1e-200, 1e-30, 1.0, 1e30, 1e100])
    ),
)
def test_the_scale_of_inputs_and_outputs_does_not_matter(unit, scale):
    x = unit * np.array([0.3, -1.1, 0.7, 0.2])

    def tanh(x, damage=0.0):
        y = np.tanh(x / unit)
        return scale * y, lambda dy: (scale / unit * dy * (1 - y * y) * (1 + damage),)

    mh.gradcheck(tanh, x)
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(lambda x: tanh(x, 1e-9), x)


def test_a_function_that_raises_outside_its_domain_can_be_checked():
    def strict(x):
        if (x.real <= 0).any():
            raise ValueError("not positive")
        return log(x)

    mh.gradcheck(strict, np.array([1e-3, 0.5]))
    mh.gradcheck(lambda x: strict(np.abs(x)), np.array([1e-3, 0.5]))


def test_a_value_that_is_nan_for_every_step_is_reported():
    def alone(x):
        y, pullback = size(x)
        y[0] = y[0] if x[0] == 1 else np.nan
        return y, pullback

    with pytest.raises(mh.GradcheckError, match="close to input 0 the value is NaN or infinite"):
        mh.gradcheck(alone, np.array([1.0, 2.0]), names=["input 0"])


def largest(slope):
    """The largest entry; ties share the gradient equally."""

    def f(x):
        top = x == x.max()
        return np.max(x, keepdims=True), lambda dy: (slope * dy * top / top.sum(),)

    return f


def test_ties_are_kinks_not_noise():
    tied = np.array([1.0, 1.0, 0.3])
    report = mh.gradcheck(largest(1), tied)
    assert not any("lost in rounding" in row.note for row in report.rows)
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(largest(3), tied)


@pytest.mark.parametrize("side", [-1.0, -0.3, 0.0, 0.5, 1.0, -1.001, 1.001, 1 + 1e-9, 2.0])
def test_at_a_kink_only_slopes_between_those_on_either_side_are_right(side):
    f = elementwise(np.abs, lambda x: np.where(x == 0, side, np.sign(x)))
    x = np.array([0.0, 1.0, -2.0])
    if abs(side) > 1:
        with pytest.raises(mh.GradcheckError, match=r"1 of 3 entries, all at axis 0: 0"):
            mh.gradcheck(f, x)
    else:
        notes = [row.note for row in mh.gradcheck(f, x).rows]
        for note in notes:
            assert not side or note.startswith("kink at 1 of 3 entries"), notes


@pytest.mark.parametrize("x", [np.array([-1e-3, 1.0]), np.array([-1e-6, 1.0]), np.array(-1e-3)])
def test_next_to_a_kink_the_slope_of_its_other_side_is_wrong(x):
    relu = elementwise(lambda x: np.maximum(x, 0), lambda x: x > -0.01)
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(relu, x)


SHARPNESS = {"central": 1e-5, "fourth-order": 1e-8, "richardson": 1e-9, "complex step": 1e-11}


@pytest.mark.parametrize("method", SHARPNESS)
def test_each_method_is_as_accurate_as_documented(method):
    x, damaged = n(2, 3), elementwise(np.exp, lambda x: np.exp(x) * (1 + SHARPNESS[method]))
    assert method in {row.method for row in mh.gradcheck(ops.exp, x, method=method).rows}
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(damaged, x, method=method)


@pytest.mark.parametrize("shape", [(80, 80), (0, 3), (), (4,)])
def test_random_directions_find_a_single_wrong_entry(shape):
    def f(x, damage=0.0):
        def pullback(dy):
            dx = np.array(2 * x * dy)
            dx[(0,) * dx.ndim] *= 1 + damage
            return (dx,)

        return x * x, pullback if x.size else lambda dy: (dy,)

    x = n(*shape)
    (row,) = mh.gradcheck(f, x, method="adjoint").rows
    assert "4 random directions" in row.note
    if x.ndim and x.size:
        with pytest.raises(mh.GradcheckError):
            mh.gradcheck(lambda x: f(x, 1e-5), x, method="adjoint")


@pytest.mark.parametrize(("factor", "seen"), [(1 + 5e-13, False), (1 + 5e-12, True)])
def test_the_smallest_factor_that_the_complex_step_sees_is_about_a_trillionth(factor, seen):
    f = elementwise(np.exp, lambda x: factor * np.exp(x))
    if seen:
        with pytest.raises(mh.GradcheckError):
            mh.gradcheck(f, n(2, 3))
    else:
        mh.gradcheck(f, n(2, 3))


@pytest.mark.parametrize(("size", "seen"), [(1e-13, False), (1e-10, True)])
def test_an_entry_ten_trillion_times_smaller_than_the_largest_is_not_checked(size, seen):
    scale = np.array([1.0, size])
    f = elementwise(lambda x: scale * np.exp(x), lambda x: [1.0, 0.0] * np.exp(x))
    if seen:
        with pytest.raises(mh.GradcheckError):
            mh.gradcheck(f, np.ones(2))
    else:
        mh.gradcheck(f, np.ones(2))


def test_a_gradient_can_be_lost_in_rounding_in_float64_too():
    """That of a softmax with one score far above the others: a backward of zeros may pass."""
    x = np.array([[0.0, 42.0, 3.0, 1.0]])
    sooner = np.array([[0, 20, 3, 1]], "float32")
    for inputs in x, mh.Tensor(sooner):
        report = mh.gradcheck(functional.softmax, inputs)
        assert "lost in rounding" in {row.note for row in report.rows}
    passed = []
    for seed in range(6):
        with contextlib.suppress(mh.GradcheckError):
            mh.gradcheck(lambda x: (functional.softmax(x), lambda dy: (0 * dy,)), x, rng=seed)
            passed.append(seed)
    assert 0 in passed  # it depends on the cotangent
    assert len(passed) < 6


def test_the_complex_step_does_not_see_what_differences_cannot_confirm():
    f = elementwise(lambda x: x + 1e-10 * np.abs(x), lambda x: np.ones_like(x))
    mh.gradcheck(f, np.array([0.5, 2.0]))


def test_rows_of_layer_norm_sum_to_zero_only_without_gain_and_bias():
    x, gain, bias = n(3, 5), n(5), n(5)
    assert np.abs(functional.layer_norm(x, np.ones(5), np.zeros(5)).sum(axis=-1)).max() < 1e-14
    for settings in ((gain, np.zeros(5)), (np.ones(5), bias)):
        assert np.abs(functional.layer_norm(x, *settings).sum(axis=-1)).max() > 0.1


def test_the_maximum_of_complex_numbers_by_library():
    """NumPy compares real parts, then imaginary ones; torch refuses."""
    steps = 1e-20j * np.eye(3)
    slopes = [(np.array([0.7, -0.4, 1.5]) + step).max().imag / 1e-20 for step in steps]
    np.testing.assert_array_equal(slopes, [0, 0, 1])
    slopes = [(np.array([1.5, -0.4, 1.5]) + step).max().imag / 1e-20 for step in steps]
    np.testing.assert_array_equal(slopes, [1, 0, 1])
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="not implemented for 'Complex"):
        torch.ones(2, dtype=torch.complex128).max()


def test_in_the_tail_of_a_function_a_wrong_sign_is_lost_in_rounding():
    """The rounding error of a gradient is measured closer to zero, too, where exp(−x) is steep."""

    def f(x):
        y = np.exp(-x)
        return y, lambda dy: (dy * y,)  # right: −dy · y

    def right(x):
        y = np.exp(-x)
        return y, lambda dy: (-dy * y,)

    wrong = mh.gradcheck(f, np.array([35.0, 36.0]))
    exact = mh.gradcheck(right, np.array([34.5]))
    for row in (*wrong.rows, *exact.rows):
        assert "lost in rounding" in row.note, row
    with pytest.raises(mh.GradcheckError):  # although the right one has that note
        mh.gradcheck(f, np.array([34.5]))
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(f, np.array([3.5, 3.6]))
    with pytest.raises(mh.GradcheckError):  # zeros have no rounding error there either
        mh.gradcheck(lambda x: (np.exp(-x), lambda dy: (0 * dy,)), np.array([35.0, 36.0]))


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_whether_zeros_fail_does_not_depend_on_the_scale_of_the_output(scale, rng):
    def squared(x, right=True):
        return scale * (x * x), lambda dy: (scale * 2 * x * dy if right else 0 * x,)

    x = rng.standard_normal((3, 5))
    mh.gradcheck(squared, x)
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(lambda x: squared(x, right=False), x)


def test_zeros_pass_if_rounding_hides_the_changes_of_the_output(rng):
    mh.gradcheck(lambda x: (1e17 + x * x, lambda dy: (0 * x,)), rng.standard_normal((3, 5)))


def test_where_the_complex_step_underflows_differences_do_not_confirm_it(rng):
    """Although the function is analytic."""
    scale = 1e-304
    report = mh.gradcheck(lambda x: (scale * x**2, lambda dy: (scale * 2 * x * dy,)), rng.random(3))
    assert any("no complex step" in row.note for row in report.rows)


def test_differences_far_above_those_of_rounding_in_float32_are_taken_for_rounding_too():
    from minimha_autograd.gradcheck.repeated import is_rounding

    def accepted(ratio):
        one, other, single = np.zeros(1), np.ones(1), np.zeros(1, "float32")
        found = [single, single + np.float32(ratio)]
        return is_rounding(one, other, 0.0, lambda: one, lambda: found)

    assert accepted(2.0**29)
    assert accepted(2.0**15)
    assert not accepted(2.0**14)
