"""The usual mistakes in the tasks of chapter 11, as changes of their solutions."""

from .ch11_speed import (
    online_softmax,
    tiled_backward,
    tiled_forward,
)

_EXP = "e = np.exp(scores - safe[:, None])"
_UPDATE = "return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value"
for _new in (
    "return new, l + e.sum(axis=-1), acc + e @ value",
    "return new, l * factor + e.sum(axis=-1), acc + e @ value",
    "return new, l + e.sum(axis=-1), acc * factor[:, None] + e @ value",
):
    online_softmax.mistake(
        _UPDATE,
        _new,
        "the old sums are not rescaled: l and acc are relative to the old maximum m, so multiply "
        "both by e^(m − new)",
    )
online_softmax.mistake(
    "np.exp(m - safe)",
    "np.exp(safe - m)",
    "the factor is e^(new − m); to turn e^(x − m) into e^(x − new), multiply by e^(m − new)",
)
online_softmax.mistake(
    "np.maximum(m, scores.max(axis=-1))",
    "scores.max(axis=-1)",
    "the new maximum is that of the block alone: take the larger of m and the largest score of the "
    "block",
)
online_softmax.mistake(
    _EXP,
    "e = np.exp(scores - m[:, None])",
    "the block is relative to the old maximum m: subtract the new one from its scores",
)
online_softmax.mistake(
    _EXP,
    "e = np.exp(scores - scores.max(axis=-1, keepdims=True))",
    "the block is relative to its own largest score: subtract the new maximum of the row",
)
online_softmax.mistake(
    "safe[:, None])",
    "safe.max())",
    "the maximum of all rows is subtracted: each row has its own, safe[:, None]",
)
online_softmax.mistake(
    "return new,",
    "return m,",
    "the old maximum m is returned; l and acc are relative to the new one",
)
online_softmax.mistake(
    "acc * factor[:, None] + e @ value",
    "(acc * factor[:, None] + e @ value) / (l * factor + e.sum(axis=-1))[:, None]",
    "acc is divided by l in each block: keep the plain sum, and divide once after the last block",
)
online_softmax.mistake(
    "np.where(new == -np.inf, 0, new)",
    "new",
    "where no key was visible yet, m − new is −∞ − (−∞), which is NaN: subtract 0 there",
)
online_softmax.mistake(
    f"""factor = np.exp(m - safe)
    {_EXP}
    {_UPDATE}""",
    """e = np.exp(scores)
    return new, l + e.sum(axis=-1), acc + e @ value""",
    "no maximum is subtracted before exp, so large scores overflow: subtract the new one",
)
_ALONG = (
    "the maximum or the sum runs along the queries; each row has its own, along the keys: axis=-1"
)
for _new, _text in (
    ("return new, e.sum(axis=-1), e @ value",
     "the old sums are forgotten: l and acc are sums over all blocks so far"),
    ("return new, l * factor + e.sum(axis=-1), e @ value",
     "the old acc is forgotten: l and acc are sums over all blocks so far"),
    ("return new, (l + e.sum(axis=-1)) * factor, (acc + e @ value) * factor[:, None]",
     "the new block is multiplied by e^(m − new) as well; it is relative to new already"),
    ("return new, l * factor + e.sum(axis=-1), acc * (l * factor)[:, None] + e @ value",
     "acc is multiplied by l; it is a plain sum, so e^(m − new) is its only factor"),
    ("return new, l * factor + e.mean(axis=-1), acc * factor[:, None] + e @ value",
     "l gets the mean of e; it is the sum"),
    ("return new, l * factor + e.sum(), acc * factor[:, None] + e @ value",
     "l gets the sum over all rows; each row has its own, axis=-1"),
    ("return new, l * factor + e.sum(axis=0), acc * factor[:, None] + e @ value",
     _ALONG),
    ("return new, l * factor + 1, acc * factor[:, None] + e / e.sum(-1)[:, None] @ value",
     "e is normalised in each block: keep plain sums, and divide once after the last block"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + scores @ value",
     "acc gets scores @ value; it is the sum of e^(score − new) times the value, e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + value.sum(axis=0)",
     "acc gets the plain sum of the values; each is weighted by e^(score − new), e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e.T @ value",
     "e is transposed: it is (T, N) and value (N, Dv), so e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor + e @ value",
     "factor is (T,) and acc is (T, Dv): make it a column, factor[:, None]"),
    ("return safe, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value",
     "m of a row that saw nothing is 0; it stays −∞, so return the maximum itself"),
    ("return l * factor + e.sum(axis=-1), new, acc * factor[:, None] + e @ value",
     "the results are in the wrong order: m, l, acc"),
    ("return new, np.log(l * factor + e.sum(axis=-1)), acc * factor[:, None] + e @ value",
     "the logarithm of l is returned; l is the sum itself"),
):  # fmt: skip
    online_softmax.mistake(_UPDATE, _new, _text)
