"""Wrong answers to the tasks of chapter 11."""

from wrong_answers import Wrong

RETURNED = "return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value"
SAFE = "safe = np.where(new == -np.inf, 0, new)"
FORWARD_SCORES = 'scores = tap("scores", scale * query[rows] @ key[keys].T)'
BACKWARD_WEIGHTS = "weights = np.exp(np.where(visible, scores - lse[rows, None], -np.inf))"
VISIBLE = "visible = (first[rows, None] <= keys) & (keys <= last[rows, None])"
WHOLE_VISIBLE = "visible = ((first[:, None] <= np.arange(len(key))) & (np.arange(len(key)) <= last[:, None]))[rows, j : j + block]"
WRONG = {
    "online_softmax": [
        Wrong("one maximum for all rows", "np.maximum(m, scores.max(axis=-1))", "np.maximum(m, scores.max())", "blocks give the same as all keys at once", "the maximum is taken over all rows"),
        Wrong("two things returned", RETURNED, "return l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value", "two tokens worked by hand", "it should return m, l, acc, not 2 values"),
        Wrong("NaN mended in l alone", SAFE, "safe = new\n    l = np.nan_to_num(l)", "hidden keys add nothing", "−∞ − (−∞), which is NaN"),
        Wrong("hidden keys moved to 0", "np.exp(scores - safe[:, None])", "np.exp(np.where(scores == -np.inf, 0, scores - safe[:, None]))", "hidden keys add nothing", "l after block 1 is wrong"),
        Wrong("no maximum at all", "e = np.exp(scores - safe[:, None])", "e = np.exp(scores) * np.exp(-safe)[:, None]", "large scores do not overflow", "before exp"),
    ],
    "tiled_forward": [
        Wrong("keys not tiled to the end", "np.arange(j, min(j + block, len(key)))", "np.arange(j, j + block)", "tiles of any size", "out of bounds"),
        Wrong("all scores, cut into tiles", FORWARD_SCORES, 'scores = tap("scores", (scale * query @ key.T)[rows, j : j + block])', "no array holds all pairs", "Is there an array of all pairs"),
        Wrong("a mask of all pairs", VISIBLE, WHOLE_VISIBLE, "no array holds all pairs", "the mask?"),
        Wrong("as many keys as queries", "for j in range(0, len(key), block)", "for j in range(0, len(query), block)", "tiles of any size", "there are S keys"),
        Wrong("the state of the tile before", "        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n", "        if not i: m, l, acc = np.full(block, -np.inf), np.zeros(block), np.zeros((block, value.shape[1]))\n        m, l, acc = m[:n], l[:n], acc[:n]\n", "tiles of any size", "is wrong"),
        Wrong("the output alone", "return out, lse", "return out", "tiles of any size", "it should return out, lse, not ndarray"),
        Wrong("no rule for the first key", "(first[rows, None] <= keys) & (keys <= last[rows, None])", "keys <= last[rows, None]", "each query sees its own keys", "where first[i] = i − 1"),
        Wrong("lse is 0 where nothing is seen", "m + np.log(total)", "np.where(l > 0, m + np.log(total), 0)", "each query sees its own keys", "that sees nothing is −∞"),
        Wrong("no tile skipped", "            if not visible.any():\n                continue\n", "", "tiles without a visible pair are skipped", "called for 16 tiles"),
        Wrong("no tap", FORWARD_SCORES, "scores = scale * query[rows] @ key[keys].T", "tiles without a visible pair are skipped", "tap is not called"),
        Wrong("whole rows", "for j in range(0, len(key), block):\n            keys = np.arange(j, min(j + block, len(key)))", "for j in [0]:\n            keys = np.arange(len(key))", "tiles without a visible pair are skipped", "a tile is at most 3 × 3"),
    ],
    "tiled_backward": [
        Wrong("the row's maximum for lse", "scores - lse[rows, None]", "scores - scores.max(axis=-1, keepdims=True)", "one tile", "weights is wrong"),
        Wrong("softmax of the tile alone", BACKWARD_WEIGHTS, "weights = np.exp(np.where(visible, scores, -np.inf))\n            weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)", "the gradients of attention", "is wrong"),
        Wrong("all scores, cut into tiles", "scores = scale * query[rows] @ key[keys].T", "scores = (scale * query @ key.T)[rows, j : j + block]", "no needless tile and no array of all pairs", "Is there an array of all pairs"),
        Wrong("the gradients in another order", "return dquery, dkey, dvalue", "return dvalue, dquery, dkey", "one tile", "dquery"),
        Wrong("no tile skipped", "            if not visible.any():\n                continue\n", "", "no needless tile and no array of all pairs", "skip the others"),
        Wrong("no tap", 'weights = tap("weights", weights)\n            d', "d", "no needless tile and no array of all pairs", 'tap is not called: weights'),
    ],
}  # fmt: skip
