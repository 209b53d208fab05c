"""The usual mistakes in the tasks of chapter 10, as patches of their solutions."""

from ..mistakes import patches
from .ch10_debugging import attention_entropy, leaks, update_ratio

attention_entropy.mistakes += patches(r"""
- return -(weights * logs).sum(axis=-1)
+ return -(weights * logs).sum(axis=-1) / np.log(2)
this is the entropy in bits: nats need the natural logarithm, np.log
+ return -(weights * logs).sum(axis=-2)
the sum is over the queries: keys are axis −1
+ return -logs.sum(axis=-1)
the factor P is missing: each log P counts with its weight P
+ return np.exp(-(weights * logs).sum(axis=-1))
this is exp of the entropy, the perplexity: return −Σ P log P itself
+ return -(weights * logs).sum(axis=-1) / np.log(weights.shape[-1])
the entropy is divided by log S, the largest possible: return −Σ P log P in nats
+ p = np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)
+     return -(p * np.log(p)).sum(axis=-1)
a softmax is applied to weights that are probabilities already
- logs = np.log(np.where(weights > 0, weights, 1.0))
+ logs = np.log(weights)
log 0 is −∞, and 0 · (−∞) is NaN: where a weight is 0, take the logarithm of 1 instead
- np.where(weights > 0, weights, 1.0)
+ weights + 1e-9
a small number added inside the logarithm changes every entropy: take the logarithm of 1 where a
weight is 0, and of the weight elsewhere
""")

update_ratio.mistakes += patches(r"""
- np.sqrt(np.sum(before**2))
+ np.sqrt(np.sum(after**2))
the ratio is to the norm before the step, not after it
- moved / np.sqrt(np.sum(before**2))
+ np.sqrt(np.sum(before**2)) / moved
the ratio is upside down: ‖step‖ / ‖before‖
+ moved
this is the norm of the step: divide by the norm of before
- moved = np.sqrt(np.sum((after - before) ** 2))
-     return moved / np.sqrt(np.sum(before**2))
+ return np.sum((after - before) ** 2) / np.sum(before**2)
the square root is missing: this is the square of the ratio
+ return np.std(after - before) / np.std(before)
a standard deviation subtracts the mean first: the norm is the root of the sum of the squares
+ return np.mean(abs(after - before) / abs(before))
this is the mean of the ratios of single entries, which is large where an entry is near 0: divide
the norms of the whole arrays
+ return np.mean(abs(after - before)) / np.mean(abs(before))
this compares absolute values: the norm is the root of the sum of the squares
+ return np.max(abs(after - before)) / np.max(abs(before))
this compares absolute values: the norm is the root of the sum of the squares
+ return abs((after - before).sum()) / abs(before.sum())
the entries are added with their signs and cancel: square them first
+ return np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
this is one ratio for each row: the norm is that of the whole array, without axis
+ order = 2 if before.ndim == 2 else None
+     return np.linalg.norm(after - before, order) / np.linalg.norm(before, order)
for a matrix, ord=2 is the largest singular value: use np.linalg.norm(x) without ord
- moved = np.sqrt(np.sum((after - before) ** 2))
+ moved = np.sqrt(np.sum(after**2)) - np.sqrt(np.sum(before**2))
this is the difference of two norms: take the norm of the difference, ‖after − before‖
+ moved = np.sqrt(np.sum(after**2))
this is ‖after‖ / ‖before‖: the numerator is the norm of the step, ‖after − before‖
""")

leaks.mistakes += patches(r"""
- np.any(model(changed)[:, :t] != before[:, :t])
+ np.any(model(changed)[:, : t + 1] != before[:, : t + 1])
every model seems to leak, because you compare logits that may depend on the tokens you changed:
change the tokens from t on, and compare the logits before t, [:, :t]
+ np.all(model(changed)[:, :t] != before[:, :t])
np.all demands that every logit changes: a single one is a leak, so use np.any
+ not np.allclose(model(changed)[:, :t], before[:, :t], atol=1e-4)
a small change is a leak too: logits that do not see the future are equal bit for bit, so compare
with !=
- changed[:, t:] = (changed[:, t:] + 1) % vocabulary
+ changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % vocabulary
the token at t stays the same, so a model that looks one token ahead passes: change the tokens
from t on, and compare the logits before t
-             return True
-     return False
+             return False
+     return True
True and False are exchanged: return True if the logits change
-         if np.any(model(changed)[:, :t] != before[:, :t]):
-             return True
+         return bool(np.any(model(changed)[:, :t] != before[:, :t]))
only t = 1 is tested, that is, only the first position: go through every t from 1 to T − 1, and
return False after the loop
""")
