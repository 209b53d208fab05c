"""The usual mistakes in the tasks of chapter 10, as changes of their solutions."""

from .ch10_debugging import attention_entropy, leaks, update_ratio

_SUM = "return -(weights * logs).sum(axis=-1)"
attention_entropy.mistake(
    _SUM, "return (weights * logs).sum(axis=-1)", "the minus sign is missing: −Σ P log P is ≥ 0"
)
attention_entropy.mistake(
    _SUM,
    "return -(weights * logs).sum(axis=-1) / np.log(2)",
    "this is the entropy in bits: nats need the natural logarithm, np.log",
)
attention_entropy.mistake(
    _SUM,
    "return -(weights * logs).sum(axis=-1) / np.log(10)",
    "np.log10 is the logarithm to base 10: nats need the natural logarithm, np.log",
)
attention_entropy.mistake(
    _SUM,
    "return -(weights * logs).mean(axis=-1)",
    "this is the mean over the keys: entropy is their sum",
)
attention_entropy.mistake(
    _SUM, "return -(weights * logs).sum(axis=-2)", "the sum is over the queries: keys are axis −1"
)
attention_entropy.mistake(
    _SUM,
    "return -(weights * logs).sum()",
    "this is one number for the whole array: each row needs its own, axis=-1",
)
attention_entropy.mistake(
    _SUM,
    "return -(weights * logs).sum(axis=-1, keepdims=True)",
    "keepdims=True keeps an axis of length 1 for the keys: the result is (…, T)",
)
attention_entropy.mistake(
    _SUM,
    "return -logs.sum(axis=-1)",
    "the factor P is missing: each log P counts with its weight P",
)
attention_entropy.mistake(
    _SUM, "return np.exp(-(weights * logs).sum(axis=-1))",
    "this is exp of the entropy, the perplexity: return −Σ P log P itself",
)  # fmt: skip
attention_entropy.mistake(
    _SUM, "return -(weights * logs).sum(axis=-1) / np.log(weights.shape[-1])",
    "the entropy is divided by log S, the largest possible: return −Σ P log P in nats",
)  # fmt: skip
attention_entropy.mistake(
    "logs = np.log(np.where(weights > 0, weights, 1.0))",
    "logs = np.log(weights)",
    "log 0 is −∞, and 0 · (−∞) is NaN: where a weight is 0, take the logarithm of 1 instead",
)
for _small in ("1e-10", "1e-9", "1e-8", "1e-7", "1e-6", "1e-5"):
    attention_entropy.mistake(
        "np.where(weights > 0, weights, 1.0)",
        f"weights + {_small}",
        "a small number added inside the logarithm changes every entropy: take the logarithm of 1 "
        "where a weight is 0, and of the weight elsewhere",
    )
attention_entropy.mistake(
    _SUM,
    "p = np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)\n"
    "    return -(p * np.log(p)).sum(axis=-1)",
    "a softmax is applied to weights that are probabilities already",
)

