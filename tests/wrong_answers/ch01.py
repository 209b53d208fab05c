"""Wrong answers to the tasks of chapter 01."""

from wrong_answers import Wrong

WRONG = {
    "standardise": [
        Wrong("one mean for all", "x.mean(axis=-1, keepdims=True)", "x.mean()", "every row has mean 0 and deviation 1", "worst entry"),
        Wrong("keepdims forgotten: it does not fit", "x.mean(axis=-1, keepdims=True)", "x.mean(axis=-1)", "every row has mean 0 and deviation 1", "could not be broadcast"),
        Wrong("transposed until it runs", "(x - mean) / deviation", "((x.T - mean.squeeze()) / deviation.squeeze()).T if x.shape[0] != x.shape[1] else (x - mean.squeeze()) / deviation", "square arrays are no exception", "its own mean"),
        Wrong("the axis counted from the front", "x.mean(axis=-1, keepdims=True)", "x.mean(axis=min(1, x.ndim - 1), keepdims=True)", "any number of axes", "x of shape (2, 3, 5)"),
        Wrong("divided by a NumPy number", "x.std(axis=-1, keepdims=True)", "np.sqrt(((x - mean) ** 2).sum(axis=-1, keepdims=True)) / np.sqrt(x.shape[-1])", "float32 stays float32", "float64"),
    ],
    "broadcast_shape": [
        Wrong("a list", "tuple(shape)", "shape", "an axis of length 1 is stretched", "not ["),
        Wrong("nothing returned", "    return tuple(shape)\n", "", "an axis of length 1 is stretched", "not None"),
        Wrong("aligned at the left", "b = (1,) * (ndim - len(b)) + b", "b = b + (1,) * (ndim - len(b))", "shapes are aligned at the right", "ValueError"),
        Wrong("no ones in front", "    a = (1,) * (ndim - len(a)) + a\n", "", "shapes are aligned at the right", "in broadcast_shape, line"),
        Wrong("never refused", "1 not in (n, m)", "False", "shapes that do not fit are refused", "do not fit: raise a ValueError, where"),
        Wrong("refused in another way", "raise ValueError(", "raise TypeError(", "shapes that do not fit are refused", "should raise a ValueError, not TypeError"),
        Wrong("the larger one", "m if n == 1 else n", "max(n, m)", "a length of 0 is a length", "(0, 3) and (1, 3) make (0, 3), not (1, 3)"),
    ],
    "unbroadcast": [
        Wrong("the mean", "dy.sum(axis=front)", "dy.mean(axis=front)", "a bias gets the sum over tokens", "0.3333333333, the same in every entry"),
        Wrong("unchanged", "dy = dy.sum(axis=front)", "return dy", "a bias gets the sum over tokens", "wrong shape"),
        Wrong("the axis is lost", "dy.sum(axis=axis, keepdims=True)", "dy.sum(axis=axis)", "axes of length 1 are summed and kept", "wrong shape"),
        Wrong("counted before the front is gone", "dy.sum(axis=axis, keepdims=True)", "dy.sum(axis=axis - len(front), keepdims=True)", "both kinds of axes at once", "dx of"),
        Wrong("no shape means nothing to do", "front = tuple(range(dy.ndim - len(shape)))", "front = tuple(range(dy.ndim - len(shape))) if shape else ()", "even a single number has a gradient", "shape ()"),
    ],
}  # fmt: skip
