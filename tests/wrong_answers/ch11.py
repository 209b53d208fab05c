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
        Wrong("acc not rescaled", "acc * factor[:, None] + e @ value", "acc + e @ value", "two tokens as by hand", "against ln 3 it counts a third"),
        Wrong("l not rescaled", "l * factor + e.sum(axis=-1)", "l + e.sum(axis=-1)", "two tokens as by hand", "l after value 4, then value 8 is wrong"),
        Wrong("divided by l in each block", "acc * factor[:, None] + e @ value", "(acc * factor[:, None] + e @ value) / (l * factor + e.sum(axis=-1))[:, None]", "two tokens as by hand", "acc after value 4, then value 8 is wrong"),
        Wrong("the factor the wrong way up", "np.exp(m - safe)", "np.exp(safe - m)", "two tokens as by hand", "ratio"),
        Wrong("the block's own maximum", "new = np.maximum(m, scores.max(axis=-1))", "new = scores.max(axis=-1)", "in blocks as all at once", "m after block"),
        Wrong("one maximum for all rows", "np.maximum(m, scores.max(axis=-1))", "np.maximum(m, scores.max())", "in blocks as all at once", "its own new maximum"),
        Wrong("two things returned", RETURNED, "return l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value", "two tokens as by hand", "it should return m, l, acc, not 2 things"),
        Wrong("−∞ less −∞", SAFE, "safe = new", "what is hidden adds nothing", "l after block 1 is wrong"),
        Wrong("NaN mended in l alone", SAFE, "safe = new\n    l = np.nan_to_num(l)", "what is hidden adds nothing", "measure against 0 there"),
        Wrong("hidden keys moved to 0", "np.exp(scores - safe[:, None])", "np.exp(np.where(scores == -np.inf, 0, scores - safe[:, None]))", "what is hidden adds nothing", "l after block 1 is wrong"),
        Wrong("no maximum at all", "e = np.exp(scores - safe[:, None])", "e = np.exp(scores) * np.exp(-safe)[:, None]", "large scores do not overflow", "before exp"),
    ],
    "tiled_forward": [
        Wrong("keys not tiled to the end", "np.arange(j, min(j + block, len(key)))", "np.arange(j, j + block)", "tiles of any size", "out of bounds"),
        Wrong("all scores, cut into tiles", FORWARD_SCORES, 'scores = tap("scores", (scale * query @ key.T)[rows, j : j + block])', "never all pairs at once", "Is there an array of all pairs"),
        Wrong("a mask of all pairs", VISIBLE, WHOLE_VISIBLE, "never all pairs at once", "who sees whom"),
        Wrong("whole tiles alone", "range(0, len(key), block)", "range(0, len(key) // block * block, block)", "tiles of any size", "smaller than block"),
        Wrong("as many keys as queries", "for j in range(0, len(key), block)", "for j in range(0, len(query), block)", "tiles of any size", "out in tiles of 3 × 3"),
        Wrong("the state of the tile before", "        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n", "        if not i: m, l, acc = np.full(block, -np.inf), np.zeros(block), np.zeros((block, value.shape[1]))\n        m, l, acc = m[:n], l[:n], acc[:n]\n", "tiles of any size", "is wrong"),
        Wrong("not scaled", "scale * query[rows]", "query[rows]", "tiles of any size", "out in tiles of 8 × 8"),
        Wrong("not divided", "acc / total[:, None]", "acc", "tiles of any size", "out in tiles"),
        Wrong("the logarithm of l alone", "m + np.log(total)", "np.log(total)", "tiles of any size", "lse in tiles"),
        Wrong("the output alone", "return out, lse", "return out", "tiles of any size", "it should return out, lse, not ndarray"),
        Wrong("no rule for the first key", "(first[rows, None] <= keys) & (keys <= last[rows, None])", "keys <= last[rows, None]", "each query sees its own keys", "where first[i] = i − 1"),
        Wrong("keys counted from the tile", VISIBLE, "visible = (first[rows, None] <= keys - j) & (keys - j <= last[rows, None])", "each query sees its own keys", "out where last[i] = i + 2 is wrong"),
        Wrong("divided by 0", "total = np.where(l > 0, l, 1)", "total = l", "each query sees its own keys", "queries 1 and 2 see nothing"),
        Wrong("lse is 0 where nothing is seen", "m + np.log(total)", "np.where(l > 0, m + np.log(total), 0)", "each query sees its own keys", "lse is −∞"),
        Wrong("no tile skipped", "            if not visible.any():\n                continue\n", "", "tiles that nobody sees are skipped", "called for 16 tiles"),
        Wrong("no tap", FORWARD_SCORES, "scores = scale * query[rows] @ key[keys].T", "tiles that nobody sees are skipped", "tap is not called"),
        Wrong("whole rows", "for j in range(0, len(key), block):\n            keys = np.arange(j, min(j + block, len(key)))", "for j in [0]:\n            keys = np.arange(len(key))", "tiles that nobody sees are skipped", "where block is 3"),
    ],
    "tiled_backward": [
        Wrong("the row's maximum for lse", "scores - lse[rows, None]", "scores - scores.max(axis=-1, keepdims=True)", "two tokens backward as by hand", "lse = (ln 4, ln 2)"),
        Wrong("softmax of the tile alone", BACKWARD_WEIGHTS, "weights = np.exp(np.where(visible, scores, -np.inf))\n            weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)", "the gradients of attention", "is wrong"),
        Wrong("all scores, cut into tiles", "scores = scale * query[rows] @ key[keys].T", "scores = (scale * query @ key.T)[rows, j : j + block]", "no tile too many and never all pairs", "Is there an array of all pairs"),
        Wrong("no delta", " - delta[rows, None]", "", "two tokens backward as by hand", "delta = dout · out = (7, 0)"),
        Wrong("delta of the tile", "dweights - delta[rows, None]", "dweights - (dweights * weights).sum(axis=-1, keepdims=True)", "the gradients of attention", "is wrong"),
        Wrong("the gradients in another order", "return dquery, dkey, dvalue", "return dvalue, dquery, dkey", "two tokens backward as by hand", "dquery is wrong"),
        Wrong("the scale forgotten in dkey", "scale * dscores.T", "dscores.T", "the gradients of attention", "dkey is wrong"),
        Wrong("dquery of the last tile alone", "dquery[rows] += scale", "dquery[rows] = scale", "the gradients of attention", "dquery is wrong"),
        Wrong("hidden after exp", BACKWARD_WEIGHTS, "weights = np.exp(scores - lse[rows, None]) * visible", "what sees nothing or is unseen gets zero", "hide before exp"),
        Wrong("hidden keys have weight", BACKWARD_WEIGHTS, "weights = np.exp(scores - lse[rows, None])", "the gradients of attention", "is wrong"),
        Wrong("no tile skipped", "            if not visible.any():\n                continue\n", "", "no tile too many and never all pairs", "skip the others"),
        Wrong("no tap", 'weights = tap("weights", weights)', "weights = weights", "no tile too many and never all pairs", 'tap is not called: weights'),
    ],
}  # fmt: skip
