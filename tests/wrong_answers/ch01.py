"""Wrong answers to the tasks of chapter 01."""

from wrong_answers import Wrong

WRONG = {
    "standardise": [
        Wrong("transposed until it runs", "return (x - mean) / deviation", "return ((x.T - mean.squeeze()) / deviation.squeeze()).T if x.shape[0] != x.shape[1] else (x - mean.squeeze()) / deviation", "square arrays work too", "worst entry"),
        Wrong("divided by a NumPy number", "x.std(axis=-1, keepdims=True)", "np.sqrt(((x - mean) ** 2).sum(axis=-1, keepdims=True)) / np.sqrt(x.shape[-1])", "float32 stays float32", "float64"),
    ],
    "broadcast_shape": [
        Wrong("a list", "tuple(shape)", "shape", "an axis of length 1 is stretched", "not ["),
        Wrong("nothing returned", "    return tuple(shape)\n", "", "an axis of length 1 is stretched", "not None"),
        Wrong("no ones in front", "    a = (1,) * (ndim - len(a)) + a\n", "", "shapes are aligned at the right", "in broadcast_shape, line"),
        Wrong("refused in another way", "raise ValueError(", "raise TypeError(", "shapes that do not fit raise an error", "should raise a ValueError, not TypeError"),
    ],
    "unbroadcast": [
        Wrong("no shape means nothing to do", "front = tuple(range(dy.ndim - len(shape)))", "front = tuple(range(dy.ndim - len(shape))) if shape else ()", "a single number works too", "shape ()"),
    ],
}  # fmt: skip
