"""Chapter 10: debugging."""

# fmt: off
from . import right, wrong

masked = right("attention_entropy", """
def attention_entropy(weights):
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -np.sum(weights * logs, axis=-1)
""")
right("attention_entropy", """
def attention_entropy(weights):
    from scipy.special import entr
    return entr(weights).sum(-1)
""")
right("attention_entropy", """
def attention_entropy(weights):
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = -weights * np.log(weights)
    return np.nan_to_num(terms).sum(-1)
""")
loop = right("attention_entropy", """
def attention_entropy(weights):
    out = np.zeros(weights.shape[:-1])
    for place in np.ndindex(out.shape):
        for p in weights[place]:
            if p > 0:
                out[place] -= p * np.log(p)
    return out
""")
right("attention_entropy", """
def attention_entropy(weights):
    safe = weights + (weights == 0)
    return -np.einsum("...s,...s->...", weights, np.log(safe))
""")
wrong("attention_entropy", "no minus sign", r"minus|sign|negative|−Σ",
      masked, "return -", "return ")
wrong("attention_entropy", "in bits", r"bits|natural|base 2|log2|nats",
      loop, "np.log(p)", "np.log2(p)")
wrong("attention_entropy", "NaN where a weight is 0", r"NaN|log 0|0 ·",
      masked, "np.log(weights, out=np.zeros_like(weights), where=weights > 0)", "np.log(weights)")
wrong("attention_entropy", "the mean over the keys", r"mean|sum|factor",
      masked, "np.sum(", "np.mean(")
wrong("attention_entropy", "the sum over the queries", r"quer|axis|keys",
      masked, "axis=-1", "axis=-2")
wrong("attention_entropy", "a small number inside the logarithm", r"small|added|inside",
      masked, "np.log(weights, out=np.zeros_like(weights), where=weights > 0)", "np.log(weights + 1e-9)")

whole = right("update_ratio", """
def update_ratio(before, after):
    return np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())
""")
right("update_ratio", """
def update_ratio(before, after):
    step = after - before
    return float(np.sqrt(np.vdot(step, step) / np.vdot(before, before)))
""")
right("update_ratio", """
def update_ratio(before, after):
    return np.std(np.append(after - before, before - after)) / np.sqrt(np.mean(before**2))
""")
right("update_ratio", """
def update_ratio(before, after):
    def length(x):
        return sum(v * v for v in x.flat) ** 0.5
    return length(after - before) / length(before)
""")
rms = right("update_ratio", """
def update_ratio(before, after):
    rms = lambda x: np.sqrt(np.mean(np.square(x)))
    return rms(after - before) / rms(before)
""")
wrong("update_ratio", "relative to the new length", r"after|before the step",
      whole, "norm(before.ravel())", "norm(after.ravel())")
wrong("update_ratio", "upside down", r"upside|invers|reciprocal|1/",
      rms, "rms(after - before) / rms(before)", "rms(before) / rms(after - before)")
wrong("update_ratio", "no root", r"root|square",
      rms, "np.sqrt(np.mean(np.square(x)))", "np.mean(np.square(x))")
wrong("update_ratio", "the mean of the ratios", r"mean|entries|each entry",
      whole, "np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())",
      "np.mean(np.abs((after - before) / before))")
wrong("update_ratio", "not divided", r"divide|length of the step",
      whole, " / np.linalg.norm(before.ravel())", "")
wrong("update_ratio", "the difference of the lengths", r"difference of",
      whole, "np.linalg.norm((after - before).ravel())",
      "(np.linalg.norm(after.ravel()) - np.linalg.norm(before.ravel()))")