for _new, _text in (
    ("m", "the maximum is not updated: it is the larger of m and the largest score of the block"),
    ("np.maximum(m, scores.max())",
     "the maximum is taken over all rows; each has its own, axis=-1"),
    ("np.maximum(m, scores.max(axis=0))",
     _ALONG),
    ("np.maximum(m.max(), scores.max(axis=-1))",
     "the maximum is taken over all rows; each has its own, m"),
    ("m + scores.max(axis=-1)",
     "the maxima are added: new is the larger of the two, np.maximum"),
):  # fmt: skip
    online_softmax.mistake("np.maximum(m, scores.max(axis=-1))", _new, _text)
for _new in ("np.exp(m - scores.max(axis=-1))", "np.exp(-safe)"):
    online_softmax.mistake(
        "np.exp(m - safe)",
        _new,
        "the factor of the old sums is e^(m − new): it turns e^(x − m) into e^(x − new)",
    )

_TILE = "scores = np.where(visible, scores, -np.inf)"

tiled_forward.mistake(
    "acc / total[:, None]",
    "acc",
    "out is not divided by l: after the last tile of keys, out = acc / l",
)
for _new, _what in (
    ("m", "ln l is missing"),
    ("np.log(total)", "m is missing"),
    ("total", "this is l"),
    ("m + total", "l is added in place of ln l"),
):
    tiled_forward.mistake(
        "m + np.log(total)",
        _new,
        f"{_what}: lse = m + ln l, the logarithm of Σ e^score, because l is Σ e^(score − m)",
    )
tiled_forward.mistake(
    "scale * query[rows] @ key[keys].T",
    "query[rows] @ key[keys].T",
    "the factor scale is missing: scores = scale · Q Kᵀ",
)
tiled_forward.mistake(
    "scale * query[rows] @ key[keys].T",
    "query[rows] @ key[keys].T / query.shape[-1] ** 0.5",
    "the scores are divided by √D; here scale is an argument: multiply by it",
)
tiled_forward.mistake(
    "        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n"
    "        for j in range(0, len(key), block):\n",
    "        for j in range(0, len(key), block):\n"
    "            m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n",
    "m, l and acc start anew for each tile of keys: start them once for each tile of queries, "
    "before the inner loop",
)
tiled_forward.mistake(
    _TILE, "pass", "nothing is hidden: put −∞ into the scores where first[i] ≤ j ≤ last[i] is False"
)
tiled_forward.mistake(
    _TILE,
    _TILE.replace("-np.inf", "0.0"),
    "hidden scores become 0, and e⁰ = 1 is a weight like any other: put −∞ there",
)
for _old, _name in (
    ("(first[rows, None] <= keys) & ", "first"),
    (" & (keys <= last[rows, None])", "last"),
):
    tiled_forward.mistake(
        _old, "", f"{_name} is ignored: query i sees only the keys with first[i] ≤ j ≤ last[i]"
    )
