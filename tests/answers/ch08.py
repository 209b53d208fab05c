"""Chapter 08: positions."""

# fmt: off
from . import right, wrong

table, logs, alternating, *_ = right("sinusoidal", """
def sinusoidal(count, width, base=10000.0):
    pos = np.arange(count)[:, None]
    i = np.arange(width // 2)
    angles = pos / base ** (2 * i / width)
    table = np.zeros((count, width))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return table
""", """
def sinusoidal(count, width, base=10000.0):
    theta = np.exp(np.arange(0, width, 2) * -(np.log(base) / width))
    angles = np.outer(np.arange(count), theta)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, width)
""", """
def sinusoidal(count, width, base=10000.0):
    columns = np.arange(width)
    angles = np.arange(count)[:, None] * np.power(base, -(columns // 2 * 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))
""", """
def sinusoidal(count, width, base=10000.0):
    rows = []
    for t in range(count):
        row = []
        for i in range(width // 2):
            angle = t * base ** (-2 * i / width)
            row += [np.sin(angle), np.cos(angle)]
        rows.append(row)
    return np.array(rows)
""", """
def sinusoidal(count, width, base=10000.0):
    import math
    out = np.empty((count, width))
    for t in range(count):
        for c in range(width):
            angle = t / math.pow(base, (c - c % 2) / width)
            out[t, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return out
""", """
def sinusoidal(count, width, base=10000.0):
    turn = np.exp(1j * np.arange(count)[:, None] * base ** (-2 * np.arange(width // 2) / width))
    return np.dstack([turn.imag, turn.real]).reshape(count, -1)
""")
table.wrong("sine and cosine swapped", r"swap|exchang|columns 2i hold the sines",
    "table[:, 0::2] = np.sin", "table[:, 0::2] = np.cos",
    "table[:, 1::2] = np.cos", "table[:, 1::2] = np.sin")
logs.wrong("halves instead of neighbours", r"half|halves",
    "np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, width)",
    "np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)")
table.wrong("the exponent without its 2", r"−i/M|factor 2|exponent", "2 * i / width", "i / width")
logs.wrong("twice the exponent", r"4i/M|twice|already", "np.log(base) / width", "2 * np.log(base) / width")
table.wrong("the sign of the exponent", r"sign", "pos / base", "pos * base")
table.wrong("the base is 10000", r"base is not used|base.*(ignored|argument)", "/ base **", "/ 10000 **")
table.wrong("positions from 1", r"from 1|first position", "np.arange(count)", "np.arange(1, count + 1)")
alternating.wrong("every column its own frequency", r"different frequenc|both columns", "columns // 2 * 2", "columns")
table.wrong("transposed", r"transpos|shape", "return table", "return table.T")

table.wrong("the number of positions in the exponent", r"exponent|width|−2i/M|frequenc", "2 * i / width", "2 * i / count")
logs.wrong("a power without parentheses", r"parenthes|exponent|frequenc|precedence", "np.exp(np.arange(0, width, 2) * -(np.log(base) / width))", "base ** -np.arange(0, width, 2) / width")
table.wrong("sines alone", r"cos|sine", "np.cos(", "np.sin(")
table.wrong("a list of rows", r"np\.stack", "return table", "return list(table)")

table.wrong("M/2 − 1 pairs", r"M/2 − 1|wrong number", "base ** (2 * i / width)", "base ** (i / (width // 2 - 1))")
logs.wrong("the last θ is 1/base", r"M/2 − 1|wrong number", "(np.log(base) / width)", "(np.log(base) / max(width - 2, 1))")
wrong("sinusoidal", "0/0 in a loop", r"M/2 − 1|pairs", """
def sinusoidal(count, width, base=10000.0):
    half = width // 2
    table = np.zeros((count, width))
    for i in range(half):
        angle = np.arange(count) * base ** (-i / (half - 1))
        table[:, 2 * i], table[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return table
""")
table.wrong("// in the exponent", r"//|fraction|divide with /", "2 * i / width", "2 * i // width")
table.wrong("// after a minus", r"//|fraction|divide with /", "pos / base ** (2 * i / width)", "pos * base ** (-2 * i // width)")
table.wrong("whole numbers", r"integer|whole|dtype|0 that should not be", "np.zeros((count, width))", "np.zeros((count, width), int)")
logs.wrong("a reshape without the last axis", r"reshape", ", axis=-1).reshape", ").reshape")

