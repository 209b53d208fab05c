"""Common mistakes in the tasks of chapter 06, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch06_masks import causal, documents, masked_softmax, padding

causal.mistakes += patches(r"""
- j <= i + offset
+ j < i + offset
< hides the query's own position: query i sees key j = i + offset as well, so use ≤
+ j <= i + offset + 1
query i sees one key too many, the next one: the last key it may see is j = i + offset
+ j <= i - offset
offset has the wrong sign: query i sees j ≤ i + offset
+ j <= i
offset is not used: query i sees j ≤ i + offset
+ j <= i + offset + s - t
the last query is aligned with the last key. Only the offset determines where query 0 is: it sees
j ≤ offset
+ abs(i - j) <= offset
earlier keys are hidden: query i sees every key from 0 to i + offset, so the only rule is j ≤ i +
offset
+ j <= i + abs(offset)
a negative offset is not handled: j ≤ i + offset holds for it as well, and the first queries then
see nothing
+ np.array([np.arange(s) < slice(k + offset + 1).indices(s)[1] for k in range(t)])
in m[i, : i + offset + 1], a negative end counts from the back: no key is visible there
+ (j <= i) | (j < offset)
the offset moves every query: query i sees j ≤ i + offset, so each row has one key more than the
row before
+ (j <= i + offset).T
the mask is transposed: rows are queries i, columns are keys j
- i = np.arange(t)[:, None]
-     j = np.arange(s)[None, :]
+ i = np.arange(t)
+     j = np.arange(s)
positions of queries and of keys are both rows: make the queries a column, np.arange(t)[:, None]
""")

padding.mistakes += patches(r"""
- valid = np.arange(s) < lengths[:, None]
+ valid = np.arange(s) <= lengths[:, None]
one key too many: the first lengths[b] keys are j = 0 to lengths[b] − 1, so use <
+ valid = np.arange(s) >= s - lengths[:, None]
the last lengths[b] keys are visible; sequences start at key 0 and are padded at the end
+ valid = np.arange(s) < np.maximum(lengths, 1)[:, None]
one key of an empty sequence is visible: where lengths[b] is 0, every key is hidden
+ valid = np.arange(s) < np.minimum(lengths, s - 1)[:, None]
the last key of a whole sequence is hidden: where lengths[b] is S, every key is visible
- lengths[:, None]
+ lengths[:, None] - 1
one key too few: the first lengths[b] keys are j = 0 to lengths[b] − 1
+ lengths
positions (S,) and lengths (B,) are both rows: make the lengths a column, lengths[:, None]
- valid[:, None, None, :]
+ valid[:, None, :, None] & valid[:, None, None, :]
padded queries are hidden as well: the mask is (B, 1, 1, S), with axes of length 1 for heads and
queries
""")

documents.mistakes += patches(r"""
- query == key
+ query >= key
documents are compared by order, so a position sees other documents as well: use ==
+ (query == key) & np.tri(ids.shape[1], dtype=bool)
the mask is causal as well: within its document, a query sees later keys too
+ key == key
each position is compared only with itself: make the queries a column, ids[:, None, :, None]
+ (query == key)[:1].repeat(len(ids), axis=0)
the mask of the first sequence is used for all: each sequence has documents of its own
- query = ids[:, None, :, None]
+ ids = np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1)
+     query = ids[:, None, :, None]
only neighbours are compared: a document may return later, and its parts see each other
""")

masked_softmax.mistakes += patches(r"""
- x = np.where(mask, x, -np.inf)
+ x = x + 0
the mask has no effect: put −∞ where it is False
+ x = np.where(mask, -np.inf, x)
the mask is inverted: True = may attend, so put −∞ where it is False
+ x[~mask] = -np.inf
x[~mask] needs a mask of the shape of x; this one broadcasts: np.where(mask, x, -np.inf)
- np.where(mask, x, -np.inf)
+ np.where(mask, x, 0.0)
hidden entries become 0, and e⁰ = 1 is a weight like any other: put −∞ there
+ x + (1 - mask) * -np.inf
0 · ∞ is NaN, so every visible entry becomes NaN: choose with np.where(mask, x, -np.inf)
+ x + np.where(mask, 0.0, -np.inf)
−∞ is added to the hidden entries, and NaN − ∞ is NaN: replace them instead, with np.where(mask,
x, -np.inf)
+ np.where(mask, x, -10.0)
hidden entries get a number other than −∞, so they have a weight if the visible ones are as small:
put −∞ there
+ np.where(mask, x, -1e9)
a row with no visible entry gets weights, not 0, as happens with a large negative number in place
of −∞: use −∞, and treat such a row separately
- x = np.where(mask, x, -np.inf)
-     peak = x.real.max(axis=-1, keepdims=True)
-     e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
-     total = e.sum(axis=-1, keepdims=True)
-     y = e / np.where(total == 0, 1.0, total)
+ x = np.where(mask, -np.inf, x)
+     peak = x.real.max(axis=-1, keepdims=True)
+     e = np.exp(x - peak)
+     total = e.sum(axis=-1, keepdims=True)
+     y = e / total
the mask is inverted: True = may attend, so put −∞ where it is False
- x = np.where(mask, x, -np.inf)
-     peak = x.real.max(axis=-1, keepdims=True)
+ peak = x.real.max(axis=-1, keepdims=True)
+     x = np.where(mask, x, -np.inf)
the maximum is taken over hidden entries too: if a hidden entry is much larger, every visible exp
is 0. Hide first, then take the maximum
- np.where(total == 0, 1.0, total)
+ (total + 1e-6)
a small number is added to the sum, so no row sums to exactly 1: divide by 1 only where the sum is
0
- y * (dy - (dy * y).sum(axis=-1, keepdims=True))
+ dy
the pullback of softmax is missing: dx = y · (dy − Σ dy · y)
+ e * (dy - (dy * e).sum(axis=-1, keepdims=True))
e is used for y, but is not divided yet: dx = y · (dy − Σ dy · y)
+ y * (dy - dy.sum(axis=-1, keepdims=True) / np.maximum(mask.sum(axis=-1, keepdims=True), 1))
the plain mean over the visible entries is subtracted; the right one is weighted by y: dx = y ·
(dy − Σ dy · y)
+ y * dy - (dy * y).sum(axis=-1, keepdims=True)
the factor y is missing in the second term: dx = y · (dy − Σ dy · y)
- np.exp(x - np.where(peak == -np.inf, 0.0, peak))
+ np.exp(x)
exp of a large entry overflows: subtract the largest visible entry of each row first
-     peak = x.real.max(axis=-1, keepdims=True)
-     e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
-     total = e.sum(axis=-1, keepdims=True)
+     peak = x.real.max(axis=-2, keepdims=True)
+     e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
+     total = e.sum(axis=-2, keepdims=True)
softmax runs along the queries: run it along the keys, axis=-1
- (dy * y).sum(
+ dy.mean(
dx = y · (dy − mean(dy)): this subtracts the plain mean of dy; the right mean is weighted by y, Σ
dy · y
- x.real.max(axis=-1, keepdims=True)
+ x.real.max(axis=-1)
the maximum or the sum has lost the last axis, so it does not fit the rows: keepdims=True keeps it
""")