each = right("leaks", """
def leaks(model, tokens, vocabulary):
    first = model(tokens)
    T = tokens.shape[1]
    for t in range(1, T):
        other = tokens.copy()
        other[:, t:] = (other[:, t:] + 1) % vocabulary
        if not np.array_equal(model(other)[:, :t], first[:, :t]):
            return True
    return False
""")
right("leaks", """
def leaks(model, tokens, vocabulary):
    first = model(tokens)
    found = False
    for t in range(1, tokens.shape[1]):
        for step in range(1, vocabulary):
            other = np.array(tokens)
            other[:, t] = (tokens[:, t] + step) % vocabulary
            found |= bool((model(other)[:, :t] != first[:, :t]).any())
    return found
""")
right("leaks", """
def leaks(model, tokens, vocabulary):
    future = np.arange(tokens.shape[1])
    y = model(tokens)
    def changes(t):
        z = model(np.where(future >= t, (tokens + vocabulary - 1) % vocabulary, tokens))
        return np.abs(z - y)[:, :t].max(initial=0) > 0
    return any(bool(changes(t)) for t in future)
""")
right("leaks", """
def leaks(model, tokens, vocabulary):
    y = model(tokens)
    for t in reversed(range(1, tokens.shape[1])):
        z = model(np.concatenate([tokens[:, :t], vocabulary - 1 - tokens[:, t:]], axis=1))
        z2 = model(np.concatenate([tokens[:, :t], (tokens[:, t:] + 1) % vocabulary], axis=1))
        if (z != y)[:, :t].any() or (z2 != y)[:, :t].any():
            return True
    return False
""")
right("leaks", """
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
wrong("leaks", "position t is compared too", r"position t|own token|before t|\[:, :t\]",
      each, "(other)[:, :t], first[:, :t]", "(other)[:, :t + 1], first[:, :t + 1]")
wrong("leaks", "all positions are compared", r"all positions|later|before t|\[:, :t\]",
      each, "(other)[:, :t], first[:, :t]", "(other), first")
wrong("leaks", "misses the next token", r"token at t|one token ahead|from t on",
      each, "other[:, t:] = (other[:, t:] + 1)", "other[:, t + 1:] = (other[:, t + 1:] + 1)")
wrong("leaks", "True and False exchanged", r"exchang|opposite|invert|swap",
      each, "return True\n    return False", "return False\n    return True")
wrong("leaks", "returns at t = 1", r"inside the loop|t = 1|every t|any t",
      each, "        if not np.array_equal(model(other)[:, :t], first[:, :t]):\n            return True\n    return False",
      "        return not np.array_equal(model(other)[:, :t], first[:, :t])")
wrong("leaks", "outside the vocabulary", r"vocabulary|from 0 to",
      each, " % vocabulary", "")
wrong("update_ratio", "the new norm in the numerator", r"norm of the step|difference",
      whole, "(after - before)", "after")
wrong("update_ratio", "standard deviations", r"deviation", """
def update_ratio(before, after):
    return np.std(after - before) / np.std(before)
""")

wrong("attention_entropy", "one number for all", r"one number|each (row|query)|axis|whole", masked, ", axis=-1)", ")")
wrong("attention_entropy", "logarithms not weighted", r"weighted|times (the )?weight|P log P|factor P|P ·", masked, "weights * logs", "logs")
wrong("attention_entropy", "relative to log S", r"log S|divided|normalis|factor", masked, "axis=-1)", "axis=-1) / np.log(weights.shape[-1])")
wrong("update_ratio", "largest entries", r"largest|max\b|maximum|root", whole, "np.linalg.norm((after - before).ravel()) / np.linalg.norm(before.ravel())", "np.max(np.abs(after - before)) / np.max(np.abs(before))")
wrong("update_ratio", "sums of magnitudes", r"root|squares|abs|magnitude", rms, "np.sqrt(np.mean(np.square(x)))", "np.mean(np.abs(x))")
wrong("update_ratio", "a ratio for each row", r"one number|all entries|each row|axis|axes", """
def update_ratio(before, after):
    return np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
""")
wrong("leaks", "changes the past", r"earlier|before t|later|past|future|from t on", each, "other[:, t:] = (other[:, t:] + 1)", "other[:, :t] = (other[:, :t] + 1)")
wrong("leaks", "changes tokens", r"in place|copy", each, "tokens.copy()", "tokens")
wrong("leaks", "tries the last token only", r"every t|last (token|position|t)|each t|all t|only", each, "for t in range(1, T)", "for t in [T - 1]")
wrong("attention_entropy", "the second axis", r"axis|quer", masked, "axis=-1", "axis=1")
wrong("leaks", "a number", r"True or False, not", each, "return True", "return 1")
wrong("leaks", "the first position left out", r"only the first|at the next", each, "[:, :t]", "[:, 1:t]")