parts, again, matrix, *_ = right("rotate_pairs", """
def rotate_pairs(x, angles):
    c, s = np.cos(angles), np.sin(angles)
    y = np.zeros(x.shape, x.dtype)
    y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    y[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c

    def pullback(dy):
        dx = np.zeros(dy.shape, dy.dtype)
        dx[..., 0::2] = dy[..., 0::2] * c + dy[..., 1::2] * s
        dx[..., 1::2] = dy[..., 1::2] * c - dy[..., 0::2] * s
        return (dx,)

    return y, pullback
""", """
def rotate_pairs(x, angles):
    def turn(x, angles):
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        c, s = np.cos(angles), np.sin(angles)
        return np.stack((c * a - s * b, s * a + c * b), -1).reshape(x.shape)

    return turn(x, angles), lambda dy: (turn(dy, -angles),)
""", """
def rotate_pairs(x, angles):
    c, s = np.cos(angles), np.sin(angles)
    R = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)  # (T, D/2, 2, 2)
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    y = np.einsum("tpij,...tpj->...tpi", R, pairs).reshape(x.shape)
    def pullback(dy):
        dx = np.einsum("tpij,...tpi->...tpj", R, dy.reshape(pairs.shape))
        return (dx.reshape(x.shape),)
    return y, pullback
""", """
def rotate_pairs(x, angles):
    c, s = np.repeat(np.cos(angles), 2, axis=-1), np.repeat(np.sin(angles), 2, axis=-1)
    def quarter(x):
        out = np.empty_like(x)
        out[..., ::2], out[..., 1::2] = -x[..., 1::2], x[..., ::2]
        return out
    return x * c + quarter(x) * s, lambda dy: (dy * c - quarter(dy) * s,)
""", """
def rotate_pairs(x, angles):
    y = np.empty_like(x)
    for i in range(x.shape[-1] // 2):
        for t in range(x.shape[-2]):
            c, s = np.cos(angles[t, i]), np.sin(angles[t, i])
            a, b = x[..., t, 2 * i], x[..., t, 2 * i + 1]
            y[..., t, 2 * i], y[..., t, 2 * i + 1] = a * c - b * s, b * c + a * s
    def pullback(dy):
        back, _ = rotate_pairs(dy, -angles)
        return (back,)
    return y, pullback
""", """
def rotate_pairs(x, angles):
    turn = np.exp(1j * angles)
    def rotated(x, turn):
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
    return rotated(x, turn), lambda dy: (rotated(dy, turn.conj()),)
""")
again.wrong("the wrong direction", r"direction|sign|−sin",
    "np.stack((c * a - s * b, s * a + c * b), -1)", "np.stack((c * a + s * b, c * b - s * a), -1)")
parts.wrong("halves", r"halves|half",
    "y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s", "a, b = np.split(x, 2, -1)",
    "    y[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c\n",
    "    y = np.concatenate([a * c - b * s, a * s + b * c], -1)\n")
again.wrong("the gradient is rotated forwards", r"forwards|back|inverse|−angles|opposite",
    "turn(dy, -angles)", "turn(dy, angles)")
matrix.wrong("the transpose of the rotation matrix", r"direction|sign|−sin", "tpj->...tpi", "tpi->...tpj")
parts.wrong("the first entry is changed too early", r"after its change|old a|already (changed|rotated)",
    "np.zeros(x.shape, x.dtype)", "x.copy()", "= x[..., 0::2]", "= y[..., 0::2]")
again.wrong("an array and no tuple", r"tuple", "dy: (turn(dy, -angles),)", "dy: turn(dy, -angles)")
again.wrong("angles from degrees", r"degree|radian",
    "np.cos(angles), np.sin(angles)", "np.cos(np.radians(angles)), np.sin(np.radians(angles))")
