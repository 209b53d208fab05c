"""Common mistakes in the tasks of chapter 09, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch09_training import adamw_step, cross_entropy, layer_norm, top_p

cross_entropy.mistakes += patches(r"""
- -(log_p * one_hot).sum() / targets.size
+ -(np.exp(log_p) * one_hot).sum() / targets.size
the logarithm is missing: the loss is −log of the target's probability
+ -np.log((np.exp(log_p) * one_hot).sum(axis=-1).mean())
this is the logarithm of the mean probability: take the mean of the logarithms
+ -(log_p * one_hot).sum() / targets.size / np.log(2)
the loss is in bits, with the logarithm to base 2: use the natural logarithm, np.log
+ -log_p.sum() / targets.size
the sum runs over all classes: only the target of each row counts
+ -log_p.real.max(axis=-1).sum() / targets.size
this is −log p of the most probable class: take that of the target
+ -(np.exp(log_p) * log_p * one_hot).sum() / targets.size
−log p of the target is multiplied by p: the loss is −log p alone
+ -(np.exp(log_p) * log_p).sum() / targets.size
this is the entropy of softmax(logits), Σ −p log p, which does not use the targets: take −log p of
the target alone
+ -(log_p * one_hot).sum()
this is the sum over all targets: divide by their number N, targets.size, for the mean
+ -(log_p * one_hot).mean()
the sum is divided by N · C, the number of logits: the mean runs over the N targets, so divide by
targets.size
+ -(log_p * one_hot).sum() / len(targets)
the sum is divided by the length of the first axis: with several axes, the number of targets is
targets.size
+ -(log_p * one_hot).sum(axis=-1)
this is the loss of each target: return their mean, one number
+ -log_p[targets].mean()
[targets] picks whole rows: row n needs its column targets[n], as in np.take_along_axis(log_p,
targets[..., None], axis=-1)
+ -log_p[np.arange(len(targets)), targets].mean()
this indexing needs a single axis of targets: for any number of axes, take
np.take_along_axis(log_p, targets[..., None], axis=-1), or reshape to rows first
- log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
+ log_p = logits
softmax is missing: this is the mean of −logits[target]; the loss is −log softmax(logits)[target]
+ e = np.exp(shifted)
+     log_p = np.log(e / e.sum(axis=-1, keepdims=True) + 1e-16)
a small number is added to the probabilities, so the loss is not exact and never large: compute
log p directly, as (x − max) − log Σ exp(x − max)
- log_p = shifted - np.log
+ log_p = logits - np.log
the largest logit is subtracted only inside the exponential: subtract it from both terms, log p =
(x − max) − log Σ exp(x − max)
- np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
+ np.exp(shifted).sum(axis=-1, keepdims=True)
the sum is subtracted without its logarithm: log p = (x − max) − log Σ exp(x − max)
- np.exp(shifted).sum(axis=-1, keepdims=True)
+ np.exp(shifted).sum(axis=0, keepdims=True)
softmax does not run along the classes: sum along the last axis, axis=-1
+ np.exp(shifted).sum()
softmax runs over the whole array: each row needs its own sum, axis=-1, keepdims=True
- dy * (np.exp(log_p) - one_hot) / targets.size
+ dy * (np.exp(log_p) - one_hot)
1/N is missing, which comes from the mean: dlogits = dy · (softmax − one-hot) / N, with N =
targets.size
+ dy * (np.exp(log_p) - one_hot) / logits.size
the gradient is divided by the number of logits, N · C, and not by the number of targets, N:
dlogits = dy · (softmax − one-hot) / N, with N = targets.size
+ (np.exp(log_p) - one_hot) / targets.size
the factor dy is missing: dlogits = dy · (softmax − one-hot) / N, with N = targets.size
+ dy * (log_p - one_hot) / targets.size
this uses log softmax instead of softmax: dlogits = dy · (softmax − one-hot) / N, with N =
targets.size
+ dy * (logits - one_hot) / targets.size
this uses the logits instead of softmax: dlogits = dy · (softmax − one-hot) / N, with N =
targets.size
+ -dy * one_hot / targets.size
the term of softmax is missing: dlogits = dy · (softmax − one-hot) / N, with N = targets.size
+ -dy * one_hot / np.exp(log_p) / targets.size
this is the gradient of the probabilities, −one-hot / p: it must still pass through softmax:
dlogits = dy · (softmax − one-hot) / N, with N = targets.size
+ dy * one_hot * (np.exp(log_p) - 1) / targets.size
only the target's logit gets a gradient, but all logits are in the sum of softmax: dlogits = dy ·
(softmax − one-hot) / N, with N = targets.size
""")

layer_norm.mistakes += patches(r"""
- centred = x - x.mean(axis=-1, keepdims=True)
+ centred = x - x.sum(axis=-1, keepdims=True)
the sum of each row is subtracted: x̂ = (x − mean) / σ
+ x, weight, bias = x * weight + bias, 1.0, 0.0
+     centred = x - x.mean(axis=-1, keepdims=True)
weight and bias act before the rows are normalised: y = x̂ · weight + bias
- centred = x - x.mean(axis=-1, keepdims=True)
+ centred = x
the mean is not subtracted, as in RMSNorm: x̂ = (x − mean) / σ
- x_hat = centred / sigma
+ x_hat = centred / (variance + eps)
x is divided by the variance: divide by σ, its square root
+ x_hat = centred
the division by σ is missing: x̂ = (x − mean) / σ
- (centred * centred).mean(
+ (x * x).mean(
σ contains the mean of x²: the variance is the mean of (x − mean)²
- variance = (centred * centred).mean(axis=-1, keepdims=True)
+ variance = (centred * centred).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)
the variance is divided by M − 1, as by default in PyTorch's var: layer norm divides by M
+ variance = (centred * centred).sum(axis=-1, keepdims=True)
σ contains the sum of (x − mean)²: the variance is their mean
- centred = x - x.mean(axis=-1, keepdims=True)
-     variance = (centred * centred).mean(axis=-1, keepdims=True)
+ centred = x - x.mean(axis=0, keepdims=True)
+     variance = (centred * centred).mean(axis=0, keepdims=True)
mean and variance run over other rows: each row has its own, along the last axis, axis=-1,
keepdims=True
+ centred = x - x.mean(axis=-1)
+     variance = (centred * centred).mean(axis=-1)
the means have lost the last axis, so they do not fit the rows: keepdims=True keeps it
- x_hat * weight + bias
+ x_hat
weight and bias are not used: y = x̂ · weight + bias
+ x_hat * weight
the bias is missing: y = x̂ · weight + bias
+ x_hat + bias
the weight is missing: y = x̂ · weight + bias
+ x_hat @ weight + bias
@ adds up the columns: each column has its own weight, x_hat * weight
- sigma = np.sqrt(variance + eps)
+ sigma = np.sqrt(variance) + eps
eps is added to the root: σ = √(variance + eps), with eps inside
- np.sqrt(variance + eps)
+ np.sqrt(variance + 1e-5)
a fixed number replaces the argument eps: σ = √(variance + eps)
- dx = (g - through_mean - through_sigma) / sigma
+ dx = g * (1 - 1 / x.shape[-1] - x_hat**2 / x.shape[-1]) / sigma
only the diagonal of the Jacobian is used, but every entry of x acts on the whole row: dx = (g −
mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ through_mean = dy.mean(axis=-1, keepdims=True)
+         through_sigma = x_hat * (dy * x_hat).mean(axis=-1, keepdims=True)
+         dx = weight * (dy - through_mean - through_sigma) / sigma
the weight multiplies the means from outside, but each entry of dy has its own weight: dx = (g −
mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ through_mean = dy.mean(axis=-1, keepdims=True)
+         through_sigma = x_hat * (dy * x_hat).mean(axis=-1, keepdims=True)
+         dx = (g - through_mean - through_sigma) / sigma
the weight is missing in the means: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ through_mean, through_sigma = x.shape[-1] * through_mean, x.shape[-1] * through_sigma
+         dx = (g - through_mean - through_sigma) / sigma
both means are sums here: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ dx = (g + through_mean + through_sigma) / sigma
the two means have the wrong sign: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ dx = (g - through_mean + through_sigma) / sigma
the term through σ has the wrong sign: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy ·
weight
+ dx = (g - through_mean - through_sigma) * sigma
the result is multiplied by σ instead of divided: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with
g = dy · weight
+ dx = (g - through_mean - through_sigma) / (variance + eps)
the result is divided by the variance instead of σ: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ
with g = dy · weight
+ dx = g / sigma - through_mean - through_sigma
only the first term is divided by σ: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy ·
weight
- x_hat * (g * x_hat).mean(axis=-1, keepdims=True)
+ (g * x_hat).mean(axis=-1, keepdims=True)
the factor x̂ is missing in the last term: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy
· weight
+ centred * (g * centred).mean(axis=-1, keepdims=True)
the last term contains x − mean instead of x̂: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g =
dy · weight
+ x_hat * g.mean(axis=-1, keepdims=True)
the factor x̂ is missing in the last mean: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy ·
weight
+ x_hat * (g * x_hat).sum(axis=-1, keepdims=True)
the last mean is a sum here: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
- g.mean(axis=-1, keepdims=True)
+ g.sum(axis=-1, keepdims=True)
the mean of g is a sum here: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
+ g.mean()
g.mean() is the mean of the whole array, but each row has its own, axis=-1, keepdims=True: dx = (g
− mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight
- return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)
+ return dx, (dy * x).sum(axis=rows), dy.sum(axis=rows)
the gradient of weight contains x instead of x̂: dweight = Σ dy · x̂ and dbias = Σ dy over the
rows
+ return dx, (g * x_hat).sum(axis=rows), g.sum(axis=rows)
these gradients contain g, but the weight comes after x̂, so they need dy: dweight = Σ dy · x̂ and
dbias = Σ dy over the rows
+ return dx, (g * x_hat).sum(axis=rows), dy.sum(axis=rows)
the gradient of weight contains g, but dy · x̂ is needed: dweight = Σ dy · x̂ and dbias = Σ dy
over the rows
""")

adamw_step.mistakes += patches(r"""
- p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p)
+ p = p - lr * (m / (np.sqrt(v) + eps) + weight_decay * p)
the bias correction is missing: m and v start at 0, so divide m by 1 − β₁ᵗ and v by 1 − β₂ᵗ
+ p = p - lr * m_hat / (np.sqrt(v_hat) + eps)
the decay is missing: subtract lr · weight_decay · p, with the p before the step
+ p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - weight_decay * p
the decay is not multiplied by the learning rate: subtract lr · weight_decay · p, with the p
before the step
+ p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) - weight_decay * p)
the decay has the wrong sign: subtract lr · weight_decay · p, with the p before the step
+ p = p - lr * (m_hat + weight_decay * p) / (np.sqrt(v_hat) + eps)
the decay is divided by √v̂ as well: subtract lr · weight_decay · p, with the p before the step
+ p = p - lr * m_hat / (np.sqrt(v_hat) + eps)
+     p = p - lr * weight_decay * p
the decay uses the parameter after the step: subtract lr · weight_decay · p, with the p before the
step
+ p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay)
the factor p of the decay is missing: subtract lr · weight_decay · p, with the p before the step
+ p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p * p)
the decay contains p²: subtract lr · weight_decay · p, with the p before the step
+ p = p + lr * (m_hat / (np.sqrt(v_hat) + eps) - weight_decay * p)
the step goes up the gradient: subtract lr · m̂ / (√v̂ + eps)
- (1 - beta1) * g
+ g
m is a moving average of g: m = β₁ m + (1 − β₁) g
- beta2 * v + (1 - beta2) * g * g
+ beta1 * v + (1 - beta1) * g * g
- beta2 * v + (1 - beta2) * g * g
+ beta2 * v + (1 - beta2) * m * m
v is a moving average of g²: v = β₂ v + (1 − β₂) g²
- np.sqrt(v_hat)
+ v_hat
the square root is missing: divide m̂ by √v̂ + eps
- return p, m, v
+ return p, m_hat, v_hat
m̂ and v̂ are returned: the next step continues with the uncorrected m and v
- m_hat = m / (1 - beta1**t)
-     v_hat = v / (1 - beta2**t)
+ m_hat = m / (1 - beta1) ** t
+     v_hat = v / (1 - beta2) ** t
in the bias correction the power is outside: m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)
+ m_hat = m / (1 - beta1)
+     v_hat = v / (1 - beta2)
in the bias correction the exponent t is missing: m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)
+ m_hat = m / (1 - beta1 ** (t + 1))
+     v_hat = v / (1 - beta2 ** (t + 1))
the bias correction has the exponent t + 1, but t is 1 in the first step: m̂ = m / (1 − β₁ᵗ) and v̂ =
v / (1 − β₂ᵗ)
+ v_hat, m_hat = v, m / (1 - beta1**t)
v is not corrected: v starts at 0 like m, so v̂ = v / (1 − β₂ᵗ)
+ m_hat = m / (1 - beta1 * t)
+     v_hat = v / (1 - beta2 * t)
in the bias correction β₁ is multiplied by t: m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)
- m = beta1 * m + (1 - beta1) * g
-     v = beta2 * v + (1 - beta2) * g * g
+ m = beta2 * m + (1 - beta2) * g
+     v = beta1 * v + (1 - beta1) * g * g
β₁ and β₂ are swapped: β₁ belongs to m, the average of g, and β₂ to v, the average of g²
- m = beta1 * m
+ g, weight_decay = g + weight_decay * p, 0
+     m = beta1 * m
the decay is added to the gradient, as in Adam with an L2 penalty, so it enters the averages m and
v: AdamW subtracts lr · weight_decay · p from p separately
- np.sqrt(v_hat) + eps
+ np.sqrt(v_hat + eps)
eps is inside the root: divide m̂ by √v̂ + eps
+ np.sqrt(v_hat)
eps is missing, so a gradient of 0 gives 0 / 0: divide m̂ by √v̂ + eps
+ np.sqrt(v_hat) + 1e-8
a fixed number replaces the argument eps: divide m̂ by √v̂ + eps
+ (np.sqrt(v) + eps) / np.sqrt(1 - beta2**t)
eps is added before the correction: divide m̂ by √v̂ + eps
""")

top_p.mistakes += patches(r"""
- kept[order] = np.where(before < p, largest, 0.0)
+ kept[order] = np.where(before + largest < p, largest, 0.0)
the token that crosses p is dropped: keep it, so that the kept tokens together have at least p
+ kept = np.where(probabilities >= p, probabilities, 0.0)
- kept[order] = np.where(before < p, largest, 0.0)
+ kept = np.where(probabilities >= p, probabilities, 0.0); kept[order[0]] = largest[0]
- kept[order] = np.where(before < p, largest, 0.0)
+ return np.where(probabilities >= p, probabilities, 0.0)
- kept[order] = np.where(before < p, largest, 0.0)
+ kept = np.where(probabilities >= p * largest[0], probabilities, 0.0)
- kept[order] = np.where(before < p, largest, 0.0)
+ kept = np.where(probabilities >= 1 - p, probabilities, 0.0)
each probability alone is compared with a limit: add them up from the largest down, and stop as
soon as the sum reaches p
+ kept[order] = largest
every token is kept: add the probabilities up from the largest down, and stop as soon as the sum
reaches p
+ kept[:] = np.where(before < p, largest, 0.0)[order]
order is applied a second time, which does not undo the sort: assign with kept[order] = …
- return kept / kept.sum()
+ return kept / p
the kept probabilities are divided by p: divide them by their sum, which may be larger
+ return kept
the kept probabilities no longer sum to 1: divide them by their sum
+ return np.exp(kept) / np.exp(kept).sum()
- return kept / kept.sum()
+ return np.where(kept > 0, np.exp(kept), 0) / np.exp(kept).sum(where=kept > 0)
these are probabilities already, so no softmax is needed: divide the kept ones by their sum
+ return np.where(kept > 0, 1 / (kept > 0).sum(), 0.0)
the kept tokens get equal probabilities: divide their own by their sum
- before < p
+ np.append(0, before[:-1]) < p
one token too many is kept: stop as soon as the sum reaches p
+ before <= p
one token too many is kept when the sum equals p exactly: a token stays only if the more probable
ones together have less than p
- np.argsort(-probabilities)
+ np.argsort(probabilities)
the least probable tokens are kept: add up from the largest down
+ np.arange(len(probabilities))
the tokens are added up in their own order: sort them first, the largest probability first
- kept[order] = np
+ kept[:] = np
the result is in sorted order: put each probability back in its own place, kept[order] = …
""")
