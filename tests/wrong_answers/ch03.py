"""Wrong answers to the tasks of chapter 03."""

from wrong_answers import Wrong

WRONG = {
    "central_difference": [
        Wrong("over h and not 2h", "/ (2 * h)", "/ h", "a parabola is exact", "ratio 2"),
        Wrong("forward differences", "(f(x + step) - f(x - step)) / (2 * h)", "(f(x + step) - f(x)) / h", "a parabola is exact", "also the difference is 2x"),
        Wrong("nothing returned", "    return gradient\n", "", "a parabola is exact", "None: is a return missing?"),
        Wrong("steps that stay", "    for k in np.ndindex(x.shape):\n        step = np.zeros(x.shape)\n", "    step = np.zeros(x.shape)\n    for k in np.ndindex(x.shape):\n", "each entry moves alone", "back in its place"),
        Wrong("x moved and not put back", "step = np.zeros(x.shape)\n        step[k] = h\n        gradient[k] = (f(x + step) - f(x - step)) / (2 * h)", "x[k] += h\n        up = f(x)\n        x[k] -= 2 * h\n        gradient[k] = (up - f(x)) / (2 * h)", "a parabola is exact", "changes x in place: work on a copy"),
        Wrong("a step of integers", "step = np.zeros(x.shape)", "step = np.zeros_like(x)", "integers can be moved too", "floats"),
        Wrong("a gradient of integers", "gradient = np.empty(x.shape)", "gradient = np.empty_like(x)", "integers can be moved too", "floats"),
    ],
    "complex_step": [
        Wrong("the real part", ".imag", ".real", "right to the last digits", "3x²"),
        Wrong("not over h", "f(z).imag / 1e-20", "f(z).imag", "right to the last digits", "1e-20"),
        Wrong("no room for an imaginary part", "x.astype(complex)", "x.copy()", "right to the last digits", "imaginary part"),
        Wrong("complex numbers returned", "return gradient", "return gradient.astype(complex)", "right to the last digits", "floats"),
        Wrong("all entries at once", "z[k] += 1e-20j", "z += 1e-20j", "one entry at a time", "one entry has an imaginary part"),
        Wrong("z made once", "    for k in np.ndindex(x.shape):\n        z = x.astype(complex)\n", "    z = x.astype(complex)\n    for k in np.ndindex(x.shape):\n", "one entry at a time", "made from x again"),
        Wrong("the step of central differences", "z[k] += 1e-20j\n        gradient[k] = f(z).imag / 1e-20", "z[k] += 1e-8j\n        gradient[k] = f(z).imag / 1e-8", "the step is small enough", "h can be 1e-20"),
    ],
    "gradient_error": [
        Wrong("without the yardstick", " / np.max(abs(numeric))", "", "right is nothing and twice is one", "twice too large"),
        Wrong("without the sizes", "np.max(abs(gradient - numeric))", "np.max(gradient - numeric)", "the worst entry over the largest entry", "whichever entries"),
        Wrong("entry by entry", "np.max(abs(gradient - numeric)) / np.max(abs(numeric))", "np.max(abs(gradient - numeric) / abs(numeric))", "the worst entry over the largest entry", "largest |numeric|"),
        Wrong("a cotangent of ones", "(gradient,) = pullback(c)", "c = np.ones(c.shape)\n    (gradient,) = pullback(c)", "the cotangent counts", "on both sides"),
        Wrong("Python's max", "np.max(abs(gradient - numeric)) /", "max(0.0, *abs(gradient - numeric).ravel()) /", "not a number is not right", "Python's max"),
        Wrong("nanmax", "np.max(abs(gradient - numeric)) /", "np.nanmax(abs(gradient - numeric)) /", "not a number is not right", "nanmax"),
    ],
}  # fmt: skip