again.wrong("the pullback keeps dy", r"unchanged|rotate dy", "(turn(dy, -angles),)", "(dy,)")
again.wrong("the angles times the positions", r"already|whole angle",
    "(angles)", "(angles * np.arange(len(angles))[:, None])")
parts.wrong("the first angle for all pairs", r"own angle|each pair|same angle|angle of the first", "np.cos(angles), np.sin(angles)", "np.cos(angles[:, :1]), np.sin(angles[:, :1])")
parts.wrong("one sign in the backward", r"sign|transpos|−sin", "dy[..., 1::2] * c - ", "dy[..., 1::2] * c + ")
again.wrong("the parts one after the other", r"neighbour|halves|interleav|side by side|stack|order|places", "np.stack(", "np.concatenate(")
parts.wrong("no pullback", r"should return two things", "return y, pullback", "return y")
again.wrong("changes x", r"in place", "pairs = x.reshape", "x *= 1.5\n        pairs = x.reshape")
parts.wrong("changes x, a and b are views", r"in place", "y = np.zeros(x.shape, x.dtype)", "y = x")
parts.wrong("no sine in the pullback", r"sine|cross|both entries",
    "dx[..., 0::2] = dy[..., 0::2] * c + dy[..., 1::2] * s", "dx[..., 0::2] = dy[..., 0::2] * c",
    "dx[..., 1::2] = dy[..., 1::2] * c - dy[..., 0::2] * s", "dx[..., 1::2] = dy[..., 1::2] * c")
again.wrong("the derivative with respect to the angle", r"respect to the angle", "dy: (turn(dy, -angles),)", "dy: (turn(dy, angles + np.pi / 2),)")
parts.wrong("the gradient from x", r"whatever the cotangent is", "= dy[..., 0::2] * c + dy[..., 1::2] * s", "= x[..., 0::2] * c + x[..., 1::2] * s",
    "= dy[..., 1::2] * c - dy[..., 0::2] * s", "= x[..., 1::2] * c - x[..., 0::2] * s")
wrong("rotate_pairs", "np.tile", r"tile|np\.repeat", """
def rotate_pairs(x, angles):
    c, s = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    def quarter(x):
        out = np.empty_like(x)
        out[..., ::2], out[..., 1::2] = -x[..., 1::2], x[..., ::2]
        return out
    return x * c + quarter(x) * s, lambda dy: (dy * c - quarter(dy) * s,)
""")

sliced, swapped, *_ = right("to_halves", """
def to_halves(w, num_heads):
    heads = w.reshape(w.shape[0], num_heads, -1)
    both = np.concatenate([heads[..., ::2], heads[..., 1::2]], axis=-1)
    return both.reshape(w.shape)
""", """
def to_halves(w, num_heads):
    M, columns = w.shape
    return w.reshape(M, num_heads, -1, 2).swapaxes(2, 3).reshape(M, columns)
""", """
def to_halves(w, num_heads):
    D = w.shape[1] // num_heads
    new = np.empty_like(w)
    for h in range(num_heads):
        for i in range(D // 2):
            new[:, h * D + i] = w[:, h * D + 2 * i]
            new[:, h * D + i + D // 2] = w[:, h * D + 2 * i + 1]
    return new
""", """
def to_halves(w, num_heads):
    parts = np.split(w, num_heads, axis=1)
    return np.hstack([np.hstack([part[:, 0::2], part[:, 1::2]]) for part in parts])
""", """
def to_halves(w, num_heads):
    order = np.arange(w.shape[1]).reshape(num_heads, -1, 2)
    return w[:, np.moveaxis(order, -1, 1).ravel()]
""", """
def to_halves(w, num_heads):
    n = w.shape[1]
    D = n // num_heads
    old = [h * D + (2 * k if k < D // 2 else 2 * k - D + 1) for h in range(num_heads) for k in range(D)]
    P = np.zeros((n, n))
    P[old, np.arange(n)] = 1
    return w @ P
""")
swapped.wrong("the inverse", r"inverse|from halves to neighbours", "num_heads, -1, 2)", "num_heads, 2, -1)")
sliced.wrong("all heads at once", r"(mix|within|each head|different heads)",
    "w.reshape(w.shape[0], num_heads, -1)", "w")
