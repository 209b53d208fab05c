"""The usual mistakes in the tasks of chapter 09, as changes of their solutions."""

from .ch09_training import (
    adamw_step,
    cross_entropy,
    layer_norm,
    top_p,
)

_LOSS = "-(log_p * one_hot).sum() / targets.size"
_DLOGITS = "dy * (np.exp(log_p) - one_hot) / targets.size"
cross_entropy.mistake(
    _LOSS,
    _LOSS.removeprefix("-"),
    "the sign of the loss is wrong: a logarithm of a probability is negative, and the loss is −log",
)
for _new in (
    "-(np.exp(log_p) * one_hot).sum() / targets.size",
    "(np.exp(log_p) * one_hot).sum() / targets.size",
    "1 - (np.exp(log_p) * one_hot).sum() / targets.size",
):
    cross_entropy.mistake(
        _LOSS,
        _new,
        "the logarithm is missing: the loss is −log of the target's probability",
    )
cross_entropy.mistake(
    "log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))",
    "log_p = logits",
    "softmax is missing: this is the mean of −logits[target]; the loss is −log softmax(logits)"
    "[target]",
)
cross_entropy.mistake(
    "log_p = shifted - np.log",
    "log_p = logits - np.log",
    "the largest logit is subtracted only inside the exponential: subtract it from both terms, "
    "log p = (x − max) − log Σ exp(x − max)",
)
cross_entropy.mistake(
    _LOSS,
    "-np.log((np.exp(log_p) * one_hot).sum(axis=-1).mean())",
    "this is the logarithm of the mean probability: take the mean of the logarithms",
)
cross_entropy.mistake(
    _LOSS,
    f"{_LOSS} / np.log(2)",
    "the loss is in bits, with the logarithm to base 2: use the natural logarithm, np.log",
)
cross_entropy.mistake(
    _LOSS,
    "-log_p.sum() / targets.size",
    "the sum runs over all classes: only the target of each row counts",
)
for _new in (
    "-(np.exp(log_p) * log_p).sum() / targets.size",
    "-(np.exp(log_p) * log_p).sum(axis=-1).mean()",
):
    cross_entropy.mistake(
        _LOSS,
        _new,
        "this is the entropy of softmax(logits), Σ −p log p, which does not use the targets: take "
        "−log p of the target alone",
    )
cross_entropy.mistake(
    _LOSS,
    "-(log_p * one_hot).sum()",
    "this is the sum over all targets: divide by their number N, targets.size, for the mean",
)
for _new in ("-(log_p * one_hot).mean()", "-(log_p * one_hot).sum() / logits.size"):
    cross_entropy.mistake(
        _LOSS,
        _new,
        "the sum is divided by N · C, the number of logits: the mean runs over the N targets, so "
        "divide by targets.size",
    )
cross_entropy.mistake(
    _LOSS,
    "-(log_p * one_hot).sum() / len(targets)",
    "the sum is divided by the length of the first axis: with several axes, the number of targets "
    "is targets.size",
)
cross_entropy.mistake(
    _LOSS,
    "-(log_p * one_hot).sum(axis=-1)",
    "this is the loss of each target: return their mean, one number",
)
cross_entropy.mistake(
    _LOSS,
    "-log_p[targets].mean()",
    "[targets] picks whole rows: row n needs its column targets[n], as in "
    "np.take_along_axis(log_p, targets[..., None], axis=-1)",
)
cross_entropy.mistake(
    _LOSS,
    "-log_p[np.arange(len(targets)), targets].mean()",
    "this indexing needs a single axis of targets: for any number of axes, take "
    "np.take_along_axis(log_p, targets[..., None], axis=-1), or reshape to rows first",
)
for _axis in ("0", "1", "-2"):
    cross_entropy.mistake(
        "np.exp(shifted).sum(axis=-1, keepdims=True)",
        f"np.exp(shifted).sum(axis={_axis}, keepdims=True)",
        "softmax does not run along the classes: sum along the last axis, axis=-1",
    )
