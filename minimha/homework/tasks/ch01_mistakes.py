"""The usual mistakes in the tasks of chapter 01, as changes of their solutions."""

from .ch01_arrays import (
    broadcast_shape,
    standardise,
    unbroadcast,
)

_ROWS = """\
mean = x.mean(axis=-1, keepdims=True)
    deviation = x.std(axis=-1, keepdims=True)
"""
standardise.mistake(
    _ROWS,
    "mean, deviation = x.mean(), x.std()\n",
    "x.mean() and x.std() run over the whole array; each row needs its own: axis=-1, keepdims=True",
)
standardise.mistake(
    _ROWS,
    _ROWS.replace("axis=-1", "axis=0"),
    "axis=0 standardises each column; a row runs along the last axis: axis=-1",
)
standardise.mistake(
    _ROWS,
    _ROWS.replace(", keepdims=True", ""),
    "x.mean(axis=-1) has lost its last axis, so it is subtracted along the wrong one, or does "
    "not fit: keepdims=True keeps that axis (chapter 01)",
)
standardise.mistake(
    _ROWS,
    _ROWS.replace("axis=-1", "axis=1"),
    "axis=1 is the last axis only if x has two axes; count it from the back: axis=-1",
)
standardise.mistake(
    "x.mean(axis=-1, keepdims=True)",
    "x.mean()",
    "x.mean() is the mean of the whole array; each row needs its own: axis=-1, keepdims=True",
)
for _whole in ("x.std()", "np.sqrt(((x - mean) ** 2).mean())"):
    standardise.mistake(
        "x.std(axis=-1, keepdims=True)",
        _whole,
        "this is one deviation of the whole array; each row needs its own: axis=-1, keepdims=True",
    )
standardise.mistake(
    "x.std(axis=-1, keepdims=True)",
    "x.std(axis=-1, keepdims=True, ddof=1)",
    "the squares are summed and divided by M − 1 (ddof=1, as torch.std does); divide by M, as "
    "x.std(axis=-1) does",
)
standardise.mistake(
    "x.std(axis=-1, keepdims=True)",
    "x.var(axis=-1, keepdims=True)",
    "the rows are divided by the variance; the standard deviation is its square root",
)
standardise.mistake(
    "x.std(axis=-1, keepdims=True)",
    "np.sqrt(((x - mean) ** 2).sum(axis=-1, keepdims=True))",
    "the squares are summed, but the sum is not divided by M: the deviation is √(mean of "
    "(x − mean)²)",
)
standardise.mistake(
    "return (x - mean) / deviation",
    "return x - mean / deviation",
    "x - mean / deviation divides only the mean: put x - mean in brackets",
)
standardise.mistake(
    "return (x - mean) / deviation",
    "return x - mean",
    "the mean is subtracted, but the result is not divided by the deviation",
)
standardise.mistake(
    "return (x - mean) / deviation",
    "return x / deviation",
    "the mean is not subtracted: (x − mean) / deviation",
)
standardise.mistake(
    "return (x - mean) / deviation",
    "return (x - mean) * deviation",
    "x − mean is multiplied by the deviation: divide by it",
)
standardise.mistake(
    "x.std(axis=-1, keepdims=True)",
    "np.sqrt((x**2).mean(axis=-1, keepdims=True))",
    "this is √(mean of x²), from which the mean is not subtracted: √(mean of (x − mean)²)",
)
standardise.mistake(
    "return (x - mean) / deviation",
    "return (x - mean) / np.sqrt(deviation)",
    "the root of the deviation is taken: x.std is the root of the variance already",
)
for _new in ("np.sqrt(deviation**2 + 1e-5)", "(deviation + 1e-5)", "(deviation + 1e-8)"):
    standardise.mistake(
        "(x - mean) / deviation",
        f"(x - mean) / {_new}",
        "a small number is added to the variance or the deviation, as layer normalisation does; "
        "here no row is constant: add nothing",
    )

_PADDED = """\
a = (1,) * (ndim - len(a)) + a
    b = (1,) * (ndim - len(b)) + b
"""
broadcast_shape.mistake(
    _PADDED,
    "a, b = a + (1,) * (ndim - len(a)), b + (1,) * (ndim - len(b))\n",
    "the shapes are aligned at the left, as zip(a, b) does; broadcasting aligns them at the right: "
    "put ones in front of the shorter shape",
)
broadcast_shape.mistake(
    _PADDED,
    "n = min(len(a), len(b)); a, b = a[len(a) - n :], b[len(b) - n :]\n",
    "the result lacks the first axes of the longer shape: put ones in front of the shorter shape",
)
broadcast_shape.mistake(
    "tuple(shape)",
    "tuple(shape[::-1])",
    "the lengths are in reverse order: if the loop goes from right to left, reverse the result",
)
for _new in ("", " and n != 1", " and m != 1"):
    broadcast_shape.mistake(
        " and 1 not in (n, m)",
        _new,
        "a length of 1 is refused; in either shape it fits every other length, and the "
        "result has the other length",
    )