sliced.wrong("odd columns first", r"second entries|even columns",
    "heads[..., ::2], heads[..., 1::2]", "heads[..., 1::2], heads[..., ::2]")
sliced.wrong("(M, H, D) is returned", r"reshape it back|shape", "both.reshape(w.shape)", "both")
sliced.wrong("heads are not consecutive columns", r"head h is|\(M, D, H\)|\(M, H, D\)",
    "heads = w.reshape(w.shape[0], num_heads, -1)",
    "heads = w.reshape(w.shape[0], -1, num_heads).swapaxes(1, 2)")
sliced.wrong("nothing is done", r"nothing|reorder", "both.reshape(w.shape)", "w.copy()")
wrong("to_halves", "rows instead of columns", r"rows|columns|axis", """
def to_halves(w, num_heads):
    return np.concatenate([w[::2], w[1::2]])
""")
swapped.wrong("the two of each pair exchanged", r"pair|half|halves|exchang|swap|order|places", "swapaxes(2, 3)", "swapaxes(2, 3)[:, :, ::-1]")
swapped.wrong("a list", r"np\.array", ".reshape(M, columns)", ".reshape(M, columns).tolist()")
wrong("to_halves", "changes w", r"in place", """
def to_halves(w, num_heads):
    D = w.shape[1] // num_heads
    for h in range(num_heads):
        head = w[:, h * D : (h + 1) * D]
        head[:, : D // 2], head[:, D // 2 :] = head[:, 0::2], head[:, 1::2]
    return w
""")
sliced.wrong("stacked again as pairs", r"not reordered", "np.concatenate(", "np.stack(")
sliced.wrong("the halves of all heads together", r"mix|within|each head",
    "np.concatenate([heads[..., ::2], heads[..., 1::2]], axis=-1)",
    "np.concatenate([heads[..., ::2].reshape(len(w), -1), heads[..., 1::2].reshape(len(w), -1)], axis=1)")

centred, looped, *_ = right("alibi_bias", """
def alibi_bias(slopes, t, s):
    i = np.arange(t)[:, None] + s - t
    j = np.arange(s)
    return -slopes[:, None, None] * np.abs(i - j)
""", """
def alibi_bias(slopes, t, s):
    bias = np.zeros((len(slopes), t, s))
    for h in range(len(slopes)):
        for i in range(t):
            for j in range(s):
                bias[h, i, j] = -slopes[h] * abs(s - t + i - j)
    return bias
""", """
def alibi_bias(slopes, t, s):
    positions = np.arange(s)
    distance = abs(np.subtract.outer(positions, positions))[s - t :]
    return np.multiply.outer(-slopes, distance)
""", """
def alibi_bias(slopes, t, s):
    d = np.arange(s)[None, :] - np.arange(s - t, s)[:, None]
    return np.einsum("h,ts->hts", slopes, np.minimum(d, -d))
""", """
def alibi_bias(slopes, t, s):
    rows = [np.abs(np.arange(s) - place) for place in range(s - t, s)]
    return np.stack([-m * np.array(rows) for m in slopes])
""")
centred.wrong("the sign", r"sign|minus|favour", "-slopes", "slopes")
centred.wrong("no absolute value", r"abs|negative|\|i − j\|", "np.abs(i - j)", "(i - j)")
centred.wrong("offset 0", r"position 0|the last (ones|positions)|S − T", " + s - t", "")
centred.wrong("the offset is off by one", r"off by one|S − 1", " + s - t", " + s - t + 1")
looped.wrong("one slope for all heads", r"slope of the first|slopes\[h\]|own", "-slopes[h]", "-slopes[0]")
centred.wrong("heads last", r"last axis|\(H, T, S\)|shape",
    "-slopes[:, None, None] * np.abs(i - j)", "-slopes * np.abs(i - j)[:, :, None]")
