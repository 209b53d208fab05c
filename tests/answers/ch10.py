"""Chapter 10: debugging."""

# fmt: off
from . import right

masked, loop, *_ = right("attention_entropy", """
def attention_entropy(weights):
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -np.sum(weights * logs, axis=-1)
""", """
def attention_entropy(weights):
    out = np.zeros(weights.shape[:-1])
    for place in np.ndindex(out.shape):
        for p in weights[place]:
            if p > 0:
                out[place] -= p * np.log(p)
    return out
""", """
def attention_entropy(weights):
    from scipy.special import entr
    return entr(weights).sum(-1)
""", """
def attention_entropy(weights):
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = -weights * np.log(weights)
    return np.nan_to_num(terms).sum(-1)
""", """
def attention_entropy(weights):
    safe = weights + (weights == 0)
    return -np.einsum("...s,...s->...", weights, np.log(safe))
""")
masked.wrong("no minus sign", r"minus|sign|negative|−Σ", "return -", "return ")
loop.wrong("in bits", r"bits|natural|base 2|log2|nats", "np.log(p)", "np.log2(p)")
masked.wrong("NaN where a weight is 0", r"NaN|log 0|0 ·",
    "np.log(weights, out=np.zeros_like(weights), where=weights > 0)", "np.log(weights)")
masked.wrong("the mean over the keys", r"mean|sum|factor", "np.sum(", "np.mean(")
masked.wrong("the sum over the queries", r"quer|axis|keys", "axis=-1", "axis=-2")
masked.wrong("a small number inside the logarithm", r"small|added|inside",
    "np.log(weights, out=np.zeros_like(weights), where=weights > 0)", "np.log(weights + 1e-9)")

whole, rms, *_ = right("update_ratio", """
def update_ratio(before, after):
    return np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())
""", """
def update_ratio(before, after):
    rms = lambda x: np.sqrt(np.mean(np.square(x)))
    return rms(after - before) / rms(before)
""", """
def update_ratio(before, after):
    step = after - before
    return float(np.sqrt(np.vdot(step, step) / np.vdot(before, before)))
""", """
def update_ratio(before, after):
    return np.std(np.append(after - before, before - after)) / np.sqrt(np.mean(before**2))
""", """
def update_ratio(before, after):
    def length(x):
        return sum(v * v for v in x.flat) ** 0.5
    return length(after - before) / length(before)
""")
whole.wrong("relative to the new length", r"after|before the step", "(before.ravel())", "(after.ravel())")
rms.wrong("upside down", r"upside|invers|reciprocal|1/",
    "rms(after - before) / rms(before)", "rms(before) / rms(after - before)")
rms.wrong("no root", r"root|square", "np.sqrt(np.mean(np.square(x)))", "np.mean(np.square(x))")
whole.wrong("the mean of the ratios", r"mean|entries|each entry",
    "np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())",
    "np.mean(np.abs((after - before) / before))")
whole.wrong("not divided", r"divide|length of the step", " / np.linalg.norm(before.ravel())", "")
whole.wrong("the difference of the lengths", r"difference of",
    "np.linalg.norm((after - before).ravel())",
    "(np.linalg.norm(after.ravel()) - np.linalg.norm(before.ravel()))")

