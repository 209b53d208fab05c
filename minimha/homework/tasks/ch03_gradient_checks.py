"""Tasks of chapter 03: numeric gradients, and the error of a pullback."""

import numpy as np

from ..checks.comparisons import same
from ..checks.task import task


@task(chapter=3, difficulty=1, minutes=10, hints=(
    "np.ndindex(x.shape) runs over the indices of all entries, for any number of axes.",
    "For each index k, make an array of zeros of the shape of x and put h at k. Evaluate f at x "
    "plus this array and at x minus it, without changing x itself.",
    "step = np.zeros(x.shape); step[k] = h; then (f(x + step) - f(x - step)) / (2 * h)",
))  # fmt: skip
def central_difference(f, x, h):
    """The gradient of f at x, by central differences.

    f  takes an array of the shape of x and returns a number
    x  an array of any shape, of floats or of integers
    h  the step, a number
    Returns an array of floats of the shape of x. Its entry at index k is
    (f(x + h e) − f(x − h e)) / 2h, where e is 1 at k and 0 elsewhere.
    """
    # BEGIN SOLUTION: return an array of the shape of x
    gradient = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[k] = h
        gradient[k] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient
    # END SOLUTION


@central_difference.check
def a_parabola_is_exact(yours, rng):
    x = rng.standard_normal(1)
    gradient = yours(lambda x: float(np.sum(x**2)), x, 0.1)
    same(gradient, 2 * x, "the gradient of Σ x²", tolerance=1e-10)


@central_difference.check(weight=2)
def one_entry_moves_at_a_time(yours, rng):
    x, a = rng.standard_normal((2, 3)), rng.uniform(1, 2, (2, 3))
    gradient = yours(lambda x: float(np.exp(np.sum(a * x))), x, 0.1)
    expected = np.exp(np.sum(a * x)) * np.sinh(0.1 * a) / 0.1
    name, limit = "the gradient of exp(Σ a x), for h = 0.1,", a * np.exp(np.sum(a * x))
    no_h = np.shape(gradient) == x.shape and np.allclose(gradient, limit, rtol=1e-3)
    advice = "the result is that of a much smaller h: use the h that is given" if no_h else ""
    same(gradient, expected, name, "row column", tolerance=1e-10, advice=advice)


@central_difference.check(hidden=True)
def x_may_hold_integers(yours, rng):
    x = rng.integers(-3, 4, size=5)
    gradient = yours(lambda x: float(np.sum(np.exp(x))), x, 0.5)
    expected = np.exp(x) * np.sinh(0.5) / 0.5
    advice = "an array of integers drops the fraction of x + h: move an entry of floats"
    name = "the gradient of Σ exp(x) for integers x"
    same(gradient, expected, name, tolerance=1e-10, advice=advice)


@task(chapter=3, difficulty=2, minutes=10, hints=(
    "It is the loop of central_difference, with one call of f instead of two. An array of floats "
    "cannot hold an imaginary part; x.astype(complex) can.",
    "For each index k: make a new z = x.astype(complex), add 1e-20j at k, and divide the imaginary "
    "part of f(z) by 1e-20.",
    "z = x.astype(complex); z[k] += 1e-20j; gradient[k] = f(z).imag / 1e-20",
))  # fmt: skip
def complex_step(f, x):
    """The gradient of f at x, by the complex step.

    f  takes an array of complex numbers, of the shape of x, and returns a complex number
    x  an array of floats, of any shape
    Returns an array of floats of the shape of x. Its entry at index k is Im f(x + i h e) / h with
    h = 1e-20, where e is 1 at k and 0 elsewhere.
    """
    # BEGIN SOLUTION: return an array of the shape of x
    gradient = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1e-20j
        gradient[k] = f(z).imag / 1e-20
    return gradient
    # END SOLUTION


def _step_is_too_large(gradient, expected):
    """What to say if only the last digits of a gradient are wrong."""
    near = np.shape(gradient) == expected.shape and np.allclose(gradient, expected, rtol=1e-2)
    advice = "nothing is subtracted here, so a tiny step loses no digits: use h = 1e-20"
    return f"h is too large; {advice}" if near else ""


@complex_step.check
def accurate_to_the_last_digits(yours, rng):
    x = rng.standard_normal(1)
    gradient = yours(lambda x: complex(np.sum(x**3)), x)
    if np.iscomplexobj(gradient):
        raise AssertionError("the gradient holds complex numbers; it should hold floats")
    guess = _step_is_too_large(gradient, 3 * x**2)
    same(gradient, 3 * x**2, "the gradient of Σ x³", tolerance=1e-14, guess=guess)


