"""Chapter 06: masks."""

# fmt: off
from . import right, wrong

compared = right("causal", """
def causal(t, s, offset=0):
    i = np.arange(t)[:, None]
    j = np.arange(s)[None, :]
    return j <= i + offset
""")
lower = right("causal", """
def causal(t, s, offset=0):
    return np.tril(np.ones((t, s), dtype=bool), k=offset)
""")
right("causal", """
def causal(t, s, offset=0):
    return np.tri(t, s, offset, dtype=bool)
""")
right("causal", """
def causal(t, s, offset=0):
    return np.fromfunction(lambda i, j: j - i <= offset, (t, s))
""")
right("causal", """
def causal(t, s, offset=0):
    mask = np.zeros((t, s), bool)
    for i in range(t):
        mask[i, : max(0, i + offset + 1)] = True
    return mask
""")
right("causal", """
def causal(t, s, offset=0):
    return np.array([[j <= i + offset for j in range(s)] for i in range(t)], dtype=bool).reshape(t, s)
""")
right("causal", """
def causal(t, s, offset=0):
    return ~np.triu(np.full((t, s), True), offset + 1)
""")
wrong("causal", "transposed", r"transpos|upper|i and j|exchang|swap|rows and columns|queries and keys",
      compared, "j <= i + offset", "(np.arange(t)[:, None] >= 0) & (i <= j + offset)")
wrong("causal", "does not see itself", r"itself|diagonal|own position|≤|<=|off by one|one (key )?(too|few)",
      compared, "j <= i", "j < i")
wrong("causal", "the sign of the offset", r"sign|minus|i \+ offset|subtract|−offset|-offset",
      compared, "i + offset", "i - offset")
wrong("causal", "True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang",
      lower, "return ", "return ~")
wrong("causal", "the offset is ignored", r"offset (is|must|has|was) |ignor|without (the )?offset|i \+ offset|add(s|ed)? (the )?offset",
      compared, "i + offset", "i")
wrong("causal", "aligned at the end", r"\bend\b|s - t|S − T|align",
      compared, "i + offset", "i + offset + s - t")
wrong("causal", "numbers instead of booleans", r"bool",
      lower, ", dtype=bool", "")

lengthwise = right("padding", """
def padding(lengths, s):
    return np.arange(s) < np.asarray(lengths)[:, None, None, None]
""")
flat = right("padding", """
def padding(lengths, s):
    mask = np.array([[j < n for j in range(s)] for n in lengths], dtype=bool)
    return mask[:, None, None, :]
""")
right("padding", """
def padding(lengths, s):
    B = len(lengths)
    mask = np.zeros((B, 1, 1, s), dtype=bool)
    for b, n in enumerate(lengths):
        mask[b, ..., :n] = True
    return mask
""")
right("padding", """
def padding(lengths, s):
    return np.less.outer(np.arange(s), lengths).T.reshape(len(lengths), 1, 1, s)
""")
right("padding", """
def padding(lengths, s):
    seen = np.tri(s + 1, s, -1, dtype=bool)  # row n sees n keys
    return np.expand_dims(seen[lengths], (1, 2))
""")
wrong("padding", "one key too many", r"one (key )?too many|one more|off by one|<=|≤|fence|< length",
      lengthwise, "np.arange(s) <", "np.arange(s) <=")
wrong("padding", "shape (B, S)", r"\(B, 1, 1, S\)|axes|None",
      flat, "mask[:, None, None, :]", "mask")
wrong("padding", "hides queries too", r"hides? (the )?quer|padded quer|quer(y|ies).*(hidden|hide|too|never)|never quer",
      flat, "mask[:, None, None, :]", "mask[:, None, None, :] & mask[:, None, :, None]")
wrong("padding", "True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang",
      lengthwise, "np.arange(s) <", "np.arange(s) >=")
wrong("padding", "the last keys instead of the first", r"last keys|at the end|on the left|left padding|the first|revers",
      lengthwise, "np.arange(s) <", "np.arange(s)[::-1] <")

