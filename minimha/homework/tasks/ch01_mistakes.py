"""Common mistakes in the tasks of chapter 01, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch01_arrays import broadcast_shape, standardise, unbroadcast

standardise.mistakes += patches(r"""
- mean = x.mean(axis=-1, keepdims=True)
-     deviation = x.std(axis=-1, keepdims=True)
+ mean, deviation = x.mean(), x.std()
x.mean() and x.std() run over the whole array; each row needs its own: axis=-1, keepdims=True
+ mean = x.mean(axis=0, keepdims=True)
+     deviation = x.std(axis=0, keepdims=True)
axis=0 standardises each column; a row runs along the last axis: axis=-1
+ mean = x.mean(axis=-1)
+     deviation = x.std(axis=-1)
x.mean(axis=-1) has lost its last axis, so it is subtracted along the wrong one, or does not fit:
keepdims=True keeps that axis (chapter 01)
+ mean = x.mean(axis=1, keepdims=True)
+     deviation = x.std(axis=1, keepdims=True)
axis=1 is the last axis only if x has two axes; count it from the back: axis=-1
- x.mean(axis=-1, keepdims=True)
+ x.mean()
x.mean() is the mean of the whole array; each row needs its own: axis=-1, keepdims=True
+ x.mean(axis=0)
x.mean(axis=0) is the mean of each column; each row needs its own: axis=-1, keepdims=True
- x.std(axis=-1, keepdims=True)
+ x.std()
this is one deviation of the whole array; each row needs its own: axis=-1, keepdims=True
+ x.std(axis=-1, keepdims=True, ddof=1)
the squares are summed and divided by M − 1 (ddof=1, as torch.std does); divide by M, as
x.std(axis=-1) does
+ x.var(axis=-1, keepdims=True)
the rows are divided by the variance; the standard deviation is its square root
+ np.sqrt(((x - mean) ** 2).sum(axis=-1, keepdims=True))
the squares are summed, but the sum is not divided by M: the deviation is √(mean of (x − mean)²)
+ np.sqrt((x**2).mean(axis=-1, keepdims=True))
this is √(mean of x²), from which the mean is not subtracted: √(mean of (x − mean)²)
+ abs(x - mean).mean(axis=-1, keepdims=True)
this is the mean of |x − mean|: the deviation is √(mean of (x − mean)²)
- return (x - mean) / deviation
+ return x - mean / deviation
x - mean / deviation divides only the mean: put x - mean in brackets
+ return x / deviation - mean
the mean is subtracted after the division: subtract it first, (x − mean) / deviation
+ return x - mean
the mean is subtracted, but nothing is divided: (x − mean) / deviation
+ return x / deviation
the mean is not subtracted: (x − mean) / deviation
+ return (x - mean) * deviation
x − mean is multiplied by the deviation: divide by it
+ return (x - mean) / np.sqrt(deviation)
the root of the deviation is taken: x.std is the root of the variance already
- (x - mean) / deviation
+ (x - mean) / np.sqrt(deviation**2 + 1e-5)
- (x - mean) / deviation
+ (x - mean) / (deviation + 1e-8)
a small number is added to the variance or the deviation, as layer normalisation does; here no row
is constant: add nothing
""")

broadcast_shape.mistakes += patches(r"""
- a = (1,) * (ndim - len(a)) + a
-     b = (1,) * (ndim - len(b)) + b
+ a, b = a + (1,) * (ndim - len(a)), b + (1,) * (ndim - len(b))
the shapes are aligned at the left, as zip(a, b) does; broadcasting aligns them at the right: put
ones in front of the shorter shape
+ n = min(len(a), len(b)); a, b = a[len(a) - n :], b[len(b) - n :]
the result lacks the first axes of the longer shape: put ones in front of the shorter shape
- tuple(shape)
+ tuple(shape[::-1])
the lengths are in reverse order: if the loop goes from right to left, reverse the result
+ tuple(shape[1:])
the first axis is missing: does a loop over the axes stop before it?
- m if n == 1 else n
+ min(n, m)
an axis of length 1 is not stretched: if one length is 1, the result has the other
+ max(n, m)
for the lengths 0 and 1, max(n, m) is 1; if one length is 1, the result has the other length, here
0
- if n != m and 1 not in (n, m):
-             raise ValueError(f"lengths {n} and {m} do not fit")
-         shape.append(m if n == 1 else n)
+ shape.append(max(n, m))
two different lengths are accepted although neither is 1, and the larger one is taken: raise
ValueError
- 1 not in (n, m)
+ False
two different lengths are accepted although neither is 1: raise ValueError
-  and 1 not in (n, m)
+
a length of 1 is refused; in either shape it fits every other length, and the result has the other
length
""")

unbroadcast.mistakes += patches(r"""
- dy.sum(axis=front)
+ dy.mean(axis=front)
- dy.sum(axis=axis, keepdims=True)
+ dy.mean(axis=axis, keepdims=True)
this is the mean of dy over the copies; the gradient is their sum
- dy = dy.sum(axis=front)
+ return dy.reshape(shape)
changing the shape of dy is not enough: sum dy over the axes along which broadcasting made copies,
and over no others (chapter 01)
+ return np.full(shape, dy.sum())
every entry is the sum or mean of all of dy; an entry gets the sum over its own copies
+ dy = dy.sum(axis=tuple(range(len(shape), dy.ndim)))
the last axes are summed; the axes that broadcasting adds are at the front
+ dy = dy.sum(axis=front, keepdims=True)
the axes in front are summed but kept, with length 1; the array did not have them: sum them
without keepdims
+ dy = dy[(0,) * len(front)]
the gradient of one copy is kept and the others are dropped: sum over all copies
+ pass
dy has axes in front that the array did not have: sum over them
+ if front: dy = dy.sum(axis=0)
only one axis in front is summed; there can be several: axis=tuple(range(dy.ndim - len(shape)))
- dy.sum(axis=axis, keepdims=True)
+ dy.sum(axis=axis)
an axis of length 1 is summed but not kept: keepdims=True
+ dy.sum(axis=axis, keepdims=True); break
only the first axis of length 1 is summed; there can be several
- for axis, length in enumerate(shape):
-         if length == 1:
-             dy = dy.sum(axis=axis, keepdims=True)
+ pass
the axes in front are summed, the axes of length 1 are not: sum each of those too, with
keepdims=True
- dy = dy.sum(axis=front)
-     for axis, length in enumerate(shape):
-         if length == 1:
-             dy = dy.sum(axis=axis, keepdims=True)
+ dy = dy.sum(axis=front + tuple(k for k, n in enumerate(shape) if n == 1), keepdims=True)
+     dy = dy.reshape(dy.shape[len(front):])
- dy = dy.sum(axis=front)
-     for axis, length in enumerate(shape):
-         if length == 1:
-             dy = dy.sum(axis=axis, keepdims=True)
+ for axis, length in enumerate(shape):
+         if length == 1:
+             dy = dy.sum(axis=axis, keepdims=True)
+     dy = dy.sum(axis=front)
the axes of length 1 are numbered as in shape, but dy has more axes in front: sum over those
first, or add their number
""")
