"""Common mistakes in the tasks of chapter 10, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch10_debugging import attention_entropy, leaks, without_gradient

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
a softmax is applied to weights that are probabilities already: use them as they are
- logs = np.log(np.where(weights > 0, weights, 1.0))
+ logs = np.log(weights)
log 0 is −∞, and 0 · (−∞) is NaN: where a weight is 0, take the logarithm of 1 instead
- np.where(weights > 0, weights, 1.0)
+ weights + 1e-9
a small number added inside the logarithm changes every entropy: take the logarithm of 1 where a
weight is 0, and of the weight elsewhere
""")

without_gradient.mistakes += patches(r"""
- np.abs(g).max()
+ g.max()
g.max() is the largest entry with its sign, so a gradient with negative entries only looks like
zero: take np.abs(g).max()
+ abs(g.sum())
entries of a sum cancel: take the largest absolute value, np.abs(g).max()
+ abs(g.mean())
entries of a mean cancel: take the largest absolute value, np.abs(g).max()
+ np.abs(g).min()
the smallest entry is compared: a gradient is zero only if its largest entry is
+ np.linalg.norm(g)
a norm grows with the number of entries: take the largest entry, np.abs(g).max()
+ np.abs(g).mean()
the mean is compared, which is small if a few entries are not zero: take the largest entry
- least = 1e-6 * max(sizes.values(), default=0.0)
+ least = 1e-6 * max((g.max() for g in gradients.values() if g is not None), default=0.0)
the largest entry of all is taken with its sign: the largest absolute value may be that of a
negative entry
+ least = 0.0
only an exact zero counts, but rounding leaves small numbers: compare with 1e-6 times the largest
entry of all gradients
- least = 1e-6 * max(sizes.values(), default=0.0)
+ least = 1e-6
- least = 1e-6 * max(sizes.values(), default=0.0)
+ least = 1e-8
the limit is a fixed number: compare with 1e-6 times the largest entry of all gradients
- sizes[name] <= least
+ sizes[name] < least
if all gradients are 0, so is the limit, and no size is below it: compare with <=
- name not in sizes or sizes[name] <= least
+ name not in sizes
only None is found: a gradient of zeros counts, too
+ name in sizes and sizes[name] <= least
None is left out: it means that the backward pass did not reach the parameter
+ not (name not in sizes or sizes[name] <= least)
these are the parameters that do get a gradient: return the others
""")

leaks.mistakes += patches(r"""
- np.any(model(changed)[:, :t] != before[:, :t])
+ np.any(model(changed)[:, : t + 1] != before[:, : t + 1])
every model seems to leak, because you compare logits that may depend on the tokens you changed:
change the tokens from t on, and compare the logits before t, [:, :t]
+ np.all(model(changed)[:, :t] != before[:, :t])
np.all demands that every logit changes: a single one is a leak, so use np.any
+ np.any(model(changed)[:, :t].argmax(axis=-1) != before[:, :t].argmax(axis=-1))
only the largest logit is compared: a leak may change the logits and leave the order as it is, so
compare them all, with !=
+ not np.allclose(model(changed)[:, :t], before[:, :t])
a small change is a leak too: here, logits that do not see the future are equal bit for bit, so
compare with !=
+ np.any(model(changed)[0, :t] != before[0, :t])
only sequence 0 of the batch is compared: a leak may show in another one
- changed[:, t:] = (changed[:, t:] + 1) % vocabulary
+ changed[:, t:] = 0
the later tokens become 0: where they were 0 already nothing changes, so take a token that differs
from the old one, (token + 1) % vocabulary
+ changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % vocabulary
the token at t stays the same, so a model that looks one token ahead passes: change the tokens
from t on, and compare the logits before t
- for t in range(1, tokens.shape[1]):
+ for t in [tokens.shape[1] - 1]:
only the last token is changed, but a position may look at one in between: change the tokens from t
on, for every t
-             return True
-     return False
+             return False
+     return True
True and False are exchanged: return True if the logits change
-         if np.any(model(changed)[:, :t] != before[:, :t]):
-             return True
-     return False
+         if not np.any(model(changed)[:, :t] != before[:, :t]):
+             return False
+     return True
your function returns False as soon as one t shows no change: a leak at a single t is enough for
True, and False is known only after the loop
-         if np.any(model(changed)[:, :t] != before[:, :t]):
-             return True
+         return bool(np.any(model(changed)[:, :t] != before[:, :t]))
only t = 1 is tested, that is, only the first position: go through every t from 1 to T − 1, and
return False after the loop
""")
