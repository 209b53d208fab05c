"""Common mistakes in the tasks of chapter 03, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch03_gradient_checks import central_difference, complex_step, gradient_error

central_difference.mistakes += patches(r"""
- (f(x + step) - f(x - step)) / (2 * h)
+ (f(x[k] + h) - f(x[k] - h)) / (2 * h)
f gets the entry alone; it takes an array of the shape of x, with one entry moved: f(x + h e)
+ (f(x + step) + f(x - step)) / (2 * h)
the two values are added: subtract f(x − h e) from f(x + h e)
+ (f(x + step) - f(x - step)) / h
the difference is divided by h; x + h e and x − h e are 2h apart: / (2 * h)
+ (f(x + step) - f(x - step)) / 2 * h
/ 2 * h divides by 2 and multiplies by h: write / (2 * h)
+ f(x + step) - f(x - step) / (2 * h)
only f(x − h e) is divided by 2h: put the difference in brackets
+ f(x + step) - f(x - step)
the difference is not divided: / (2 * h)
+ (f(x + step) - f(x)) / h
this is the forward difference, (f(x + h e) − f(x)) / h; the central one steps to both sides:
(f(x + h e) − f(x − h e)) / 2h
+ (f(x) - f(x - step)) / h
this is the backward difference, (f(x) − f(x − h e)) / h; the central one steps to both sides:
(f(x + h e) − f(x − h e)) / 2h
- for k in np.ndindex(x.shape):
-         step = np.zeros(x.shape)
+ step = np.zeros(x.shape)
+     for k in np.ndindex(x.shape):
the step of one entry is still in place when the next entry moves: start from new zeros for each
index
- gradient = np.empty(x.shape)
+ return (f(x + h) - f(x - h)) / (2 * h)
x + h moves all entries together and gives one number; move one entry at a time, in a loop
+ x = x.ravel(); gradient = np.empty(x.shape)
f gets a flat array; it takes an array of the shape of x: loop over np.ndindex(x.shape), or
reshape before you call f
- np.ndindex(x.shape)
+ range(len(x))
range(len(x)) runs over the first axis only, so a whole row moves together: loop over
np.ndindex(x.shape)
- step[k] = h
-         gradient[k] = (f(x + step) - f(x - step)) / (2 * h)
+ step[k] = h * abs(x[k])
+         gradient[k] = (f(x + step) - f(x - step)) / (2 * h * abs(x[k]))
the step is proportional to the entry of x: it is h for each entry
- step[k] = h
+ step[k] = 1
the entry moves by 1: the step is h
+ step[:] = h
all entries move together; each entry of the gradient needs a step in that entry alone
- (f(x + step) - f(x - step)) / (2 * h)
+ (f(x + step) - f(x - step)) / (2 * h); x = x - step
an entry is still shifted by −h when the next one moves: restore it first
- step = np.zeros(x.shape)
+ step = np.zeros_like(x)
x holds integers, so np.zeros_like(x), np.empty_like(x) and x.copy() hold integers too, and
fractions are cut off: use np.zeros(x.shape) or x.astype(float)
""")

complex_step.mistakes += patches(r"""
- f(z).imag / 1e-20
+ f(z).imag
the imaginary part is not divided: f(z).imag / 1e-20
+ f(z).real / 1e-20
this is the value of f, divided by h; the derivative is in the imaginary part: f(z).imag / h
+ f(z) / 1e-20
a complex number does not fit into an array of floats: divide f(z).imag by 1e-20, not f(z), and
not by 1e-20j
- z[k] += 1e-20j
+ z[k] += 1e-20
the result is 0: a real step leaves the imaginary part 0, and the real part does not change; add
an imaginary step, 1e-20j, in an array of complex numbers, x.astype(complex), and take f(z).imag
+ z[k] = 1e-20j
the step replaces the entry of x; add it instead: z[k] += 1e-20j
+ z[k] *= 1 + 1e-20j
the step is proportional to the entry of x: it is the same for all, z[k] += 1e-20j
+ z += 1e-20j
all entries move together; each entry of the gradient needs a step in that entry alone: z[k] +=
1e-20j
- gradient = np.empty(x.shape)
+ return f(x + 1e-20j).imag / 1e-20
x + 1e-20j moves all entries together and gives one number; move one entry at a time, in a loop
- for k in np.ndindex(x.shape):
-         z = x.astype(complex)
+ z = x.astype(complex)
+     for k in np.ndindex(x.shape):
the step of one entry is still in z when the next one gets its own: make z from x again for each
index
""")

gradient_error.mistakes += patches(r"""
- np.max(abs(gradient - numeric)) / np.max(abs(numeric))
+ np.max(abs(gradient - numeric))
the largest deviation is not divided: the error is relative to max |numeric|
+ np.max(abs(gradient - numeric)) / np.max(abs(gradient))
the deviation is divided by max |analytic|, the gradient under test, or by the larger of both:
divide by max |numeric|
+ np.max(abs(gradient - numeric)) / (np.max(abs(gradient)) + np.max(abs(numeric)))
the deviation is divided by the sum of both gradients: divide by max |numeric|
+ np.max(abs(gradient - numeric)) / (np.max(abs(numeric)) + 1e-8)
a small number is added to max |numeric|: add nothing
+ np.max(abs(gradient - numeric) / abs(numeric))
each deviation is divided by its own entry of the numeric gradient: divide max |analytic −
numeric| by max |numeric|
+ np.max(gradient - numeric) / np.max(abs(numeric))
negative deviations are missed: take the absolute value of each difference first, and then the
maximum, max |analytic − numeric|
+ np.max(abs(gradient - numeric)) / np.max(numeric)
max numeric ignores negative entries: divide by max |numeric|
+ np.mean(abs(gradient - numeric)) / np.max(abs(numeric))
this is the sum or the mean, in which one wrong entry of many is lost: take the maximum
+ np.linalg.norm(gradient - numeric) / np.linalg.norm(numeric)
these are norms over all entries; the task asks for the largest entries: np.max(abs(…))
+ abs(np.linalg.norm(gradient) - np.linalg.norm(numeric)) / np.linalg.norm(numeric)
- np.max(abs(gradient - numeric)) / np.max(abs(numeric))
+ abs(np.max(abs(gradient)) - np.max(abs(numeric))) / np.max(abs(numeric))
this is the difference of two norms or of two maxima: subtract entry by entry first, max |analytic −
numeric|
+ np.max(abs(gradient)) / np.max(abs(numeric))
the numeric gradient is not subtracted from the analytic one: max |analytic − numeric|
+ np.max((gradient - numeric) ** 2) / np.max(numeric**2)
the deviations are squared: take absolute values, max |analytic − numeric| / max |numeric|
+ max(0.0, *abs(gradient - numeric).ravel()) / np.max(abs(numeric))
the NaN is lost: np.max returns NaN if there is one; Python's max, np.nanmax and comparisons do
not
- c * f(z)[0]
+ c * f(x)[0]
the numeric gradient is 0: the function given to complex_step has to compute y anew for each z,
f(z)[0], and return a complex number
+ f(z)[0]
the numeric gradient leaves c out; the pullback gets c, so compare it with the gradient of Σ c · y
+ c * f(z)
f returns (y, pullback): only f(z)[0] is y
- (gradient,) = pullback(c)
+ (gradient,) = pullback(f(x)[0])
the pullback gets y; it takes the cotangent, pullback(c)
+ (gradient,) = pullback(np.ones(c.shape))
the pullback gets ones, not c: compute pullback(c), and the numeric gradient of Σ c · y
- lambda z: np.sum(c * f(z)[0])
+ f
f returns (y, pullback), and complex_step needs a function that returns one number: lambda z:
np.sum(c * f(z)[0])
""")