cross_entropy.mistake(
    "np.exp(shifted).sum(axis=-1, keepdims=True)",
    "np.exp(shifted).sum()",
    "softmax runs over the whole array: each row needs its own sum, axis=-1, keepdims=True",
)
for _new, _text in (
    ("dy * np.exp(log_p) / targets.size", "the one-hot term is missing"),
    ("dy * (np.exp(log_p) - one_hot)", "1/N is missing, which comes from the mean"),
    ("dy * (np.exp(log_p) - one_hot) / logits.size",
     "the gradient is divided by the number of logits, N · C, and not by the number of targets, N"),
    ("(np.exp(log_p) - one_hot) / targets.size", "the factor dy is missing"),
    ("dy * (one_hot - np.exp(log_p)) / targets.size", "the sign is wrong"),
    ("dy * (log_p - one_hot) / targets.size",
     "this uses log softmax instead of softmax"),
    ("dy * (logits - one_hot) / targets.size", "this uses the logits instead of softmax"),
    ("-dy * one_hot / targets.size", "the term of softmax is missing"),
    ("-dy * one_hot / np.exp(log_p) / targets.size",
     "this is the gradient of the probabilities, −one-hot / p: it must still pass through softmax"),
    ("dy * one_hot * (np.exp(log_p) - 1) / targets.size",
     "only the target's logit gets a gradient, but all logits are in the sum of softmax"),
    ("dy * (np.exp(log_p) - one_hot) / len(targets)",
     "the gradient is divided by the length of the first axis, not by the number of targets"),
):  # fmt: skip
    cross_entropy.mistake(
        _DLOGITS, _new, f"{_text}: dlogits = dy · (softmax − one-hot) / N, with N = targets.size"
    )
for _eps in ("1e-16", "1e-15", "1e-12", "1e-10", "1e-9", "1e-8", "1e-7", "1e-6"):
    cross_entropy.mistake(
        "log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))",
        f"e = np.exp(shifted)\n    log_p = np.log(e / e.sum(axis=-1, keepdims=True) + {_eps})",
        "a small number is added to the probabilities, so the loss is not exact and never large: "
        "compute log p directly, as (x − max) − log Σ exp(x − max)",
    )

_VARIANCE = "variance = (centred * centred).mean(axis=-1, keepdims=True)"
_CENTRED = "centred = x - x.mean(axis=-1, keepdims=True)"
layer_norm.mistake(
    _CENTRED,
    "centred = x",
    "the mean is not subtracted, as in RMSNorm: x̂ = (x − mean) / σ",
)
layer_norm.mistake(
    "x_hat = centred / sigma",
    "x_hat = x / sigma",
    "the mean is not subtracted in x̂: x̂ = (x − mean) / σ",
)
layer_norm.mistake(
    "(centred * centred).mean(",
    "(x * x).mean(",
    "σ contains the mean of x²: the variance is the mean of (x − mean)²",
)
layer_norm.mistake(
    "x_hat = centred / sigma",
    "x_hat = centred / (variance + eps)",
    "x is divided by the variance: divide by σ, its square root",
)
layer_norm.mistake(
    "x_hat = centred / sigma", "x_hat = centred", "the division by σ is missing: x̂ = (x − mean) / σ"
)
layer_norm.mistake(
    _VARIANCE,
    "variance = (centred * centred).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)",
    "the variance is divided by M − 1, as by default in PyTorch's var: layer norm divides by M",
)
layer_norm.mistake(
    _VARIANCE,
    "variance = (centred * centred).sum(axis=-1, keepdims=True)",
    "σ contains the sum of (x − mean)²: the variance is their mean",
)
for _axis in ("0", "-2", "tuple(range(x.ndim - 1))", "None"):
    layer_norm.mistake(
        f"{_CENTRED}\n    {_VARIANCE}",
        f"{_CENTRED}\n    {_VARIANCE}".replace("axis=-1", f"axis={_axis}"),
        "mean and variance run over other rows: each row has its own, along the last axis, "
        "axis=-1, keepdims=True",
    )
