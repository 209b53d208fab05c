"""Wrong answers to the tasks of chapter 05."""

from wrong_answers import Wrong

ROW_TERM = " - (dweights * weights).sum(axis=-1, keepdims=True)"
WRONG = {
    "scores": [
        Wrong("the scale forgotten in one gradient", "dy @ key / root", "dy @ key", "both gradients", "1/√D"),
        Wrong("a root of NumPy's", "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])", "float32 stays float32", "float64"),
        Wrong("always the same width", "query.shape[-1] ** 0.5", "7**0.5", "both gradients", "scores is wrong"),
    ],
    "softmax": [
        Wrong("the sum over all rows", "sum(axis=-1, keepdims=True)\n\n", "sum()\n\n", "each row is exp x over its sum", "ratio"),
        Wrong("the sum over the wrong axis", "sum(axis=-1, keepdims=True)\n\n", "sum(axis=0, keepdims=True)\n\n", "each row is exp x over its sum", "ratio"),
        Wrong("no sum over the row", " - (dy * y).sum(axis=-1, keepdims=True)", "", "dx matches the numeric gradient", "the sum over each row is missing"),
        Wrong("the sum over the second axis", "(dy * y).sum(axis=-1", "(dy * y).sum(axis=1", "dx matches the numeric gradient", "sum over axis 1"),
        Wrong("the mean of dy for its sum", "(dy * y).sum", "dy.mean", "dx matches the numeric gradient", "subtracts the plain mean of dy"),
        Wrong("the diagonal only", "y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "y * (1 - y) * dy", "dx matches the numeric gradient", "only the diagonal of the Jacobian"),
        Wrong("a gradient and no tuple", "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "return y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "dx matches the numeric gradient", "tuple"),
        Wrong("exp of large numbers", "np.exp(x - x.real.max(axis=-1, keepdims=True))", "np.exp(x)", "large entries do not overflow", "exp(1000) is infinite"),
    ],
    "attention_forward": [
        Wrong("nothing returned", "return weights @ value", "weights @ value", "each step of the forward", "None: is a return missing?"),
        Wrong("the weights as well", "return weights @ value", "return weights @ value, weights", "each step of the forward", "not a tuple of array, array"),
        Wrong("no tap", 'tap("weights", e / e.sum(axis=-1, keepdims=True))', "e / e.sum(axis=-1, keepdims=True)", "each step of the forward", "weights is missing"),
        Wrong("scaled after the tap", 'tap("scores", query @ key.mT / query.shape[-1] ** 0.5)', 'tap("scores", query @ key.mT) / query.shape[-1] ** 0.5', "each step of the forward", "scores is wrong"),
        Wrong("result of tap ignored", 'scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)', 'scores = query @ key.mT / query.shape[-1] ** 0.5\n    tap("scores", scores)', "what tap returns is used", "what tap returns"),
    ],
    "attention": [
        Wrong("no sum over the row", ROW_TERM, "", "each gradient matches the numeric one", "between scores and weights"),
        Wrong("the mean for the sum", "(dweights * weights).sum", "(dweights * weights).mean", "each gradient matches the numeric one", "the mean is used instead of the sum"),
        Wrong("the scale forgotten in one gradient", "dscores @ key / root", "dscores @ key", "each gradient matches the numeric one", "1/√D"),
        Wrong("the weights for dscores", "dscores.mT @ query", "weights.mT @ query", "each gradient matches the numeric one", "between key and scores"),
        Wrong("no steps", 'dkey, dvalue, {"weights": dweights, "scores": dscores}', "dkey, dvalue", "the dictionary holds the gradients of the steps", "a dictionary"),
        Wrong("the weights and not their gradient", 'dvalue, {"weights": dweights,', 'dvalue, {"weights": weights,', "the dictionary holds the gradients of the steps", "the gradient of weights in the dictionary is wrong"),
        Wrong("a root of NumPy's", "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])", "float32 stays float32 in each gradient", "float64"),
    ],
}  # fmt: skip