each, *_ = right("leaks", """
def leaks(model, tokens, vocabulary):
    first = model(tokens)
    T = tokens.shape[1]
    for t in range(1, T):
        other = tokens.copy()
        other[:, t:] = (other[:, t:] + 1) % vocabulary
        if not np.array_equal(model(other)[:, :t], first[:, :t]):
            return True
    return False
""", """
def leaks(model, tokens, vocabulary):
    first = model(tokens)
    found = False
    for t in range(1, tokens.shape[1]):
        for step in range(1, vocabulary):
            other = np.array(tokens)
            other[:, t] = (tokens[:, t] + step) % vocabulary
            found |= bool((model(other)[:, :t] != first[:, :t]).any())
    return found
""", """
def leaks(model, tokens, vocabulary):
    future = np.arange(tokens.shape[1])
    y = model(tokens)
    def changes(t):
        z = model(np.where(future >= t, (tokens + vocabulary - 1) % vocabulary, tokens))
        return np.abs(z - y)[:, :t].max(initial=0) > 0
    return any(bool(changes(t)) for t in future)
""", """
def leaks(model, tokens, vocabulary):
    y = model(tokens)
    for t in reversed(range(1, tokens.shape[1])):
        z = model(np.concatenate([tokens[:, :t], vocabulary - 1 - tokens[:, t:]], axis=1))
        z2 = model(np.concatenate([tokens[:, :t], (tokens[:, t:] + 1) % vocabulary], axis=1))
        if (z != y)[:, :t].any() or (z2 != y)[:, :t].any():
            return True
    return False
""", """
def leaks(model, tokens, vocabulary):
    B, T = tokens.shape
    rng = np.random.default_rng(0)
    y = model(tokens)
    for t in range(T):
        for _ in range(5):
            noisy = tokens.copy()
            noisy[:, t + 1:] = rng.integers(0, vocabulary, (B, T - t - 1))
            if not np.allclose(model(noisy)[:, : t + 1], y[:, : t + 1], rtol=0, atol=0):
                return True
    return False
""")
each.wrong("position t is compared too", r"position t|own token|before t|\[:, :t\]",
    "(other)[:, :t], first[:, :t]", "(other)[:, :t + 1], first[:, :t + 1]")
each.wrong("all positions are compared", r"all positions|later|before t|\[:, :t\]",
    "(other)[:, :t], first[:, :t]", "(other), first")
each.wrong("misses the next token", r"token at t|one token ahead|from t on",
    "other[:, t:] = (other[:, t:] + 1)", "other[:, t + 1:] = (other[:, t + 1:] + 1)")
each.wrong("True and False exchanged", r"exchang|opposite|invert|swap",
    "return True\n    return False", "return False\n    return True")
each.wrong("returns at t = 1", r"inside the loop|t = 1|every t|any t",
    "        if not np.array_equal(model(other)[:, :t], first[:, :t]):\n            return True\n    return False",
    "        return not np.array_equal(model(other)[:, :t], first[:, :t])")
each.wrong("outside the vocabulary", r"vocabulary|from 0 to", " % vocabulary", "")
whole.wrong("the new norm in the numerator", r"norm of the step|difference", "(after - before)", "after")
rms.wrong("standard deviations", r"deviation", "np.sqrt(np.mean(np.square(x)))", "np.std(x)")

masked.wrong("one number for all", r"one number|each (row|query)|axis|whole", ", axis=-1)", ")")
masked.wrong("logarithms not weighted", r"weighted|times (the )?weight|P log P|factor P|P ·", "weights * logs", "logs")
masked.wrong("relative to log S", r"log S|divided|normalis|factor", "axis=-1)", "axis=-1) / np.log(weights.shape[-1])")
whole.wrong("largest entries", r"largest|max\b|maximum|root", "np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())", "np.max(np.abs(after - before)) / np.max(np.abs(before))")
rms.wrong("sums of magnitudes", r"root|squares|abs|magnitude", "np.sqrt(np.mean(np.square(x)))", "np.mean(np.abs(x))")
rms.wrong("a ratio for each row", r"one number|all entries|each row|axis|axes", "square(x)", "square(x), axis=-1")
each.wrong("changes the past", r"earlier|before t|later|past|future|from t on", "other[:, t:] = (other[:, t:] + 1)", "other[:, :t] = (other[:, :t] + 1)")
each.wrong("changes tokens", r"in place|copy", "tokens.copy()", "tokens")
each.wrong("tries the last token only", r"every t|last (token|position|t)|each t|all t|only", "for t in range(1, T)", "for t in [T - 1]")
masked.wrong("the second axis", r"axis|quer", "axis=-1", "axis=1")
each.wrong("a number", r"True or False, not", "return True", "return 1")
each.wrong("the first position left out", r"only the first|at the next", "[:, :t]", "[:, 1:t]")
