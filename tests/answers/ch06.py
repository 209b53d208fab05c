"""Chapter 06: masks."""

# fmt: off
from . import right, wrong

compared, lower, *_ = right("causal", """
def causal(t, s, offset=0):
    i = np.arange(t)[:, None]
    j = np.arange(s)[None, :]
    return j <= i + offset
""", """
def causal(t, s, offset=0):
    return np.tril(np.ones((t, s), dtype=bool), k=offset)
""", """
def causal(t, s, offset=0):
    return np.tri(t, s, offset, dtype=bool)
""", """
def causal(t, s, offset=0):
    return np.fromfunction(lambda i, j: j - i <= offset, (t, s))
""", """
def causal(t, s, offset=0):
    mask = np.zeros((t, s), bool)
    for i in range(t):
        mask[i, : max(0, i + offset + 1)] = True
    return mask
""", """
def causal(t, s, offset=0):
    return np.array([[j <= i + offset for j in range(s)] for i in range(t)], dtype=bool).reshape(t, s)
""", """
def causal(t, s, offset=0):
    return ~np.triu(np.full((t, s), True), offset + 1)
""")
compared.wrong("transposed", r"transpos|upper|i and j|exchang|swap|rows and columns|queries and keys",
    "j <= i + offset", "(np.arange(t)[:, None] >= 0) & (i <= j + offset)")
compared.wrong("does not see itself", r"itself|diagonal|own position|≤|<=|off by one|one (key )?(too|few)",
    "j <= i", "j < i")
compared.wrong("the sign of the offset", r"sign|minus|i \+ offset|subtract|−offset|-offset",
    "i + offset", "i - offset")
lower.wrong("True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang",
    "return ", "return ~")
compared.wrong("the offset is ignored", r"offset (is|must|has|was) |ignor|without (the )?offset|i \+ offset|add(s|ed)? (the )?offset",
    "i + offset", "i")
compared.wrong("aligned at the end", r"\bend\b|s - t|S − T|align", "i + offset", "i + offset + s - t")
lower.wrong("numbers instead of booleans", r"bool", ", dtype=bool", "")

lower.wrong("np.triu", r"transpos|upper|lower|later|tril|triu|future", "np.tril", "np.triu")
lower.wrong("one key too many", r"one (key )?(too many|more|later)|off by one|next|itself|diagonal", "k=offset", "k=offset + 1")
compared.wrong("a square mask", r"\(T, S\)|keys|columns", "np.arange(s)", "np.arange(t)")
wrong("causal", "the offset moves the keys", r"offset|sign|other (way|direction)", """
def causal(t, s, offset=0):
    return np.arange(s) + offset <= np.arange(t)[:, None]
""")
wrong("causal", "True where hidden", r"exchanged|True", """
def causal(t, s, offset=0):
    return np.triu(np.ones((t, s), bool), offset + 1)
""")
wrong("causal", "the key itself is hidden", r"j ≤ i|itself|<=|own|diagonal|one (key|position)", """
def causal(t, s, offset=0):
    i, j = np.ogrid[:t, :s]
    return j < i + offset
""")

lengthwise, flat, *_ = right("padding", """
def padding(lengths, s):
    return np.arange(s) < np.asarray(lengths)[:, None, None, None]
""", """
def padding(lengths, s):
    mask = np.array([[j < n for j in range(s)] for n in lengths], dtype=bool)
    return mask[:, None, None, :]
""", """
def padding(lengths, s):
    B = len(lengths)
    mask = np.zeros((B, 1, 1, s), dtype=bool)
    for b, n in enumerate(lengths):
        mask[b, ..., :n] = True
    return mask
""", """
def padding(lengths, s):
    return np.less.outer(np.arange(s), lengths).T.reshape(len(lengths), 1, 1, s)
""", """
def padding(lengths, s):
    seen = np.tri(s + 1, s, -1, dtype=bool)  # row n sees n keys
    return np.expand_dims(seen[lengths], (1, 2))
""")
lengthwise.wrong("one key too many", r"one (key )?too many|one more|off by one|<=|≤|fence|< length",
    "np.arange(s) <", "np.arange(s) <=")
