"""Chapter 03: gradient checks."""

# fmt: off
from . import right, wrong

nudge, restore, *_ = right("central_difference", """
def central_difference(f, x, h):
    grad = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        up = x.astype(float)
        down = x.astype(float)
        up[k] += h
        down[k] -= h
        grad[k] = (f(up) - f(down)) / (2 * h)
    return grad
""", """
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
""", """
def central_difference(f, x, h):
    E = h * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([f(x + e) - f(x - e) for e in E]).reshape(x.shape) / (2 * h)
""", """
def central_difference(f, x, h):
    def slope(k):
        e = np.zeros(x.size)
        e[k] = h
        e = e.reshape(x.shape)
        return 0.5 * (f(x + e) - f(x - e)) / h
    return np.fromiter(map(slope, range(x.size)), float, x.size).reshape(x.shape)
""", """
def central_difference(f, x, h):
    flat = x.ravel().astype("float64")
    grad = []
    for k in range(len(flat)):
        step = np.where(np.arange(len(flat)) == k, h, 0.0)
        plus, minus = (flat + step).reshape(x.shape), (flat - step).reshape(x.shape)
        grad.append((f(plus) - f(minus)) / (2.0 * h))
    return np.asarray(grad, dtype=float).reshape(x.shape)
""")
nudge.wrong("the step is lost in integers", r"integer|trunc|astype|\bint", "x.astype(float)", "x.copy()")
nudge.wrong("divides by h", r"2 ?[*·]? ?h|twice|half|double", "/ (2 * h)", "/ h")
nudge.wrong("divides by 2, then times h", r"parenthes|bracket|precedence|2 \* h|/ \(2|2h", "(2 * h)", "2 * h")
nudge.wrong("a forward difference", r"forward|one[- ]sided|both sides|− f\(x\)|x − h",
    "f(down)) / (2 * h)", "f(x.astype(float))) / h")
wrong("central_difference", "moves all entries at once", r"all entries|one entry|at once|one at a time|other entries", """
def central_difference(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h) * np.ones(x.shape)
""")
restore.wrong("changes x", r"in place", "np.array(x, dtype=np.float64)", "x", "z[k] = old\n", "pass\n")
restore.wrong("entries stay moved", r"restor|stay|put back|still|reset|back in (its )?place",
    "        z[k] = old\n", "")

nudge.wrong("one step per row", r"ndindex|every entry|each entry|rows?\b|one entry|whole row", "for k in np.ndindex(x.shape)", "for k in range(len(x))")
nudge.wrong("down minus up", r"sign|order|minus", "f(up) - f(down)", "f(down) - f(up)")
nudge.wrong("an array of integers for integers", r"float|integer|dtype|\bint", "np.zeros(x.shape)", "np.zeros_like(x)")
nudge.wrong("nothing returned", r"return missing", "    return grad\n", "")
wrong("central_difference", "half the step, divided by 2h", r"half|factor|step|h\b|1/2", """
def central_difference(f, x, h):
    out = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = h / 2
        out[k] = (f(x + e) - f(x - e)) / (2 * h)
    return out
""")
wrong("central_difference", "a flat result", r"shape", """
def central_difference(f, x, h):
    out = []
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = h
        out.append((f(x + e) - f(x - e)) / (2 * h))
    return np.array(out)
""")
wrong("central_difference", "x is moved and not restored", r"in place|shifted|restore", """
def central_difference(f, x, h):
    out = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        x[k] += h
        up = f(x)
        x[k] -= 2 * h
        out[k] = (up - f(x)) / (2 * h)
    return out
""")
wrong("central_difference", "the order of the entries is transposed", r"order|axes|transpos|wrong places", """
def central_difference(f, x, h):
    g = []
    for j in range(x.shape[-1]):
        for i in range(x.size // x.shape[-1]):
            e = np.zeros(x.shape)
            e.reshape(-1, x.shape[-1])[i, j] = h
            g.append((f(x + e) - f(x - e)) / (2 * h))
    return np.array(g).reshape(x.shape)
""")
wrong("central_difference", "minus the gradient", r"sign|flipped|order", """
def central_difference(f, x, h):
    g = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = h
        g[k] = (f(x - e) - f(x + e)) / (2 * h)
    return g
""")
wrong("central_difference", "h of the entry's size", r"proportional", """
def central_difference(f, x, h):
    g = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = h * abs(x[k])
        g[k] = (f(x + e) - f(x - e)) / (2 * h * abs(x[k]))
    return g
""")