layer_norm.mistake(
    "x_hat * weight + bias",
    "x_hat",
    "weight and bias are not used: y = x̂ · weight + bias",
)
layer_norm.mistake(
    "x_hat * weight + bias", "x_hat * weight", "the bias is missing: y = x̂ · weight + bias"
)
layer_norm.mistake(
    "x_hat * weight + bias", "x_hat + bias", "the weight is missing: y = x̂ · weight + bias"
)
layer_norm.mistake(
    "x_hat * weight + bias",
    "(x_hat + bias) * weight",
    "the bias is multiplied by the weight: y = x̂ · weight + bias",
)
layer_norm.mistake(
    "x_hat * weight + bias",
    "x_hat @ weight + bias",
    "@ adds up the columns: each column has its own weight, x_hat * weight",
)
for _new in (
    "sigma = np.sqrt(variance) + eps",
    "sigma = np.sqrt(variance + eps**2)",
):
    layer_norm.mistake(
        "sigma = np.sqrt(variance + eps)",
        _new,
        "eps is added to the root: σ = √(variance + eps), with eps inside",
    )
layer_norm.mistake(
    "sigma = np.sqrt(variance + eps)",
    "sigma = np.sqrt(variance)",
    "eps is not used: σ = √(variance + eps), so that a row of equal numbers does not give 0 / 0",
)
for _number in ("1e-5", "1e-6", "1e-8"):
    layer_norm.mistake(
        "np.sqrt(variance + eps)",
        f"np.sqrt(variance + {_number})",
        "a fixed number replaces the argument eps: σ = √(variance + eps)",
    )
_DX = "dx = (g - through_mean - through_sigma) / sigma"
_FORMULA = "dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · weight"
for _old, _new, _text in (
    (_DX, "dx = g / sigma", "the terms through the mean and through σ are missing"),
    (_DX, "dx = g * (1 - 1 / x.shape[-1] - x_hat**2 / x.shape[-1]) / sigma",
     "only the diagonal of the Jacobian is used, but every entry of x acts on the whole row"),
    (_DX, "dx = (g - through_sigma) / sigma",
     "mean(g) is missing, the term through the mean of x (RMSNorm has no such term)"),
    (_DX, "dx = (g - through_mean) / sigma",
     "x̂ · mean(g · x̂) is missing, the term through σ"),
    (_DX, "dx = g - through_mean - through_sigma", "1/σ is missing"),
    (_DX, "dx = (g + through_mean + through_sigma) / sigma", "the two means have the wrong sign"),
    (_DX, "dx = (g - through_mean + through_sigma) / sigma",
     "the term through σ has the wrong sign"),
    (_DX, "dx = (g - through_mean - through_sigma) * sigma",
     "the result is multiplied by σ instead of divided"),
    (_DX, "dx = (g - through_mean - through_sigma) / (variance + eps)",
     "the result is divided by the variance instead of σ"),
    (_DX, "dx = g / sigma - through_mean - through_sigma",
     "only the first term is divided by σ"),
    ("g = dy * weight", "g = dy", "the weight is missing in g"),
    ("x_hat * (g * x_hat).mean(axis=-1, keepdims=True)",
     "(g * x_hat).mean(axis=-1, keepdims=True)", "the factor x̂ is missing in the last term"),
    ("x_hat * (g * x_hat).mean(axis=-1, keepdims=True)",
     "centred * (g * centred).mean(axis=-1, keepdims=True)",
     "the last term contains x − mean instead of x̂"),
    ("x_hat * (g * x_hat).mean(axis=-1, keepdims=True)",
     "x_hat * (g * x_hat).sum(axis=-1, keepdims=True)",
     "the last mean is a sum here"),
    ("g.mean(axis=-1, keepdims=True)", "g.sum(axis=-1, keepdims=True)",
     "the mean of g is a sum here"),
    ("g.mean(axis=-1, keepdims=True)", "g.mean()",
     "g.mean() is the mean of the whole array, but each row has its own, axis=-1, keepdims=True"),
):  # fmt: skip
    layer_norm.mistake(_old, _new, f"{_text}: {_FORMULA}")