equal = right("documents", """
def documents(ids):
    return (ids[:, :, None] == ids[:, None, :])[:, None]
""")
right("documents", """
def documents(ids):
    ids = np.asarray(ids)
    return ids[:, None, :, None] == ids[:, None, None, :]
""")
right("documents", """
def documents(ids):
    B, S = ids.shape
    out = np.empty((B, 1, S, S), dtype=bool)
    for b in range(B):
        out[b, 0] = np.equal.outer(ids[b], ids[b])
    return out
""")
right("documents", """
def documents(ids):
    same = [[[p == q for q in row] for p in row] for row in ids]
    return np.array(same)[:, np.newaxis, :, :]
""")
right("documents", """
def documents(ids):
    difference = np.expand_dims(ids, 2) - np.expand_dims(ids, 1)
    return np.expand_dims(~difference.astype(bool), 1)
""")
wrong("documents", "causal as well", r"causal|later|future|triang|past",
      equal, "(ids[:, :, None] == ids[:, None, :])", "np.tril(ids[:, :, None] == ids[:, None, :])")
wrong("documents", "shape (B, S, S)", r"\(B, 1, S, S\)|axis|axes|None",
      equal, "[:, None]\n", "\n")
wrong("documents", "True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang",
      equal, "==", "!=")
wrong("documents", "the documents of the first sequence for all", r"first (sequence|row)|each sequence|own|sequence 0",
      equal, "(ids[:, :, None] == ids[:, None, :])[:, None]",
      "np.repeat((ids[0][:, None] == ids[0])[None, None], len(ids), axis=0)")
wrong("documents", "earlier documents are visible", r"earlier|previous|other doc|same document|==|equal",
      equal, "==", ">=")

filled = right("masked_softmax", """
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
""")
right("masked_softmax", """
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
""")
safe = right("masked_softmax", """
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
""")
right("masked_softmax", """
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
""")
right("masked_softmax", """
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
wrong("masked_softmax", "the mask after the softmax", r"after the softmax|before the softmax|sum to 1|add up to 1|renormal|normali", """
def masked_softmax(x, mask):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = np.where(mask, e / e.sum(axis=-1, keepdims=True), 0)
    def pullback(dy):
        dy = np.where(mask, dy, 0)
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)
    return y, pullback
""")
wrong("masked_softmax", "the maximum over hidden entries too", r"max.*(hidden|visible)|(hidden|visible).*max",
      filled, "top = z.real.max(", "top = np.nan_to_num(x).real.max(")
wrong("masked_softmax", "True = hidden", r"opposite|invert|negat|complement|True = |flipped|exchang|hides what",
      filled, "np.where(mask, x, -np.inf)", "np.where(mask, -np.inf, x)",
      "np.where(mask, np.exp(z - top), 0)", "np.where(mask, 0, np.exp(z - top))",
      "np.where(mask, dy, 0)", "np.where(mask, 0, dy)")
wrong("masked_softmax", "True = hidden, and no guard", r"opposite|invert|negat|complement|True = |flipped", """
def masked_softmax(x, mask):
    z = np.where(mask, -np.inf, x)
    e = np.exp(z - z.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    def pullback(dy):
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)
    return y, pullback
