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

masked.wrong("one number for all", r"one number|each (row|query)|axis|whole", ", axis=-1)", ")")
masked.wrong("logarithms not weighted", r"weighted|times (the )?weight|P log P|factor P|P ·", "weights * logs", "logs")
masked.wrong("relative to log S", r"log S|divided|normalis|factor", "axis=-1)", "axis=-1) / np.log(weights.shape[-1])")
masked.wrong("the second axis", r"axis|quer", "axis=-1", "axis=1")
masked.wrong("small weights left out", r"small weight w is left out", "where=weights > 0", "where=weights > 1e-3")
loop.wrong("tiny weights left out", r"small weight w is left out", "if p > 0", "if p > 1e-9")
masked.wrong("weights clipped from below", r"small|entropy of a row", "weights > 0)", "weights > 0)", "-np.sum(weights", "-np.sum(np.maximum(weights, 1e-8)")
masked.wrong("one minus the sum of squares", r"entropy is wrong", "-np.sum(weights * logs", "1 - np.sum(weights**2")
loop.wrong("in single precision", r"float32", "np.zeros(weights.shape[:-1])", "np.zeros(weights.shape[:-1], np.float32)")

listed, looped, *_ = right("without_gradient", """
def without_gradient(gradients):
    arrays = [g for g in gradients.values() if g is not None]
    largest = max([np.abs(g).max() for g in arrays] + [0])
    return [n for n, g in gradients.items() if g is None or np.all(np.abs(g) <= 1e-6 * largest)]
""", """
def without_gradient(gradients):
    largest = 0
    for g in gradients.values():
        if g is not None:
            largest = max(largest, abs(g).max())
    names = []
    for name in gradients:
        g = gradients[name]
        if g is None:
            names.append(name)
        elif not abs(g).max() > 1e-6 * largest:
            names.append(name)
    return names
""", """
def without_gradient(gradients):
    def size(g):
        return 0.0 if g is None else np.linalg.norm(np.ravel(g), np.inf)
    sizes = np.array([size(g) for g in gradients.values()])
    return [str(n) for n in np.array(list(gradients))[sizes <= 1e-6 * sizes.max()]]
""", """
def without_gradient(gradients):
    flat = np.concatenate([np.zeros(1)] + [g.ravel() for g in gradients.values() if g is not None])
    least = 1e-6 * max(flat.max(), -flat.min())
    return list(filter(
        lambda name: gradients[name] is None or not (np.abs(gradients[name]) > least).any(), gradients
    ))
""")
looped.wrong("None is not listed", r"does not list.*None|None is left out",
    "        if g is None:\n            names.append(name)\n        elif not", "        if g is not None and not")