flat.wrong("shape (B, S)", r"\(B, 1, 1, S\)|axes|None", "mask[:, None, None, :]", "mask")
flat.wrong("hides queries too", r"hides? (the )?quer|padded quer|quer(y|ies).*(hidden|hide|too|never)|never quer",
    "mask[:, None, None, :]", "mask[:, None, None, :] & mask[:, None, :, None]")
lengthwise.wrong("True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang",
    "np.arange(s) <", "np.arange(s) >=")
lengthwise.wrong("the last keys instead of the first", r"last keys|at the end|on the left|left padding|the first|revers",
    "np.arange(s) <", "np.arange(s)[::-1] <")
flat.wrong("the axis of the batch comes second", r"\(B, 1, 1, S\)|axes|None|batch", "mask[:, None, None, :]", "mask[None, :, None, :]")
flat.wrong("integers", r"bool", "dtype=bool", "dtype=int")
lengthwise.wrong("positions from 1", r"one key|too few|off by one|<=|from 1|last (key|one)", "np.arange(s)", "np.arange(1, s + 1)")
lengthwise.wrong("numbers to add", r"bool", "return np.arange(s) < np.asarray(lengths)[:, None, None, None]", "return np.where(np.arange(s) < np.asarray(lengths)[:, None, None, None], 0.0, -1e9)")
lengthwise.wrong("at least one key", r"empty|one key|is 0", "np.asarray(lengths)", "np.maximum(lengths, 1)")
wrong("padding", "queries hidden too", r"quer|B, 1, 1", """
def padding(lengths, s):
    ok = np.arange(s) < np.asarray(lengths)[:, None]
    return ok[:, None, :, None] & ok[:, None, None, :]
""")
wrong("padding", "the last keys", r"first|last|left|revers|other", """
def padding(lengths, s):
    return (np.arange(s) >= s - np.asarray(lengths)[:, None])[:, None, None, :]
""")

equal, *_ = right("documents", """
def documents(ids):
    return (ids[:, :, None] == ids[:, None, :])[:, None]
""", """
def documents(ids):
    ids = np.asarray(ids)
    return ids[:, None, :, None] == ids[:, None, None, :]
""", """
def documents(ids):
    B, S = ids.shape
    out = np.empty((B, 1, S, S), dtype=bool)
    for b in range(B):
        out[b, 0] = np.equal.outer(ids[b], ids[b])
    return out
""", """
def documents(ids):
    same = [[[p == q for q in row] for p in row] for row in ids]
    return np.array(same)[:, np.newaxis, :, :]
""", """
def documents(ids):
    difference = np.expand_dims(ids, 2) - np.expand_dims(ids, 1)
    return np.expand_dims(~difference.astype(bool), 1)
""")
equal.wrong("causal as well", r"causal|later|future|triang|past",
    "(ids[:, :, None] == ids[:, None, :])", "np.tril(ids[:, :, None] == ids[:, None, :])")
equal.wrong("shape (B, S, S)", r"\(B, 1, S, S\)|axis|axes|None", "[:, None]\n", "\n")
equal.wrong("True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang", "==", "!=")
equal.wrong("the documents of the first sequence for all", r"first (sequence|row)|each sequence|own|sequence 0",
    "(ids[:, :, None] == ids[:, None, :])[:, None]",
    "np.repeat((ids[0][:, None] == ids[0])[None, None], len(ids), axis=0)")
equal.wrong("earlier documents are visible", r"earlier|previous|other doc|same document|==|equal", "==", ">=")
equal.wrong("queries compared with themselves", r"\(B, 1, S, S\)|axis|axes|None|itself", "ids[:, None, :]", "ids[:, :, None]")
equal.wrong("the new axis last", r"\(B, 1, S, S\)|axis|axes|None", "[:, None]\n", "[..., None]\n")
equal.wrong("every sequence with every other", r"\(B, 1, S, S\)|sequences|batch",
    "(ids[:, :, None] == ids[:, None, :])[:, None]", "np.equal.outer(ids, ids)")
