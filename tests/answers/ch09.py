"""Chapter 09: training."""

# fmt: off
from . import right, wrong

logged, flat, *_ = right("cross_entropy", """
def cross_entropy(logits, targets):
    x = logits - logits.real.max(axis=-1, keepdims=True)
    total = np.exp(x).sum(axis=-1)
    chosen = np.take_along_axis(x, targets[..., None], axis=-1)[..., 0]
    loss = (np.log(total) - chosen).mean()

    def pullback(dy):
        d = np.exp(x) / total[..., None]
        d = d - (np.arange(x.shape[-1]) == targets[..., None])
        return (d * dy / targets.size,)

    return loss, pullback
""", """
def cross_entropy(logits, targets):
    C = logits.shape[-1]
    rows = logits.reshape(-1, C)
    t = targets.reshape(-1)
    n = len(t)
    rows = rows - rows.real.max(axis=1, keepdims=True)
    e = np.exp(rows)
    s = e.sum(axis=1, keepdims=True)
    loss = -(rows[np.arange(n), t] - np.log(s[:, 0])).sum() / n
    def pullback(dloss):
        grad = e / s
        grad[np.arange(n), t] -= 1
        return (dloss * grad.reshape(logits.shape) / n,)
    return loss, pullback
""", """
def cross_entropy(logits, targets):
    def lse(row):
        top = row.real.max()
        return top + np.log(np.sum(np.exp(row - top)))
    total, count = 0, 0
    for i in np.ndindex(targets.shape):
        total = total + lse(logits[i]) - logits[i][targets[i]]
        count += 1
    def pullback(dy):
        out = np.zeros(logits.shape, logits.dtype)
        for i in np.ndindex(targets.shape):
            out[i] = np.exp(logits[i] - lse(logits[i]))
            out[i][targets[i]] -= 1
        return (out * (dy / count),)
    return total / count, pullback
""", """
def cross_entropy(logits, targets):
    hit = np.zeros(logits.shape)
    np.put_along_axis(hit, np.expand_dims(targets, -1), 1.0, axis=-1)
    m = np.max(logits.real, axis=-1, keepdims=True)
    z = np.sum(np.exp(logits - m), axis=-1, keepdims=True)
    log_softmax = logits - m - np.log(z)
    return -np.mean(np.sum(hit * log_softmax, axis=-1)), lambda dy: (
        (np.exp(log_softmax) - hit) * dy / np.prod(targets.shape),
    )
""", """
def cross_entropy(logits, targets):
    difference = logits - np.take_along_axis(logits, targets[..., None], -1)
    top = difference.real.max(-1)
    e = np.exp(difference - top[..., None])
    losses = top + np.log(e.sum(-1))
    def pullback(dy):
        p = e / e.sum(-1, keepdims=True)
        return (dy / losses.size * (p - np.eye(logits.shape[-1])[targets]),)
    return losses.mean(), pullback
""")
logged.wrong("1/N missing in the gradient", r"1/N|mean|divide|number of targets", "dy / targets.size", "dy")
logged.wrong("the sum in place of the mean", r"mean|number of targets|divide",
    "chosen).mean()", "chosen).sum()", "d * dy / targets.size", "d * dy")
flat.wrong("only the target's logit gets a gradient", r"softmax|all logits|one-hot",
    "grad = e / s\n", "grad = np.zeros(e.shape)\n")
flat.wrong("one-hot not subtracted", r"one-hot|one_hot", "        grad[np.arange(n), t] -= 1\n", "")
rounded = wrong("cross_entropy", "log of a rounded probability", r"log (p|0)|rounded|−∞|directly", """
def cross_entropy(logits, targets):
    e = np.exp(logits - logits.real.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    one = np.eye(logits.shape[-1])[targets]
    loss = -np.log((p * one).sum(axis=-1)).mean()
    return loss, lambda dy: (dy * (p - one) / targets.size,)
""")
logged.wrong("the sign of the gradient", r"sign|minus|negat",
    "d * dy / targets.size", "-d * dy / targets.size")
rounded.wrong("the logarithm is missing", r"logarithm|log",
    "np.log((p * one).sum(axis=-1)).mean()", "(p * one).sum() / targets.size")