centred.wrong("later keys are hidden", r"mask|separate",
    "-slopes[:, None, None] * np.abs(i - j)", "np.where(j <= i, -slopes[:, None, None] * (i - j), -np.inf)")
centred.wrong("the square of the distance", r"square|distance|abs", "np.abs(i - j)", "(i - j) ** 2")
centred.wrong("later keys without a bias", r"later|future|abs|\|i − j\|", "np.abs(i - j)", "np.maximum(i - j, 0)")
centred.wrong("transposed", r"transpos|axes|swapped", "np.abs(i - j)", "np.abs(i - j).T")
centred.wrong("no axis of heads", r"slopes\[:, None, None\]|axis of the heads|\(H, T, S\)", "slopes[:, None, None]", "slopes")
centred.wrong("divided by the slopes", r"divided", "-slopes[:, None, None] * np.abs(i - j)", "-np.abs(i - j) / slopes[:, None, None]")
centred.wrong("the slopes of the paper", r"slopes of the paper|given",
    "-slopes[:, None, None]", "-(1 / 2 ** (8 * np.arange(1, len(slopes) + 1) / len(slopes)))[:, None, None]")
centred.wrong("m s alone", r"m s alone", "-slopes[:, None, None] * np.abs(i - j)", "slopes[:, None, None] * (0 * i + j)")
centred.wrong("queries from T", r"position S", "+ s - t", "+ t")

