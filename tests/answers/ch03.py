"""Chapter 03: gradient checks."""

# fmt: off
from . import right, wrong

nudge = right("central_difference", """
def central_difference(f, x, h):
    grad = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        up = x.astype(float)
        down = x.astype(float)
        up[k] += h
        down[k] -= h
        grad[k] = (f(up) - f(down)) / (2 * h)
    return grad
""")
right("central_difference", """
def central_difference(f, x, h):
    E = h * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([f(x + e) - f(x - e) for e in E]).reshape(x.shape) / (2 * h)
""")
restore = right("central_difference", """
def central_difference(f, x, h):
    z = np.array(x, dtype=np.float64)
    out = np.empty(z.shape)
    for k in np.ndindex(z.shape):
        old = z[k]
        z[k] = old + h
        a = f(z)
        z[k] = old - h
        b = f(z)
        z[k] = old
        out[k] = (a - b) / 2 / h
    return out
""")
right("central_difference", """
def central_difference(f, x, h):
    def slope(k):
        e = np.zeros(x.size)
        e[k] = h
        e = e.reshape(x.shape)
        return 0.5 * (f(x + e) - f(x - e)) / h
    return np.fromiter(map(slope, range(x.size)), float, x.size).reshape(x.shape)
""")
right("central_difference", """
def central_difference(f, x, h):
    flat = x.ravel().astype("float64")
    grad = []
    for k in range(len(flat)):
        step = np.where(np.arange(len(flat)) == k, h, 0.0)
        plus, minus = (flat + step).reshape(x.shape), (flat - step).reshape(x.shape)
        grad.append((f(plus) - f(minus)) / (2.0 * h))
    return np.asarray(grad, dtype=float).reshape(x.shape)
""")
wrong("central_difference", "the step is lost in integers", r"integer|trunc|astype|\bint",
      nudge, "x.astype(float)", "x.copy()")
wrong("central_difference", "divides by h", r"2 ?[*·]? ?h|twice|half|double",
      nudge, "/ (2 * h)", "/ h")
wrong("central_difference", "divides by 2, then times h", r"parenthes|bracket|precedence|2 \* h|/ \(2|2h",
      nudge, "/ (2 * h)", "/ 2 * h")
wrong("central_difference", "a forward difference", r"forward|one[- ]sided|both sides|− f\(x\)|x − h",
      nudge, "f(down)) / (2 * h)", "f(x.astype(float))) / h")
wrong("central_difference", "moves all entries at once", r"all entries|one entry|at once|one at a time|other entries", """
def central_difference(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h) * np.ones(x.shape)
""")
wrong("central_difference", "changes x", r"in place",
      restore, "np.array(x, dtype=np.float64)", "x", "z[k] = old\n", "pass\n")
wrong("central_difference", "entries stay moved", r"restor|stay|put back|still|reset|back in (its )?place",
      restore, "        z[k] = old\n", "")

rotate = right("complex_step", """
def complex_step(f, x):
    grad = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1j * 1e-20
        grad[k] = f(z).imag / 1e-20
    return grad
""")
right("complex_step", """
def complex_step(f, x):
    h = 1e-20
    E = np.eye(x.size).reshape((x.size,) + x.shape)
    return np.array([np.imag(f(x + 1j * h * e)) / h for e in E]).reshape(x.shape)
""")
right("complex_step", """
def complex_step(f, x):
    z = x + 0j
    g = np.empty_like(x)
    it = np.nditer(x, flags=["multi_index"])
    for entry in it:
        z[it.multi_index] = complex(entry, 1e-20)
        g[it.multi_index] = f(z).imag * 1e20
        z[it.multi_index] = entry
    return g
""")
right("complex_step", """
H = 1e-20

def complex_step(f, x):
    def along(k):
        e = np.zeros(x.size, complex)
        e[k] = H * 1j
        return f(x + e.reshape(x.shape)).imag / H
    return np.reshape([along(k) for k in range(x.size)], x.shape)
""")
right("complex_step", """
def complex_step(f, x):
    h, out = 1e-20, np.zeros(x.size)
    for k in range(x.size):
        z = np.array(x, dtype=np.complex128)
        z.imag.flat[k] = h
        out[k] = complex(f(z)).imag / h
    return out.reshape(x.shape)
""")
wrong("complex_step", "the real part", r"\.imag|Im f|real part",
      rotate, "f(z).imag", "f(z).real")
wrong("complex_step", "not divided by h", r"divi|/ ?h\b|/ 1e-20",
      rotate, " / 1e-20", "")
wrong("complex_step", "a real step", r"1j|i h|real step|step is real|purely imaginary|imaginary step",
      rotate, "1j * 1e-20", "1e-20")
wrong("complex_step", "writes complex numbers into floats", r"astype|complex array|dtype|complex128",
      rotate, "x.astype(complex)", "x.copy()")
wrong("complex_step", "returns complex numbers", r"complex",
      rotate, "np.zeros(x.shape)", "np.zeros(x.shape, complex)")