logged.wrong("the incoming gradient is ignored", r"\bdy\b", "d * dy / targets.size", "d / targets.size")
logged.wrong("the maximum is not subtracted from the target's logit", r"both|only inside",
    "(x, targets[..., None]", "(logits, targets[..., None]")
logged.wrong("the logarithm of the mean", r"mean of the log",
    "(np.log(total) - chosen).mean()", "-np.log(np.exp(chosen - np.log(total)).mean())")

logged.wrong("a loss for each target", r"mean|one number|a number|scalar", "(np.log(total) - chosen).mean()", "np.log(total) - chosen")
logged.wrong("divided by the number of logits", r"number of (targets|logits)|targets\.size|1/N|all logits|classes", "/ targets.size", "/ logits.size")
logged.wrong("the sign of the loss", r"sign|minus|negative", "(np.log(total) - chosen)", "(chosen - np.log(total))")
flat.wrong("the sum over the targets", r"axis|classes|row", "e.sum(axis=1,", "e.sum(axis=0,")
logged.wrong("an array and no tuple", r"tuple", "(d * dy / targets.size,)", "d * dy / targets.size")
logged.wrong("large logits overflow", r"exp\(1000\)|overflow", "logits - logits.real.max(axis=-1, keepdims=True)", "logits")
wrong("cross_entropy", "the largest class instead of the target", r"target|argmax|largest", """
def cross_entropy(logits, targets):
    s = logits - logits.real.max(axis=-1, keepdims=True)
    log_p = s - np.log(np.exp(s).sum(axis=-1, keepdims=True))
    hot = np.eye(logits.shape[-1])[targets]

    def pullback(dy):
        return (dy * (np.exp(log_p) - hot) / targets.size,)

    return -log_p.real.max(axis=-1).mean(), pullback
""")
wrong("cross_entropy", "the sign of the gradient", r"sign|softmax − one-hot", """
def cross_entropy(logits, targets):
    s = logits - logits.real.max(axis=-1, keepdims=True)
    log_p = s - np.log(np.exp(s).sum(axis=-1, keepdims=True))
    hot = np.eye(logits.shape[-1])[targets]

    def pullback(dy):
        return (dy * (hot - np.exp(log_p)) / targets.size,)

    return -(log_p * hot).sum() / targets.size, pullback
""")
wrong("cross_entropy", "the mean over the rows of the batch only", r"mean|targets\.size|number|1/N|factor|times", """
def cross_entropy(logits, targets):
    s = logits - logits.real.max(axis=-1, keepdims=True)
    log_p = s - np.log(np.exp(s).sum(axis=-1, keepdims=True))
    hot = np.eye(logits.shape[-1])[targets]
    n = targets.shape[-1]

    def pullback(dy):
        return (dy * (np.exp(log_p) - hot) / n,)

    return -(log_p * hot).sum() / n, pullback
""")
wrong("cross_entropy", "log of the sum forgotten", r"logarithm", """
def cross_entropy(logits, targets):
    s = logits - logits.real.max(axis=-1, keepdims=True)
    hot = np.eye(logits.shape[-1])[targets]
    total = np.exp(s).sum(axis=-1, keepdims=True)
    log_p = s - total

    def pullback(dy):
        return (dy * (np.exp(s) / total - hot) / targets.size,)

    return -(log_p * hot).sum() / targets.size, pullback
""")
wrong("cross_entropy", "the probability of the target, times log", r"multiplied by p", """
def cross_entropy(logits, targets):
    s = logits - logits.real.max(axis=-1, keepdims=True)
    p = np.exp(s) / np.exp(s).sum(axis=-1, keepdims=True)
    hot = np.eye(logits.shape[-1])[targets]

    def pullback(dy):
        return (dy * (p - hot) / targets.size,)

    return -(p * np.log(p) * hot).sum() / targets.size, pullback
""")