@complex_step.check(weight=2)
def one_entry_has_a_step_at_a_time(yours, rng):
    x, a = rng.standard_normal((2, 3)), rng.uniform(1, 2, (2, 3))
    gradient = yours(lambda x: complex(np.exp(np.sum(a * x))), x)
    expected = a * np.exp(np.sum(a * x))
    same(gradient, expected, "the gradient of exp(Σ a x)", "row column", tolerance=1e-13)


@complex_step.check(hidden=True)
def the_step_is_small_enough(yours, rng):
    x = rng.standard_normal(3)
    gradient = yours(lambda x: complex(np.sum(np.sin(1e4 * x))), x)
    expected = 1e4 * np.cos(1e4 * x)
    guess = _step_is_too_large(gradient, expected)
    same(gradient, expected, "the gradient of Σ sin(10000 x)", tolerance=1e-12, guess=guess)


@task(chapter=3, difficulty=2, minutes=15, given=(complex_step.solution,), hints=(
    "Compare two gradients of the same number, L(x) = Σ c · y: one is what the pullback returns "
    "for c, the other comes from complex_step.",
    "complex_step needs a function of x that returns L: lambda z: np.sum(c * f(z)[0]). Then "
    "divide the largest deviation by the largest entry.",
    "(gradient,) = f(x)[1](c); np.max(abs(gradient - numeric)) / np.max(abs(numeric))",
))  # fmt: skip
def gradient_error(f, x, c):
    """The error of a pullback, relative to the largest entry of the gradient.

    f  takes an array of the shape of x and returns (y, pullback); pullback(c) returns a tuple of
       one gradient, of the shape of x. f also accepts complex numbers
    x  an array of floats, of any shape
    c  the cotangent, an array of the shape of y
    Returns a number, max |analytic − numeric| / max |numeric|: analytic is the gradient that the
    pullback returns for c, numeric is the gradient of L(x) = Σ c · y by complex_step. If an entry
    of the analytic gradient is NaN, the result is NaN.
    """
    # BEGIN SOLUTION: return a number
    _, pullback = f(x)
    (gradient,) = pullback(c)
    numeric = complex_step(lambda z: np.sum(c * f(z)[0]), x)
    return np.max(abs(gradient - numeric)) / np.max(abs(numeric))
    # END SOLUTION


def _rounding(error):
    """Whether the error is a number so small that rounding explains it."""
    return isinstance(error, float | np.ndarray) and np.size(error) == 1 and 0 <= error < 1e-12


@gradient_error.check
def error_0_if_right_and_1_if_doubled(yours, rng):
    x, w = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    ones = np.ones((2, 4))
    error = yours(lambda x: (x @ w, lambda dy: (dy @ w.T,)), x, ones)
    advice = "differences lose digits: take the numeric gradient from complex_step"
    right = error if _rounding(error) else 0.0
    small = isinstance(error, float) and 0 < error < 1e-4
    same(error, right, "the error of a correct gradient", advice=advice if small else "")
    error = yours(lambda x: (x @ w, lambda dy: (2 * dy @ w.T,)), x, ones)
    same(error, 1.0, "the error of a gradient that is twice too large")


@gradient_error.check
def largest_deviation_over_largest_entry(yours, rng):
    x = np.array([2.0, 1.0, 0.1]) * rng.uniform(1, 1.1, 3)

    def error_with(off):
        return yours(
            lambda x: (1e-6 * x**2, lambda dy: (1e-6 * dy * (2 * x + off),)), x, np.ones(3)
        )

    for error in [error_with(-1e-3 * row) for row in np.eye(3)[[2, 0]]]:  # all calls, then compare
        same(error, 1e-3 / (2 * x[0]), "the error", tolerance=1e-9)


@gradient_error.check(weight=2)
def the_cotangent_is_used(yours, rng):
    x, c = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))

    def f(x):  # softmax, with a pullback that uses the plain mean instead of the weighted one
        y = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        return y, lambda dy: (y * (dy - dy.mean(axis=-1, keepdims=True)),)

    same(yours(f, x, c), gradient_error(f, x, c), "the error", tolerance=1e-9)


@gradient_error.check(hidden=True)
def a_nan_in_the_gradient_makes_the_error_nan(yours, rng):
    x = rng.standard_normal(3)
    holes = np.array([1.0, np.nan, 1.0])
    error = yours(lambda x: (x**2, lambda dy: (2 * x * dy * 2,)), x, np.ones(3))
    same(error, 1.0, "the error of a gradient that is twice too large", tolerance=1e-6)
    error = yours(lambda x: (x**2, lambda dy: (2 * x * dy * holes,)), x, np.ones(3))
    same(error, np.nan, "the error of a gradient with a NaN")