place, tri, whole, *_ = right("attend_with_cache", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    N = cached_key.shape[1]
    T = query.shape[1]
    place = N + np.arange(T)
    cached_key = np.concatenate([cached_key, rotate(key, place)], axis=1)
    cached_value = np.concatenate([cached_value, value], axis=1)
    mask = np.arange(N + T)[None, :] <= place[:, None]
    out = masked_attention(rotate(query, place), cached_key, cached_value, mask)
    return out, cached_key, cached_value
""", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    (_, t, _), (_, n, _) = query.shape, cached_key.shape
    keys = np.hstack([cached_key, rotate(key, np.arange(n, n + t))])
    values = np.hstack([cached_value, value])
    mask = np.tri(t, n + t, k=n, dtype=bool)
    return masked_attention(rotate(query, np.arange(n, n + t)), keys, values, mask), keys, values
""", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    n = cached_key.shape[-2]
    s = n + key.shape[-2]
    positions = np.arange(s)
    keys = np.empty((key.shape[0], s, key.shape[-1]))
    keys[:, :n], keys[:, n:] = cached_key, rotate(key, positions[n:])
    values = np.append(cached_value, value, axis=-2)
    causal = positions[:, None] >= positions
    return masked_attention(rotate(query, positions[n:]), keys, values, causal[n:]), keys, values
""", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    rows = []
    for i in range(query.shape[1]):
        at = np.array([cached_key.shape[1]])
        one = slice(i, i + 1)
        cached_key = np.concatenate([cached_key, rotate(key[:, one], at)], axis=1)
        cached_value = np.concatenate([cached_value, value[:, one]], axis=1)
        seen = np.ones((1, cached_key.shape[1]), bool)
        rows.append(masked_attention(rotate(query[:, one], at), cached_key, cached_value, seen))
    return np.concatenate(rows, axis=1), cached_key, cached_value
""", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    # the angles of rotations add up: positions from 0, then N further
    n, t = cached_key.shape[1], query.shape[1]
    def late(x):
        return rotate(rotate(x, np.arange(t)), np.full(t, n))
    keys = np.concatenate((cached_key, late(key)), 1)
    values = np.concatenate((cached_value, value), 1)
    mask = [[j <= i + n for j in range(n + t)] for i in range(t)]
    return [masked_attention(late(query), keys, values, np.array(mask)), keys, values]
""")
tri.wrong("offset 0 in the mask", r"mask has offset 0", "k=n, ", "")
place.wrong("offset 0 in the rotation", r"rotation starts at position 0",
    "(key, place)", "(key, np.arange(T))", "(query, place)", "(query, np.arange(T))")
place.wrong("offset 0 in both", r"rotation and mask start at position 0", "N + np.arange(T)", "np.arange(T)")
place.wrong("offset 0 for the query", r"query is rotated as if", "rotate(query, place)", "rotate(query, np.arange(T))")
tri.wrong("offset 0 for the keys", r"new keys are rotated as if", "rotate(key, np.arange(n, n + t))", "rotate(key, np.arange(t))")
tri.wrong("all keys are rotated in every call", r"rotated again",
    "np.hstack([cached_key, rotate(key, np.arange(n, n + t))])", "rotate(np.hstack([cached_key, key]), np.arange(n + t))")
place.wrong("the cache is not rotated", r"before the rotation|not rotated",
    "cached_key = np.concatenate([cached_key, rotate(key, place)], axis=1)", "cached_key = np.concatenate([cached_key, key], axis=1)",
    "cached_key, cached_value, mask)", "rotate(cached_key, np.arange(N + T)), cached_value, mask)")
place.wrong("T and S in each other's place", r"exchanged|number of cached keys",
    "N = cached_key.shape[1]", "T = cached_key.shape[1]", "    T = query.shape[1]", "    N = query.shape[1]")
place.wrong("positions from S", r"position S", "N + np.arange(T)", "N + T + np.arange(T)", "<= place[:, None]", "<= place[:, None] - T")
place.wrong("positions from 1", r"off by one", "N + np.arange(T)", "N + 1 + np.arange(T)", "<= place[:, None]", "< place[:, None]")
place.wrong("one position for all new tokens", r"T positions", "rotate(key, place)", "rotate(key, np.full(T, N))", "rotate(query, place)", "rotate(query, np.full(T, N))")
tri.wrong("no mask after the first call", r"causal then too|after it", "k=n, dtype=bool)", "k=n, dtype=bool) if n == 0 else np.ones((t, n + t), bool)")
tri.wrong("no mask", r"nothing is hidden", "np.tri(t, n + t, k=n, dtype=bool)", "np.ones((t, n + t), bool)")
tri.wrong("a square mask", r"\(T, N \+ T\)", "np.tri(t, n + t, k=n, dtype=bool)", "np.tri(t, dtype=bool)")
tri.wrong("a mask to be added", r"inverted|any number except 0", "np.tri(t, n + t, k=n, dtype=bool)", "np.where(np.tri(t, n + t, k=n), 0, -np.inf)")
tri.wrong("one key too many", r"after its own position", "k=n,", "k=n + 1,")
place.wrong("the query does not see itself", r"own position", "<=", "<")
place.wrong("values are rotated", r"values are rotated", "cached_value, value]", "cached_value, rotate(value, place)]")
place.wrong("queries are not rotated", r"queries are not rotated", "rotate(query, place)", "query")
place.wrong("only the new keys are returned", r"only the new", "return out, cached_key, cached_value", "return out, cached_key[:, N:], cached_value[:, N:]")
place.wrong("out alone", r"not one array", "return out, cached_key, cached_value", "return out")
place.wrong("heads for positions", r"heads", "cached_key.shape[1]", "len(cached_key)")
place.wrong("new keys first", r"append|order|\[7, 0, 1", "[cached_key, rotate(key, place)]", "[rotate(key, place), cached_key]")
place.wrong("joined along the heads", r"axis 0|heads", ", axis=1)\n    cached_value =", ")\n    cached_value =")
place.wrong("the cached values are forgotten", r"values of the cached", "np.concatenate([cached_value, value], axis=1)", "value")
whole.wrong("the first rows of the whole mask", r"offset 0", "causal[n:]", "causal[: s - n]")
wrong("attend_with_cache", "the cache is never used", r"not used", """
def attend_with_cache(query, key, value, cached_key, cached_value):
    n, t = cached_key.shape[1], query.shape[1]
    query, key = rotate(query, np.arange(n, n + t)), rotate(key, np.arange(n, n + t))
    return masked_attention(query, key, value, np.tri(t, dtype=bool)), key, value
""")