listed.wrong("only None", r"only None|zeros", " or np.all(np.abs(g) <= 1e-6 * largest)", "")
listed.wrong("no absolute value", r"sign|negative|absolute", "np.all(np.abs(g) <=", "np.all(g <=")
listed.wrong("any entry is zero", r"smallest|largest entry", "np.all(", "np.any(")
listed.wrong("only exact zeros", r"exact|rounding", "np.all(np.abs(g) <= 1e-6 * largest)", "not g.any()")
listed.wrong("allclose to zero", r"fixed number|1e-6 times", "np.all(np.abs(g) <= 1e-6 * largest)", "np.allclose(g, 0)")
listed.wrong("a fixed limit", r"fixed number", "1e-6 * largest)", "1e-8)")
looped.wrong("cancelling sum", r"cancel|absolute", "not abs(g).max() >", "not abs(g.sum()) >")
looped.wrong("the mean", r"mean", "not abs(g).max() >", "not abs(g).mean() >")
looped.wrong("nothing below zero", r"all gradients are 0|<=", "not abs(g).max() > 1e-6 * largest", "abs(g).max() < 1e-6 * largest")
looped.wrong("the names with a gradient", r"do get|return the others", "        if g is None:\n            names.append(name)\n        elif not", "        if g is not None and")
listed.wrong("a dictionary", r"list of names", "return [n for n, g", "return {n: g for n, g", "largest)]", "largest)}")
looped.wrong("relative to its own largest entry", r"does not list|all gradients", "not abs(g).max() > 1e-6 * largest", "not abs(g).max() > 1e-6 * abs(g).max()")
listed.wrong("the sum of all gradients", r"does not list|lists|largest entry of all", "np.abs(g).max() for g", "np.abs(g).sum() * 1e5 for g")
listed.wrong("None has no largest entry", r"None", "[g for g in gradients.values() if g is not None]", "list(gradients.values())")
listed.wrong("largest of nothing", r"empty|all gradients are|no gradient|None", " + [0]", "")
looped.wrong("norms", r"norm grows", "largest, abs(g).max())", "largest, np.linalg.norm(g))", "not abs(g).max() >", "not np.linalg.norm(g) >")
looped.wrong("the largest entry with its sign", r"with its sign", "largest, abs(g).max())", "largest, g.max())")
listed.wrong("relative to the median", r"largest entry of all gradients", "max([np.abs(g).max() for g in arrays] + [0])", "np.median([np.abs(g).max() for g in arrays] + [0])")
listed.wrong("in alphabetical order", r"in this order", "return [", "return sorted([", "largest)]", "largest)])")

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
def leaks(model, tokens, vocabulary):  # the position just before the changed tokens is enough
    y = model(tokens)
    later = np.arange(tokens.shape[1])[:, None] > np.arange(tokens.shape[1] - 1)
    return any(
        np.any((model(np.where(w, (tokens + 1) % vocabulary, tokens)) != y)[:, t])
        for t, w in enumerate(later.T)
    )
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
each.wrong("changes the past", r"earlier|before t|later|past|future|from t on", "other[:, t:] = (other[:, t:] + 1)", "other[:, :t] = (other[:, :t] + 1)")
each.wrong("changes tokens", r"in place|copy", "tokens.copy()", "tokens")
each.wrong("tries the last token only", r"every t|last (token|position|t)|each t|all t|only", "for t in range(1, T)", "for t in [T - 1]")
each.wrong("a number", r"True or False, not", "return True", "return 1")
each.wrong("the first position left out", r"only the first|at the next", "[:, :t]", "[:, 1:t]")
each.wrong("later tokens become 0", r"become 0|already", "(other[:, t:] + 1) % vocabulary", "0")
each.wrong("the last token of the vocabulary", r"every token is", "(other[:, t:] + 1) % vocabulary", "vocabulary - 1")
each.wrong("only sequence 0 is compared", r"sequence|batch", "(other)[:, :t], first[:, :t]", "(other)[0, :t], first[0, :t]")
each.wrong("only sequence 0 is changed", r"sequence", "other[:, t:] = (other[:, t:] + 1)", "other[0, t:] = (other[0, t:] + 1)")
each.wrong("argmax", r"largest logit", "(other)[:, :t], first[:, :t]", "(other)[:, :t].argmax(-1), first[:, :t].argmax(-1)")
each.wrong("allclose", r"small change|however little|bit for bit", "np.array_equal(", "np.allclose(")
each.wrong("rounded", r"a little", "model(other)[:, :t], first[:, :t]", "model(other)[:, :t].round(3), first[:, :t].round(3)")
each.wrong("an early return", r"no change|as soon as",
    "if not np.array_equal(model(other)[:, :t], first[:, :t]):\n            return True\n    return False",
    "if np.array_equal(model(other)[:, :t], first[:, :t]):\n            return False\n    return True")
each.wrong("an else that returns", r"only t = 1",
    "            return True\n    return False", "            return True\n        else:\n            return False")
each.wrong("the mean changes", r"at the last token", "not np.array_equal(model(other)[:, :t], first[:, :t])", "model(other)[:, :t].mean() > first[:, :t].mean()")
each.wrong("later tokens in reverse order", r"every token is|reverse|look", "(other[:, t:] + 1) % vocabulary", "other[:, t:][:, ::-1]")
each.wrong("starts at 2", r"only the first|every t", "range(1, T)", "range(2, T)")
each.wrong("one token changes, and only its neighbour is compared", r"next but one", "other[:, t:] = (other[:, t:] + 1)", "other[:, t] = (other[:, t] + 1)", "(other)[:, :t], first[:, :t]", "(other)[:, t - 1], first[:, t - 1]")
each.wrong("only the first position", r"only t = 1", "range(1, T)", "range(1, 2)")
each.wrong("nothing changes", r"returns False", "other[:, t:] = (other[:, t:] + 1) % vocabulary", "other[:, t:]")
each.wrong("no result without a leak", r"True or False, not None", "    return False", "    pass")
each.wrong("the last class only", r"single class", "(other)[:, :t], first[:, :t]", "(other)[:, :t, -1], first[:, :t, -1]")
