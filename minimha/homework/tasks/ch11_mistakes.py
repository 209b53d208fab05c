"""Common mistakes in the tasks of chapter 11, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch11_speed import online_softmax, tiled_backward, tiled_forward

online_softmax.mistakes += patches(r"""
- np.exp(peak - safe)
+ np.exp(safe - peak)
the factor is e^(new − peak); to turn e^(x − peak) into e^(x − new), multiply by e^(peak − new)
- acc * shrink[:, None] + e @ value
+ (acc * shrink[:, None] + e @ value) / (total * shrink + e.sum(axis=-1))[:, None]
acc is divided by total in each block: keep the plain sum, and divide once after the last block
- shrink = np.exp(peak - safe)
-     e = np.exp(scores - safe[:, None])
-     return new, total * shrink + e.sum(axis=-1), acc * shrink[:, None] + e @ value
+ e = np.exp(scores)
+     return new, total + e.sum(axis=-1), acc + e @ value
no maximum is subtracted before exp, so large scores overflow: subtract the new one
- return new, total * shrink + e.sum(axis=-1), acc * shrink[:, None] + e @ value
+ return new, total * shrink + e.sum(axis=0), acc * shrink[:, None] + e @ value
the maximum or the sum runs along the queries; each row has its own, along the keys: axis=-1
+ weights = e / np.where(new == -np.inf, 1, e.sum(axis=-1))[:, None]
+     return new, total + 1, acc + weights @ value
each block has a softmax of its own, divided by its own sum: keep plain sums of e^(score − peak),
and divide once after the last block
+ return new, (total + e.sum(axis=-1)) * shrink, acc * shrink[:, None] + e @ value
- return new, total * shrink + e.sum(axis=-1), acc * shrink[:, None] + e @ value
+ return new, (total + e.sum(axis=-1)) * shrink, (acc + e @ value) * shrink[:, None]
shrink multiplies the new block too: it corrects only what was summed before
+ return new, total * shrink + e.sum(axis=-1), shrink * acc + e @ value
- return new, total * shrink + e.sum(axis=-1), acc * shrink[:, None] + e @ value
+ return new, total * shrink + e.sum(axis=-1), acc * shrink + e @ value
shrink is (T,) and acc is (T, Dv): make it a column, shrink[:, None]
- np.maximum(peak, scores.max(axis=-1))
+ np.maximum(peak, scores.max())
the maximum is taken over all rows; each has its own, axis=-1
""")

tiled_forward.mistakes += patches(r"""
- acc / total[:, None]
+ acc
out is not divided by total: after the last tile of keys, out = acc / total
+ acc / total
total is (n,) and acc is (n, Dv): make it a column, total[:, None]
- peak + np.log(total)
+ np.log(total)
peak is missing: lse = peak + ln total, the logarithm of Σ e^score, because total is the sum of
e^(score − peak)
- scale * query[rows] @ key[keys].T
+ query[rows] @ key[keys].T
the factor scale is missing: scores = scale · Q Kᵀ
+ scale * scale * query[rows] @ key[keys].T
the scores are scaled twice: multiply Q Kᵀ by 1/√D once
- (first[rows, None] <= keys) & (
+ (
first is ignored: query i sees only the keys with first[i] ≤ j ≤ last[i]
- scores = np.where(visible, scores, -np.inf)
+ scores = np.where(visible, -np.inf, scores)
the visible scores are hidden and the others kept: put −∞ where visible is False
- if not visible.any()
+ if not visible.all()
tiles are skipped unless all pairs are visible: skip only those without any
- value[keys]
+ value[keys - j]
these are not the values of this tile's keys: value[keys]
- range(0, len(key), block)
+ range(0, len(key) // block * block, block)
the last tile is left out if it is smaller than block: range(0, n, block) includes it
- (first[rows, None] <= keys) & (keys <= last[rows, None])
+ (first[rows, None] <= keys - j) & (keys - j <= last[rows, None])
the keys are counted from the start of the tile: first and last are positions among all keys, so
add j
""")

tiled_backward.mistakes += patches(r"""
- weights * (dweights - delta[rows, None]))
+ scale * weights * (dweights - delta[rows, None])) / scale
dscores contains the scale already; it is the gradient of the scaled scores, so the scale comes
after it, in dquery and dkey
- range(0, len(key), block)
+ range(0, len(key) // block * block, block)
the last tile is left out if it is smaller than block: range(0, n, block) includes it
- if not visible.any()
+ if not visible.all()
tiles are skipped unless all pairs are visible: skip only those without any
- weights.T @ dout[rows]
+ scale * weights.T @ dout[rows]
dvalue has the factor scale; out = weights V has none
+ dscores.T @ dout[rows]
dvalue is made from dscores; out = weights V gives dvalue = weightsᵀ dout
- scale * dscores @ key[keys]
+ scale * weights @ key[keys]
dquery is made from the weights; scores = scale · Q Kᵀ gives dquery = scale · dscores K
- scale * dscores.T @ query[rows]
+ scale * weights.T @ query[rows]
dkey is made from the weights; scores = scale · Q Kᵀ gives dkey = scale · dscoresᵀ Q
+ scale * dscores.T @ key[keys]
dkey is made from the keys; scores = scale · Q Kᵀ gives dkey = scale · dscoresᵀ Q
- scores = scale * query[rows] @ key[keys].T
+ scores = query[rows] @ key[keys].T
the factor scale is missing in the scores: scale · Q Kᵀ, as in the forward
- dquery[rows] += scale * dscores @ key[keys]
-             dkey[keys] += scale * dscores.T @ query[rows]
+ dquery[rows] += dscores @ key[keys]
+             dkey[keys] += dscores.T @ query[rows]
- scale * dscores @ key[keys]
+ dscores @ key[keys]
- scale * dscores.T @ query[rows]
+ dscores.T @ query[rows]
the factor scale is missing: the scores are scale · Q Kᵀ, so dquery = scale · dscores K and dkey =
scale · dscoresᵀ Q
- delta[rows, None]
+ delta[rows]
delta or lse is a row here, so it applies to keys: make it a column, as in lse[rows, None]
""")