plain, stepwise, *_ = right("layer_norm", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    var = ((x - mu) ** 2).mean(axis=-1, keepdims=True)
    inv = 1 / np.sqrt(var + eps)
    xn = (x - mu) * inv

    def pullback(dy):
        d = dy * weight
        dx = inv * (d - d.mean(-1, keepdims=True) - xn * (d * xn).mean(-1, keepdims=True))
        lead = tuple(range(dy.ndim - 1))
        return dx, (dy * xn).sum(lead), dy.sum(lead)

    return weight * xn + bias, pullback
""", """
def layer_norm(x, weight, bias, eps=1e-5):
    M = x.shape[-1]
    centred = x - x.sum(axis=-1, keepdims=True) / M
    var = (centred ** 2).sum(axis=-1, keepdims=True) / M
    std = (var + eps) ** 0.5
    xhat = centred / std
    def pullback(dy):
        dbias = dy.reshape(-1, M).sum(axis=0)
        dweight = (dy * xhat).reshape(-1, M).sum(axis=0)
        dxhat = dy * weight
        dstd = -(dxhat * centred).sum(axis=-1, keepdims=True) / std**2
        dvar = dstd / (2 * std)
        dcentred = dxhat / std + 2 * centred * dvar / M
        dx = dcentred - dcentred.sum(axis=-1, keepdims=True) / M
        return dx, dweight, dbias
    return xhat * weight + bias, pullback
""", """
def layer_norm(x, weight, bias, eps=1e-5):
    M = x.shape[-1]
    rows = x.reshape(-1, M)
    y, xhat, sigma = (np.zeros(rows.shape, np.result_type(x, weight, bias)) for _ in range(3))
    for i, row in enumerate(rows):
        c = row - np.mean(row)
        s = np.sqrt(np.mean(c * c) + eps)
        xhat[i], sigma[i] = c / s, s
        y[i] = xhat[i] * weight + bias
    def pullback(dy):
        dx, dw, db = np.zeros_like(y), np.zeros(M), np.zeros(M)
        for i, d in enumerate(dy.reshape(-1, M)):
            g = d * weight
            J = np.eye(M) - 1 / M - np.outer(xhat[i], xhat[i]) / M
            dx[i] = J @ g / sigma[i]
            dw, db = dw + d * xhat[i], db + d
        return dx.reshape(x.shape), dw, db
    return y.reshape(x.shape), pullback
""", """
def layer_norm(x, weight, bias, eps=1e-5):
    mean = np.mean(x, axis=-1, keepdims=True)
    var = np.mean(np.square(x), axis=-1, keepdims=True) - mean**2
    var = np.mean(np.square(x - mean), axis=-1, keepdims=True)
    rstd = np.power(var + eps, -0.5)
    h = (x - mean) * rstd
    def pullback(dy):
        g = dy * weight * rstd
        inner = np.einsum("...m,...m->...", g, h)[..., None] / x.shape[-1]
        dx = g - h * inner
        dx -= g.mean(axis=-1, keepdims=True)
        return dx, np.einsum("im,im->m", dy.reshape(-1, x.shape[-1]), h.reshape(-1, x.shape[-1])), np.sum(dy, axis=tuple(range(x.ndim - 1)))
    return h * weight + bias, pullback
""", """
def layer_norm(x, weight, bias, eps=1e-5):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normed = (x - mean) / np.sqrt(var + eps)
    def pullback(dy):
        d = dy * weight
        n = x.shape[-1]
        dx = (n * d - d.sum(-1, keepdims=True) - normed * (d * normed).sum(-1, keepdims=True)) / n
        dx = dx / np.sqrt(var + eps)
        dw, db = dy * normed, dy
        while dw.ndim > 1:
            dw, db = dw.sum(0), db.sum(0)
        return dx, dw, db
    return normed * weight + bias, pullback
""")
plain.wrong("only the direct term", r"terms?\b.*(mean|σ)|mean\(g\)",
    "inv * (d - d.mean(-1, keepdims=True) - xn * (d * xn).mean(-1, keepdims=True))", "inv * d")
plain.wrong("the term through the mean is missing", r"mean\(g\)|through the mean",
    "d - d.mean(-1, keepdims=True) - xn", "d - xn")
plain.wrong("the term through sigma is missing", r"x̂ · mean\(g · x̂\)|through σ",
    " - xn * (d * xn).mean(-1, keepdims=True)", "")
plain.wrong("the weight is missing in dx", r"weight|gain", "d = dy * weight", "d = dy")
plain.wrong("eps outside the root", r"eps.*(inside|root)|root", "np.sqrt(var + eps)", "(np.sqrt(var) + eps)")
stepwise.wrong("M - 1 as in torch.var", r"M − 1|M - 1|n - 1|divides? by M",
    "var = (centred ** 2).sum(axis=-1, keepdims=True) / M",
    "var = (centred ** 2).sum(axis=-1, keepdims=True) / (M - 1)")
plain.wrong("x in place of x hat in dweight", r"x̂", "(dy * xn).sum(lead)", "(dy * x).sum(lead)")
plain.wrong("axis 0", r"each row|last axis|axis=-1", "axis=-1", "axis=0")
plain.wrong("means instead of sums over the rows", r"sum|add (them )?up|mean",
    "(dy * xn).sum(lead), dy.sum(lead)", "(dy * xn).mean(lead), dy.mean(lead)")
stepwise.wrong("the term through sigma has a factor 2 less", r"σ|factor|mean\(g · x̂\)|x̂",
    "dstd / (2 * std)", "dstd / (4 * std)")
plain.wrong("the mean square for the variance", r"centred|x − mean|RMS|subtract|mean of x²", "((x - mu) ** 2)", "(x ** 2)")
plain.wrong("dweight and dbias for each row", r"sum|axes in front|leading|broadcast", "(dy * xn).sum(lead), dy.sum(lead)", "dy * xn, dy")
plain.wrong("no bias", r"bias", " + bias", "")
plain.wrong("dx not divided by σ", r"σ|sigma|divid", "dx = inv * (", "dx = (")
plain.wrong("no eps", r"\beps|0 / 0", "var + eps", "var")
plain.wrong("dweight and dbias exchanged", r"check the order|exchang|swap", "(dy * xn).sum(lead), dy.sum(lead)", "dy.sum(lead), (dy * xn).sum(lead)")
wrong("layer_norm", "the weight outside the means", r"weight.*(mean|outside)|g = dy · weight", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        dx = weight * (dy - dy.mean(axis=-1, keepdims=True) - xh * (dy * xh).mean(axis=-1, keepdims=True)) / sigma
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")
wrong("layer_norm", "no weight inside the means", r"weight.*mean|g = dy · weight", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        dx = (weight * dy - dy.mean(axis=-1, keepdims=True) - xh * (dy * xh).mean(axis=-1, keepdims=True)) / sigma
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")
wrong("layer_norm", "sums for both means", r"sums?\b.*means?|means? .*sums?", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        g = dy * weight
        dx = (g - g.sum(axis=-1, keepdims=True) - xh * (g * xh).sum(axis=-1, keepdims=True)) / sigma
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")
wrong("layer_norm", "the sum of the row is subtracted", r"mean|sum", """
def layer_norm(x, weight, bias, eps=1e-5):
    xh = x - x.sum(axis=-1, keepdims=True)
    xh = xh / np.sqrt((xh**2).mean(axis=-1, keepdims=True) + eps)
    return xh * weight + bias, lambda dy: (dy * weight, (dy * xh).sum(0), dy.sum(0))
""")
wrong("layer_norm", "bias inside the norm", r"bias|mean|weight", """
def layer_norm(x, weight, bias, eps=1e-5):
    z = x * weight + bias
    d = z - z.mean(axis=-1, keepdims=True)
    xh = d / np.sqrt((d**2).mean(axis=-1, keepdims=True) + eps)
    return xh, lambda dy: (dy * weight, (dy * xh).sum(0), dy.sum(0))
""")
wrong("layer_norm", "the mean through σ without x̂ inside", r"x̂|last term|mean\(g", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        g = dy * weight
        dx = (g - g.mean(axis=-1, keepdims=True) - xh * g.mean(axis=-1, keepdims=True)) / sigma
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")
wrong("layer_norm", "the term through the mean forgotten", r"mean\(g\)|mean of g|through", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        g = dy * weight
        dx = (g - xh * (g * xh).mean(axis=-1, keepdims=True)) / sigma
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")
wrong("layer_norm", "the gradient of x without 1/σ", r"divided by σ|/ σ|σ", """
def layer_norm(x, weight, bias, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    xh = (x - mu) / sigma

    def pullback(dy):
        g = dy * weight
        dx = g - g.mean(axis=-1, keepdims=True) - xh * (g * xh).mean(axis=-1, keepdims=True)
        axes = tuple(range(x.ndim - 1))
        return dx, (dy * xh).sum(axis=axes), dy.sum(axis=axes)

    return xh * weight + bias, pullback
""")

direct, loose, *_ = right("adamw_step", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g ** 2
    mhat = m / (1 - beta1 ** t)
    vhat = v / (1 - beta2 ** t)
    return p - lr * (mhat / (np.sqrt(vhat) + eps) + weight_decay * p), m, v
""", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    def average(old, new, beta):
        return old * beta + new * (1.0 - beta)
    m, v = average(m, g, beta1), average(v, g * g, beta2)
    m_hat, v_hat = m / (1.0 - beta1**t), v / (1.0 - beta2**t)
    p = (1 - lr * weight_decay) * p - lr * m_hat / (eps + v_hat**0.5)
    return p, m, v
""", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    new = p * (1 - lr * weight_decay)
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (np.square(g) - v)
    scale = lr / (1 - np.power(beta1, t))
    new -= scale * m / (np.sqrt(v / (1 - np.power(beta2, t))) + eps)
    return new, m, v
""", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    c1, c2 = 1 - beta1 ** t, np.sqrt(1 - beta2 ** t)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    denominator = np.sqrt(v) / c2 + eps
    step = lr * weight_decay * p + (lr / c1) * (m / denominator)
    return (p - step, m, v)
""", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    out = [np.empty(np.shape(p)) for _ in range(3)]
    for i in np.ndindex(np.shape(p)):
        mi = beta1 * m[i] + (1 - beta1) * g[i]
        vi = beta2 * v[i] + (1 - beta2) * g[i] * g[i]
        step = (mi / (1 - beta1 ** t)) / ((vi / (1 - beta2 ** t)) ** 0.5 + eps)
        out[0][i] = p[i] - lr * step - lr * weight_decay * p[i]
        out[1][i], out[2][i] = mi, vi
    return tuple(out)
""")
direct.wrong("no bias correction", r"bias correction|1 − β", "m / (1 - beta1 ** t)", "m",
    "v / (1 - beta2 ** t)", "v")
direct.wrong("the decay inside the averages", r"averages|L2|separately|enters",
    "m = beta1 * m", "g = g + weight_decay * p\n    m = beta1 * m", " + weight_decay * p)", ")")
direct.wrong("eps inside the root", r"inside the root", "np.sqrt(vhat) + eps", "np.sqrt(vhat + eps)")
loose.wrong("decay without the learning rate", r"learning rate|lr · weight_decay",
    "(1 - lr * weight_decay) * p", "(1 - weight_decay) * p")
direct.wrong("corrected averages returned", r"m̂ and v̂|uncorrected",
    "weight_decay * p), m, v", "weight_decay * p), mhat, vhat")
direct.wrong("g in place of g squared", r"g²", "g ** 2", "g")
direct.wrong("counting from 0", r"t \+ 1|exponent|first step", "** t", "** (t + 1)")
direct.wrong("in place", r"in place|copy", "    m = ", "    m[...] = ", "    v = ", "    v[...] = ",
    "return p - lr", "p -= lr", " * p), m, v", " * p)\n    return p, m, v")
loose.wrong("the two betas swapped", r"swapped",
    "average(m, g, beta1), average(v, g * g, beta2)", "average(m, g, beta2), average(v, g * g, beta1)")
direct.wrong("β1 in both averages", r"beta|β", "(1 - beta2) * g", "(1 - beta1) * g")
direct.wrong("no eps", r"eps", " + eps", "")
direct.wrong("uphill", r"sign|minus|direction|ascent|uphill|subtract", "p - lr", "p + lr")
direct.wrong("no root", r"root|sqrt|√", "np.sqrt(vhat)", "vhat")
loose.wrong("a decay that grows", r"sign|decay|grow", "(1 - lr * weight_decay)", "(1 + lr * weight_decay)")
direct.wrong("a list", r"three arrays", "return p - lr * (mhat / (np.sqrt(vhat) + eps) + weight_decay * p), m, v", "return [p - lr * (mhat / (np.sqrt(vhat) + eps) + weight_decay * p), m, v]")
direct.wrong("the correction of the first step in every step", r"exponent|power|βᵗ|\bt\b", " ** t", "")
wrong("adamw_step", "p changed in place", r"in place|copy", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p *= 1 - lr * weight_decay
    p -= lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p, m, v
""")
wrong("adamw_step", "v of the new average", r"v is a moving", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * m * m
    mh, vh = m / (1 - beta1**t), v / (1 - beta2**t)
    return p - lr * (mh / (np.sqrt(vh) + eps) + weight_decay * p), m, v
""")
wrong("adamw_step", "climbs", r"goes up|subtract lr", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mh, vh = m / (1 - beta1**t), v / (1 - beta2**t)
    return p + lr * mh / (np.sqrt(vh) + eps) - lr * weight_decay * p, m, v
""")
wrong("adamw_step", "the correction uses t + 1", r"exponent t \+ 1", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mh, vh = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))
    return p - lr * (mh / (np.sqrt(vh) + eps) + weight_decay * p), m, v
""")
wrong("adamw_step", "only m is corrected", r"v is not corrected", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mh = m / (1 - beta1**t)
    return p - lr * (mh / (np.sqrt(v) + eps) + weight_decay * p), m, v
""")
wrong("adamw_step", "the decay is a factor of the new p", r"p before the step|after the step|decay", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mh, vh = m / (1 - beta1**t), v / (1 - beta2**t)
    p = p - lr * mh / (np.sqrt(vh) + eps)
    return p * (1 - lr * weight_decay), m, v
""")
wrong("adamw_step", "v without the square", r"g²|square|v is", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * abs(g)
    mh, vh = m / (1 - beta1**t), v / (1 - beta2**t)
    return p - lr * (mh / (np.sqrt(vh) + eps) + weight_decay * p), m, v
""")
wrong("adamw_step", "the averages are corrected before they are returned", r"uncorrected", """
def adamw_step(p, g, m, v, t, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    m = (beta1 * m + (1 - beta1) * g) / (1 - beta1**t)
    v = (beta2 * v + (1 - beta2) * g * g) / (1 - beta2**t)
    return p - lr * (m / (np.sqrt(v) + eps) + weight_decay * p), m, v
""")

sorted_down, looped, masked, *_ = right("top_p", """
def top_p(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    total = np.cumsum(probabilities[order])
    count = np.searchsorted(total, p) + 1
    new = np.zeros_like(probabilities)
    new[order[:count]] = probabilities[order[:count]]
    return new / new.sum()
""", """
def top_p(probabilities, p):
    kept, total = [], 0
    for k in sorted(range(len(probabilities)), key=lambda k: -probabilities[k]):
        kept.append(k)
        total += probabilities[k]
        if total >= p:
            break
    return np.array([q / total if k in kept else 0 for k, q in enumerate(probabilities)])
""", """
def top_p(probabilities, p):
    order = np.flip(np.argsort(probabilities))
    ranked = probabilities[order]
    drop = np.cumsum(ranked) >= p
    drop[1:] = drop[:-1].copy()
    drop[0] = False
    ranked = np.where(drop, 0, ranked)
    back = np.argsort(order)
    return (ranked / ranked.sum())[back]
""", """
def top_p(probabilities, p):
    larger = probabilities[None, :] > probabilities[:, None]
    before = (larger * probabilities).sum(axis=1)
    kept = np.where(before < p, probabilities, 0)
    return kept / kept.sum()
""", """
def top_p(probabilities, p):
    rest, result = probabilities.copy(), np.zeros(len(probabilities))
    while result.sum() < p:
        k = int(rest.argmax())
        result[k], rest[k] = rest[k], 0
    return result / np.sum(result)
""")
sorted_down.wrong("not divided by the sum", r"sum to 1|divide", "return new / new.sum()", "return new")
sorted_down.wrong("the crossing token is dropped", r"crosses|dropped|at least p",
    "np.searchsorted(total, p) + 1", "np.searchsorted(total, p)")
sorted_down.wrong("the least probable tokens", r"least probable|largest",
    "np.argsort(probabilities)[::-1]", "np.argsort(probabilities)")
masked.wrong("the sort is not undone", r"sorted order|own place|order", "[back]", "")
wrong("top_p", "a threshold for each token", r"each probability|add (them )?up|largest down", """
def top_p(probabilities, p):
    kept = np.where(probabilities >= 1 - p, probabilities, 0.0)
    return kept / kept.sum()
""")
wrong("top_p", "only the kept ones", r"keep their places|left out|shape", """
def top_p(probabilities, p):
    ranked = np.sort(probabilities)[::-1]
    kept = ranked[: np.searchsorted(np.cumsum(ranked), p) + 1]
    return kept / kept.sum()
""")
looped.wrong("divided by p", r"by their sum", "q / total", "q / p")
sorted_down.wrong("one token too many", r"one token too many|too many", "(total, p) + 1", "(total, p) + 2")
sorted_down.wrong("not sorted", r"sort|largest|most probable|order",
    "np.argsort(probabilities)[::-1]", "np.arange(len(probabilities))")
sorted_down.wrong("softmax over what is kept", r"divide|softmax|exponential", "return new / new.sum()", "return np.exp(new) / np.exp(new).sum()")
sorted_down.wrong("a share of the tokens", r"number of|add (them )?up|cumulative|together|top.k|share of the tokens", "np.searchsorted(total, p) + 1", "int(np.ceil(p * len(total)))")
sorted_down.wrong("one more if the sum is exactly p", r"too many|exactly", "(total, p)", "(total, p, side=\"right\")")
wrong("top_p", "each probability compared, but at least one kept", r"alone|add (them|the probabilities) up", """
def top_p(probabilities, p):
    kept = np.where(probabilities >= p, probabilities, 0.0)
    if not kept.any():
        best = probabilities.argmax()
        kept[best] = probabilities[best]
    return kept / kept.sum()
""")
wrong("top_p", "each probability compared in a loop", r"alone|add (them|the probabilities) up", """
def top_p(probabilities, p):
    kept = np.zeros_like(probabilities)
    for k in np.argsort(-probabilities):
        kept[k] = probabilities[k]
        if probabilities[k] < p:
            break
    return kept / kept.sum()
""")
wrong("top_p", "each probability below p is kept", r"alone|add (them|the probabilities) up", """
def top_p(probabilities, p):
    kept = np.where(probabilities < p, probabilities, 0.0)
    return kept / kept.sum()
""")
wrong("top_p", "relative to the largest", r"alone|add (them|the probabilities) up", """
def top_p(probabilities, p):
    kept = probabilities * (probabilities >= p * probabilities.max())
    return kept / kept.sum()
""")
wrong("top_p", "the number of tokens rounded down", r"too many|dropped|crosses|at least", """
def top_p(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    total = np.cumsum(probabilities[order])
    n = int((total <= p).sum())
    kept = np.zeros_like(probabilities)
    kept[order[:n]] = probabilities[order[:n]]
    return kept / kept.sum()
""")
wrong("top_p", "the inverse permutation is forgotten", r"order|place|sorted", """
def top_p(probabilities, p):
    s = np.sort(probabilities)[::-1]
    return np.where(np.cumsum(s) - s < p, s, 0) / s[np.cumsum(s) - s < p].sum()
""")
wrong("top_p", "tokens beyond p in the given order", r"own order|sort", """
def top_p(probabilities, p):
    total = np.cumsum(probabilities)
    kept = np.where(total - probabilities < p, probabilities, 0.0)
    return kept / kept.sum()
""")
wrong("top_p", "renormalised by softmax", r"softmax", """
def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    z = np.full(len(probabilities), -np.inf)
    chosen = order[before < p]
    z[chosen] = probabilities[chosen]
    e = np.exp(z)
    return e / e.sum()
""")