for _new, _text in (
    ("scores = np.where(visible, -np.inf, scores)",
     "the visible scores are hidden and the others kept: put −∞ where visible is False"),
    ("scores = np.where(visible, scores, -1e9)",
     "a large negative number is not −∞: a query that sees nothing gets an output"),
    ("scores = np.where(visible, scores, -1e30)",
     "a large negative number is not −∞: a query that sees nothing gets an output"),
):  # fmt: skip
    tiled_forward.mistake(_TILE, _new, _text)
for _new, _what in (
    ("query[rows] @ key[keys].T / scale", "divided by scale; multiply by it"),
    ("scale**2 * query[rows] @ key[keys].T", "multiplied by scale twice; once is enough"),
    ("scale * query[rows] @ key[keys].T / query.shape[-1] ** 0.5",
     "divided by √D as well; scale is the only factor"),
):  # fmt: skip
    tiled_forward.mistake(
        "scale * query[rows] @ key[keys].T", _new, f"the scores are {_what}: scale · Q Kᵀ"
    )
for _new, _text in (
    ("(first[rows, None] <= keys) | (keys <= last[rows, None])",
     "the two conditions are joined by or; both must hold: first[i] ≤ j and j ≤ last[i]"),
    ("(first[:n, None] <= keys) & (keys <= last[:n, None])",
     "first and last are those of the first queries: take those of the tile, first[rows]"),
    ("keys <= np.arange(i, i + n)[:, None]",
     "this is causal: which keys a query sees is given by first and last"),
):  # fmt: skip
    tiled_forward.mistake("(first[rows, None] <= keys) & (keys <= last[rows, None])", _new, _text)
for _new, _text in (
    (
        "if not visible.all()",
        "tiles are skipped unless all pairs are visible: skip only those without any",
    ),
):
    tiled_forward.mistake("if not visible.any()", _new, _text)
tiled_forward.mistake(
    "continue",
    "break",
    "break leaves the loop at the first tile without a visible pair; later tiles may have one, so "
    "continue",
)
for _new in ("value[keys - j]", "value[: len(keys)]", "value[rows]", "value[keys[::-1]]"):
    tiled_forward.mistake(
        "value[keys]", _new, "these are not the values of this tile's keys: value[keys]"
    )
for _old in ("range(0, len(key), block)", "range(0, len(query), block)"):
    for _new in ("range(0, {} // block * block, block)", "range(0, {} - block + 1, block)"):
        tiled_forward.mistake(
            _old,
            _new.format(_old[9:-8]),
            "the last tile is left out if it is smaller than block: range(0, n, block) includes it",
        )
tiled_forward.mistake(
    "for j in range(0, len(key), block)",
    "for j in range(0, len(query), block)",
    "the loop over keys runs to T; there are S keys",
)
for _new, _text in (
    ("m * np.log(total)", "m · ln l"),
    ("m - np.log(total)", "m − ln l"),
    ("m + np.log2(total)", "m + log₂ l"),
    ("m + np.log10(total)", "m + log₁₀ l"),
    ("np.exp(m) * total", "Σ e^score, without the logarithm"),
    ("m / total", "m / l"),
):
    tiled_forward.mistake(
        "m + np.log(total)", _new, f"this is {_text}: lse = m + ln l, because l is Σ e^(score − m)"
    )
for _new in ("np.where(l > 0, m + np.log(total), 0)", "np.log(total) + np.where(l > 0, m, 0)"):
    tiled_forward.mistake(
        "m + np.log(total)", _new, "lse of a query that sees nothing is −∞, the logarithm of 0"
    )
for _new, _text in (
    ("_, l, acc", "m is not updated: l and acc are relative to the new m"),
    ("m, _, acc", "l is not updated: it is a sum over all tiles of keys"),
    ("m, l, _", "acc is not updated: it is a sum over all tiles of keys"),
):
    tiled_forward.mistake("            m, l, acc = online", f"            {_new} = online", _text)