rotate, *_ = right("complex_step", """
def complex_step(f, x):
    grad = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1j * 1e-20
        grad[k] = f(z).imag / 1e-20
    return grad
""", """
def complex_step(f, x):
    h = 1e-20
    E = np.eye(x.size).reshape((x.size,) + x.shape)
    return np.array([np.imag(f(x + 1j * h * e)) / h for e in E]).reshape(x.shape)
""", """
def complex_step(f, x):
    z = x + 0j
    g = np.empty_like(x)
    it = np.nditer(x, flags=["multi_index"])
    for entry in it:
        z[it.multi_index] = complex(entry, 1e-20)
        g[it.multi_index] = f(z).imag * 1e20
        z[it.multi_index] = entry
    return g
""", """
H = 1e-20

def complex_step(f, x):
    def along(k):
        e = np.zeros(x.size, complex)
        e[k] = H * 1j
        return f(x + e.reshape(x.shape)).imag / H
    return np.reshape([along(k) for k in range(x.size)], x.shape)
""", """
def complex_step(f, x):
    h, out = 1e-20, np.zeros(x.size)
    for k in range(x.size):
        z = np.array(x, dtype=np.complex128)
        z.imag.flat[k] = h
        out[k] = complex(f(z)).imag / h
    return out.reshape(x.shape)
""")
rotate.wrong("the real part", r"\.imag|Im f|real part", "f(z).imag", "f(z).real")
rotate.wrong("not divided by h", r"divi|/ ?h\b|/ 1e-20", " / 1e-20", "")
rotate.wrong("a real step", r"1j|i h|real step|step is real|purely imaginary|imaginary step", "1j * 1e", "1e")
rotate.wrong("writes complex numbers into floats", r"astype|complex array|dtype|complex128",
    "x.astype(complex)", "x.copy()")
rotate.wrong("returns complex numbers", r"complex", "np.zeros(x.shape)", "np.zeros(x.shape, complex)")
rotate.wrong("a large step", r"smaller|1e-20|too large|error of h|h²|accura", "1e-20", "1e-3")
rotate.wrong("the absolute value", r"imag|Im f|abs", "f(z).imag", "abs(f(z))")
wrong("complex_step", "all entries at once", r"all entries|one entry|at once|one at a time|other entries", """
def complex_step(f, x):
    return f(x + 1e-20j).imag / 1e-20 * np.ones(x.shape)
""")
rotate.wrong("a step that still shows", r"too large|1e-20|h = ", "1e-20", "1e-8")
wrong("complex_step", "a relative step", r"h = 1e-20|1e-20|step", """
def complex_step(f, x):
    out = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] *= 1 + 1e-20j
        out[k] = f(z).imag / 1e-20
    return out
""")
wrong("complex_step", "h = 1e-8", r"h is too large|1e-20", """
def complex_step(f, x):
    g = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        z = x + 0j
        z[k] += 1e-8j
        g[k] = np.imag(f(z)) / 1e-8
    return g
""")
wrong("complex_step", "a central difference", r"imag|complex|nothing is subtracted|h is too large|result is 0", """
def complex_step(f, x):
    g = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = 1e-6
        g[k] = (f(x + e) - f(x - e)).real / 2e-6
    return g
""")

compare, *_ = right("gradient_error", """
def gradient_error(f, x, c):
    _, pullback = f(x)
    (yours,) = pullback(c)
    numeric = complex_step(lambda z: (c * f(z)[0]).sum(), x)
    return np.abs(yours - numeric).max() / np.abs(numeric).max()
""", """
def gradient_error(f, x, c):
    def loss(z):
        y, _ = f(z)
        return np.vdot(c, y)
    yours = f(x)[1](c)[0]
    numeric = complex_step(loss, x)
    scale = np.max(abs(numeric))
    return np.max(abs(yours - numeric) / scale)
""", """
def gradient_error(f, x, c):
    y, back = f(x)
    numeric = complex_step(lambda z: np.tensordot(c, f(z)[0], axes=c.ndim), x).ravel()
    yours = np.ravel(back(c)[0])
    inf = lambda v: np.linalg.norm(v, np.inf)
    return float(inf(yours - numeric) / inf(numeric))
""", """
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
""", """
def gradient_error(f, x, c):
    L = lambda z: sum(ci * yi for ci, yi in zip(c.flat, f(z)[0].flat))
    n = complex_step(L, x)
    d = f(x)[1](c)[0] - n
    if np.isnan(d).any():
        return np.nan
    return np.sqrt((d**2).max()) / np.sqrt((n**2).max())
""")
compare.wrong("relative in each entry", r"each entry|per entry|entry by entry|every entry|whichever entr|own entry",
    "np.abs(yours - numeric).max() / np.abs(numeric).max()", "np.abs((yours - numeric) / numeric).max()")
