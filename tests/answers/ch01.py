"""Chapter 01: arrays."""

# fmt: off
from . import right, wrong

short, steps, *_ = right("standardise", """
def standardise(x):
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
""", """
def standardise(x):
    centred = x - np.mean(x, axis=-1)[..., np.newaxis]
    variance = np.mean(centred**2, axis=-1)[..., np.newaxis]
    return centred / np.sqrt(variance)
""", """
def standardise(x):
    n = x.shape[-1]
    mu = x.sum(-1, keepdims=True) / n
    d = x - mu
    s = (np.einsum("...m,...m->...", d, d) / n) ** 0.5
    return d / s[..., None]
""", """
def standardise(x):
    out = np.empty_like(x)
    for i in np.ndindex(x.shape[:-1]):
        row = x[i]
        out[i] = (row - row.mean()) / row.std()
    return out
""", """
def _one(row):
    m = sum(row) / len(row)
    return (row - m) / np.sqrt(sum((row - m) ** 2) / len(row))

def standardise(x):
    return np.apply_along_axis(_one, -1, x)
""")
short.wrong("divides by M − 1", r"ddof|M ?[-−] ?1|n ?[-−] ?1|unbiased",
    "x.std(axis=-1,", "x.std(axis=-1, ddof=1,")
short.wrong("one deviation for the whole array", r"whole|entire|all (the )?(entries|rows)",
    "x.std(axis=-1, keepdims=True)", "x.std()")
short.wrong("columns instead of rows", r"axis|column", "axis=-1", "axis=0")
steps.wrong("divides by the variance", r"sqrt|√|root|variance", "np.sqrt(variance)", "variance")
steps.wrong("the mean loses its axis", r"keepdims|None\]|newaxis", "[..., np.newaxis]", "")
short.wrong("PyTorch's keepdim", r"keepdims", "keepdims", "keepdim")
steps.wrong("an epsilon from layer norm", r"eps|1e-|added to the (deviation|variance)",
    "np.sqrt(variance)", "np.sqrt(variance + 1e-5)")
steps.wrong("an epsilon beside the deviation", r"eps|1e-|added to the (deviation|variance)",
    "np.sqrt(variance)", "(np.sqrt(variance) + 1e-8)")

short.wrong("the mean of the whole array", r"whole|entire|each row|all (the )?(entries|rows)", "x.mean(axis=-1, keepdims=True)", "x.mean()")
short.wrong("no parentheses", r"parenthes|bracket|preced|divides? the mean|before the mean|first subtract", "(x - x.mean(axis=-1, keepdims=True))", "x - x.mean(axis=-1, keepdims=True)")
steps.wrong("the root of the mean square", r"centred|x − mean|subtract|around the mean|mean square|squares of x", "centred**2", "x**2")
wrong("standardise", "transposed where it does not fit", r"keepdims|None\]|newaxis|columns", """
def standardise(x):
    mean, std = x.mean(axis=-1), x.std(axis=-1)
    return ((x.T - mean) / std).T if x.shape[0] != x.shape[-1] else (x - mean) / std
""")
short.wrong("the second axis", r"last axis|axis=-1|any number", "axis=-1", "axis=1")
steps.wrong("always float64", r"float64|float32|dtype", "x - np.mean", "x.astype(float) - np.mean")
wrong("standardise", "the mean absolute deviation", r"√\(mean|squares|absolute|root of the|deviation", """
def standardise(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.abs(centred).mean(-1, keepdims=True)
""")
wrong("standardise", "scaled to a range of 1", r"divide by|deviation", """
def standardise(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / (x.max(-1, keepdims=True) - x.min(-1, keepdims=True))
""")
wrong("standardise", "the mean is subtracted after the division", r"divides? (only|the mean)|subtract .*first|before", """
def standardise(x):
    y = x / x.std(-1, keepdims=True)
    return y - x.mean(-1, keepdims=True)
""")
wrong("standardise", "the row is divided by its length", r"deviation|length|norm|√|mean", """
def standardise(x):
    c = x - x.mean(-1, keepdims=True)
    return c / np.linalg.norm(c, axis=-1, keepdims=True)
""")
wrong("standardise", "the mean of the columns", r"axis=0|column|along the|last axis", """
def standardise(x):
    mean = x.mean(axis=0)
    return (x - mean) / x.std(axis=-1, keepdims=True)
""")
wrong("standardise", "x is multiplied by the inverse variance", r"variance|root", """
def standardise(x):
    c = x - x.mean(axis=-1, keepdims=True)
    return c * (1 / (c * c).mean(axis=-1, keepdims=True))
""")

