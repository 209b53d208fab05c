"""At a kink a gradient is right if it is a weighted mean of those at points nearby, over all inputs
jointly."""

import contextlib
import re
from functools import partial

import numpy as np
import pytest
import ties

import minimha as mh

DTYPES = "float64", "float32"


def cases(names):
    """Every second one in float64, and some of the others in float32; with --thorough, all."""
    for n, name in enumerate(names):
        for dtype, often in (("float64", n % 2 == 0), ("float32", n % 6 == 1)):
            marks = () if often else pytest.mark.thorough
            yield pytest.param(name, dtype, id=f"{name}, {dtype}", marks=marks)


@pytest.fixture
def seeds(request):
    return range(3 if request.config.getoption("--thorough") else 1)


@pytest.mark.parametrize(("name", "dtype"), list(cases(ties.RIGHT)))
def test_a_right_choice_at_a_kink_passes(name, dtype, seeds):
    for seed in seeds:
        f, *inputs = ties.RIGHT[name](np.random.default_rng(seed), dtype)
        mh.gradcheck(f, *inputs, rng=seed)


@pytest.mark.parametrize(("name", "dtype"), list(cases(ties.WRONG)))
def test_a_wrong_choice_at_a_kink_is_refused_and_named(name, dtype, seeds):
    for seed in seeds:
        f, *inputs = ties.WRONG[name](np.random.default_rng(seed), dtype)
        with pytest.raises(mh.GradcheckError, match="at a kink") as found:
            mh.gradcheck(f, *inputs, rng=seed)
        assert found.value.diagnosis.cause == "kink"
        assert "looks like" not in str(found.value)


@pytest.mark.parametrize(("shares", "size"), [((1, 0), 1), ((0, 1, 0), 2), ((0.3, 0.3, 0.4), 2)])
def test_shares_that_are_the_same_beside_the_tie_are_judged_at_the_tie(shares, size):
    """Such a pullback is right only here, so that the pieces must be found by differences."""

    def largest(*x):
        return np.maximum.reduce(x), lambda dy: tuple(dy * share for share in shares)

    mh.gradcheck(largest, *(np.ones(size) for _ in shares))


def refused(name):
    """The message about a wrong choice, with the line breaks taken out."""
    f, *inputs = ties.WRONG[name](np.random.default_rng(0), "float64")
    with pytest.raises(mh.GradcheckError) as found:
        mh.gradcheck(f, *inputs)
    return " ".join(str(found.value).split())


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("max, every", r"x\[0\], x\[1\] and x\[2\] increase together, the slope nearby is (\S+);"),
        ("maximum, both", r"a\[0\] and b\[0\] increase together, the slope nearby is (\S+);"),
        ("|x1 + x2| with (0.9, -0.9)", r"x\[0\] increases and x\[1\] decreases together, the"),
        ("relu with 2", r"If x\[0\] increases, the slopes nearby lie between \S+ and \S+; the"),
        ("relu at one number", r"If x increases, the slopes nearby lie between"),
    ],
)
def test_the_message_says_which_entries_move_and_what_the_slope_is(name, claim):
    assert re.search(claim, refused(name)), refused(name)


def test_what_the_maximum_of_three_equal_entries_claims():
    text = refused("max, every")
    slope, claimed = (float(text.partition(mark)[2].split()[0].strip(";."))
                      for mark in ("the slope nearby is ", "the gradient claims "))  # fmt: skip
    np.testing.assert_allclose(claimed, 3 * slope, rtol=1e-5)


def test_the_report_counts_the_entries_at_kinks():
    f, x = ties.RIGHT["max, shares"](np.random.default_rng(0), "float64")
    for row in mh.gradcheck(f, x).rows:
        assert row.note.startswith("kink at 3 of 4 entries"), row
    f, x = ties.RIGHT["abs with 0, all zeros"](np.random.default_rng(0), "float64")
    for row in mh.gradcheck(f, x).rows:
        assert row.note.startswith("kink at 3 of 3 entries"), row


def test_right_choices_in_each_step_may_be_wrong_together():
    """relu(x) − relu(−x) is x: its slope is 1, whatever is chosen in its steps."""
    relu = mh.functional.relu
    x = mh.Tensor(np.array([0.0, 1.0]))
    with pytest.raises(mh.GradcheckError, match=r"at a kink[\s\S]*If x\[0\] increases, the slope"):
        mh.gradcheck(lambda x: relu(x) - relu(-1 * x), x)


def test_a_mistake_beside_the_kink_is_not_blamed_on_it():
    def twice(x):
        return np.maximum(x, 0), lambda dy: (2 * dy * (x > 0),)

    with pytest.raises(mh.GradcheckError) as found:
        mh.gradcheck(twice, np.array([0.0, 1.0, 2.0]))
    assert found.value.diagnosis.cause == "factor"


