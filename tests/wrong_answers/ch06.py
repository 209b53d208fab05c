"""Wrong answers to the tasks of chapter 06."""

from wrong_answers import Wrong

WRONG = {
    "causal": [
        Wrong("zeros and ones", "j <= i + offset", "np.tril(np.ones((t, s)), offset)", "each query sees itself and what came before", "should hold bool, not float64"),
        Wrong("never less than itself", "j <= i + offset", "(j <= i + offset) | (i == j)", "the offset moves the first query", "worst entry"),
    ],
    "padding": [
        Wrong("numbers to add", "valid[:, None, None, :]", "np.where(valid, 0.0, -1e9)", "each sequence shows its first keys", "should hold bool"),
        Wrong("a negative slice of length 0", "valid = np.arange(s) < lengths[:, None]", "valid = np.ones((len(lengths), s), dtype=bool)\n    for b, n in enumerate(lengths):\n        valid[b, n - s:] = False", "a sequence may be empty or whole", "expected True"),
    ],
    "documents": [
        Wrong("the axis of the queries is missing", "ids[:, None, :, None]", "ids[:, None, None, :]", "each position sees its own document", "wrong shape"),
        Wrong("the first sequence for all", "ids[:, None, None, :]", "ids[:1, None, None, :]", "sequences do not mix", "(batch, head, query, key)"),
        Wrong("only neighbours of the same id", "query == key", "(lambda n: n[:, None, :, None] == n[:, None, None, :])(np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1))", "a document may return later", "worst entry"),
    ],
    "masked_softmax": [
        Wrong("a little more than the sum", "np.where(total == 0, 1.0, total)", "(total + 1e-12)", "hidden entries have no weight", "yours 0.99999999999"),
        Wrong("no sum over the row", " - (dy * y).sum(axis=-1, keepdims=True)", "", "the gradient of x", "masked_softmax"),
        Wrong("a gradient and no tuple", "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "return y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "rows without a visible entry are zero", "with the comma"),
        Wrong("hidden only at the end of the pullback", "        dy = np.where(mask, dy, 0.0)\n        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "        return (np.where(mask, y * (dy - (dy * y).sum(axis=-1, keepdims=True)), 0.0),)", "hidden entries have no effect", "the sum over the row"),
    ],
}  # fmt: skip