_ROWS = "return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)"
for _new, _text in (
    ("return dx, dy.sum(axis=rows), dy.sum(axis=rows)", "x̂ is missing in the gradient of weight"),
    ("return dx, (dy * x).sum(axis=rows), dy.sum(axis=rows)",
     "the gradient of weight contains x instead of x̂"),
    ("return dx, (g * x_hat).sum(axis=rows), g.sum(axis=rows)",
     "these gradients contain g, but the weight comes after x̂, so they need dy"),
    ("return dx, (g * x_hat).sum(axis=rows), dy.sum(axis=rows)",
     "the gradient of weight contains g, but dy · x̂ is needed"),
    ("return dx, (dy * x_hat).mean(axis=rows), dy.mean(axis=rows)",
     "these gradients are means over the rows: every row uses weight and bias, so add them up"),
    ("return dx, dy * x_hat, dy", "the sum over the rows is missing: weight and bias are (M,)"),
    ("return dx, (dy * x_hat).sum(axis=0), dy.sum(axis=0)",
     "only the first axis is summed: weight and bias are used in every row, whatever the number "
     "of axes in front"),
    ("return dx, (dy * x_hat).sum(axis=-1), dy.sum(axis=-1)",
     "the sums run along the last axis, but weight and bias have that axis: sum over all others"),
):  # fmt: skip
    layer_norm.mistake(_ROWS, _new, f"{_text}: dweight = Σ dy · x̂ and dbias = Σ dy over the rows")
layer_norm.mistake(
    f"{_CENTRED}\n    {_VARIANCE}",
    f"{_CENTRED}\n    {_VARIANCE}".replace(", keepdims=True", ""),
    "the means have lost the last axis, so they do not fit the rows: keepdims=True keeps it",
)

_STEP = "p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p)"
adamw_step.mistake(
    _STEP,
    _STEP.replace("m_hat", "m").replace("v_hat", "v"),
    "the bias correction is missing: m and v start at 0, so divide m by 1 − β₁ᵗ and v by 1 − β₂ᵗ",
)
for _old, _new, _text in (
    ("m / (1 - beta1**t)", "m", "m̂ = m / (1 − β₁ᵗ)"),
    ("v / (1 - beta2**t)", "v", "v̂ = v / (1 − β₂ᵗ)"),
):
    adamw_step.mistake(_old, _new, f"one bias correction is missing: {_text}")
adamw_step.mistake(
    _STEP, _STEP.replace("p - lr", "p + lr"), "p moves along the gradient: subtract the step"
)
for _old, _new in (
    ("(1 - beta1) * g\n", "g\n"),
    ("m = beta1 * m + (1 - beta1) * g\n", "m = (1 - beta1) * m + beta1 * g\n"),
    ("m = beta1 * m + (1 - beta1) * g\n", "m = g\n"),
):
    adamw_step.mistake(_old, _new, "m is a moving average of g: m = β₁ m + (1 − β₁) g")
for _new in (
    "beta2 * v + (1 - beta2) * g",
    "beta2 * v + g * g",
    "(1 - beta2) * v + beta2 * g * g",
    "beta1 * v + (1 - beta1) * g * g",
    "beta2 * v + ((1 - beta2) * g) ** 2",
):
    adamw_step.mistake(
        "beta2 * v + (1 - beta2) * g * g",
        _new,
        "v is a moving average of g²: v = β₂ v + (1 − β₂) g²",
    )