equal.wrong("runs of one id", r"return|later|neighbour", "    return", "    ids = np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1)\n    return")
wrong("documents", "earlier documents are visible too", r"==|same document|earlier|equal|other documents", """
def documents(ids):
    return (ids[:, :, None] >= ids[:, None, :])[:, None]
""")

filled, *_ = right("masked_softmax", """
def masked_softmax(x, mask):
    z = np.where(mask, x, -np.inf)
    top = z.real.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    e = np.where(mask, np.exp(z - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    y = e / np.where(total == 0, 1, total)

    def pullback(dy):
        dy = np.where(mask, dy, 0)
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)

    return y, pullback
""", """
def masked_softmax(x, mask):
    mask = np.broadcast_to(mask, x.shape)
    y = np.zeros_like(x)
    for i in np.ndindex(x.shape[:-1]):
        if mask[i].any():
            row = x[i][mask[i]]
            e = np.exp(row - row.real.max())
            y[i][mask[i]] = e / e.sum()
    def pullback(dy):
        dx = np.zeros(y.shape, y.dtype)
        for i in np.ndindex(y.shape[:-1]):
            seen = mask[i]
            p, g = y[i][seen], dy[i][seen]
            dx[i][seen] = p * (g - p @ g)
        return (dx,)
    return y, pullback
""", """
def masked_softmax(x, mask):
    x = np.where(mask, x, 0)
    top = np.max(x.real, axis=-1, keepdims=True, where=np.broadcast_to(mask, x.shape), initial=-1e300)
    alive = mask.any(axis=-1, keepdims=True)
    z = np.where(mask, x - top, -1e4)
    e = np.exp(z) * mask
    y = e / np.where(alive, e.sum(axis=-1, keepdims=True), 1)
    def pullback(dy):
        clean = np.where(mask, dy, 0)
        inner = np.einsum("...s,...s->...", y, clean)
        return (y * clean - y * inner[..., None],)
    return y, pullback
""", """
def masked_softmax(x, mask):
    hidden = np.broadcast_to(~mask, x.shape)
    s = x.copy()
    s[hidden] = 0
    low = s.real.copy()
    low[hidden] = -np.inf
    m = low.max(-1, keepdims=True)
    m[np.isinf(m)] = 0
    s = s - m
    s[hidden] = 0
    e = np.exp(s)
    e[hidden] = 0
    n = e.sum(-1, keepdims=True)
    n[n == 0] = 1
    y = e / n
    def pullback(dy):
        g = dy.copy()
        g[hidden] = 0
        g = g * y
        return (g - y * g.sum(-1, keepdims=True),)
    return y, pullback
""", """
def masked_softmax(x, mask):
    with np.errstate(all="ignore"):
        z = np.where(mask, x, -np.inf)
        e = np.exp(z - np.nan_to_num(z.real.max(-1, keepdims=True), neginf=0))
        y = np.nan_to_num(np.where(mask, e / e.sum(-1, keepdims=True), 0))
    def pullback(dy):
        d = np.where(mask, dy, 0) * y
        return (d - d.sum(-1, keepdims=True) * y,)
    return y, pullback
""")
filled.wrong("the mask after the softmax",
    r"after the softmax|before the softmax|sum to 1|add up to 1|renormal|normali",
    "np.where(mask, x, -np.inf)", "x", "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)",
    "e / np.where(total == 0, 1, total)", "np.where(mask, e / total, 0)")
filled.wrong("the maximum over hidden entries too", r"max.*(hidden|visible)|(hidden|visible).*max",
    "top = z.real.max(", "top = np.nan_to_num(x).real.max(")
filled.wrong("True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang|hides what",
    "np.where(mask, x, -np.inf)", "np.where(mask, -np.inf, x)",
    "np.where(mask, np.exp(z - top), 0)", "np.where(mask, 0, np.exp(z - top))",
    "np.where(mask, dy, 0)", "np.where(mask, 0, dy)")
