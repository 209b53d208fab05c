"""Wrong answers to the tasks of chapter 06."""

from wrong_answers import Wrong

WRONG = {
    "causal": [
        Wrong("not itself", "j <= i + offset", "j < i + offset", "each query sees itself and what came before", "[0, 0] (query, key)"),
        Wrong("True = hidden", "j <= i + offset", "j > i + offset", "each query sees itself and what came before", "exact opposite"),
        Wrong("zeros and ones", "j <= i + offset", "np.tril(np.ones((t, s)), offset)", "each query sees itself and what came before", "should hold bool, not float64"),
        Wrong("square", "j = np.arange(s)[None, :]", "j = np.arange(t)[None, :]", "there may be more keys than queries", "wrong shape"),
        Wrong("aligned at the bottom right", "j <= i + offset", "j <= i + (s - t if offset == 0 else offset)", "there may be more keys than queries", "is wrong"),
        Wrong("the offset the other way", "j <= i + offset", "j <= i - offset", "the offset moves the first query", "offset=3"),
        Wrong("never less than itself", "j <= i + offset", "(j <= i + offset) | (i == j)", "the offset moves the first query", "worst entry"),
    ],
    "padding": [
        Wrong("one key too many", "np.arange(s) < lengths", "np.arange(s) <= lengths", "each sequence shows its first keys", "yours True"),
        Wrong("True = padding", "np.arange(s) < lengths", "np.arange(s) >= lengths", "each sequence shows its first keys", "exact opposite"),
        Wrong("numbers to add", "valid[:, None, None, :]", "np.where(valid, 0.0, -1e9)", "each sequence shows its first keys", "should hold bool"),
        Wrong("a negative slice of length 0", "valid = np.arange(s) < lengths[:, None]", "valid = np.ones((len(lengths), s), dtype=bool)\n    for b, n in enumerate(lengths):\n        valid[b, n - s:] = False", "a sequence may be empty or whole", "expected True"),
        Wrong("at least one key", "lengths[:, None]", "np.maximum(lengths, 1)[:, None]", "a sequence may be empty or whole", "expected False"),
        Wrong("(B, S), which broadcasts as (T, S)", "valid[:, None, None, :]", "valid", "it means keys and not queries", "wrong shape"),
        Wrong("queries hidden", "valid[:, None, None, :]", "valid[:, None, :, None]", "it means keys and not queries", "wrong shape"),
    ],
    "documents": [
        Wrong("True = hidden", "query == key", "query != key", "each position sees its own document", "exact opposite"),
        Wrong("the axis of the queries is missing", "ids[:, None, :, None]", "ids[:, None, None, :]", "each position sees its own document", "wrong shape"),
        Wrong("the first sequence for all", "ids[:, None, None, :]", "ids[:1, None, None, :]", "sequences are apart", "(B, H, T, S)"),
        Wrong("no axis of heads", "query == key", "(query == key)[:, 0]", "sequences are apart", "wrong shape"),
        Wrong("only neighbours of the same id", "query == key", "(lambda n: n[:, None, :, None] == n[:, None, None, :])(np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1))", "a document may come back", "worst entry"),
    ],
    "masked_softmax": [
        Wrong("no mask", "np.where(mask, x, -np.inf)", "x + 0", "hidden entries have no weight", "worst entry"),
        Wrong("the largest entry of all", "x.real.max(axis=-1, keepdims=True)", "x.real.max()", "hidden entries have no weight", "±1000"),
        Wrong("a little more than the sum", "np.where(total == 0, 1.0, total)", "(total + 1e-12)", "hidden entries have no weight", "yours 0.99999999999"),
        Wrong("overflow", "np.where(peak == -np.inf, 0.0, peak)", "0.0", "hidden entries have no weight", "nan"),
        Wrong("a finite −∞", "-np.inf)\n    peak", "-1e9)\n    peak", "rows with nothing to see are zeros", "sees nothing"),
        Wrong("−∞ − (−∞)", "np.where(peak == -np.inf, 0.0, peak)", "peak", "rows with nothing to see are zeros", "nan"),
        Wrong("0 / 0", "np.where(total == 0, 1.0, total)", "total", "rows with nothing to see are zeros", "nan"),
        Wrong("no sum over the row", " - (dy * y).sum(axis=-1, keepdims=True)", "", "gradients", "masked_softmax"),
        Wrong("a gradient and no tuple", "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "return y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "rows with nothing to see are zeros", "mind the comma"),
        Wrong("added instead of put in place", "np.where(mask, x, -np.inf)", "x + np.where(mask, 0.0, -np.inf)", "what is hidden cannot hurt", "entries of x"),
        Wrong("0 · NaN in the pullback", "dy = np.where(mask, dy, 0.0)", "dy = dy * mask", "what is hidden cannot hurt", "0 · NaN"),
        Wrong("hidden only at the end of the pullback", "        dy = np.where(mask, dy, 0.0)\n        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "        return (np.where(mask, y * (dy - (dy * y).sum(axis=-1, keepdims=True)), 0.0),)", "what is hidden cannot hurt", "in the sum over the row"),
    ],
}  # fmt: skip