compare = right("gradient_error", """
def gradient_error(f, x, c):
    _, pullback = f(x)
    (yours,) = pullback(c)
    numeric = complex_step(lambda z: (c * f(z)[0]).sum(), x)
    return np.abs(yours - numeric).max() / np.abs(numeric).max()
""")
right("gradient_error", """
def gradient_error(f, x, c):
    def loss(z):
        y, _ = f(z)
        return np.vdot(c, y)
    yours = f(x)[1](c)[0]
    numeric = complex_step(loss, x)
    scale = np.max(abs(numeric))
    return np.max(abs(yours - numeric) / scale)
""")
right("gradient_error", """
def gradient_error(f, x, c):
    y, back = f(x)
    numeric = complex_step(lambda z: np.tensordot(c, f(z)[0], axes=c.ndim), x).ravel()
    yours = np.ravel(back(c)[0])
    inf = lambda v: np.linalg.norm(v, np.inf)
    return float(inf(yours - numeric) / inf(numeric))
""")
right("gradient_error", """
def gradient_error(f, x, c):
    numeric = complex_step(lambda z: np.einsum("i,i", np.ravel(c), np.ravel(f(z)[0])), x)
    (got,) = f(x)[1](c)
    worst = largest = 0.0
    for a, b in zip(np.ravel(got), np.ravel(numeric)):
        if np.isnan(a):
            return float("nan")
        worst = max(worst, abs(a - b))
        largest = max(largest, abs(b))
    return worst / largest
""")
right("gradient_error", """
def gradient_error(f, x, c):
    L = lambda z: sum(ci * yi for ci, yi in zip(c.flat, f(z)[0].flat))
    n = complex_step(L, x)
    d = f(x)[1](c)[0] - n
    if np.isnan(d).any():
        return np.nan
    return np.sqrt((d**2).max()) / np.sqrt((n**2).max())
""")
wrong("gradient_error", "relative in each entry", r"each entry|per entry|entry by entry|every entry|whichever entr|own entry",
      compare, "np.abs(yours - numeric).max() / np.abs(numeric).max()",
      "np.abs((yours - numeric) / numeric).max()")
wrong("gradient_error", "NaN is skipped", r"NaN",
      compare, "np.abs(yours - numeric).max()", "np.nanmax(np.abs(yours - numeric))")
wrong("gradient_error", "the loss without c", r"cotangent|Σ ?c|\bc ·|weight|plain sum|sum of y|without c",
      compare, "(c * f(z)[0]).sum()", "f(z)[0].sum()")
wrong("gradient_error", "without absolute values", r"abs|magnitude|sign|negative",
      compare, "np.abs(yours - numeric).max()", "(yours - numeric).max()")
wrong("gradient_error", "the mean error", r"mean|average",
      compare, "np.abs(yours - numeric).max()", "np.abs(yours - numeric).mean()")
wrong("gradient_error", "the tuple is not opened", r"tuple",
      compare, "(yours,) = pullback(c)", "yours = pullback(c)", "np.abs(yours - numeric).max()",
      "np.abs(yours.ravel() - numeric.ravel()).max()")
wrong("gradient_error", "absolute, not relative", r"divid|relative|units|/ max",
      compare, " / np.abs(numeric).max()", "")

wrong("central_difference", "one step per row", r"ndindex|every entry|each entry|rows?\b|one entry|whole row", nudge, "for k in np.ndindex(x.shape)", "for k in range(len(x))")
wrong("central_difference", "down minus up", r"sign|order|minus", nudge, "f(up) - f(down)", "f(down) - f(up)")
wrong("central_difference", "an array of integers for integers", r"float|integer|dtype|\bint", nudge, "np.zeros(x.shape)", "np.zeros_like(x)")
wrong("complex_step", "a large step", r"smaller|1e-20|too large|error of h|h²|accura", rotate, "1e-20", "1e-3")
wrong("complex_step", "the absolute value", r"imag|Im f|abs", rotate, "f(z).imag", "abs(f(z))")
wrong("complex_step", "all entries at once", r"all entries|one entry|at once|one at a time|other entries", """
def complex_step(f, x):
    return f(x + 1e-20j).imag / 1e-20 * np.ones(x.shape)
""")
wrong("gradient_error", "relative to the analytic gradient", r"by the (numeric|analytic)|numeric (one|gradient)|max \|numeric\||divid", compare, "/ np.abs(numeric).max()", "/ np.abs(yours).max()")
wrong("gradient_error", "relative to both", r"by the (numeric|analytic)|numeric (one|gradient)|max \|numeric\||divid|half", compare, "np.abs(numeric).max()", "(np.abs(numeric).max() + np.abs(yours).max())")
wrong("gradient_error", "lengths instead of largest entries", r"norm|largest|max|root", compare, "np.abs(yours - numeric).max() / np.abs(numeric).max()", "np.linalg.norm(yours - numeric) / np.linalg.norm(numeric)")
wrong("gradient_error", "an epsilon below", r"eps|1e-|added|small", compare, "/ np.abs(numeric).max()", "/ (np.abs(numeric).max() + 1e-8)")
wrong("central_difference", "nothing returned", r"return missing", nudge, "    return grad\n", "")
wrong("complex_step", "a step that still shows", r"too large|1e-20|h = ", rotate, "1e-20", "1e-8")
