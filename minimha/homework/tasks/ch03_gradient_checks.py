"""Tasks of chapter 03: numeric gradients, and how wrong a pullback is."""

import numpy as np

from ..comparisons import same
from ..task import task


@task(chapter=3, difficulty=1, minutes=10, hints=(
    "np.ndindex(x.shape) runs over the places of all entries, whatever the number of axes.",
    "For each place make an array of zeros of the shape of x, and put h at that place. Add it to "
    "x and subtract it from x, without changing x itself.",
    "step = np.zeros(x.shape); step[k] = h; then (f(x + step) - f(x - step)) / (2 * h)",
))  # fmt: skip
def central_difference(f, x, h):
    """The gradient of f at x, by central differences.

    f  takes an array of the shape of x and returns a number
    x  an array of any shape, of floats or of integers
    h  the step, a number
    Returns an array of floats of the shape of x. Its entry k is (f(x + h e) − f(x − h e)) / 2h,
    where e is 1 at the place k and 0 elsewhere.
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
    gradient = yours(lambda x: float(np.sum(x**2)), x.copy(), 0.1)
    advice = "f(x) = Σ x² has the gradient 2x, and here also the difference is 2x"
    same(gradient, 2 * x, "the gradient", tolerance=1e-10, advice=advice)


@central_difference.check(weight=2)
def each_entry_moves_alone(yours, rng):
    x, a = rng.standard_normal((2, 3)), rng.uniform(1, 2, (2, 3))
    gradient = yours(lambda x: float(np.exp(np.sum(a * x))), x.copy(), 0.1)
    expected = np.exp(np.sum(a * x)) * np.sinh(0.1 * a) / 0.1
    advice = "one entry moves at a time, by h, and is back in its place before the next moves"
    same(gradient, expected, "the gradient", "row column", tolerance=1e-10, advice=advice)


@central_difference.check
def integers_can_be_moved_too(yours, rng):
    x = rng.integers(-3, 4, size=5)
    gradient = yours(lambda x: float(np.sum(np.exp(x))), x.copy(), 0.5)
    advice = "an array of integers cannot hold x + 0.5: put the step into an array of floats"
    expected = np.exp(x) * np.sinh(0.5) / 0.5
    same(gradient, expected, "the gradient", tolerance=1e-10, advice=advice)


@task(chapter=3, difficulty=2, minutes=10, hints=(
    "It is the loop of central_difference, with one call of f in place of two. An array of floats "
    "cannot hold an imaginary part; x.astype(complex) can.",
    "For each place k: a new z = x.astype(complex), 1e-20j added at k, and of f(z) the imaginary "
    "part, over 1e-20.",
    "z = x.astype(complex); z[k] += 1e-20j; gradient[k] = f(z).imag / 1e-20",
))  # fmt: skip
def complex_step(f, x):
    """The gradient of f at x, by the complex step.

    f  takes an array of complex numbers, of the shape of x, and returns a complex number
    x  an array of floats, of any shape
    Returns an array of floats of the shape of x. Its entry k is Im f(x + i h e) / h with h = 1e-20,
    where e is 1 at the place k and 0 elsewhere.
    """
    # BEGIN SOLUTION: return an array of the shape of x
    gradient = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1e-20j
        gradient[k] = f(z).imag / 1e-20
    return gradient
    # END SOLUTION


@complex_step.check
def right_to_the_last_digits(yours, rng):
    x = rng.standard_normal(1)
    gradient = yours(lambda x: complex(np.sum(x**3)), x.copy())
    if np.iscomplexobj(gradient):
        raise AssertionError("the gradient should hold floats, not complex numbers")
    advice = "f(x) = Σ x³ has the gradient 3x²; floats cannot hold an imaginary part"
    same(gradient, 3 * x**2, "the gradient", tolerance=1e-14, advice=advice)


@complex_step.check(weight=2)
def one_entry_at_a_time(yours, rng):
    x, a = rng.standard_normal((2, 3)), rng.uniform(1, 2, (2, 3))
    gradient = yours(lambda x: complex(np.exp(np.sum(a * x))), x.copy())
    expected = a * np.exp(np.sum(a * x))
    advice = "one entry has an imaginary part at a time, and the next z is made from x again"
    same(gradient, expected, "the gradient", "row column", tolerance=1e-13, advice=advice)


@complex_step.check
def the_step_is_small_enough(yours, rng):
    x = rng.standard_normal(3)
    gradient = yours(lambda x: complex(np.sum(np.sin(1e4 * x))), x.copy())
    advice = "f(x) = Σ sin(10000 x) bends sharply; nothing is subtracted, so h can be 1e-20"
    same(gradient, 1e4 * np.cos(1e4 * x), "the gradient", tolerance=1e-12, advice=advice)


@task(chapter=3, difficulty=2, minutes=15, given=(complex_step.solution,), hints=(
    "There are two gradients of the same number L(x) = Σ c · y. One is what the pullback "
    "returns for c, the other comes from complex_step.",
    "complex_step needs a function of x that returns L: lambda z: np.sum(c * f(z)[0]). Then "
    "compare the largest deviation with the largest entry.",
    "(gradient,) = f(x)[1](c); np.max(abs(gradient - numeric)) / np.max(abs(numeric))",
))  # fmt: skip
def gradient_error(f, x, c):
    """How wrong a pullback is, in units of the largest entry of the gradient.

    f  takes an array of the shape of x and returns (y, pullback); pullback(c) returns a tuple with
       one gradient, of the shape of x. f accepts complex numbers too
    x  an array of floats, of any shape
    c  the cotangent, an array of the shape of y
    Returns a number, max |yours − numeric| / max |numeric|: yours is what the pullback returns for
    c, and numeric the gradient of L(x) = Σ c · y by complex_step. It is NaN if an entry of
    yours is NaN.
    """
    # BEGIN SOLUTION: return a number
    _, pullback = f(x)
    (gradient,) = pullback(c)
    numeric = complex_step(lambda z: np.sum(c * f(z)[0]), x)
    return np.max(abs(gradient - numeric)) / np.max(abs(numeric))
    # END SOLUTION


@gradient_error.check
def right_is_nothing_and_twice_is_one(yours, rng):
    x, w = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    ones = np.ones((2, 4))
    error = yours(lambda x: (x @ w, lambda dy: (dy @ w.T,)), x, ones)
    same(error, error if _rounding(error) else 0.0, "the error of a right gradient")
    error = yours(lambda x: (x @ w, lambda dy: (2 * dy @ w.T,)), x, ones)
    same(error, 1.0, "the error of a gradient that is twice too large")


@gradient_error.check
def the_worst_entry_over_the_largest_entry(yours, rng):
    x = np.array([2.0, 1.0, 0.1]) * rng.uniform(1, 1.1, 3)
    off = np.array([0.0, 0.0, -1e-3])
    error = yours(lambda x: (1e-6 * x**2, lambda dy: (1e-6 * dy * (2 * x + off),)), x, np.ones(3))
    advice = "the largest |yours − numeric| over the largest |numeric|, whichever entries those are"
    same(error, 1e-3 / (2 * x[0]), "the error", tolerance=1e-9, advice=advice)


@gradient_error.check(weight=2)
def the_cotangent_counts(yours, rng):
    x, c = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))

    def f(x):  # softmax, with a pullback that takes the mean of a row for the weighted sum
        y = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        return y, lambda dy: (y * (dy - dy.mean(axis=-1, keepdims=True)),)

    error, advice = yours(f, x, c), "c, and not ones, on both sides: Σ c · y and pullback(c)"
    same(error, gradient_error(f, x, c), "the error", tolerance=1e-9, advice=advice)


@gradient_error.check
def not_a_number_is_not_right(yours, rng):
    x = rng.standard_normal(3)
    holes = np.array([1.0, np.nan, 1.0])
    error = yours(lambda x: (x**2, lambda dy: (2 * x * dy * 2,)), x, np.ones(3))
    same(error, 1.0, "the error of a gradient that is twice too large", tolerance=1e-6)
    error = yours(lambda x: (x**2, lambda dy: (2 * x * dy * holes,)), x, np.ones(3))
    advice = "np.max passes a NaN on; Python's max, np.nanmax and comparisons lose it"
    same(error, np.nan, "the error of a gradient with a NaN", advice=advice)


def _rounding(error):
    """Whether it is a number, and no more than what rounding leaves."""
    return isinstance(error, float | np.ndarray) and np.size(error) == 1 and 0 <= error < 1e-12