def test_a_parameter_at_a_kink():
    layer = mh.nn.Linear(3, 2, dtype="float64")
    for p in layer.parameters():
        p.data[...] = 0
    x = mh.Tensor(np.ones((4, 3)))
    report = mh.gradcheck(lambda x: mh.functional.relu(layer(x)), x, parameters=layer)
    notes = {row.input: row.note for row in report.rows}
    assert "kink at 2 of 2 entries" in notes["bias"]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_after_layer_norm_whose_gradients_are_a_hundred_times_larger(dtype):
    """The second row is constant: with σ = √ε, its x hides the pieces that depend on the bias."""
    x, weight, bias = (
        mh.Tensor(np.array(x, dtype=dtype))
        for x in ([[1, 2, 3, 2], [5, 5, 5, 5], [0, 1, 0, 1]], np.ones(4), np.zeros(4))
    )
    for seed in range(4):
        mh.gradcheck(
            lambda x, weight, bias: mh.functional.relu(mh.functional.layer_norm(x, weight, bias)),
            *(x, weight, bias),
            rng=seed,
        )


def test_what_is_not_decided_is_said():
    """A norm at 0 has a piece for each direction: here the gradient is nearly as long as theirs."""
    f, x = ties.norm(3**-0.5 - 1e-7), np.zeros(3)
    for row in mh.gradcheck(f, x).rows:
        assert "kink at 3 of 3 entries, which is not decided" in row.note


def test_ties_broken_by_rounding_do_not_excuse_mistakes():
    """0.1 + 0.2 − 0.3 is 5e-17: other rounding leads to another piece, and is no noise."""

    def f(x, at_tie=0.0):
        z = x[0] + x[1] - x[2]
        slope = at_tie if abs(z) < 1e-15 else z > 0
        return np.asarray(np.maximum(z, 0)), lambda dy: (dy * slope * np.array([1.0, 1, -1]),)

    x = np.array([0.1, 0.2, 0.3])
    for right in (0, 0.5, 1):
        mh.gradcheck(partial(f, at_tie=right), x)
    for wrong in (-0.5, 2):
        with pytest.raises(mh.GradcheckError, match="at a kink"):
            mh.gradcheck(partial(f, at_tie=wrong), x)


def test_a_function_without_kinks_is_called_a_few_times_more():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return np.exp(x), lambda dy: (dy * np.exp(x),)

    from minimha_autograd.gradcheck import kinks

    mh.gradcheck(f, np.ones(50))
    all_of_them, calls = calls, 0
    varies = kinks.Kinks._varies
    try:
        kinks.Kinks._varies = lambda *_: False
        mh.gradcheck(f, np.ones(50))
    finally:
        kinks.Kinks._varies = varies
    assert all_of_them - calls <= 32


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.thorough)])
def test_kinks_of_large_arrays_which_are_checked_along_directions(dtype, rng):
    x = rng.integers(-1, 2, (70, 70)).astype(dtype)
    (row,) = mh.gradcheck(ties.relu(0), x).rows
    assert "kink at" in row.note
    assert "4 random directions" in row.note
    bad = np.zeros((70, 70))
    bad[tuple(np.argwhere(x == 0)[7])] = -1
    with pytest.raises(mh.GradcheckError, match="at a kink"):
        mh.gradcheck(ties.relu(bad), x)


def test_the_hull_of_points_has_the_nearest_point_that_an_optimiser_finds(rng):
    optimize = pytest.importorskip("scipy.optimize")
    from minimha_autograd.gradcheck.hull import Hull

    for _ in range(20):
        points, g = rng.standard_normal((9, 4)), 1.5 * rng.standard_normal(4)
        hull = Hull(points, np.full(4, 1e-10))
        found = np.linalg.norm((hull.nearest(g) - g) / hull.scale)
        best = optimize.minimize(
            lambda w, p=points, g=g, s=hull.scale: np.sum(((w @ p - g) / s) ** 2),
            np.full(9, 1 / 9),
            bounds=[(0, 1)] * 9,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            tol=1e-12,
        )
        np.testing.assert_allclose(found, np.sqrt(best.fun), atol=1e-5)


def largest_of(x, to):
    """The maximum of x, whose gradient goes to the first, to each or in equal parts to all of the
    tied entries."""
    y = x.max()
    tied = x == y
    shares = {
        "first": np.arange(x.size) == x.argmax(),
        "each": tied,
        "all": tied / tied.sum(),
    }
    return y, lambda dy: (dy * shares[to],)


@pytest.mark.parametrize("size", [40, pytest.param(250, marks=pytest.mark.thorough)])
def test_many_entries_may_be_tied(size):
    for to in ("first", "all"):
        mh.gradcheck(partial(largest_of, to=to), np.ones(size))
    with pytest.raises(mh.GradcheckError, match="at a kink"):
        mh.gradcheck(partial(largest_of, to="each"), np.ones(size))


@pytest.mark.thorough
def test_too_many_tied_entries_are_not_decided():
    report = mh.gradcheck(partial(largest_of, to="first"), np.ones(600))
    for row in report.rows:
        assert "not decided" in row.note, row


@pytest.mark.parametrize(("size", "recognised"), [(1e-4, True), (1e-8, False)])
def test_a_kink_that_is_small_beside_the_slopes_is_not_recognised(size, recognised):
    def f(x, slope):
        slopes = np.where(x == 0, slope, x > 0)
        return x + size * np.maximum(x, 0), lambda dy: (dy * (1 + size * slopes),)

    x = np.array([0.0, 1, -1])
    mh.gradcheck(partial(f, slope=0.5), x)
    with contextlib.nullcontext() if recognised else pytest.raises(mh.GradcheckError):
        mh.gradcheck(partial(f, slope=1), x)
