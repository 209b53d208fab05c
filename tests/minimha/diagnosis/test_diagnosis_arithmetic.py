"""Diagnoses of mistakes that have nothing to do with attention."""

import re

import numpy as np
import pytest

import minimha as mh
from minimha.diagnosis import explanation


def found(f, *inputs, **settings):
    """The error of a check that must fail."""
    with pytest.raises(mh.GradcheckError) as failed:
        mh.gradcheck(f, *inputs, **settings)
    return failed.value


def text(error):
    """The message of an error, on one line."""
    return " ".join(str(error).split())


def cause(f, *inputs):
    return found(f, *inputs).diagnosis.cause


def plain(value, gradient):
    """A function of one array, with its gradient from x and dy."""
    return lambda x: (value(x), lambda dy: (gradient(x, dy),))


def tanh_layer(told=lambda dh: {"inner": dh}):
    """tanh(x w), with twice the gradient of w; `told` makes the intermediate gradients."""

    def f(x, w, *, tap=lambda _, x: x):
        y = np.tanh(tap("inner", x @ w))
        dh = lambda dy: dy * (1 - y * y)  # noqa: E731
        return y, lambda dy: (dh(dy) @ w.T, 2 * (x.T @ dh(dy)), told(dh(dy)))

    return f


def blames_w(error):
    """Whether the error says that the gradient of w is off by a factor."""
    return error.diagnosis.nodes == ("w",) and error.diagnosis.cause == "factor"


def product(scale_left=1, scale_right=1):
    """x y for x (B, T, M) and y (M, N), with scaled gradients."""

    def f(x, y):
        right = lambda dy: (dy @ y.T, np.tensordot(x, dy, ((0, 1), (0, 1))))  # noqa: E731
        return x @ y, lambda dy: (scale_left * right(dy)[0], scale_right * right(dy)[1])

    return f


