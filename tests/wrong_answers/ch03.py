"""Wrong answers to the tasks of chapter 03."""

from wrong_answers import Wrong

WRONG = {
    "central_difference": [
        Wrong("nothing returned", "    return gradient\n", "", "a parabola is exact", "None: is a return missing?"),
        Wrong("x moved and not put back", "step = np.zeros(x.shape)\n        step[k] = h\n        gradient[k] = (f(x + step) - f(x - step)) / (2 * h)", "x[k] += h\n        up = f(x)\n        x[k] -= 2 * h\n        gradient[k] = (up - f(x)) / (2 * h)", "a parabola is exact", "changes x in place: work on a copy"),
    ],
    "complex_step": [
        Wrong("no room for an imaginary part", "x.astype(complex)", "x.copy()", "accurate to the last digits", "imaginary part"),
        Wrong("complex numbers returned", "return gradient", "return gradient.astype(complex)", "accurate to the last digits", "floats"),
    ],
}  # fmt: skip