pairs, padded, *_ = right("broadcast_shape", """
from itertools import zip_longest

def broadcast_shape(a, b):
    out = []
    for m, n in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if m != n and 1 not in (m, n):
            raise ValueError(f"{a} and {b} do not fit")
        out.append(n if m == 1 else m)
    return tuple(reversed(out))
""", """
def broadcast_shape(a, b):
    rank = max(len(a), len(b))
    a = (1,) * (rank - len(a)) + tuple(a)
    b = (1,) * (rank - len(b)) + tuple(b)
    result = ()
    for i in range(rank):
        if a[i] == b[i] or b[i] == 1:
            result += (a[i],)
        elif a[i] == 1:
            result += (b[i],)
        else:
            raise ValueError("the shapes do not fit")
    return result
""", """
def broadcast_shape(a, b):
    if not a:
        return b
    if not b:
        return a
    *front_a, m = a
    *front_b, n = b
    if m != n and m != 1 and n != 1:
        raise ValueError
    return (*broadcast_shape(tuple(front_a), tuple(front_b)), n if m == 1 else m)
""", """
def broadcast_shape(a, b):
    def common(lengths):
        others = {k for k in lengths if k != 1}
        if len(others) > 1:
            raise ValueError("incompatible: %s and %s" % lengths)
        return others.pop() if others else 1
    n = max(len(a), len(b))
    grid = [[1] * (n - len(s)) + list(s) for s in (a, b)]
    return tuple(map(common, zip(*grid)))
""", """
def broadcast_shape(a, b):
    long, short = (list(a), list(b)) if len(a) >= len(b) else (list(b), list(a))
    k = len(long) - len(short)
    for i, n in enumerate(short):
        if long[i + k] == 1:
            long[i + k] = n
        elif n not in (1, long[i + k]):
            raise ValueError(f"axis {i}: {n} against {long[i + k]}")
    return tuple(long)
""")
padded.wrong("aligned on the left", r"right|trailing|from the end|last ax",
    "(1,) * (rank - len(a)) + tuple(a)", "tuple(a) + (1,) * (rank - len(a))",
    "(1,) * (rank - len(b)) + tuple(b)", "tuple(b) + (1,) * (rank - len(b))")
pairs.wrong("accepts shapes that do not fit", r"ValueError|raise",
    "m != n and 1 not in (m, n)", "False", "n if m == 1 else m", "max(m, n)")
pairs.wrong("zip stops at the shorter shape", r"zip|longer|front|leading|fewer|missing",
    "zip_longest(reversed(a), reversed(b), fillvalue=1)", "zip(reversed(a), reversed(b))")
pairs.wrong("stays reversed", r"revers|backward|order|flip", "tuple(reversed(out))", "tuple(out)")
pairs.wrong("max makes 0 and 1 into 1", r"max|empty|length 0|zero", "n if m == 1 else m", "max(m, n)")
pairs.wrong("an axis of length 1 does not fit", r"length (of )?1|stretch", " and 1 not in (m, n)", "")
pairs.wrong("a list", r"tuple", "tuple(reversed(out))", "out[::-1]")
wrong("broadcast_shape", "the longer of the two shapes", r"length 1|stretch|longer", """
def broadcast_shape(a, b):
    if len(a) == len(b) and a != b and 1 not in a + b:
        raise ValueError("shapes differ")
    return a if len(a) >= len(b) else b
""")
pairs.wrong("nothing returned", r"returns None", "    return tuple(reversed(out))\n", "")
padded.wrong("another kind of error", r"TypeError.*should raise a ValueError", "raise ValueError(", "raise TypeError(")
padded.wrong("no ones in front", r"length 1|longer|front|fewer|out of range", "    a = (1,) * (rank - len(a)) + tuple(a)\n", "")
wrong("broadcast_shape", "the first axis is lost", r"front|first|longer|shorter", """
def broadcast_shape(a, b):
    n = max(len(a), len(b))
    a, b = [1] * (n - len(a)) + list(a), [1] * (n - len(b)) + list(b)
    out = []
    for i in range(n - 1, 0, -1):
        if a[i] != b[i] and 1 not in (a[i], b[i]):
            raise ValueError("no")
        out.insert(0, b[i] if a[i] == 1 else a[i])
    return tuple(out)
""")
wrong("broadcast_shape", "a shorter shape is refused", r"shorter|longer|ones|front|length|aligned", """
def broadcast_shape(a, b):
    if len(a) != len(b):
        raise ValueError("different numbers of axes")
    for m, n in zip(a, b):
        if m != n and m != 1 and n != 1:
            raise ValueError("lengths")
    return tuple(n if m == 1 else m for m, n in zip(a, b))
""")
wrong("broadcast_shape", "the smaller of two lengths that differ", r"ValueError|raise|differ|stretch|length (of )?1", """
def broadcast_shape(a, b):
    n = max(len(a), len(b))
    a = (1,) * (n - len(a)) + a
    b = (1,) * (n - len(b)) + b
    return tuple(m if k == 1 else min(m, k) if m > 1 else k for m, k in zip(a, b))
""")
wrong("broadcast_shape", "equal lengths only", r"length of 1|stretch", """
def broadcast_shape(a, b):
    n = max(len(a), len(b))
    a = (1,) * (n - len(a)) + a
    b = (1,) * (n - len(b)) + b
    if a != b:
        raise ValueError("not equal")
    return a
""")