filled.wrong("True = hidden, and no guard", r"opposite|invert|negat|complement|True = |flipped",
    "np.where(mask, x, -np.inf)", "np.where(mask, -np.inf, x)",
    "    top = np.where(np.isfinite(top), top, 0)\n", "",
    "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)", "np.where(total == 0, 1, total)", "total",
    "        dy = np.where(mask, dy, 0)\n", "")
filled.wrong("a row without visible entries is uniform",
    r"nothing (is )?visible|(no|without a) visible|empty row|sees nothing|row.*zeros",
    "-np.inf)", "-1e9)", "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)")
filled.wrong("hidden entries are 0 before the exponential", r"−∞|-inf|e\^0|exp\(0\)",
    "np.where(mask, x, -np.inf)", "np.where(mask, x, 0)",
    "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)")
filled.wrong("NaN in hidden entries stays", r"NaN", "np.where(mask, x, -np.inf)", "x * mask - 1e30 * ~mask",
    "top = np.where(np.isfinite(top), top, 0)\n", "\n")
filled.wrong("the pullback reads hidden dy", r"hidden.*dy|dy.*hidden",
    "        dy = np.where(mask, dy, 0)\n", "")
filled.wrong("0/0 in empty rows", r"nothing (is )?visible|no visible|empty row|sees nothing|0 ?/ ?0",
    "e / np.where(total == 0, 1, total)", "e / total")
filled.wrong("a plain mean in the backward", r"weighted|plain mean|Σ ?(y|P|w)", "(y * dy).sum(", "dy.mean(")
filled.wrong("PyTorch's masked_fill", r"np\.where",
    "np.where(mask, x, -np.inf)", "x.masked_fill(~mask, -np.inf)")
filled.wrong("x times the mask", r"NaN|−∞|-inf|e\^0|exp\(0\)", "np.where(mask, x, -np.inf)", "x * mask", "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)")
filled.wrong("no maximum subtracted", r"overflow|maximum|largest|max", "np.exp(z - top)", "np.exp(z)")
filled.wrong("nothing subtracted in the backward", r"subtract|weighted|Σ ?y|sum|mean", "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * dy,)")
filled.wrong("softmax over the queries", r"axis|quer|column", "axis=-1", "axis=-2")
filled.wrong("an array and no tuple", r"tuple|comma", "keepdims=True)),)", "keepdims=True)))")
filled.wrong("dy hidden only at the end", r"the sum over the row", "        dy = np.where(mask, dy, 0)\n", "", "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(np.where(mask, y * (dy - (y * dy).sum(axis=-1, keepdims=True)), 0),)")
wrong("masked_softmax", "hidden scores are 0", r"e\^0|−∞|-inf|hidden|exp\(0\)|0 instead", """
def masked_softmax(x, mask):
    z = np.where(mask, x, 0.0)
    e = np.exp(z - z.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (np.where(mask, y * (dy - (dy * y).sum(axis=-1, keepdims=True)), 0),)

    return y, pullback
""")
wrong("masked_softmax", "weights hidden after softmax", r"after|before|sum to 1|renormal|hidden", """
def masked_softmax(x, mask):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = np.where(mask, e / e.sum(axis=-1, keepdims=True), 0)

    def pullback(dy):
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
wrong("masked_softmax", "−1e9 for hidden entries", r"no visible|hidden|−∞|large negative|NaN", """
def masked_softmax(x, mask):
    z = np.where(mask, x, -1e9)
    e = np.exp(z - z.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
wrong("masked_softmax", "multiplied by the mask", r"NaN|np\.where|hidden|multipl", """
def masked_softmax(x, mask):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True)) * mask
    total = e.sum(axis=-1, keepdims=True)
    y = e / np.where(total == 0, 1, total)

    def pullback(dy):
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
wrong("masked_softmax", "the gradient of hidden entries is not cut off", r"hidden|dy|NaN", """
def masked_softmax(x, mask):
    z = np.where(mask, x, -np.inf)
    top = z.real.max(axis=-1, keepdims=True)
    e = np.where(mask, np.exp(z - np.where(np.isinf(top), 0, top)), 0)
    total = e.sum(axis=-1, keepdims=True)
    y = e / np.where(total == 0, 1, total)

    def pullback(dy):
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
""")
