"""The usual mistakes in the tasks of chapter 06, as changes of their solutions."""

from .ch06_masks import (
    causal,
    documents,
    masked_softmax,
    padding,
)

_RULE = "j <= i + offset"
causal.mistake(
    _RULE,
    "j >= i + offset",
    "the mask is transposed: rows are queries i, columns are keys j, and query i sees itself and "
    "what came before, j ≤ i + offset (np.tril, not np.triu)",
)
causal.mistake(
    _RULE,
    "j > i + offset",
    "the mask is inverted: True = may attend, so True means that query i sees key j",
)
causal.mistake(
    _RULE,
    "j < i + offset",
    "< hides the query's own position: query i sees key j = i + offset as well, so use ≤",
)
causal.mistake(
    _RULE,
    "j <= i + offset + 1",
    "query i sees one key too many, the next one: the last key it may see is j = i + offset",
)
causal.mistake(_RULE, "j <= i - offset", "offset has the wrong sign: query i sees j ≤ i + offset")
causal.mistake(_RULE, "j <= i", "offset is not used: query i sees j ≤ i + offset")
causal.mistake(
    _RULE,
    "j <= i + offset + s - t",
    "the last query is aligned with the last key. Only the offset determines where query 0 is: it "
    "sees j ≤ offset",
)
causal.mistake(
    "np.arange(s)",
    "np.arange(t)",
    "the mask is (T, T): its columns are the S keys, np.arange(s)",
)
for _new in (
    "abs(i - j) <= offset", "(j <= i) & (j >= i - offset)", "j == i + offset",
    "(j <= i + offset) & (j >= i)", "(j <= i + offset) & (j >= offset)",
    "(j >= i) & (j < i + offset)", "(i <= j) & (i >= j - offset)",
):  # fmt: skip
    causal.mistake(
        _RULE,
        _new,
        "earlier keys are hidden: query i sees every key from 0 to i + offset, so the only rule is "
        "j ≤ i + offset",
    )
for _new in (
    "j <= i + abs(offset)", "j <= i + max(offset, 0)", "j <= np.maximum(i + offset, 0)",
    "j < np.arange(s + 1)[i + offset + 1]",
):  # fmt: skip
    causal.mistake(
        _RULE,
        _new,
        "a negative offset is not handled: j ≤ i + offset holds for it as well, and the first "
        "queries then see nothing",
    )
# a slice m[i, : i + offset + 1] counts a negative end from the back
causal.mistake(
    _RULE,
    "np.array([np.arange(s) < slice(k + offset + 1).indices(s)[1] for k in range(t)])",
    "in m[i, : i + offset + 1], a negative end counts from the back: no key is visible there",
)
for _new in (
    "(j <= i) | (j < offset)", "(j <= i) | (j <= offset)", "j <= i * max(offset, 1)",
    "j <= np.where(i == 0, offset, i)", "j <= i + offset - (offset > 0)",
):  # fmt: skip
    causal.mistake(
        _RULE,
        _new,
        "the offset moves every query: query i sees j ≤ i + offset, so each row has one key more "
        "than the row before",
    )
for _new in ("i + j <= t - 1 + offset", "i + j <= offset", "i + j >= t - 1 - offset"):
    causal.mistake(
        _RULE,
        _new,
        "the triangle is mirrored (i + j in place of j − i): query i sees j ≤ i + offset",
    )
causal.mistake(
    "i = np.arange(t)[:, None]\n    j = np.arange(s)[None, :]",
    "i = np.arange(t)\n    j = np.arange(s)",
    "positions of queries and of keys are both rows: make the queries a column, "
    "np.arange(t)[:, None]",
)
for _new in ("(j <= i + offset).T", "np.arange(t)[None, :] <= np.arange(s)[:, None] + offset"):
    causal.mistake(
        _RULE,
        _new,
        "the mask is transposed: rows are queries i, columns are keys j",
    )
for _new in ("np.where(j <= i + offset, 0.0, -np.inf)",):
    causal.mistake(_RULE, _new, "these are 0 and −∞; the mask is boolean, True = may attend")