for _new in ("min(n, m)", "n", "m", "1 if 1 in (n, m) else n"):
    broadcast_shape.mistake(
        "m if n == 1 else n",
        _new,
        "an axis of length 1 is not stretched: if one length is 1, the result has the other",
    )
broadcast_shape.mistake(
    "m if n == 1 else n",
    "max(n, m)",
    "for the lengths 0 and 1, max(n, m) is 1; if one length is 1, the result has the other "
    "length, here 0",
)
broadcast_shape.mistake(
    """\
if n != m and 1 not in (n, m):
            raise ValueError(f"lengths {n} and {m} do not fit")
        shape.append(m if n == 1 else n)
""",
    "shape.append(max(n, m))\n",
    "two different lengths are accepted although neither is 1, and the larger one is taken: raise "
    "ValueError",
)
broadcast_shape.mistake(
    "1 not in (n, m)",
    "False",
    "two different lengths are accepted although neither is 1: raise ValueError",
)

_FRONT = "dy = dy.sum(axis=front)\n"
_ONES = """\
for axis, length in enumerate(shape):
        if length == 1:
            dy = dy.sum(axis=axis, keepdims=True)
"""
unbroadcast.mistake(
    "dy.sum(axis=front)",
    "dy.mean(axis=front)",
    "this is the mean of dy over the copies; the gradient is their sum",
)
unbroadcast.mistake(
    "dy.sum(axis=axis, keepdims=True)",
    "dy.mean(axis=axis, keepdims=True)",
    "this is the mean of dy over the copies; the gradient is their sum",
)
for _new in ("dy.reshape(shape)", "np.broadcast_to(dy, shape)", "dy.sum().reshape(shape)"):
    unbroadcast.mistake(
        _FRONT,
        f"return {_new}\n",
        "changing the shape of dy is not enough: sum dy over the axes along which broadcasting "
        "made copies, and over no others (chapter 01)",
    )
for _new in ("np.full(shape, dy.sum())", "np.ones(shape) * dy.mean()"):
    unbroadcast.mistake(
        _FRONT,
        f"return {_new}\n",
        "every entry is the sum or mean of all of dy; an entry gets the sum over its own copies",
    )
unbroadcast.mistake(
    _FRONT,
    "dy = dy.sum(axis=tuple(range(len(shape), dy.ndim)))\n",
    "the last axes are summed; the axes that broadcasting adds are at the front",
)
unbroadcast.mistake(
    _FRONT,
    "dy = dy.sum(axis=front, keepdims=True)\n",
    "the axes in front are summed but kept, with length 1; the array did not have them: sum them "
    "without keepdims",
)
unbroadcast.mistake(
    _FRONT,
    "dy = dy[(0,) * len(front)]\n",
    "the gradient of one copy is kept and the others are dropped: sum over all copies",
)
unbroadcast.mistake(
    "dy.sum(axis=axis, keepdims=True)",
    "dy.sum(axis=axis)",
    "an axis of length 1 is summed but not kept: keepdims=True",
)
unbroadcast.mistake(
    _ONES,
    "pass\n",
    "the axes in front are summed, the axes of length 1 are not: sum each of those too, with "
    "keepdims=True",
)
unbroadcast.mistake(
    _FRONT,
    "pass\n",
    "dy has axes in front that the array did not have: sum over them",
)
unbroadcast.mistake(
    _FRONT,
    "if front: dy = dy.sum(axis=0)\n",
    "only one axis in front is summed; there can be several: axis=tuple(range(dy.ndim - "
    "len(shape)))",
)
unbroadcast.mistake(
    _FRONT + "    " + _ONES,
    "dy = dy.sum(axis=front + tuple(k for k, n in enumerate(shape) if n == 1), keepdims=True)\n"
    "    dy = dy.reshape(dy.shape[len(front):])\n",
    "the axes of length 1 are numbered as in shape, but dy has more axes in front: sum over those "
    "first, or add their number",
)
unbroadcast.mistake(
    "dy.sum(axis=axis, keepdims=True)",
    "dy.sum(axis=axis, keepdims=True); break",
    "only the first axis of length 1 is summed; there can be several",
)