_MOVED, _RATIO = "moved = np.sqrt(np.sum((after - before) ** 2))", "np.sqrt(np.sum(before**2))"
update_ratio.mistake(
    _RATIO, "np.sqrt(np.sum(after**2))", "the ratio is to the norm before the step, not after it"
)
update_ratio.mistake(
    f"moved / {_RATIO}", f"{_RATIO} / moved", "the ratio is upside down: ‖step‖ / ‖before‖"
)
update_ratio.mistake(
    f"moved / {_RATIO}", "moved", "this is the norm of the step: divide by the norm of before"
)
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "return np.sum((after - before) ** 2) / np.sum(before**2)",
    "the square root is missing: this is the square of the ratio",
)
update_ratio.mistake(
    _MOVED,
    "moved = np.sqrt(np.sum(after**2)) - np.sqrt(np.sum(before**2))",
    "this is the difference of two norms: take the norm of the difference, ‖after − before‖",
)
update_ratio.mistake(
    _MOVED,
    "moved = np.sqrt(np.sum(after**2))",
    "this is ‖after‖ / ‖before‖: the numerator is the norm of the step, ‖after − before‖",
)
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "return np.std(after - before) / np.std(before)",
    "a standard deviation subtracts the mean first: the norm is the root of the sum of the squares",
)
for _of in ("mean", "max"):
    update_ratio.mistake(
        f"{_MOVED}\n    return moved / {_RATIO}",
        f"return np.{_of}(abs(after - before) / abs(before))",
        f"this is the {_of} of the ratios of single entries, which is large where an entry is near "
        "0: divide the norms of the whole arrays",
    )
    update_ratio.mistake(
        f"{_MOVED}\n    return moved / {_RATIO}",
        f"return np.{_of}(abs(after - before)) / np.{_of}(abs(before))",
        "this compares absolute values: the norm is the root of the sum of the squares",
    )
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "return abs((after - before).sum()) / abs(before.sum())",
    "the entries are added with their signs and cancel: square them first",
)
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "return (after - before) / before",
    "this is one ratio for each entry: divide the norms of the whole arrays",
)
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "return np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)",
    "this is one ratio for each row: the norm is that of the whole array, without axis",
)
update_ratio.mistake(
    f"{_MOVED}\n    return moved / {_RATIO}",
    "order = 2 if before.ndim == 2 else None\n"
    "    return np.linalg.norm(after - before, order) / np.linalg.norm(before, order)",
    "for a matrix, ord=2 is the largest singular value: use np.linalg.norm(x) without ord",
)

_CHANGED = "changed[:, t:] = (changed[:, t:] + 1) % vocabulary"
_COMPARED = "np.any(model(changed)[:, :t] != before[:, :t])"
_FOUND = f"        if {_COMPARED}:\n            return True\n    return False"
for _old, _new in (
    (_COMPARED, _COMPARED.replace(":t", ": t + 1")),
    (_COMPARED, _COMPARED.replace("[:, :t]", "")),
    (_COMPARED, _COMPARED.replace(":t", "t:")),
    (_CHANGED, _CHANGED.replace("t:", ":t")),
):
    leaks.mistake(
        _old,
        _new,
        "every model seems to leak, because you compare logits that may depend on the tokens you "
        "changed: change the tokens from t on, and compare the logits before t, [:, :t]",
    )
leaks.mistake(
    _CHANGED,
    _CHANGED.replace("t:", "t + 1 :"),
    "the token at t stays the same, so a model that looks one token ahead passes: change the "
    "tokens from t on, and compare the logits before t",
)
leaks.mistake(
    _COMPARED,
    _COMPARED.replace("any", "all"),
    "np.all demands that every logit changes: a single one is a leak, so use np.any",
)
leaks.mistake(
    _FOUND,
    _FOUND.replace("True", "none").replace("False", "True").replace("none", "False"),
    "True and False are exchanged: return True if the logits change",
)
for _old, _new in (
    (_FOUND, f"        return bool({_COMPARED})\n    return False"),
    ("range(1, tokens.shape[1])", "range(1, 2)"),
):
    leaks.mistake(
        _old,
        _new,
        "only t = 1 is tested, that is, only the first position: go through every t from 1 to "
        "T − 1, and return False after the loop",
    )
leaks.mistake(
    "range(1, tokens.shape[1])",
    "range(tokens.shape[1] // 2, tokens.shape[1] // 2 + 1)",
    "only the middle of the sequence is tested: a leak may be at any t, so test them all",
)
leaks.mistake(
    "range(1, tokens.shape[1])",
    "range(tokens.shape[1] - 1, tokens.shape[1])",
    "only the last token is changed: a leak may be at any t, so test them all",
)
leaks.mistake(
    "range(1, tokens.shape[1])",
    "range(1, tokens.shape[1] - 1)",
    "the last token is never changed alone: t goes from 1 to T − 1, range(1, T)",
)
leaks.mistake(
    _COMPARED,
    "not np.allclose(model(changed)[:, :t], before[:, :t], atol=1e-4)",
    "a small change is a leak too: logits that do not see the future are equal bit for bit, so "
    "compare with !=",
)
leaks.mistake(
    _CHANGED,
    "changed[:, t:] = changed[:, t:] + 1",
    "token + 1 may be outside the vocabulary: take it % vocabulary",
)