_VALID = "valid = np.arange(s) < lengths[:, None]"
padding.mistake(
    _VALID,
    _VALID.replace("<", "<="),
    "one key too many: the first lengths[b] keys are j = 0 to lengths[b] − 1, so use <",
)
padding.mistake(
    "lengths[:, None]",
    "lengths[:, None] - 1",
    "one key too few: the first lengths[b] keys are j = 0 to lengths[b] − 1",
)
padding.mistake(
    "lengths[:, None]",
    "lengths",
    "positions (S,) and lengths (B,) are both rows: make the lengths a column, lengths[:, None]",
)
padding.mistake(
    _VALID,
    _VALID.replace("<", ">="),
    "the mask is inverted: True = may attend, so True marks the real keys",
)
padding.mistake(
    _VALID,
    "valid = np.arange(s) >= s - lengths[:, None]",
    "the last lengths[b] keys are visible; sequences start at key 0 and are padded at the end",
)
padding.mistake(
    _VALID,
    "valid = np.arange(s) < np.maximum(lengths, 1)[:, None]",
    "one key of an empty sequence is visible: where lengths[b] is 0, every key is hidden",
)
_SHAPED = "valid[:, None, None, :]"
for _new, _text in (
    (
        "valid[:, None, :, None]",
        "the axis of length S stands for the queries, so queries are hidden",
    ),
    ("valid", "(B, S) broadcasts to scores (B, H, T, S) as (T, S)"),
    ("valid[:, None, :]", "(B, 1, S) broadcasts to scores (B, H, T, S) as (H, T, S)"),
    ("valid[:, None, :, None] & valid[:, None, None, :]", "padded queries are hidden as well"),
    ("valid[None, None, :, :]", "the sequences are where the queries should be"),
):
    padding.mistake(
        _SHAPED,
        _new,
        f"{_text}: the mask is (B, 1, 1, S), with axes of length 1 for heads and queries",
    )
for _new in ("lengths.max()", "lengths[:1, None]", "lengths.min()", "lengths.sum()"):
    padding.mistake(
        _VALID,
        f"valid = np.broadcast_to(np.arange(s) < {_new}, (len(lengths), s))",
        "every sequence gets the same keys: sequence b has lengths[b] of its own",
    )
padding.mistake(
    _VALID,
    "valid = np.arange(s) == lengths[:, None]",
    "one key of each sequence is marked, the one at lengths[b]: all keys j < lengths[b] are "
    "visible",
)
for _new in ("valid = np.ones((len(lengths), s), dtype=bool)", "valid = np.arange(s) < s"):
    padding.mistake(_VALID, _new, "no key is hidden: hide those with j ≥ lengths[b]")
padding.mistake(
    _VALID,
    "valid = np.arange(s) < np.minimum(lengths, s - 1)[:, None]",
    "the last key of a whole sequence is hidden: where lengths[b] is S, every key is visible",
)
for _new, _text in (
    ("np.broadcast_to(valid[:, None, None, :], (len(lengths), 1, s, s))", "queries have length S"),
    ("valid[:, None, None, :] & np.tri(s, dtype=bool)", "the mask is causal as well"),
    ("valid[None, :, None, :]", "the sequences are where the heads should be"),
    ("valid[:, :, None, None]", "the keys are where the heads should be"),
    ("valid[None, None]", "the sequences are where the queries should be"),
    ("valid.T[None, None]", "the keys are where the queries should be"),
    ("valid[..., None, None]", "the keys are where the heads should be"),
):
    padding.mistake(
        _SHAPED,
        _new,
        f"{_text}: the mask is (B, 1, 1, S), with axes of length 1 for heads and queries",
    )
for _new in ("np.where(valid, 0.0, -np.inf)",):
    padding.mistake(
        _SHAPED,
        _SHAPED.replace("valid", _new),
        "these are 0 and −∞; the mask is boolean, True = may attend",
    )
padding.mistake(
    f"{_VALID}\n    return {_SHAPED}",
    "return np.arange(s)[:, None] < lengths",
    "the mask is (S, B): compare a row of positions with a column of lengths, lengths[:, None]",
)

documents.mistake(
    "query == key",
    "query != key",
    "the mask is inverted: True = may attend, so True marks equal documents",
)
for _new in ("query >= key", "query <= key"):
    documents.mistake(
        "query == key",
        _new,
        "documents are compared by order, so a position sees other documents as well: use ==",
    )