tiled_forward.mistake(
    "acc / total[:, None]",
    "acc / total",
    "l is (n,) and acc is (n, Dv): make it a column, l[:, None]",
)
tiled_forward.mistake("return out, lse", "return lse, out", "the order is out, lse")
tiled_forward.mistake("return out, lse", "return out", "lse is missing: return out, lse")
tiled_forward.mistake(
    "keys <= last[rows, None]",
    "keys < last[rows, None]",
    "the key at last[i] is hidden: query i sees first[i] ≤ j ≤ last[i], with both ends",
)
tiled_forward.mistake(
    "(first[rows, None] <= keys)",
    "(first[rows, None] < keys)",
    "the key at first[i] is hidden: query i sees first[i] ≤ j ≤ last[i], with both ends",
)
tiled_forward.mistake(
    "(first[rows, None] <= keys) & (keys <= last[rows, None])",
    "(first[rows, None] <= keys - j) & (keys - j <= last[rows, None])",
    "the keys are counted from the start of the tile: first and last are positions among all keys, "
    "so add j",
)
tiled_forward.mistake(
    "np.where(l > 0, l, 1)",
    "l",
    "a query that sees nothing has l = 0, and 0 / 0 is NaN: divide by 1 there",
)

_DSCORES = "weights * (dweights - delta[rows, None])"
tiled_backward.mistake(
    _DSCORES,
    "weights * dweights",
    "delta is missing: dscores = weights · (dweights − delta), with delta = Σ dout · out for each "
    "row",
)
tiled_backward.mistake(
    _DSCORES,
    "dweights - delta[rows, None]",
    "the factor weights is missing: dscores = weights · (dweights − delta)",
)
tiled_backward.mistake(
    _DSCORES,
    "weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))",
    "the sum Σ weights · dweights runs over the keys of one tile; it belongs to the whole row, "
    "where it equals delta = Σ dout · out",
)
tiled_backward.mistake(
    "(dout * out).sum(axis=-1)",
    "(dout * out).mean(axis=-1)",
    "delta is a mean over the columns; it is the sum Σ dout · out in each row",
)
_ROW = "delta or lse is a row here, so it applies to keys: make it a column, as in lse[rows, None]"
for _old in ("delta[rows, None]", "lse[rows, None]"):
    tiled_backward.mistake(_old, _old.replace(", None", ""), _ROW)
_PRODUCTS = (
    "a product has the wrong arrays or a wrong transpose: dweights = dout Vᵀ, dvalue = weightsᵀ "
    "dout, dquery = scale · dscores K, dkey = scale · dscoresᵀ Q"
)
for _new, _text in (
    ("weights * (dweights + delta[rows, None])", "delta is added; it is subtracted"),
    ("weights * (delta[rows, None] - dweights)", "the sign is flipped"),
    ("weights * (dweights - weights * delta[rows, None])",
     "delta is multiplied by the weights twice"),
    ("weights * dweights - delta[rows, None]", "delta is not multiplied by the weights"),
    ("weights * (1 - weights) * dweights", "this is only the diagonal of the Jacobian"),
    ("weights * (dweights - dweights.mean(axis=-1, keepdims=True))",
     "the plain mean of dweights is subtracted instead of delta"),
    ("weights * (dweights - dweights.sum(axis=-1, keepdims=True))",
     "the plain sum of dweights is subtracted instead of delta"),
    ("weights * (dweights - delta[: len(weights), None])",
     "delta is that of the first queries, not of this tile, delta[rows]"),
    ("weights * (dweights - lse[rows, None])", "lse is subtracted instead of delta"),
    ("weights * (dweights - np.resize(delta, dweights.shape[1]))",
     _ROW),
    ("scale * weights * (dweights - delta[rows, None])",
     "dscores contains the scale already; it is the gradient of the scaled scores, so the scale "
     "comes after it, once, in dquery and dkey"),
):  # fmt: skip
    tiled_backward.mistake(_DSCORES, _new, f"{_text}: dscores = weights · (dweights − delta)")