""")
wrong("masked_softmax", "a row without visible entries is uniform", r"nothing (is )?visible|(no|without a) visible|empty row|sees nothing|row.*zeros", """
def masked_softmax(x, mask):
    z = np.where(mask, x, -1e9)
    e = np.exp(z - z.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    def pullback(dy):
        dy = np.where(mask, dy, 0)
        return (y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)
    return y, pullback
""")
wrong("masked_softmax", "hidden entries are 0 before the exponential", r"−∞|-inf|e\^0|exp\(0\)",
      filled, "np.where(mask, x, -np.inf)", "np.where(mask, x, 0)",
      "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)")
wrong("masked_softmax", "NaN in hidden entries stays", r"NaN",
      filled, "np.where(mask, x, -np.inf)", "x * mask - 1e30 * ~mask",
      "top = np.where(np.isfinite(top), top, 0)\n", "\n")
wrong("masked_softmax", "the pullback reads hidden dy", r"hidden.*dy|dy.*hidden",
      filled, "        dy = np.where(mask, dy, 0)\n", "")
wrong("masked_softmax", "0/0 in empty rows", r"nothing (is )?visible|no visible|empty row|sees nothing|0 ?/ ?0",
      filled, "e / np.where(total == 0, 1, total)", "e / total")
wrong("masked_softmax", "a plain mean in the backward", r"weighted|plain mean|Σ ?(y|P|w)",
      filled, "(y * dy).sum(", "dy.mean(")
wrong("masked_softmax", "PyTorch's masked_fill", r"np\.where",
      filled, "np.where(mask, x, -np.inf)", "x.masked_fill(~mask, -np.inf)")

wrong("causal", "np.triu", r"transpos|upper|lower|later|tril|triu|future", lower, "np.tril", "np.triu")
wrong("causal", "one key too many", r"one (key )?(too many|more|later)|off by one|next|itself|diagonal", lower, "k=offset", "k=offset + 1")
wrong("causal", "a square mask", r"\(T, S\)|keys|columns", compared, "np.arange(s)", "np.arange(t)")
wrong("padding", "the axis of the batch comes second", r"\(B, 1, 1, S\)|axes|None|batch", flat, "mask[:, None, None, :]", "mask[None, :, None, :]")
wrong("padding", "integers", r"bool", flat, "dtype=bool", "dtype=int")
wrong("padding", "positions from 1", r"one key|too few|off by one|<=|from 1|last (key|one)", lengthwise, "np.arange(s)", "np.arange(1, s + 1)")
wrong("documents", "queries compared with themselves", r"\(B, 1, S, S\)|axis|axes|None|itself", equal, "ids[:, None, :]", "ids[:, :, None]")
wrong("documents", "the new axis last", r"\(B, 1, S, S\)|axis|axes|None", equal, "[:, None]\n", "[..., None]\n")
wrong("documents", "every sequence with every other", r"\(B, 1, S, S\)|sequences|batch", """
def documents(ids):
    return np.equal.outer(ids, ids)
""")
wrong("masked_softmax", "x times the mask", r"NaN|−∞|-inf|e\^0|exp\(0\)", filled, "np.where(mask, x, -np.inf)", "x * mask", "np.where(mask, np.exp(z - top), 0)", "np.exp(z - top)")
wrong("masked_softmax", "no maximum subtracted", r"overflow|maximum|largest|max", filled, "np.exp(z - top)", "np.exp(z)")
wrong("masked_softmax", "nothing subtracted in the backward", r"subtract|weighted|Σ ?y|sum|mean", filled, "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(y * dy,)")
wrong("masked_softmax", "softmax over the queries", r"axis|quer|column", filled, "axis=-1", "axis=-2")
wrong("padding", "numbers to add", r"bool", lengthwise, "return np.arange(s) < np.asarray(lengths)[:, None, None, None]", "return np.where(np.arange(s) < np.asarray(lengths)[:, None, None, None], 0.0, -1e9)")
wrong("padding", "at least one key", r"empty|one key|is 0", lengthwise, "np.asarray(lengths)", "np.maximum(lengths, 1)")
wrong("documents", "runs of one id", r"return|later|neighbour", equal, "    return", "    ids = np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1)\n    return")
wrong("masked_softmax", "an array and no tuple", r"tuple|comma", filled, "keepdims=True)),)", "keepdims=True)))")
wrong("masked_softmax", "dy hidden only at the end", r"the sum over the row", filled, "        dy = np.where(mask, dy, 0)\n", "", "(y * (dy - (y * dy).sum(axis=-1, keepdims=True)),)", "(np.where(mask, y * (dy - (y * dy).sum(axis=-1, keepdims=True)), 0),)")