documents.mistake(
    "query == key",
    "(query == key) & np.tri(ids.shape[1], dtype=bool)",
    "the mask is causal as well: within its document, a query sees later keys too",
)
for _new in ("(query == key)[:, 0]", "(query == key).swapaxes(0, 1)"):
    documents.mistake(
        "query == key",
        _new,
        "the axis of the heads is missing or in the wrong place: the mask is (B, 1, S, S)",
    )
for _new, _text in (
    ("(query == key) & (key > 0)", "document 0 is hidden; it is a document like any other"),
    ("(query == key) & (key != 0)", "document 0 is hidden; it is a document like any other"),
    ("query * key > 0", "a product says nothing about equality: compare with =="),
    ("abs(query - key) <= 1", "neighbouring documents see each other: compare with =="),
    ("(query == key) & ~np.eye(ids.shape[1], dtype=bool)", "a position does not see itself"),
    ("(query == key) & np.tri(ids.shape[1], k=-1, dtype=bool)",
     "only earlier positions are visible; a position sees itself and later ones too"),
    ("(query == key) & np.tri(ids.shape[1], dtype=bool).T",
     "only later positions are visible; a position sees earlier ones too"),
):  # fmt: skip
    documents.mistake("query == key", _new, f"{_text}: query i sees key j if ids are equal")
_RUN = "np.cumsum(np.diff(ids, axis=1, prepend=ids[:, :1]) != 0, axis=1)"
documents.mistake(
    "query = ids[:, None, :, None]\n    key = ids[:, None, None, :]",
    f"run = {_RUN}\n    query = run[:, None, :, None]\n    key = run[:, None, None, :]",
    "only neighbours are compared: a document may return later, and its parts see each other",
)
for _new in (
    "ids == ids.T", "ids[:, None] == ids.T[:, None]", "(ids == ids.T)[:, None]",
    "ids[:, None] == ids.T", "ids[:, :, None] == ids.T", "ids[:, :, None] == ids.T[:, None, :]",
):  # fmt: skip
    documents.mistake(
        "query == key",
        _new,
        "ids.T swaps sequences and positions, so different sequences are compared: use "
        "ids[:, :, None] == ids[:, None, :]",
    )
for _new in ("key == key", "ids == ids", "ids[:, None] == ids[:, None]"):
    documents.mistake(
        "query == key",
        _new,
        "each position is compared only with itself: make the queries a column, "
        "ids[:, None, :, None]",
    )
for _new in (
    "ids[:, 1:] == ids[:, :-1]", "(ids[:, 1:] == ids[:, :-1])[:, None, None]",
    "(ids[:, 1:] == ids[:, :-1])[:, None]",
):  # fmt: skip
    documents.mistake(
        "query == key",
        _new,
        "only neighbours are compared: compare every position with every other",
    )
for _new in (
    "(query == key).any(axis=0, keepdims=True)", "(query == key).all(axis=0, keepdims=True)",
    "(query == key).all(axis=0)", "ids[:, None, :, None] == ids[None, :, None, :]",
    "(query == key).any(axis=(0, 1))", "(query == key).all(axis=(0, 1))",
):  # fmt: skip
    documents.mistake(
        "query == key",
        _new,
        "the sequences are mixed: each has a mask of its own, so keep the axis B and compare "
        "within a sequence",
    )
for _new in ("(query == key)[:, 0, ..., None]", "(query == key)[:, 0, None].swapaxes(1, 2)"):
    documents.mistake(
        "query == key",
        _new,
        "the axis of the heads is in the wrong place: the mask is (B, 1, S, S)",
    )
for _new in ("np.where(query == key, 0.0, -np.inf)",):
    documents.mistake(
        "query == key", _new, "these are 0 and −∞; the mask is boolean, True = may attend"
    )
documents.mistake(
    "query == key",
    "(query == key)[:1].repeat(len(ids), axis=0)",
    "the mask of the first sequence is used for all: each sequence has documents of its own",
)
documents.mistake(
    "query == key",
    "(query == key).any(axis=0)",
    "all sequences share one mask, but each needs its own: keep the axis B",
)