tiled_backward.mistake(
    """weights * (dweights - delta[rows, None]))
            dquery[rows] += scale * dscores @ key[keys]
            dkey[keys] += scale * dscores.T""",
    """scale * weights * (dweights - delta[rows, None]))
            dquery[rows] += dscores @ key[keys]
            dkey[keys] += dscores.T""",
    "dscores contains the scale already; it is the gradient of the scaled scores, so the scale "
    "comes after it, in dquery and dkey",
)
for _new in (
    "(dout * dout).sum(axis=-1)", "(out * out).sum(axis=-1)", "dout.sum(axis=-1)",
    "out.sum(axis=-1)", "(dout * query[:, : dout.shape[1]]).sum(axis=-1)", "(dout + out).sum(-1)",
    "np.full(len(out), (dout * out).sum())", "np.resize((dout * out).sum(axis=0), len(out))",
):  # fmt: skip
    tiled_backward.mistake(
        "(dout * out).sum(axis=-1)", _new, "delta is the sum Σ dout · out of each row, over Dv"
    )
for _new, _text in (
    ("scores / lse[rows, None]", "the scores are divided by lse"),
    ("lse[rows, None] - scores", "the sign is flipped"),
    ("scores + lse[rows, None]", "lse is added"),
    ("scores - np.exp(lse[rows, None])", "lse is a logarithm already"),
    ("scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))",
     "softmax is computed anew in each tile; its sum belongs to the whole row, and lse holds it"),
    ("np.log(np.exp(scores) / lse[rows, None])", "e^scores is divided by lse, the logarithm"),
):  # fmt: skip
    tiled_backward.mistake("scores - lse[rows, None]", _new, f"{_text}: weights = e^(scores − lse)")
tiled_backward.mistake(
    "np.where(visible, scores - lse[rows, None], -np.inf)",
    "np.where(visible, scores - lse[rows, None], 0.0)",
    "hidden entries become 0 before exp, and e⁰ = 1 is a weight: put −∞ there",
)
for _new, _text in (
    ("(first[rows, None] <= keys) & (keys < last[rows, None])", "the key at last[i] is hidden"),
    ("(first[rows, None] < keys) & (keys <= last[rows, None])", "the key at first[i] is hidden"),
    ("keys <= last[rows, None]", "first is ignored"),
    ("first[rows, None] <= keys", "last is ignored"),
    ("(first[rows, None] <= keys - j) & (keys - j <= last[rows, None])",
     "the keys are counted from the start of the tile; j is the position among all keys"),
    ("(first[rows, None] <= keys) | (keys <= last[rows, None])", "the conditions are joined by or"),
):  # fmt: skip
    tiled_backward.mistake(
        "(first[rows, None] <= keys) & (keys <= last[rows, None])",
        _new,
        f"{_text}: query i sees first[i] ≤ j ≤ last[i], with both ends",
    )
_LOOPS = """    for i in range(0, len(query), block):
        rows = slice(i, i + block)
        for j in range(0, len(key), block):
            keys = np.arange(j, min(j + block, len(key)))
"""
_EXCHANGED = """    for j in range(0, len(key), block):
        keys = np.arange(j, min(j + block, len(key)))
        for i in range(0, len(query), block):
            rows = slice(i, i + block)
"""
_SKIPPED = """            visible = (first[rows, None] <= keys) & (keys <= last[rows, None])
            if not visible.any():
                continue
"""
for _order in (_LOOPS, _EXCHANGED):
    tiled_backward.mistake(
        _LOOPS + _SKIPPED,
        _order + _SKIPPED.replace("continue", "break"),
        "break leaves the loop at the first tile without a visible pair; later tiles may have one, "
        "so continue",
    )
for _old in ("range(0, len(key), block)", "range(0, len(query), block)"):
    for _new in ("range(0, {} // block * block, block)", "range(0, {} - block + 1, block)"):
        tiled_backward.mistake(
            _old,
            _new.format(_old[9:-8]),
            "the last tile is left out if it is smaller than block: range(0, n, block) includes it",
        )