compare.wrong("NaN is skipped", r"NaN", "np.abs(yours - numeric).max()", "np.nanmax(np.abs(yours - numeric))")
compare.wrong("the loss without c", r"cotangent|Σ ?c|\bc ·|weight|plain sum|sum of y|without c",
    "(c * f(z)[0]).sum()", "f(z)[0].sum()")
compare.wrong("without absolute values", r"abs|magnitude|sign|negative",
    "np.abs(yours - numeric).max()", "(yours - numeric).max()")
compare.wrong("the mean error", r"mean|average", "abs(yours - numeric).max()", "abs(yours - numeric).mean()")
compare.wrong("the tuple is not opened", r"tuple", "(yours,) = pullback(c)", "yours = pullback(c)",
    "np.abs(yours - numeric).max()", "np.abs(yours.ravel() - numeric.ravel()).max()")
compare.wrong("absolute, not relative", r"divid|relative|units|/ max", " / np.abs(numeric).max()", "")
compare.wrong("relative to the analytic gradient", r"by the (numeric|analytic)|numeric (one|gradient)|max \|numeric\||divid", "/ np.abs(numeric).max()", "/ np.abs(yours).max()")
compare.wrong("relative to both", r"by the (numeric|analytic)|numeric (one|gradient)|max \|numeric\||divid|half", "np.abs(numeric).max()", "(np.abs(numeric).max() + np.abs(yours).max())")
compare.wrong("lengths instead of largest entries", r"norm|largest|max|root", "np.abs(yours - numeric).max() / np.abs(numeric).max()", "np.linalg.norm(yours - numeric) / np.linalg.norm(numeric)")
compare.wrong("an epsilon below", r"eps|1e-|added|small", "/ np.abs(numeric).max()", "/ (np.abs(numeric).max() + 1e-8)")
wrong("gradient_error", "the difference of norms", r"entry by entry|difference of (two|the)|subtract", """
def gradient_error(f, x, c):
    (g,) = f(x)[1](c)
    n = complex_step(lambda z: np.sum(c * f(z)[0]), x)
    return abs(np.linalg.norm(g) - np.linalg.norm(n)) / np.linalg.norm(n)
""")
wrong("gradient_error", "the difference of the largest entries", r"entry by entry|difference of (two|the)|subtract", """
def gradient_error(f, x, c):
    (g,) = f(x)[1](c)
    n = complex_step(lambda z: np.sum(c * f(z)[0]), x)
    return abs(np.max(abs(g)) - np.max(abs(n))) / np.max(abs(n))
""")
wrong("gradient_error", "a central difference with h = 1e-5", r"complex_step|digits|rounding", """
def gradient_error(f, x, c):
    (g,) = f(x)[1](c)
    n = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = 1e-5
        n[k] = np.sum(c * (f(x + e)[0] - f(x - e)[0])) / 2e-5
    return np.max(abs(g - n)) / np.max(abs(n))
""")
wrong("gradient_error", "the root of the mean square", r"largest|max|mean|norm", """
def gradient_error(f, x, c):
    (g,) = f(x)[1](c)
    n = complex_step(lambda z: np.sum(c * f(z)[0]), x)
    return np.sqrt(np.mean((g - n) ** 2)) / np.sqrt(np.mean(n**2))
""")
wrong("gradient_error", "the cotangent only in the pullback", r"leaves c out", """
def gradient_error(f, x, c):
    _, pull = f(x)
    n = complex_step(lambda z: f(z)[0].sum(), x)
    return abs(pull(c)[0] - n).max() / abs(n).max()
""")