adamw_step.mistake("np.sqrt(v_hat)", "v_hat", "the square root is missing: divide m̂ by √v̂ + eps")
_RETURNED = "return p, m, v"
for _new in ("return p, m_hat, v_hat",):
    adamw_step.mistake(
        _RETURNED,
        _new,
        "m̂ and v̂ are returned: the next step continues with the uncorrected m and v",
    )
for _new in ("return m, v, p", "return p, v, m"):
    adamw_step.mistake(_RETURNED, _new, "the order is wrong: return p, m, v")
adamw_step.mistake(_RETURNED, "return p", "return the new m and v as well: p, m, v")
adamw_step.mistake(
    "m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g * g\n"
    "    m_hat = m / (1 - beta1**t)\n    v_hat = v / (1 - beta2**t)\n",
    "m_hat = m / (1 - beta1**t)\n    v_hat = v / (1 - beta2**t)\n"
    "    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g * g\n",
    "p moves by the old averages: update m and v first",
)
for _new, _text in (
    ("(1 - beta1) ** t", "the power is outside"),
    ("(1 - beta1)", "the exponent t is missing"),
    ("(1 - beta1 * t)", "β₁ is multiplied by t"),
    ("(1 - beta1 ** (t + 1))", "the exponent is t + 1, but t is 1 in the first step"),
):
    for _v in (_new.replace("beta1", "beta2"), "(1 - beta2**t)"):
        adamw_step.mistake(
            "m_hat = m / (1 - beta1**t)\n    v_hat = v / (1 - beta2**t)",
            f"m_hat = m / {_new}\n    v_hat = v / {_v}",
            f"in the bias correction {_text}: m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ)",
        )
_ALL = f"""m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    {_STEP}"""
for _old, _new in (
    (_ALL, f"beta1, beta2 = beta2, beta1\n    {_ALL}"),
    (
        _ALL.partition("    m_hat")[0],
        "m = beta2 * m + (1 - beta2) * g\n    v = beta1 * v + (1 - beta1) * g * g\n",
    ),
):
    adamw_step.mistake(
        _old,
        _new,
        "β₁ and β₂ are swapped: β₁ belongs to m, the average of g, and β₂ to v, the average of g²",
    )
adamw_step.mistake(
    _ALL,
    _ALL.partition("g * g\n    ")[2],
    "m and v are not updated: m = β₁ m + (1 − β₁) g and v = β₂ v + (1 − β₂) g² come first",
)
for _step in (_STEP, _STEP.replace(" + weight_decay * p", "")):
    adamw_step.mistake(
        _ALL,
        f"g = g + weight_decay * p\n    {_ALL}".replace(_STEP, _step),
        "the decay is added to the gradient, as in Adam with an L2 penalty, so it enters the "
        "averages m and v: AdamW subtracts lr · weight_decay · p from p separately",
    )
for _new, _text in (
    ("p = p - lr * m_hat / (np.sqrt(v_hat) + eps)", "the decay is missing"),
    ("p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - weight_decay * p",
     "the decay is not multiplied by the learning rate"),
    ("p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) - weight_decay * p)",
     "the decay has the wrong sign"),
    ("p = p - lr * (m_hat + weight_decay * p) / (np.sqrt(v_hat) + eps)",
     "the decay is divided by √v̂ as well"),
    ("p = p - lr * m_hat / (np.sqrt(v_hat) + eps)\n    p = p - lr * weight_decay * p",
     "the decay uses the parameter after the step"),
    ("p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay)",
     "the factor p of the decay is missing"),
    ("p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p * p)",
     "the decay contains p²"),
):  # fmt: skip
    adamw_step.mistake(
        _STEP, _new, f"{_text}: subtract lr · weight_decay · p, with the p before the step"
    )