SQUARE = {  # any number is a multiple of a single number
    "unexplained": lambda x, dy: 2.3 * x * dy,
    "sign": lambda x, dy: -2 * x * dy,
    "factor": lambda x, dy: x * dy,
}
NAMED = [
    (f"{name} of shape {shape}", plain(np.square, wrong), shape)
    for name, wrong in SQUARE.items()
    for shape in ((), (1,), (1, 1))
]
NAMED += [
    ("factor", product(0.5), (2, 4, 5), (5, 3)),
    ("averaged over batch and positions", product(1, 1 / 8), (2, 4, 5), (5, 2)),
    ("averaged", plain(np.sum, lambda x, dy: np.full_like(x, dy / x.size)), (3, 5)),
    ("unexplained dy · b", lambda a, b, c: (a * b * c, lambda dy: (dy * b, dy * a * c, dy * a * b)), *[(4, 4)] * 3),
    ("slope-missing, the value itself", plain(np.exp, lambda _, dy: dy), (3, 4)),
    ("slope-missing, no dropout", plain(lambda x: np.where(x.real > 0, 2 * x, 0), lambda _, dy: dy), (3, 4)),
    ("not-linear, no cotangent", plain(lambda x: (x * x).sum(), lambda x, dy: 2 * x), (4,)),
    ("not-linear, its sign", plain(lambda x: 2 * x, lambda x, dy: np.maximum(dy, 0)), (4,)),
    ("unexplained, close to 0", lambda x, y: (1e-12 * x * y, lambda dy: (1e-12 * dy * y, dy * 1e-12 * y)), (5, 3), (3,)),
    ("sign, no rotation", plain(lambda x: -x, lambda _, dy: dy), (2, 3, 4)),
    ("another-input, by their shapes", lambda a, b: (a @ b, lambda dy: (a.T @ dy, dy @ b.T)), (3, 4), (4, 5)),
    ("another-input, no table", lambda a, b: (np.concatenate((a, b)), lambda dy: (dy[3:], dy[:3])), (3, 4), (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case[0])
def test_a_cause_is_named(case, rng):
    name, f, *shapes = case
    assert cause(f, *map(rng.standard_normal, shapes)) == re.match(r"[\w-]+", name)[0]


def test_the_wrong_factor_of_an_elementwise_product_is_named(rng):
    error = found(lambda a, b: (a * b, lambda dy: (dy * a, dy * a)), *rng.random((2, 4, 4)))
    assert error.diagnosis.cause == "operand-wrong"
    assert "da = dy · a. Correct: da = dy · b" in text(error)


def test_a_missing_path_is_not_named_if_a_wrong_factor_would_look_the_same(rng):
    @mh.operation
    def halved(x):
        """x², with half of its gradient."""
        return x * x, lambda dy: (x * dy,)

    x = mh.Tensor(rng.standard_normal((3, 4)), requires_grad=True)
    assert cause(lambda x: halved(x) * x, x) == "factor"  # d/dx: 2 of x² · x through halved, 1 not


def test_arrays_may_be_changed_after_they_were_tapped(rng):
    def f(x, w, *, tap=lambda _, x: x):
        inner = tap("inner", x @ w)
        inner += 1
        y = np.tanh(inner)
        dh = lambda dy: dy * (1 - y * y)  # noqa: E731
        return y, lambda dy: (dh(dy) @ w.T, 3 * x.T @ dh(dy), {"inner": dh(dy)})

    assert blames_w(found(f, rng.standard_normal((3, 4)), rng.standard_normal((4, 5))))


def rounded_anew():
    """Changes each entry of an array in its last bits, differently in each call: on some machines,
    that is what the order of a sum does, and it depends on where the arrays lie in memory."""
    rng = np.random.default_rng(0)
    return lambda x: x * (1 + 2e-16 * rng.integers(-4, 5, x.shape))


def test_a_node_that_is_only_rounded_anew_is_not_taken_for_moved(rng):
    rounded = rounded_anew()

    def f(x, w, *, tap=lambda _, x: x):
        left = tap("left", rounded(x - x.mean(-1, keepdims=True)))
        right = tap("right", rounded(np.sin(w)))
        return left @ right, lambda dy: (
            (dleft := dy @ right.T) - dleft.mean(-1, keepdims=True),
            2 * (dright := left.T @ dy) * np.cos(w),
            {"left": dleft, "right": dright},
        )

    error = found(f, rng.standard_normal((3, 4)), rng.standard_normal((4, 5)))
    assert blames_w(error)
    assert error.diagnosis.wrong_gradients[0].after == ("right",)


@pytest.mark.parametrize("hidden", [
    lambda raw, mask: raw - 1e9 * mask,
    lambda raw, mask: np.where(mask, np.finfo(float).min, raw),
    lambda raw, mask: np.where(mask, -np.inf, raw),
])  # fmt: skip
def test_a_score_moves_beside_masked_scores_of_any_size(hidden, rng):
    def f(q, k, *, tap=lambda _, x: x):
        raw = tap("raw", q @ k.T)
        scores = tap("scores", hidden(raw, np.tri(5, dtype=bool).T ^ np.eye(5, dtype=bool)))
        e = np.exp(scores - scores.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)

        def pullback(dp):
            dscores = p * (dp - (p * dp).sum(-1, keepdims=True))
            draw = 3 * dscores
            return draw @ k, draw.T @ q, {"scores": dscores, "raw": draw}

        return p, pullback

    error = found(f, rng.standard_normal((5, 4)), rng.standard_normal((5, 4)))
    assert (error.diagnosis.nodes, error.diagnosis.cause) == (("raw",), "factor")
    assert error.diagnosis.wrong_gradients[0].after == ("scores",)


@pytest.mark.parametrize(
    "told",
    [
        lambda dh: {"inner": dh.astype(np.float32)},
        lambda dh: {"inner": dh + 0j},
        lambda _: {"inner": None},
    ],
)
def test_gradients_of_intermediates_may_have_other_types(told, rng):
    assert blames_w(
        found(tanh_layer(told), rng.standard_normal((3, 4)), rng.standard_normal((4, 5)))
    )


def test_a_gradient_of_an_unknown_name_is_reported(rng):
    f = tanh_layer(lambda dh: {"iner": dh})
    message = text(found(f, rng.standard_normal((3, 4)), rng.standard_normal((4, 5))))
    assert (
        "a gradient for iner, but tap is never called with that name. tap is called for inner"
        in message
    )
    assert "no gradient is returned for inner, in between" in message


def test_a_missing_gradient_is_not_called_right(rng):
    def f(x, *, tap=lambda _, x: x):
        y = tap("sine", np.sin(tap("double", 2 * x)))
        dsine = lambda dy: dy * 3 * y**2  # noqa: E731
        return y**3, lambda dy: (2 * dsine(dy), {"sine": dsine(dy), "double": dsine(dy)})

    def untold(x, *, tap=lambda _, x: x):
        value, pullback = f(x, tap=tap)
        return value, lambda dy: (pullback(dy)[0], {"double": pullback(dy)[1]["double"]})

    x = rng.standard_normal((3, 4))
    assert found(f, x).diagnosis.wrong_gradients[0].after == ("sine",)
    assert found(untold, x).diagnosis.wrong_gradients[0].after == ("the result",)


def test_a_consumer_of_many_entries_does_not_crash(rng):
    wide = rng.standard_normal((4, 80))

    def f(x, *, tap=lambda _, x: x):
        y = tap("inner", x @ wide)[:, :2]
        return y, lambda dy: (2 * dy @ wide[:, :2].T, {"inner": np.pad(dy, ((0, 0), (0, 78)))})

    diagnosis = found(f, rng.standard_normal((80, 4))).diagnosis
    assert (diagnosis.nodes, diagnosis.cause) == (("x",), "factor")


def test_for_large_arrays_the_place_is_stated_without_a_cause(rng):
    twice = plain(lambda x: 2 * x, lambda x, dy: 3 * dy)
    diagnosis = found(twice, rng.standard_normal((100, 100))).diagnosis
    assert (diagnosis.nodes, diagnosis.cause) == (("x",), "unexplained")
    assert "use smaller arrays" in diagnosis.text


def test_an_unused_result_of_tap_is_reported(rng):
    def f(x, w, *, tap=lambda _, x: x):
        h = x @ w
        tap("h", h)
        return np.tanh(h), lambda dy: (
            (dy * (1 - np.tanh(h) ** 2)) @ w.T, x.T @ dy, {"h": dy * (1 - np.tanh(h) ** 2)},
        )  # fmt: skip

    error = found(f, rng.standard_normal((3, 4)), rng.standard_normal((4, 5)))
    assert error.diagnosis.nodes == ("w",)
    assert 'write h = tap("h", h)' in text(error)


def test_a_second_result_that_nothing_uses_is_no_mistake(rng):
    @mh.operation
    def both(x):
        return (3 * x, x + 1), lambda dy, _: (2 * dy,)

    error = found(lambda x: both(x)[0], mh.Tensor(rng.standard_normal(3), requires_grad=True))
    assert error.diagnosis.cause == "factor"
    assert not re.search("tap|both 2", text(error))


def test_a_tap_may_be_required_and_a_missing_dictionary_is_reported(rng):
    def f(x, *, tap):
        h = tap("h", 2 * x)
        return h * h, lambda dy: (5 * h * dy,)

    assert 'a dictionary, {"h": dh, …}' in text(found(f, rng.standard_normal(3)))


def test_tap_is_suggested_only_to_a_function_that_accepts_one(rng):
    def f(x):
        return x * x, lambda dy: (np.roll(2 * x * dy, 1, axis=-1),)

    x = rng.standard_normal((3, 4))
    with_tap = found(lambda x, *, tap=None: f(x), x)
    assert with_tap.diagnosis.cause == found(f, x).diagnosis.cause == "unexplained"
    assert "never calls tap" in text(with_tap)
    assert "tap" not in text(found(f, x))


def test_a_gradient_of_an_input_without_effect_is_reported(rng):
    f = lambda x, y: (x * 2, lambda dy: (2 * dy, dy))  # noqa: E731
    diagnosis = found(f, rng.standard_normal((3, 4)), rng.standard_normal((3, 4))).diagnosis
    assert diagnosis.cause == "unexplained"
    assert "the result does not depend on y" in diagnosis.text


def test_a_failing_recogniser_leaves_the_facts_in_the_message(rng, monkeypatch):
    def broken(_):
        raise ZeroDivisionError

    monkeypatch.setattr(explanation, "RECOGNISERS", (broken, *explanation.RECOGNISERS))
    with pytest.warns(
        RuntimeWarning, match="broken failed in the backward of the step from x to the result"
    ):
        error = found(plain(np.sin, lambda x, dy: 2 * dy * np.cos(x)), rng.standard_normal(3))
    assert error.diagnosis.cause == "factor"


def test_heads_of_a_group_that_are_not_summed_are_named(rng):
    def f(q, k):
        shared = np.repeat(k, 2, axis=-3)
        return q * shared, lambda dy: (dy * shared, dy * q)

    diagnosis = found(f, *(rng.standard_normal((n, 3, 5)) for n in (4, 2))).diagnosis
    assert (diagnosis.nodes, diagnosis.cause) == (("k",), "groups-unsummed")
    assert "each head of k serves 2 query heads" in diagnosis.text


def test_one_forgotten_use_out_of_many_is_named(rng):
    def f(x, *, tap=lambda _, x: x):
        y = tuple(tap(name, step(x)) for name, step in STEPS.items())
        slopes = np.cos(x), np.exp(x), 2 * x, 3 * x * x, 0 * x  # the one of tanh is forgotten

        def pullback(*dy):
            dx = sum(a * b for a, b in zip(slopes, dy, strict=True))
            return dx, dict(zip(STEPS, dy, strict=True))

        return tuple(1 * a for a in y), pullback

    diagnosis = found(f, rng.standard_normal((3, 4))).diagnosis
    assert diagnosis.cause == "path-missing"
    assert "the share of the gradient that comes through tanh is missing" in diagnosis.text


STEPS = {
    "sin": np.sin,
    "exp": np.exp,
    "square": np.square,
    "cube": lambda x: x * x * x,
    "tanh": np.tanh,
}


def test_an_entry_without_a_ratio_shows_none(rng):
    relu = plain(lambda x: np.where(x.real > 0, x, 0), lambda _, dy: dy / 2)
    assert "ratio        —\n" in str(found(relu, np.array([1e-3, -1.0, 2.0]), rng=1))