_MASKED = "x = np.where(mask, x, -np.inf)"
_PEAK = "peak = x.real.max(axis=-1, keepdims=True)"
_DIVIDED = "y = e / np.where(total == 0, 1.0, total)"
_FORWARD = f"""{_MASKED}
    {_PEAK}
    e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
    total = e.sum(axis=-1, keepdims=True)
    {_DIVIDED}
"""
masked_softmax.mistake(
    _FORWARD,
    _FORWARD.replace(_MASKED, "x = x + 0")
    .replace("np.where(peak == -np.inf, 0.0, peak)", "peak")
    .replace(_DIVIDED, "y = np.where(mask, e / total, 0.0)"),
    "the mask is applied after softmax, so the rows no longer sum to 1: hide the entries before, "
    "with −∞ in x",
)
masked_softmax.mistake(_MASKED, "x = x + 0", "the mask has no effect: put −∞ where it is False")
for _new in ("np.where(mask, x, 0.0)", "x * mask"):
    masked_softmax.mistake(
        "np.where(mask, x, -np.inf)",
        _new,
        "hidden entries become 0, and e⁰ = 1 is a weight like any other: put −∞ there",
    )
_UNGUARDED = _FORWARD.replace("np.where(peak == -np.inf, 0.0, peak)", "peak").replace(
    "np.where(total == 0, 1.0, total)", "total"
)
for _new in (_FORWARD, _UNGUARDED):
    masked_softmax.mistake(
        _FORWARD,
        _new.replace("(mask, x, -np.inf)", "(mask, -np.inf, x)"),
        "the mask is inverted: True = may attend, so put −∞ where it is False",
    )
masked_softmax.mistake(
    "np.where(mask, x, -np.inf)",
    "x + (1 - mask) * -np.inf",
    "0 · ∞ is NaN, so every visible entry becomes NaN: choose with np.where(mask, x, -np.inf)",
)
masked_softmax.mistake(
    "np.where(mask, x, -np.inf)",
    "x + np.where(mask, 0.0, -np.inf)",
    "−∞ is added to the hidden entries, and NaN − ∞ is NaN: replace them instead, with "
    "np.where(mask, x, -np.inf)",
)
for _total in ("np.where(total == 0, 1.0, total)", "total"):
    masked_softmax.mistake(
        _FORWARD,
        _FORWARD.replace(f"{_MASKED}\n    {_PEAK}", f"{_PEAK}\n    {_MASKED}")
        .replace("np.where(peak == -np.inf, 0.0, peak)", "peak")
        .replace("np.where(total == 0, 1.0, total)", _total),
        "the maximum is taken over hidden entries too: if a hidden entry is much larger, every "
        "visible exp is 0. Hide first, then take the maximum",
    )
masked_softmax.mistake(
    _PEAK,
    "peak = x.real.max()",
    "the number subtracted is not the largest visible entry of each row but a larger one, such as "
    "x.max() of all rows or 0: in a row far below it, every exp is 0",
)
for _new in ("-10.0", "-100.0", "-1000.0", "np.inf", "x.real.min()", "np.nan"):
    masked_softmax.mistake(
        "np.where(mask, x, -np.inf)",
        f"np.where(mask, x, {_new})",
        "hidden entries get a number other than −∞, so they have a weight if the visible ones are "
        "as small: put −∞ there",
    )
for _eps in ("1e-6", "1e-8", "1e-9", "1e-10"):
    masked_softmax.mistake(
        "np.where(total == 0, 1.0, total)",
        f"(total + {_eps})",
        "a small number is added to the sum, so no row sums to exactly 1: divide by 1 only where "
        "the sum is 0",
    )
for _axis in ("0", "1", "-2", "-3"):
    masked_softmax.mistake(
        "e.sum(axis=-1, keepdims=True)",
        f"e.sum(axis={_axis}, keepdims=True)",
        "the sum runs along an axis other than the keys: each row sums to 1, axis=-1",
    )
for _axis in ("0", "1", "-3"):
    masked_softmax.mistake(
        _FORWARD,
        _FORWARD.replace("axis=-1", f"axis={_axis}"),
        "softmax does not run along the keys, axis=-1",
    )
masked_softmax.mistake(
    "e.sum(axis=-1, keepdims=True)",
    "e.sum()",
    "e.sum() is the sum of the whole array: each row needs its own, axis=-1, keepdims=True",
)
for _new in ("mask.sum(axis=-1, keepdims=True)", "x.shape[-1]"):
    masked_softmax.mistake(
        "np.where(total == 0, 1.0, total)",
        f"np.maximum({_new}, 1)",
        "e is divided by the number of keys: divide by the sum of e over the row, so that it sums "
        "to 1",
    )