for _new, _text in (
    ("np.sqrt(v_hat + eps)", "eps is inside the root"),
    ("np.sqrt(v_hat)", "eps is missing, so a gradient of 0 gives 0 / 0"),
    ("np.sqrt(v_hat) + 1e-8", "a fixed number replaces the argument eps"),
    ("np.sqrt(v + eps) / np.sqrt(1 - beta2**t)", "eps is inside the root"),
    ("(np.sqrt(v) + eps) / np.sqrt(1 - beta2**t)", "eps is added before the correction"),
):
    adamw_step.mistake("np.sqrt(v_hat) + eps", _new, f"{_text}: divide m̂ by √v̂ + eps")

_KEPT = "kept[order] = np.where(before < p, largest, 0.0)"
top_p.mistake(
    _KEPT,
    _KEPT.replace("before", "before + largest"),
    "the token that crosses p is dropped: keep it, so that the kept tokens together have at "
    "least p",
)
top_p.mistake(
    _KEPT,
    _KEPT.replace("before < p", "before + largest <= p"),
    "the token that crosses p is dropped: keep it, so that the kept tokens together have at "
    "least p",
)
top_p.mistake(
    "return kept / kept.sum()",
    "return kept / p",
    "the kept probabilities are divided by p: divide them by their sum, which may be larger",
)
top_p.mistake(
    "before < p",
    "np.append(0, before[:-1]) < p",
    "one token too many is kept: stop as soon as the sum reaches p",
)
top_p.mistake(
    "return kept / kept.sum()",
    "return kept",
    "the kept probabilities no longer sum to 1: divide them by their sum",
)
for _new in (
    "np.exp(kept) / np.exp(kept).sum()",
    "np.exp(kept) * (kept > 0) / np.exp(kept)[kept > 0].sum()",
):
    top_p.mistake(
        "return kept / kept.sum()",
        f"return {_new}",
        "these are probabilities already, so no softmax is needed: divide the kept ones by their "
        "sum",
    )
for _new in ("probabilities >= p", "probabilities > p", "probabilities >= 1 - p",
             "probabilities > 1 - p", "probabilities >= p * probabilities.max()"):  # fmt: skip
    top_p.mistake(
        "kept[order] = np.where(before < p, largest, 0.0)",
        f"kept = np.where({_new}, probabilities, 0.0)",
        "each probability alone is compared with a limit: add them up from the largest down, and "
        "stop as soon as the sum reaches p",
    )
for _new in ("np.argsort(probabilities)", "np.arange(len(probabilities))[::-1]"):
    top_p.mistake(
        "np.argsort(-probabilities)",
        _new,
        "the least probable tokens are kept: add up from the largest down",
    )
top_p.mistake(
    "np.argsort(-probabilities)",
    "np.arange(len(probabilities))",
    "the tokens are added up in their own order: sort them first, the largest probability first",
)
top_p.mistake(
    "kept[order] = ",
    "kept[:] = ",
    "the result is in sorted order: put each probability back in its own place, kept[order] = …",
)
top_p.mistake(
    "kept[order] = np.where(before < p, largest, 0.0)",
    "kept[:] = np.where(before < p, largest, 0.0)[order]",
    "order is applied a second time, which does not undo the sort: assign with kept[order] = …",
)
top_p.mistake(
    "return kept / kept.sum()",
    "return (kept / kept.sum())[kept > 0]",
    "the other tokens are left out: they keep their places, with the probability 0",
)
top_p.mistake(
    "return kept / kept.sum()",
    "return (kept / kept.sum())[order][before < p]",
    "the other tokens are left out: they keep their places, with the probability 0",
)
top_p.mistake(
    "return kept / kept.sum()",
    "return np.where(kept > 0, 1 / (kept > 0).sum(), 0.0)",
    "the kept tokens get equal probabilities: divide their own by their sum",
)
top_p.mistake(
    "before < p",
    "before <= p",
    "one token too many is kept when the sum equals p exactly: a token stays only if the more "
    "probable ones together have less than p",
)
