"""Wrong answers to the tasks of chapter 05."""

from wrong_answers import Wrong

WRONG = {
    "softmax": [
        Wrong("the sum over all rows", "sum(axis=-1, keepdims=True)\n\n", "sum()\n\n", "values", "ratio"),
        Wrong("no sum over the row", " - (dy * y).sum(axis=-1, keepdims=True)", "", "gradients", "without the sum that each row shares"),
        Wrong("a gradient and no tuple", "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)", "return y * (dy - (dy * y).sum(axis=-1, keepdims=True))", "gradients", "tuple"),
    ],
}  # fmt: skip