tiled_backward.mistake(
    "if not visible.any()",
    "if not visible.all()",
    "tiles are skipped unless all pairs are visible: skip only those without any",
)
for _new in ("dout[rows] @ value[keys]", "dout[rows].T @ value[keys]", "out[rows] @ value[keys].T",
             "dout[rows] @ key[keys].T", "query[rows] @ value[keys].T"):  # fmt: skip
    tiled_backward.mistake("dout[rows] @ value[keys].T", _new, _PRODUCTS)
for _old, _news in (
    ("dscores @ key[keys]", ("dscores.T @ key[keys]", "dscores @ query[rows]")),
    ("dscores.T @ query[rows]", ("dscores @ query[rows]", "dscores.T @ key[keys]")),
    ("weights.T @ dout[rows]", ("weights @ dout[rows]",)),
):
    for _new in _news:
        tiled_backward.mistake(
            _old,
            _new,
            _PRODUCTS,
        )
tiled_backward.mistake(
    "weights.T @ dout[rows]",
    "scale * weights.T @ dout[rows]",
    "dvalue has the factor scale; out = weights V has none",
)
for _name in ("dquery[rows]", "dkey[keys]", "dvalue[keys]"):
    tiled_backward.mistake(
        f"{_name} +=", f"{_name} -=", f"{_name[:-6]} has the wrong sign: add up with +="
    )
for _order in ("dkey, dquery, dvalue", "dvalue, dkey, dquery", "dquery, dvalue, dkey"):
    tiled_backward.mistake(
        "return dquery, dkey, dvalue",
        f"return {_order}",
        "the gradients are in the wrong order: dquery, dkey, dvalue",
    )
tiled_backward.mistake(
    "scores - lse[rows, None]",
    "scores",
    "the weights are not normalised: they are e^(scores − lse)",
)
tiled_backward.mistake(
    "scores = scale * query[rows] @ key[keys].T",
    "scores = query[rows] @ key[keys].T",
    "the factor scale is missing in the scores: scale · Q Kᵀ, as in the forward",
)
_ADDED = """dquery[rows] += scale * dscores @ key[keys]
            dkey[keys] += scale * dscores.T @ query[rows]
            dvalue[keys] += weights.T @ dout[rows]"""
_BOTH = _ADDED[_ADDED.index("dkey") :]
for _old in ("dquery[rows] +=", "dkey[keys] +=", "dvalue[keys] +=", _BOTH, _ADDED):
    tiled_backward.mistake(
        _old,
        _old.replace("+=", "="),
        "a gradient is overwritten in each tile (=): a query is in many tiles of keys and a key in "
        "many tiles of queries, so add them up (+=)",
    )
for _old in ("scale * dscores @", "scale * dscores.T @", _ADDED):
    tiled_backward.mistake(
        _old,
        _old.replace("scale * ", ""),
        "the factor scale is missing: the scores are scale · Q Kᵀ, so dquery = scale · dscores K "
        "and dkey = scale · dscoresᵀ Q",
    )
tiled_backward.mistake(
    "weights.T @ dout[rows]",
    "dscores.T @ dout[rows]",
    "dvalue is computed from the weights: dvalue = weightsᵀ dout",
)
tiled_backward.mistake(
    "np.exp(np.where(visible, scores - lse[rows, None], -np.inf))",
    "np.exp(scores - lse[rows, None])",
    "hidden keys get a weight: put −∞ where first[i] ≤ j ≤ last[i] is False, before exp",
)
tiled_backward.mistake(
    "np.exp(np.where(visible, scores - lse[rows, None], -np.inf))",
    "np.exp(scores - lse[rows, None]) * visible",
    "hidden weights are removed after exp: where lse is −∞, that is ∞ · 0 = NaN. Put −∞ there "
    "before exp",
)