for _lost in ("x.real.max(axis=-1, keepdims=True)", "e.sum(axis=-1, keepdims=True)"):
    masked_softmax.mistake(
        _lost,
        _lost.replace(", keepdims=True", ""),
        "the maximum or the sum has lost the last axis, so it does not fit the rows: keepdims=True "
        "keeps it",
    )
for _new in ("x[~mask] = -np.inf", "x = x.copy()\n    x[~mask] = -np.inf"):
    masked_softmax.mistake(
        _MASKED,
        _new,
        "x[~mask] needs a mask of the shape of x; this one broadcasts: np.where(mask, x, -np.inf)",
    )
for _new, _what in (
    ("dy", "the pullback of softmax is missing"),
    ("dy * y", "the sum over the row is missing"),
    ("e * (dy - (dy * e).sum(axis=-1, keepdims=True))", "e is used for y, but is not divided yet"),
    ("y * (dy - dy.sum(axis=-1, keepdims=True) / np.maximum(mask.sum(axis=-1, keepdims=True), 1))",
     "the plain mean over the visible entries is subtracted; the right one is weighted by y"),
    ("y * dy - (dy * y).sum(axis=-1, keepdims=True)", "the factor y is missing in the second term"),
):  # fmt: skip
    masked_softmax.mistake(
        "y * (dy - (dy * y).sum(axis=-1, keepdims=True))",
        _new,
        f"{_what}: dx = y · (dy − Σ dy · y)",
    )
masked_softmax.mistake(
    "dy = np.where(mask, dy, 0.0)\n"
    "        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)",
    "return (np.where(mask, y * (dy - (dy * y).sum(axis=-1, keepdims=True)), 0.0),)",
    "dx is hidden only at the end, after NaN in a hidden dy has reached the sum over the row: set "
    "hidden dy to 0 with np.where(mask, dy, 0.0) before the sum",
)
masked_softmax.mistake(
    "np.exp(x - np.where(peak == -np.inf, 0.0, peak))",
    "np.exp(x)",
    "exp of a large entry overflows: subtract the largest visible entry of each row first",
)
masked_softmax.mistake(
    _FORWARD,
    _FORWARD.replace("axis=-1", "axis=-2"),
    "softmax runs along the queries: run it along the keys, axis=-1",
)
_FINITE = [
    f"np.where(mask, x, {low})" for low in ("-1e9", "-1e30", "-1e4", "np.finfo(x.dtype).min")
]
for _new in (*_FINITE, "x + np.where(mask, 0.0, -1e9)", "x + np.where(mask, 0.0, -1e4)"):
    masked_softmax.mistake(
        "np.where(mask, x, -np.inf)",
        _new,
        "a row with no visible entry gets weights, not 0, as happens with a large negative number "
        "in place of −∞: use −∞, and treat such a row separately",
    )
_EXP = "np.exp(x - np.where(peak == -np.inf, 0.0, peak))"
_TOTAL = "total = e.sum(axis=-1, keepdims=True)"
for _old, _new in (
    ("np.where(peak == -np.inf, 0.0, peak)", "peak"),
    ("np.where(total == 0, 1.0, total)", "total"),
    (f"{_EXP}\n    {_TOTAL}\n    {_DIVIDED}", f"np.exp(x - peak)\n    {_TOTAL}\n    y = e / total"),
):
    masked_softmax.mistake(
        _old,
        _new,
        "in a row with no visible entry, −∞ − (−∞) and 0 / 0 are NaN: subtract 0 instead of the "
        "maximum there, and divide by 1 instead of 0",
    )
masked_softmax.mistake(
    "(dy * y).sum(",
    "dy.mean(",
    "dx = y · (dy − mean(dy)): this subtracts the plain mean of dy; the right mean is weighted by "
    "y, Σ dy · y",
)
for _new in ("dy * 1.0", "dy * mask"):
    masked_softmax.mistake(
        "np.where(mask, dy, 0.0)",
        _new,
        "0 · NaN is NaN, so a product with y or the mask does not remove a NaN: set hidden dy to 0 "
        "with np.where(mask, dy, 0.0) before the sum over the row",
    )
