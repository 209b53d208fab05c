"""Wrong answers to the tasks of chapter 08."""

from wrong_answers import Wrong

WRONG = {
    "sinusoidal": [
        Wrong("a list of rows", "return table", "return list(table)", "one pair is the sine and cosine of the position", "np.stack"),
        Wrong("the exponent rounded down", "base ** (-np.arange(0, width, 2) / width)", "base ** (-np.arange(0, width, 2) // width)", "each pair has its own frequency", "worst entry"),
    ],
    "rotate_pairs": [
        Wrong("a value and no pullback", "return rotated(x, sin), pullback", "return rotated(x, sin)", "one pair is rotated by its angle", "should return two things"),
        Wrong("two axes only", "return y.reshape(x.shape)", "return y.reshape(x.shape[-2:])", "each pair has its own angle", "reshape"),
    ],
    "to_halves": [
        Wrong("one head returned", "heads[..., order].reshape(w.shape)", "heads[:, 0, order]", "each head keeps its own columns", "wrong shape"),
        Wrong("a list", "return heads[..., order].reshape(w.shape)", "return heads[..., order].reshape(w.shape).tolist()", "the columns of one head", "np.array"),
    ],
    "alibi_bias": [
        Wrong("the square root of the distance", "abs(i - j)", "abs(i - j) ** 0.5", "the bias falls with the distance", "worst entry"),
        Wrong("every distance at least 1 with a cache", "abs(i - j)", "np.maximum(abs(i - j), int(s > t))", "the queries are the last positions", "worst entry"),
    ],
}  # fmt: skip
