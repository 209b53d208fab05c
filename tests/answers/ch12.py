"""Chapter 12: kernels for a GPU."""

# fmt: off
from . import right, wrong

product, *_ = right("tiled_product", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    grid = (-(-x.shape[0] // m), -(-y.shape[1] // n))

    def kernel(x, y, out):
        row, column = ct.bid(0), ct.bid(1)
        total = ct.full((m, n), 0, ct.float64)
        for step in range(-(-y.shape[0] // k)):
            a = ct.load(x, index=(row, step), shape=(m, k), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(y, index=(step, column), shape=(k, n), padding_mode=ct.PaddingMode.ZERO)
            total = total + a @ b
        ct.store(out, index=(row, column), tile=total)

    ct.launch(None, grid, kernel, (x, y, out))
    return out
""", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    grid = int(np.ceil(len(x) / m)), int(np.ceil(y.shape[1] / n))

    def kernel(x, y, out):
        depth = x.shape[1]
        acc = ct.full((m, n), 0.0, ct.float64)
        for c in range(ct.cdiv(depth, k)):
            a = ct.load(x, (ct.bid(0), c), (m, k))
            b = ct.load(y, (c, ct.bid(1)), (k, n))
            at = c * k + ct.arange(k, dtype=ct.int32)
            a = ct.where(at[None, :] < depth, a, 0.0)   # no padding mode: hide by hand
            b = ct.where(at[:, None] < depth, b, 0.0)
            acc = ct.mma(a, b, acc)
        ct.store(out, (ct.bid(0), ct.bid(1)), acc)

    ct.launch(None, grid, kernel, (x, y, out))
    return out
""")
product.wrong("the grid rounded down", r"rounds? (down|up)|too small|cdiv|incomplete",
    "(-(-x.shape[0] // m), -(-y.shape[1] // n))", "(x.shape[0] // m, y.shape[1] // n)")
product.wrong("an index that counts entries", r"counts? (entries|tiles)|outside",
    "index=(row, column), tile", "index=(row * m, column * n), tile")
product.wrong("offsets in a load", r"counts? (entries|tiles)|outside", "(row, step)", "(row * m, step * k)")
product.wrong("no padding", r"padding|beyond the edge", ", padding_mode=ct.PaddingMode.ZERO", "")
product.wrong("the last tile of the sum left out", r"last.*tile|rounds? (down|up)|incomplete",
    "-(-y.shape[0] // k)", "y.shape[0] // k")
product.wrong("the last product alone", r"only the last|add", "total = total + a @ b", "total = a @ b")
product.wrong("bid(0) and bid(1) exchanged", r"exchang|swap|outside", "(0), ct.bid(1)", "(1), ct.bid(0)")
product.wrong("a race", r"two stores|race|same (place|tile)", "ct.bid(0), ct.bid(1)", "ct.bid(0), 0")
product.wrong("a store in the loop", r"two stores|store once|after the loop",
    "        ct.store(out", "            ct.store(out")
wrong("tiled_product", "NumPy on whole arrays", r"Memory|load", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    def grid():
        return ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)
    def kernel(x, y, out):
        i, j = ct.bid(0), ct.bid(1)
        out[i * m : i * m + m, j * n : j * n + n] = x[i * m : i * m + m] @ y[:, j * n : j * n + n]
    ct.launch(None, grid(), kernel, (x, y, out))
    return out
""")
product.wrong("sums in float32", r"float32", "float64", "float32", "total + a @ b", "ct.mma(a, b, total)")

product.wrong("m and n exchanged in the grid", r"m and n|exchang|swap|grid|too (small|many|few)|outside|no block", "x.shape[0] // m), -(-y.shape[1] // n)", "x.shape[0] // n), -(-y.shape[1] // m)")
product.wrong("row and column of y exchanged", r"exchang|swap|index|order|outside", "(step, column)", "(column, step)")
product.wrong("the shape of a tile exchanged", r"shape|exchang|swap|transpos", "shape=(k, n)", "shape=(n, k)")
product.wrong("not a power of 2", r"powers of 2", "ct.full((m, n)", "ct.full((3, n)")
product.wrong("a tile changed in place", r"cannot be assigned", "total = total + a @ b", "total[...] = total + a @ b")
product.wrong("a shape with one axis", r"of shape \(4,\)", "shape=(m, k)", "shape=(m,)")

right("tiled_product", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    across = ct.cdiv(y.shape[1], n)

    def kernel(y, x, out):
        i, j = ct.bid(0) // across, ct.bid(0) % across   # the blocks in one row
        zero = ct.PaddingMode.ZERO
        tile = ct.full((n, m), 0.0, ct.float64)          # transposed
        for c in reversed(range(ct.cdiv(x.shape[1], k))):
            left = ct.load(y, (j, c), (n, k), order=(1, 0), padding_mode=zero)
            right = ct.load(x, (c, i), (k, m), order="F", padding_mode=zero)
            for r in range(k):
                tile = tile + left[:, r : r + 1] * right[r]
        ct.store(out, (j, i), tile, order=(1, 0))

    ct.launch(None, (ct.cdiv(x.shape[0], m) * across,), kernel, (y, x, out))
    return out
""", """
from minimha.kernels import numpy_tile
bid, cdiv, full, load, mma = [getattr(numpy_tile, x) for x in "bid cdiv full load mma".split()]
PaddingMode, launch = numpy_tile.PaddingMode, numpy_tile.launch

def tiled_product(x, y, m, n, k):
    out = np.empty((len(x), y.shape[1]))

    def kernel(x, columns, out):
        i, j = bid(0), bid(1)
        acc = full((m, n), 0, numpy_tile.float64)
        for _ in range(2):                               # everything twice, then half of it
            for c in range(cdiv(x.shape[1], k)):
                b = load(columns, (j, c), (n, k), padding_mode=PaddingMode.ZERO)
                acc = mma(load(x, (i, c), (m, k), padding_mode=PaddingMode.ZERO), b.T, acc)
        numpy_tile.store(out, (i, j), acc / 2)

    launch(None, (cdiv(len(x), m), cdiv(y.shape[1], n)), kernel, (x, y.T, out))
    return out
""")

wrong("tiled_product", "no kernel", r"x was loaded 0 times", """
def tiled_product(x, y, m, n, k):
    return x @ y
""")
product.wrong("the kernel reads x around it", r"entries are read without ct.load", "def kernel(x, y, out)", "whole = np.pad(x, 16)[16:, 16:]\n    def kernel(x, y, out)",
    "total + a @ b", "total + whole[row * m : row * m + m, step * k : step * k + k] @ b")
product.wrong("tiles twice as wide", r"loaded a tile with \d+ entries along D", "shape=(m, k)", "shape=(m, 2 * k)", "shape=(k, n)", "shape=(2 * k, n)", "-(-y.shape[0] // k)", "-(-y.shape[0] // (2 * k))")

product.wrong("everything in one block", r"at most|did not load", "total = ct.full((m, n), 0, ct.float64)", "pass",
    "row, column = ct.bid(0), ct.bid(1)\n", """if ct.bid(0) + ct.bid(1):
            return
        for row, column in np.ndindex(*grid):
            self = ct.full((m, n), 0, ct.float64)
            for step in range(-(-y.shape[0] // k)):
                a = ct.load(x, (row, step), (m, k), padding_mode=ct.PaddingMode.ZERO)
                self = self + a @ ct.load(y, (step, column), (k, n), padding_mode=ct.PaddingMode.ZERO)
            ct.store(out, (row, column), self)
        return
""")
wrong("tiled_product", "a grid of one block", r"at most", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    def kernel(x, y, out):
        for i in range(ct.cdiv(x.shape[0], m)):
            for j in range(ct.cdiv(y.shape[1], n)):
                acc = ct.full((m, n), 0.0, ct.float64)
                for c in range(ct.cdiv(x.shape[1], k)):
                    a = ct.load(x, (i, c), (m, k), padding_mode=ct.PaddingMode.ZERO)
                    b = ct.load(y, (c, j), (k, n), padding_mode=ct.PaddingMode.ZERO)
                    acc = ct.mma(a, b, acc)
                ct.store(out, (i, j), acc)
    ct.launch(None, (1, 1), kernel, (x, y, out))
    return out
""")
wrong("tiled_product", "whole rows and columns at once", r"entries along D", """
def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros((x.shape[0], y.shape[1]))
    d = 16
    def kernel(x, y, out):
        i, j = ct.bid(0), ct.bid(1)
        a = ct.load(x, (i, 0), (m, d), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(y, (0, j), (d, n), padding_mode=ct.PaddingMode.ZERO)
        ct.store(out, (i, j), a @ b)
    ct.launch(None, (ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)), kernel, (x, y, out))
    return out
""")
product.wrong("the loop runs along M", r"along D|along M|range|outside|loop|last tile", "range(-(-y.shape[0] // k))", "range(-(-y.shape[1] // k))")
product.wrong("nothing stored", r"no block has stored|not stored|zero", "ct.store(out, index=(row, column), tile=total)", "pass")
product.wrong("the entries multiplied", r"broadcast|@|mma|shape", "total + a @ b", "total + a * b")
product.wrong("a grid with one axis", r"grid|no block has stored|two stores|axis|axes", "grid = (-(-x.shape[0] // m), -(-y.shape[1] // n))", "grid = (-(-x.shape[0] // m),)")
product.wrong("a grid of entries", r"outside|grid|too many", "-(-x.shape[0] // m), -(-y.shape[1] // n)", "x.shape[0], y.shape[1]")
product.wrong("y loaded transposed", r"transpos|exchang|swap|shape", "shape=(k, n), pad", "shape=(k, n), order=(1, 0), pad")
product.wrong("padding of minus infinity", r"padding|zeros?\b|NaN|−∞", "ct.PaddingMode.ZERO", "ct.PaddingMode.NEG_INF")

softmax, online = right("softmax_rows", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)

    def kernel(x, out):
        i = ct.bid(0)
        count = ct.cdiv(x.shape[1], n)
        biggest = ct.full((m, 1), -np.inf, ct.float64)
        for j in range(count):
            t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            biggest = ct.maximum(biggest, ct.max(t, axis=1, keepdims=True))
        total = ct.full((m, 1), 0.0, ct.float64)
        for j in range(count):
            t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            total = total + ct.sum(ct.exp(t - biggest), axis=1, keepdims=True)
        for j in range(count):
            t = ct.load(x, (i, j), (m, n))
            ct.store(out, (i, j), ct.exp(t - biggest) / total)

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)

    def kernel(x, out):
        i = ct.bid(0)
        width = x.shape[1]
        top = ct.full((m,), -np.inf, ct.float64)
        l = ct.full((m,), 0.0, ct.float64)
        for j in range(ct.cdiv(width, n)):
            t = ct.load(x, (i, j), (m, n))
            t = ct.where((j * n + ct.arange(n, dtype=ct.int32) < width)[None, :], t, -np.inf)
            old, top = top, ct.maximum(top, ct.max(t, axis=1))
            l = l * ct.exp(old - top) + ct.sum(ct.exp(t - top[:, None]), axis=1)
        for j in range(ct.cdiv(width, n)):
            t = ct.load(x, (i, j), (m, n))
            ct.store(out, (i, j), ct.exp(t - top[:, None]) / l[:, None])

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
softmax.wrong("zeros beyond the edge", r"NEG_INF|−∞|beyond", "NEG_INF", "ZERO")
softmax.wrong("the edge not masked", r"padding|beyond|NEG_INF", ", padding_mode=ct.PaddingMode.NEG_INF", "")
online.wrong("the sum not rescaled", r"rescal|old maximum", "l * ct.exp(old - top)", "l")
online.wrong("the factor upside down", r"factor|e\^\(peak|invers|overflow", "(old - top)", "(top - old)")
softmax.wrong("not divided by the sum", r"divid|sum", "ct.exp(t - biggest) / total)", "ct.exp(t - biggest))")
softmax.wrong("the last tile forgotten", r"last.*tile|rounds? (down|up)|incomplete|no block stores",
    "ct.cdiv(x.shape[1], n)", "x.shape[1] // n")
softmax.wrong("a maximum of the whole tile", r"whole tile|each row|axis", "(t, axis=1, keepdims=True)", "(t)")
softmax.wrong("a race", r"two stores|race|same (place|rows)", "i = ct.bid(0)", "i = 0")
softmax.wrong("everything stored at the first tile", r"two stores|same place", "out, (i, j)", "out, (i, 0)")
softmax.wrong("stored before the sum is known", r"before|second time|sum",
    "for j in range(count):\n            t = ct.load(x, (i, j), (m, n))\n            ct.store",
    "    ct.store")
softmax.wrong("the maximum starts at 0", r"−∞|-inf|starts?|negative|initial", "(m, 1), -np.inf", "(m, 1), 0.0")
softmax.wrong("the maximum of the last tile", r"last tile|so far|larger of|maximum of", "ct.maximum(biggest, ct.max(t, axis=1, keepdims=True))", "ct.max(t, axis=1, keepdims=True)")
softmax.wrong("no maximum", r"overflow|subtract|maximum", "ct.exp(t - biggest)", "ct.exp(t)")
softmax.wrong("the columns of a tile", r"axis|columns|rows", "axis=1", "axis=0", "(m, 1)", "(1, n)")

right("softmax_rows", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)

    def kernel(x, out):
        # a row at a time: tiles of (1, n)
        for row in range(ct.bid(0) * m, min(ct.bid(0) * m + m, x.shape[0])):
            logs = -np.inf
            for j in range(ct.cdiv(x.shape[1], n)):
                tile = ct.load(x, (row, j), (1, n), padding_mode=ct.PaddingMode.NEG_INF)
                peak = ct.max(tile)
                logs = np.logaddexp(logs, peak + ct.log(ct.sum(ct.exp(tile - peak))))
            for j in range(ct.cdiv(x.shape[1], n)):
                ct.store(out, (row, j), ct.exp(ct.load(x, (row, j), (1, n)) - logs))

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out, scratch = np.zeros(x.shape), np.zeros(x.shape)

    def kernel(x, scratch, out):
        i, last = ct.bid(0), ct.cdiv(x.shape[1], n) - 1
        peak = ct.full((m,), -np.inf, ct.float64)
        for j in range(last, -1, -1):
            t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            peak = ct.maximum(peak, ct.max(t, axis=1))
        total = 0
        for j in range(last + 1):
            t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            e = ct.exp(t - peak[:, None])
            ct.store(scratch, (i, j), e)
            total = total + ct.sum(e, axis=1, keepdims=True)
        for j in range(last + 1):
            ct.store(out, (i, j), ct.load(scratch, (i, j), (m, n)) / total)

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, scratch, out))
    return out
""")
wrong("softmax_rows", "the function around the kernel computes", r"without ct.load|not stored|loaded 0 times", """
def softmax_rows(x, m, n):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
""")
softmax.wrong("all tiles of a row joined", r"joined", "count = ct.cdiv(x.shape[1], n)",
    "row = np.concatenate([ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF) for j in range(ct.cdiv(x.shape[1], n))], axis=1)\n        count = ct.cdiv(x.shape[1], n)")

wrong("softmax_rows", "softmax of each tile alone", r"each tile alone|whole row|tile's own", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)
    def kernel(x, out):
        i = ct.bid(0)
        for j in range(ct.cdiv(x.shape[1], n)):
            t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            e = ct.exp(t - ct.max(t, axis=1, keepdims=True))
            ct.store(out, (i, j), e / ct.sum(e, axis=1, keepdims=True))
    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
wrong("softmax_rows", "a block for each tile", r"each tile alone|did not load|whole row|tile's own", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)
    def kernel(x, out):
        i, j = ct.bid(0), ct.bid(1)
        t = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
        e = ct.exp(t - ct.max(t, axis=1, keepdims=True))
        ct.store(out, (i, j), e / ct.sum(e, axis=1, keepdims=True))
    ct.launch(None, (ct.cdiv(x.shape[0], m), ct.cdiv(x.shape[1], n)), kernel, (x, out))
    return out
""")
wrong("softmax_rows", "one tile for a whole row", r"entries along (S|columns)", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)
    def kernel(x, out):
        t = ct.load(x, (ct.bid(0), 0), (m, 32), padding_mode=ct.PaddingMode.NEG_INF)
        e = ct.exp(t - ct.max(t, axis=1, keepdims=True))
        ct.store(out, (ct.bid(0), 0), e / ct.sum(e, axis=1, keepdims=True))
    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
wrong("softmax_rows", "NumPy in the kernel", r"Memory|load", """
def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct
    out = np.zeros(x.shape)
    def kernel(x, out):
        i = ct.bid(0)
        rows = x[i * m : (i + 1) * m]
        e = np.exp(rows - rows.max(axis=1, keepdims=True))
        out[i * m : (i + 1) * m] = e / e.sum(axis=1, keepdims=True)
    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
""")
softmax.wrong("the peak of each tile in the second loop", r"each tile|tile's own|peak|row", "ct.exp(t - biggest) / total)", "ct.exp(t - ct.max(t, axis=1, keepdims=True)) / total)")
softmax.wrong("the logarithm of softmax", r"logarithm|\bln\b|\blog", "ct.exp(t - biggest) / total)", "t - biggest - ct.log(total))")
softmax.wrong("zeros beyond the edge in the sum alone", r"NEG_INF|−∞|beyond", "(i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)\n            total", "(i, j), (m, n), padding_mode=ct.PaddingMode.ZERO)\n            total")
softmax.wrong("a sum over the whole tile", r"whole tile|each row|axis", "ct.sum(ct.exp(t - biggest), axis=1, keepdims=True)", "ct.sum(ct.exp(t - biggest))")
softmax.wrong("the sum of the last tile", r"last tile|add it", "total = total + ct.sum", "total = ct.sum")
online.wrong("new terms rescaled too", r"new terms are multiplied", "l = l * ct.exp(old - top) + ct.sum(ct.exp(t - top[:, None]), axis=1)", "l = (l + ct.sum(ct.exp(t - top[:, None]), axis=1)) * ct.exp(old - top)")
online.wrong("terms relative to the old maximum", r"divided by ∞", "ct.sum(ct.exp(t - top[:, None]), axis=1)", "ct.sum(ct.exp(t - old[:, None]), axis=1)")
softmax.wrong("nothing stored", r"no block has stored|not stored", "ct.store(out, (i, j), ct.exp(t - biggest) / total)", "pass")

backward, *_ = right("key_gradients_in_blocks", """
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct
    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        j = ct.bid(0)
        Z = ct.PaddingMode.ZERO
        k = ct.load(key, (j, 0), (n, d), padding_mode=Z)
        v = ct.load(value, (j, 0), (n, dv), padding_mode=Z)
        gk = ct.full((n, d), 0.0, ct.float64)
        gv = ct.full((n, dv), 0.0, ct.float64)
        for i in range(ct.cdiv(t, m)):
            q = ct.load(query, (i, 0), (m, d), padding_mode=Z)
            g = ct.load(dout, (i, 0), (m, dv), padding_mode=Z)
            logs = ct.load(lse, (i,), (m,), padding_mode=Z)[None, :]
            D = ct.load(delta, (i,), (m,), padding_mode=Z)[None, :]
            p = ct.exp(scale * (k @ q.T) - logs)
            ds = p * (v @ g.T - D)
            gv = gv + p @ g
            gk = gk + ds @ q
        ct.store(dkey, (j, 0), gk * scale)
        ct.store(dvalue, (j, 0), gv)

    ct.launch(None, (ct.cdiv(s, n),), kernel, (query, key, value, lse, dout, delta, dkey, dvalue))
    return dkey, dvalue
""", """
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct
    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        j, zero = ct.bid(0), ct.PaddingMode.ZERO
        kt = ct.load(key, (0, j), (d, n), order=(1, 0), padding_mode=zero)
        vt = ct.load(value, (0, j), (dv, n), order=(1, 0), padding_mode=zero)
        a, b = ct.full((n, d), 0.0, ct.float64), ct.full((n, dv), 0.0, ct.float64)
        for i in range(ct.cdiv(t, m)):  # tiles of (m, n), queries first
            q = ct.load(query, (i, 0), (m, d), padding_mode=zero)
            g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
            L = ct.load(lse, (i,), (m,), padding_mode=ct.PaddingMode.POS_INF).reshape((m, 1))
            D = ct.load(delta, (i,), (m,), padding_mode=zero).reshape((m, 1))
            none = ct.full((m, n), 0.0, ct.float64)
            p = ct.exp(ct.mma(scale * q, kt, none) - L)
            ds = p * (ct.mma(g, vt, none) - D)
            b = ct.mma(p.T, g, b)
            a = ct.mma(ds.T, q * scale, a)
        ct.store(dkey, (j, 0), a)
        ct.store(dvalue, (j, 0), b)

    ct.launch(None, (ct.cdiv(s, n),), kernel, (query, key, value, lse, dout, delta, dkey, dvalue))
    return dkey, dvalue
""")
backward.wrong("no scale in dkey", r"scale.*missing|missing.*scale", "gk * scale", "gk")
backward.wrong("scale in dvalue", r"dvalue has the factor", "(j, 0), gv", "(j, 0), gv * scale")
backward.wrong("delta left out", r"delta", "v @ g.T - D", "v @ g.T")
backward.wrong("dvalue from dscores", r"weights", "p @ g", "ds @ g")
backward.wrong("lse as a column", r"column|\(1, m\)",
    "(m,), padding_mode=Z)[None, :]\n            D", "(m,), padding_mode=Z)[:, None]\n            D")
backward.wrong("lse of the keys", r"belongs to the queries|tile i|outside", "lse, (i,)", "lse, (j,)")
backward.wrong("no lse", r"lse|normalised", "scale * (k @ q.T) - logs", "scale * (k @ q.T)")
backward.wrong("padding of queries read", r"padding", "(i, 0), (m, d), padding_mode=Z", "(i, 0), (m, d)")
backward.wrong("padding of dout read", r"padding", "(i, 0), (m, dv), padding_mode=Z", "(i, 0), (m, dv)")
backward.wrong("the last queries forgotten", r"last.*tile|rounds? (down|up)|incomplete",
    "ct.cdiv(t, m)", "t // m")
backward.wrong("a store for each tile of queries", r"two stores|store once|after the loop",
    "        ct.store(dkey, (j, 0), gk * scale)\n        ct.store(dvalue",
    "            ct.store(dkey, (j, 0), gk * scale)\n            ct.store(dvalue")
backward.wrong("the last tile alone", r"only the last|sum over|all of them", "gv + p", "p", "gk + ds", "ds")
backward.wrong("a race", r"two stores|race|same place", "j = ct.bid(0)", "j = 0")
backward.wrong("the weights missing in dscores", r"weights|factor|times|multipl", "p * (v @ g.T - D)", "v @ g.T - D")
backward.wrong("no scale in the scores", r"scale", "scale * (k @ q.T)", "k @ q.T")
backward.wrong("dscores transposed", r"transpos", "ds @ q", "ds.T @ q")
backward.wrong("scale twice", r"twice|scale", "ds = p *", "ds = scale * p *")
backward.wrong("the same queries in every step", r"tile i|every step|only the first|queries", "q = ct.load(query, (i, 0)", "q = ct.load(query, (0, 0)")

right("key_gradients_in_blocks", """
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    from minimha.kernels import numpy_tile as ct
    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))
    zero = ct.PaddingMode.ZERO

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        j = ct.bid(0)

        def weights(i):
            x = ct.load(key, (j, 0), (n, d), padding_mode=zero) @ (
                ct.load(query, (0, i), (d, m), order=(1, 0), padding_mode=zero))
            return ct.exp(x * scale - ct.load(lse, (i,), (m,), padding_mode=zero))

        total = 0
        for i in range(ct.cdiv(t, m)):
            total = total + weights(i) @ ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
        ct.store(dvalue, (j, 0), total)
        total = 0                                   # everything again, backwards, for dkey
        for i in reversed(range(ct.cdiv(t, m))):
            g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
            dp = ct.load(value, (j, 0), (n, dv), padding_mode=zero) @ g.T
            ds = weights(i) * (dp - ct.load(delta, (i,), (m,), padding_mode=zero)) * scale
            total = total + ds @ ct.load(query, (i, 0), (m, d), padding_mode=zero)
        ct.store(dkey, (j, 0), total)

    ct.launch(None, (ct.cdiv(s, n),), kernel, (query, key, value, lse, dout, delta, dkey, dvalue))
    return dkey, dvalue
""")
backward.wrong("all queries in one tile", r"loaded a tile with \d+ entries along T", "def kernel(query", "m = 32\n    def kernel(query")

backward.wrong("delta outside the bracket", r"bracket|p · dp − delta|weights|precedence|\(dweights − delta\)", "p * (v @ g.T - D)", "p * (v @ g.T) - D")
backward.wrong("delta added", r"sign|subtract|delta", "v @ g.T - D", "v @ g.T + D")
backward.wrong("weights normalised in each tile", r"lse|normalis|tile", "p = ct.exp(scale * (k @ q.T) - logs)", "p = ct.exp(scale * (k @ q.T)); p = p / ct.sum(p, axis=0, keepdims=True)")
backward.wrong("divided by lse", r"lse", "ct.exp(scale * (k @ q.T) - logs)", "ct.exp(scale * (k @ q.T)) / logs")
backward.wrong("dkey from the weights", r"dscores", "gk + ds @ q", "gk + p @ q")
backward.wrong("dkey and dvalue exchanged", r"exchang|swap|order|shape", "return dkey, dvalue", "return dvalue, dkey")
backward.wrong("a loop over tiles of S", r"S queries|there are T|range|outside", "range(ct.cdiv(t, m))", "range(ct.cdiv(s, n))")
backward.wrong("scale inside delta", r"scale", "v @ g.T - D", "v @ g.T - scale * D")
backward.wrong("everything in one block", r"at most", "j = ct.bid(0)\n        Z", "pass\n        Z",
    "(ct.cdiv(s, n),), kernel", "(1,), kernel", "        Z = ct.PaddingMode.ZERO\n", "        Z = ct.PaddingMode.ZERO\n        for j in range(ct.cdiv(s, n)): one(j, query, key, value, lse, dout, delta, dkey, dvalue)\n\n    def one(j, query, key, value, lse, dout, delta, dkey, dvalue):\n        Z = ct.PaddingMode.ZERO\n")
backward.wrong("no kernel", r"loaded 0 times", "ct.launch(None, (ct.cdiv(s, n),), kernel, (query, key, value, lse, dout, delta, dkey, dvalue))\n", "p = np.exp(scale * key @ query.T - lse)\n    ds = p * (value @ dout.T - delta)\n    dkey, dvalue = scale * ds @ query, p @ dout\n")
backward.wrong("a race over tiles of queries", r"race|another block|tiles of queries are missing", "for i in range(ct.cdiv(t, m)):", "for i in [ct.bid(0)]:", "j = ct.bid(0)", "j = 0")

costs, *_ = right("step_costs", """
def step_costs(vocabulary, layers, B, T, M, H):
    n = B * T
    linear = lambda rows, columns: (rows * columns + columns, 2 * n * rows * columns)
    parts = [linear(M, M)] * 4 + [linear(M, 4 * M), linear(4 * M, M)]
    block = sum(p for p, _ in parts) + 2 * 2 * M
    forward = sum(f for _, f in parts) + 2 * (2 * B * T * T * M)
    parameters = vocabulary * M + T * M + layers * block + 2 * M + M * vocabulary
    flops = layers * forward + 2 * n * M * vocabulary
    numbers = parameters * 4  # bytes
    state = numbers + numbers + 2 * numbers
    update = state + numbers + 2 * numbers
    kept = layers * B * H * T * T * 4
    return parameters, 3 * flops, state, update, kept
""", """
def step_costs(vocabulary, layers, B, T, M, H):
    d = M // H
    shapes = []
    for _ in range(layers):
        for _ in range(3):
            shapes += [(H, M, d), (H, d)]
        shapes += [(M, M), (M,), (M, 4 * M), (4 * M,), (4 * M, M), (M,)]
        shapes += [(2, M), (2, M)]
    shapes += [(2, M), (M, vocabulary), (vocabulary, M), (T, M)]
    parameters = sum(int(np.prod(shape)) for shape in shapes)
    flops = 0
    for _ in range(layers):
        for head in range(H):
            flops += 3 * 2 * B * T * M * d                 # q, k, v
            flops += 2 * B * T * T * d + 2 * B * T * T * d  # scores, out
        flops += 2 * B * T * M * M + 2 * B * T * M * 4 * M + 2 * B * T * 4 * M * M
    flops += 2 * B * T * M * vocabulary
    return [parameters, flops + 2 * flops, 16 * parameters, 28 * parameters, 4 * layers * H * B * T**2]
""", """
def step_costs(vocabulary, layers, B, T, M, H):
    P = 2 * vocabulary * M + T * M + layers * (12 * M * M + 13 * M) + 2 * M
    return np.array([
        P,
        6 * B * T * (P - vocabulary * M - T * M - 13 * layers * M - 2 * M) + 12 * layers * B * T * T * M,
        4 * 4 * P,
        (4 + 3) * 4 * P,
        layers * B * H * T * T * np.dtype("float32").itemsize,
    ])
""", """
def step_costs(vocabulary, layers, B, T, M, H):
    attention = 4 * (M * M + M)
    mlp = M * 4 * M + 4 * M + 4 * M * M + M
    norm = M + M
    P = layers * (attention + mlp + 2 * norm) + norm + M * vocabulary
    P += M * vocabulary + M * T
    def product(rows, inner, columns):
        y, da, db = [2 * rows * inner * columns] * 3
        return y + da + db
    F = product(B * T, M, vocabulary)
    for layer in range(layers):
        F += 4 * product(B * T, M, M) + product(B * T, M, 4 * M) + product(B * T, 4 * M, M)
        F += B * H * (product(T, M / H, T) + product(T, T, M / H))
    reads, writes = 4 * P, 3 * P
    return P, F, P * 4 * 4, 4 * (reads + writes), np.zeros((layers, B, H, T, T), "float32").nbytes
""")
costs.wrong("biases forgotten", r"bias", "rows * columns + columns, 2", "rows * columns, 2")
costs.wrong("layer norms of the blocks forgotten", r"norm", " + 2 * 2 * M\n", "\n")
costs.wrong("no norm at the end", r"norm.*end|end", " + 2 * M + M * vocabulary", " + M * vocabulary")
costs.wrong("norms without shifts", r"norm.*shift|factor and a shift", "+ 2 * 2 * M", "+ 2 * M", "block + 2 * M", "block + M")
costs.wrong("no table of positions", r"position", " + T * M", "")
costs.wrong("a tied head", r"head", "block + 2 * M + M * vocabulary", "block + 2 * M")
costs.wrong("matrices for each head", r"H times|for all heads", "[linear(M, M)] * 4", "[linear(M, M)] * 4 * H")
costs.wrong("pairs of neighbours", r"T·T", "2 * (2 * B * T * T * M)", "2 * (2 * B * T * M)")
costs.wrong("a narrow perceptron", r"perceptron", "[linear(M, 4 * M), linear(4 * M, M)]", "[linear(M, M), linear(M, M)]")
costs.wrong("no W^O", r"W\^O|four matrices", "[linear(M, M)] * 4", "[linear(M, M)] * 3")
costs.wrong("flops of the forward", r"forward", "3 * flops, state", "flops, state")
costs.wrong("a backward as long as the forward", r"backward|three times|twice", "3 * flops, state", "2 * flops, state")
costs.wrong("a multiply-add is one", r"are two|multiplication", "3 * flops, state", "3 * flops // 2, state")
costs.wrong("no products of attention", r"Q Kᵀ|without parameters", " + 2 * (2 * B * T * T * M)", "")
costs.wrong("no weights times V", r"one product", "2 * (2 * B * T * T * M)", "(2 * B * T * T * M)")
costs.wrong("wide heads", r"H times|M/H", "2 * (2 * B * T * T * M)", "2 * (2 * B * H * T * T * M)")
costs.wrong("no product with the head", r"head", "forward + 2 * n * M * vocabulary", "forward")
costs.wrong("six flops for each parameter", r"not every parameter", "3 * flops, state", "6 * n * parameters, state")
costs.wrong("one sequence", r"one sequence|there are B", "n = B * T", "n = T", "2 * B * T * T", "2 * T * T")
costs.wrong("visible pairs alone", r"hidden pairs", "2 * (2 * B * T * T * M)", "2 * B * T * (T + 1) * M")
costs.wrong("SGD's state", r"moments", "numbers + numbers + 2 * numbers\n    update", "numbers + numbers\n    update")
costs.wrong("one moment", r"two moments|three", "numbers + numbers + 2 * numbers\n    update", "numbers + numbers + numbers\n    update")
costs.wrong("numbers for bytes", r"bytes", "parameters * 4  # bytes", "parameters")
costs.wrong("an update that writes nothing", r"writes?", "update = state + numbers + 2 * numbers", "update = state")
costs.wrong("gradients written", r"gradients", "update = state + numbers + 2 * numbers", "update = 2 * state")
costs.wrong("only parameters written", r"moments are written|written", "update = state + numbers + 2 * numbers", "update = state + numbers")
costs.wrong("weights of one block", r"one block|layers", "layers * B * H * T * T * 4", "B * H * T * T * 4")
costs.wrong("weights of one head", r"each head|heads?", "layers * B * H * T * T * 4", "layers * B * T * T * 4")
costs.wrong("weights of one sequence", r"each sequence|batch", "layers * B * H * T * T * 4", "layers * H * T * T * 4")
costs.wrong("half of the weights", r"all pairs|hidden|half|causal", "layers * B * H * T * T * 4", "layers * B * H * T * (T + 1) // 2 * 4")
costs.wrong("weights as numbers", r"bytes", "layers * B * H * T * T * 4", "layers * B * H * T * T")