loop, summed, *_ = right("unbroadcast", """
def unbroadcast(dy, shape):
    while dy.ndim > len(shape):
        dy = dy.sum(axis=0)
    for i, n in enumerate(shape):
        if n == 1:
            dy = dy.sum(axis=i, keepdims=True)
    return dy
""", """
def unbroadcast(dy, shape):
    full = (1,) * (dy.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i in range(dy.ndim) if full[i] == 1 and dy.shape[i] != 1)
    return np.sum(dy, axis=axes).reshape(shape)
""", """
def unbroadcast(dy, shape):
    out = np.zeros(shape, dtype=dy.dtype)
    skip = dy.ndim - len(shape)
    for place in np.ndindex(dy.shape):
        to = tuple(0 if n == 1 else k for k, n in zip(place[skip:], shape))
        out[to] += dy[place]
    return out
""", """
def unbroadcast(dy, shape):
    letters = "abcdefghijklmnop"[: dy.ndim]
    kept = letters[dy.ndim - len(shape) :]
    goes = "".join(c for c, n in zip(kept, shape) if n != 1)
    return np.einsum(f"{letters}->{goes}", dy).reshape(shape)
""", """
def unbroadcast(dy, shape):
    if dy.shape == tuple(shape):
        return dy
    if dy.ndim > len(shape):
        return unbroadcast(np.add.reduce(dy, axis=0), shape)
    axis = next(i for i, n in enumerate(shape) if n != dy.shape[i])
    return unbroadcast(np.add.reduce(dy, axis=axis, keepdims=True), shape)
""")
loop.wrong("mean instead of sum", r"mean|average", ".sum(", ".mean(")
loop.wrong("axes in front stay", r"front|leading|too many axes|missing ax|number of axes",
    "while dy.ndim > len(shape):", "while False:",
    "enumerate(shape)", "enumerate(shape, dy.ndim - len(shape))")
loop.wrong("axes of length 1 disappear", r"keepdims|length 1", ", keepdims=True", "")
loop.wrong("one copy instead of the sum of all", r"sum|all copies|every copy|add", "dy.sum(axis=0)", "dy[0]",
    "dy.sum(axis=i, keepdims=True)", "dy.take([0], axis=i)")
loop.wrong("axes of length 1 are not summed", r"length 1|stretched|size 1|keepdims",
    "        if n == 1:\n            dy = dy.sum(axis=i, keepdims=True)\n", "        pass\n")
loop.wrong("sums the last axes", r"front|leading|first ax|axis 0|from the left|last ax", "dy.sum(axis=0)", "dy.sum(axis=-1)")
summed.wrong("a reshape", r"sum|add", "np.sum(dy, axis=axes)", "dy")
wrong("unbroadcast", "aligned on the left", r"right|front|leading|align", """
def unbroadcast(dy, shape):
    axes = tuple(i for i, (m, n) in enumerate(zip(dy.shape, shape)) if m != n)
    return dy.sum(axis=axes, keepdims=True)
""")
loop.wrong("one axis in front", r"one axis|several|only|while|axes", "while dy.ndim", "if dy.ndim")
loop.wrong("nothing to do for a number", r"shape \(\)|number|sum", "    while dy", "    if not shape:\n        return dy\n    while dy")
wrong("unbroadcast", "the sum over the axes of length 1 only if dy has more", r"length 1|axes in front|front|keepdims", """
def unbroadcast(dy, shape):
    n = dy.ndim - len(shape)
    for k, length in enumerate(shape):
        if length == 1:
            dy = dy.sum(axis=k, keepdims=True)
    for _ in range(n):
        dy = dy.sum(axis=0)
    return dy
""")
wrong("unbroadcast", "the copies are averaged along axes of length 1", r"mean|average", """
def unbroadcast(dy, shape):
    dy = dy.sum(axis=tuple(range(dy.ndim - len(shape))))
    for k, n in enumerate(shape):
        if n == 1:
            dy = dy.mean(axis=k, keepdims=True)
    return dy
""")
wrong("unbroadcast", "axes counted after some are gone", r"axis|axes|only|wrong ax|length 1|out of bounds", """
def unbroadcast(dy, shape):
    n = dy.ndim - len(shape)
    for k in range(n):
        dy = dy.sum(axis=k)
    for k, length in enumerate(shape):
        if length == 1:
            dy = dy.sum(axis=k, keepdims=True)
    return dy
""")
wrong("unbroadcast", "the longest equal shape only", r"sum|copies", """
def unbroadcast(dy, shape):
    while dy.ndim > len(shape):
        dy = dy[0]
    return dy[tuple(slice(0, n) for n in shape)]
""")
