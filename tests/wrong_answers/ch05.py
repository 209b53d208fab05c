"""Wrong answers to the tasks of chapter 05."""

from wrong_answers import Wrong

ROW_TERM = " - (dweights * weights).sum(axis=-1, keepdims=True)"
WRONG = {
    "scores": [
        Wrong("not scaled", "return query @ key.mT / root, pullback", "return query @ key.mT, pullback", "the scaled product", "√7 = 2.646"),
        Wrong("over D", "query.shape[-1] ** 0.5", "query.shape[-1]", "the scaled product", "ratio 0.377964473, the same in every entry"),
        Wrong("all axes exchanged", "query @ key.mT", "query @ key.T", "the scaled product", "mismatch"),
        Wrong("the scale forgotten in one gradient", "dy @ key / root", "dy @ key", "both gradients", "1/√D"),
        Wrong("the gradients exchanged", "return dy @ key / root, dy.mT @ query / root", "return dy.mT @ query / root, dy @ key / root", "both gradients", "query"),
        Wrong("a root of NumPy's", "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])", "float32 stays float32", "float64"),
        Wrong("always the same width", "query.shape[-1] ** 0.5", "7**0.5", "float32 stays float32", "scores is wrong"),
    ],
    "softmax": [
        Wrong("the sum over all rows", "sum(axis=-1, keepdims=True)\n\n", "sum()\n\n", "exp over its row sum", "ratio"),
        Wrong("the sum over the wrong axis", "sum(axis=-1, keepdims=True)\n\n", "sum(axis=0, keepdims=True)\n\n", "exp over its row sum", "ratio"),
        Wrong("no sum over the row", " - (dy * y).sum(axis=-1, keepdims=True)", "", "dx matches numeric ones", "the sum over each row is missing"),
        Wrong("the sum over the second axis", "(dy * y).sum(axis=-1", "(dy * y).sum(axis=1", "dx matches numeric ones", "sum over axis 1"),
        Wrong("the mean of dy for its sum", "(dy * y).sum", "dy.mean", "dx matches numeric ones", "x"),
        Wrong("the diagonal only", "y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "y * (1 - y) * dy", "dx matches numeric ones", "x"),
        Wrong("a gradient and no tuple", "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "return y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "dx matches numeric ones", "tuple"),
        Wrong("exp of large numbers", "np.exp(x - x.real.max(axis=-1, keepdims=True))", "np.exp(x)", "large entries do not overflow", "exp(1000) is infinite"),
    ],
    "attention_forward": [
        Wrong("the wrong axis", "e.sum(axis=-1, keepdims=True)", "e.sum(axis=-2, keepdims=True)", "two tokens as by hand", "by hand"),
        Wrong("nothing returned", "return weights @ value", "weights @ value", "two tokens as by hand", "None: is a return missing?"),
        Wrong("the weights as well", "return weights @ value", "return weights @ value, weights", "two tokens as by hand", "not a tuple of ndarray, ndarray"),
        Wrong("not scaled", " / query.shape[-1] ** 0.5", "", "every step", "ratio 2.645751311, the same in every entry"),
        Wrong("no tap", 'tap("weights", e / e.sum(axis=-1, keepdims=True))', "e / e.sum(axis=-1, keepdims=True)", "every step", "weights is missing"),
        Wrong("scaled after the tap", 'tap("scores", query @ key.mT / query.shape[-1] ** 0.5)', 'tap("scores", query @ key.mT) / query.shape[-1] ** 0.5', "every step", "scores is wrong"),
        Wrong("a tap that is only told", 'scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)', 'scores = query @ key.mT / query.shape[-1] ** 0.5\n    tap("scores", scores)', "what tap returns is used", "what tap gives back"),
        Wrong("exp of large numbers", "np.exp(scores - scores.max(axis=-1, keepdims=True))", "np.exp(scores)", "large scores do not overflow", "nan"),
        Wrong("the largest score of all", "scores.max(axis=-1, keepdims=True)", "scores.max()", "large scores do not overflow", "each row's largest score"),
    ],
    "attention": [
        Wrong("no sum over the row", ROW_TERM, "", "each gradient matches numeric ones", "between scores and weights"),
        Wrong("the mean for the sum", "(dweights * weights).sum", "(dweights * weights).mean", "each gradient matches numeric ones", "scores"),
        Wrong("the scale forgotten in one gradient", "dscores @ key / root", "dscores @ key", "each gradient matches numeric ones", "1/√D"),
        Wrong("one axis in front, always", "dout @ value.mT", "dout @ value.transpose(0, 2, 1)", "each gradient matches numeric ones", "axes"),
        Wrong("weights not transposed", "weights.mT @ dout", "weights @ dout", "each gradient matches numeric ones", "mismatch"),
        Wrong("the weights for dscores", "dscores.mT @ query", "weights.mT @ query", "each gradient matches numeric ones", "between key and scores"),
        Wrong("no steps", ', {"weights": dweights, "scores": dscores}', "", "the steps are told by name", "a dictionary"),
        Wrong("the weights and not their gradient", ', {"weights": dweights,', ', {"weights": weights,', "the steps are told by name", "the gradient of weights in the dictionary is wrong"),
        Wrong("a root of NumPy's", "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])", "float32 gives float32", "float64"),
    ],
}  # fmt: skip
