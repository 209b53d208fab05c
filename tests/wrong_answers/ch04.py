"""Wrong answers to the tasks of chapter 04."""

from wrong_answers import Wrong

WRONG = {
    "linear": [
        Wrong("no pullback", "return x @ weight, pullback", "return x @ weight", "values", "should return two things"),
        Wrong("the weight is taken for (N, M)", "x @ weight, pullback", "x @ weight.reshape(weight.shape[::-1]).T, pullback", "values", "ratio"),
    ],
    "stack_weights": [
        Wrong("a list", "np.concatenate(weights, axis=-1)", "list(weights)", "the result is one matrix", "not a list"),
    ],
    "fused": [
        Wrong("queries and keys only", "for part in parts)", "for part in parts[:2])", "q k and v have the right shape", "not a tuple of 2"),
    ],
    "double": [
        Wrong("the first transposed", "first @ weights", "(first.T if len(first) == first.shape[1] else first) @ weights", "one matrix replaces two", "x times yours is wrong"),
    ],
    "bilinear": [
        Wrong("the sum over the heads", "w_q @ w_k.swapaxes(-1, -2)", 'np.einsum("hmd,hnd->mn", w_q, w_k)', "each head has a square matrix", "the mean over the axis H"),
    ],
}  # fmt: skip
