"""Common mistakes in the tasks of chapter 05, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch05_attention import attention, attention_forward, scores, softmax

scores.mistakes += patches(r"""
- query.shape[-1] ** 0.5
+ 1.0
the factor 1/√D is missing: divide Q Kᵀ by query.shape[-1] ** 0.5
+ query.shape[-1]
Q Kᵀ is divided by D; divide by √D
+ query.shape[-2] ** 0.5
Q Kᵀ is divided by the root of T, the number of queries; divide by √D, the root of the width of a
query
+ key.shape[-2] ** 0.5
Q Kᵀ is divided by the root of S, the number of keys; divide by √D, the root of the width of a key
- query @ key.mT / root
+ query * key / root
a score is the dot product of a query and a key, for every query with every key: query @ key.mT
+ query @ query.mT / root
the queries are multiplied by the queries; Q Kᵀ is query @ key.mT
- dy.mT @ query
+ dy @ query
for y = Q Kᵀ / √D the gradients are dquery = dy K / √D and dkey = dyᵀ Q / √D; write dy.mT for dyᵀ
+ query.mT @ dy
for y = Q Kᵀ / √D the gradients are dquery = dy K / √D and dkey = dyᵀ Q / √D; write dy.mT for dyᵀ
""")

softmax.mistakes += patches(r"""
- y * (dy - (dy * y).sum(axis=-1, keepdims=True))
+ e * (dy - (dy * y).sum(axis=-1, keepdims=True))
dx = e · (dy − Σ dy · y): the factor is y, the output of softmax, not e: y · (dy − Σ dy · y)
+ (np.diag(y) - np.outer(y, y)) @ dy
this builds the Jacobian of a single row, but y has many; the formula for dx needs none
+ x * (dy - (dy * y).sum(axis=-1, keepdims=True))
dx = x · (dy − Σ dy · y): the factor is y, the output of softmax, not x
+ y * (dy - (dy * x).sum(axis=-1, keepdims=True))
dx = y · (dy − Σ dy · x): dy is weighted by y, the output of softmax, not by x
+ y * (dy * y).sum(axis=-1, keepdims=True)
dx = y · Σ dy · y is only the part that is subtracted: dx = y · (dy − Σ dy · y)
+ y * dy - (dy * y).sum(axis=-1, keepdims=True)
the factor y is missing in the second term: dx = y · (dy − Σ dy · y), with the sum over each row
+ dy - y * dy.sum(axis=-1, keepdims=True)
y and dy are exchanged: dx = y · (dy − Σ dy · y), with the sum over each row
+ e * (dy - (dy * e).sum(axis=-1, keepdims=True))
e is used for y, but is not divided yet: dx = y · (dy − Σ dy · y), with the sum over each row
+ y * (dy * y - (dy * y).sum(axis=-1, keepdims=True))
the first term has the factor y twice: dx = y · (dy − Σ dy · y), with the sum over each row
+ y * (dy - (dy * y**2).sum(axis=-1, keepdims=True))
y is squared in the sum: dx = y · (dy − Σ dy · y), with the sum over each row
+ y * (dy - np.stack([(a * b).sum() for a, b in zip(dy, y, strict=True)])[:, None, None])
the sum runs over all rows of a batch: dx = y · (dy − Σ dy · y), with the sum over each row
- (dy * y).sum(axis=-1, keepdims=True)
+ (dy * y).sum(axis=-1)
the sum has lost its last axis, so it does not fit dy: keepdims=True keeps it
+ dy.dot(y)
a matrix product does not give the sum over each row if x has more than one axis: write (dy *
y).sum(axis=-1, keepdims=True)
- return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)
+ jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., :, None])
+         return ((jacobian @ dy[..., None])[..., 0],)
the second term has y² in place of y yᵀ: the Jacobian is y_i (δ_ij − y_j), diag(y) − y yᵀ
""")

attention_forward.mistakes += patches(r"""
- scores = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)
+ scores = tap("scores", query @ key.mT)
the factor 1/√D is missing: divide Q Kᵀ by query.shape[-1] ** 0.5
+ scores = tap("scores", query @ key.mT) / query.shape[-1] ** 0.5
the output is right, but tap gets Q Kᵀ without the scale: divide by √D before you call tap
+ scores = query @ key.mT
+     tap("scores", scores / query.shape[-1] ** 0.5)
softmax gets Q Kᵀ without the scale: scores = tap("scores", Q Kᵀ / √D), and continue with these
scores
+ scores = query @ key.mT / query.shape[-1] ** 0.5
+     visible = np.tri(*scores.shape[-2:], dtype=bool)
+     scores = tap("scores", np.where(visible, scores, -np.inf))
later keys are hidden, but there is no mask here: every query sees every key
+ lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key)]
+     scores = tap("scores", (query / lengths[0]) @ (key / lengths[1]).mT)
query and key are divided by their lengths: divide Q Kᵀ by √D instead
+ scores = tap(query @ key.mT / query.shape[-1] ** 0.5, "scores")
tap takes the name first: tap("scores", scores)
- query.shape[-1] ** 0.5
+ query.shape[-1]
Q Kᵀ is divided by D; divide by √D, the root of the width of a query
+ query.shape[-2] ** 0.5
Q Kᵀ is divided by the root of the number of queries or keys; divide by √D, the root of the width
of a query
- e.sum(axis=-1, keepdims=True)
+ e.sum(axis=-1)
the maximum or the sum has lost its last axis, so it applies to columns instead of rows, or does
not fit: keepdims=True keeps that axis
- scores.max(axis=-1, keepdims=True)
+ scores.max(axis=-2, keepdims=True)
the maximum is that of each column; subtract the largest score of each row, axis=-1
- query @ key.mT
+ query @ query.mT
the queries are multiplied by the queries; Q Kᵀ is query @ key.mT
- weights @ value
+ weights.mT @ value
a product has the wrong arrays or a wrong transpose: scores = Q Kᵀ / √D is (…, T, S), and out =
weights V is (…, T, Dv)
+ weights @ key
out is made from the keys; out = weights V
- e = np.exp(scores - scores.max(axis=-1, keepdims=True))
+ e = 2.0 ** (scores - scores.max(axis=-1, keepdims=True))
softmax takes powers of e, not of 2: np.exp
+ e = scores
exp is missing: softmax divides the exponentials of the scores by their sum
- e / e.sum(axis=-1, keepdims=True)
+ e
- e / e.sum(axis=-1, keepdims=True)
+ np.exp(scores)
softmax is not finished: divide the exponentials of each row by their sum
- e = np.exp(scores - scores.max(axis=-1, keepdims=True))
-     weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
+ e = np.exp(scores - scores.max(axis=-2, keepdims=True))
+     weights = tap("weights", e / e.sum(axis=-2, keepdims=True))
softmax runs along the queries, so the weights of each key sum to 1; it runs along the keys,
axis=-1, so that the weights of each query sum to 1
- e = np.exp(scores - scores.max(axis=-1, keepdims=True))
-     weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
+ e = np.exp(scores - scores.max())
+     weights = tap("weights", e / e.sum())
- e = np.exp(scores - scores.max(axis=-1, keepdims=True))
-     weights = tap("weights", e / e.sum(axis=-1, keepdims=True))
+ e = np.exp(scores - scores.max(axis=(-2, -1), keepdims=True))
+     weights = tap("weights", e / e.sum(axis=(-2, -1), keepdims=True))
the exponentials are divided by the sum of a whole matrix, or of all; each row needs its own sum:
e.sum(axis=-1, keepdims=True)
""")

attention.mistakes += patches(r"""
- root = query.shape[-1] ** 0.5
+ root = 1.0
the factor 1/√D is missing: divide the scores by √D
- dvalue, {"weights": dweights, "scores": dscores}
+ dvalue, {"weights": dweights, "scores": dscores / root}
dscores is divided by √D, but it is the gradient of the scaled scores: divide in the next step, in
dquery and dkey
- (dweights * weights).sum(axis=-1, keepdims=True)
+ (dweights * weights).sum(axis=-1)
the row sum in dscores has lost its last axis, so it does not fit: keepdims=True keeps it
- dout @ value.mT
+ dout @ value
- weights.mT @ dout
+ weights @ dout
a transpose is missing, or there is one too many. out = weights V gives dweights = dout Vᵀ and
dvalue = weightsᵀ dout; scores = Q Kᵀ / √D gives dquery = dscores K / √D and dkey = dscoresᵀ Q /
√D
- weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
+ scores * (dweights - (dweights * scores).sum(axis=-1, keepdims=True))
the pullback of softmax uses its input, the scores: it needs its output, the weights
""")
