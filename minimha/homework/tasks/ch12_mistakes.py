"""The usual mistakes in the tasks of chapter 12, as changes of their solutions."""

from .ch12_gpu import attention_in_blocks, key_gradients_in_blocks, softmax_rows, tiled_product

_PADDING = (
    "padding is used: beyond the edge of an array a tile holds anything, and NaN here, unless you "
    "load it with padding_mode=ct.PaddingMode.ZERO"
)
_ONCE = "a block stores its tile in each step of the loop: store once, after the loop"

for _task, _stores in (
    (tiled_product, ("ct.store(out, (i, j), acc)",)),
    (softmax_rows, ("ct.store(out, (i, j), ct.exp(tile - peak) / total)",)),
    (attention_in_blocks,
     ("ct.store(out, (i, 0), acc / total)",
      "ct.store(lse, (i,), (peak + ct.log(total)).reshape((m,)))")),
    (key_gradients_in_blocks,
     ("ct.store(dkey, (j, 0), scale * acc_k)", "ct.store(dvalue, (j, 0), acc_v)")),
):  # fmt: skip
    for _store in _stores:
        _task.mistake(
            _store,
            "pass",
            f"nothing is stored in {_store[9:].partition(',')[0]}: a kernel returns nothing, and "
            f"its tiles are lost at the end unless it stores them",
        )

_GRID = "return ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)"
for _new in (
    "return x.shape[0] // m, y.shape[1] // n",
    "return x.shape[0] // m, ct.cdiv(y.shape[1], n)",
    "return ct.cdiv(x.shape[0], m), y.shape[1] // n",
):
    tiled_product.mistake(
        _GRID,
        _new,
        "the grid is too small: // rounds down, so no block computes the last, incomplete tiles. "
        "Round up with ct.cdiv",
    )
for _new in (
    "return x.shape[0], y.shape[1]",
    "return ct.cdiv(x.shape[0], m) + 1, ct.cdiv(y.shape[1], n) + 1",
):
    tiled_product.mistake(
        _GRID,
        _new,
        "the grid has too many blocks: it needs one for each tile of the result, ct.cdiv(T, m) "
        "along the first axis and ct.cdiv(M, n) along the second",
    )
for _old, _new in (
    (_GRID, "return ct.cdiv(y.shape[1], n), ct.cdiv(x.shape[0], m)"),
    ("i, j = ct.bid(0), ct.bid(1)", "i, j = ct.bid(1), ct.bid(0)"),
):
    tiled_product.mistake(
        _old,
        _new,
        "the axes of the grid, or the two numbers of the block, are exchanged: the first counts "
        "tiles of m rows, the second tiles of n columns",
    )
tiled_product.mistake(
    "ct.store(out, (i, j), acc)",
    "ct.store(out, (i * m, j * n), acc)",
    "the index of the store counts entries: it counts tiles, so it is (i, j) and not (i · m, j · "
    "n)",
)
tiled_product.mistake(
    "ct.load(x, (i, c), (m, k)",
    "ct.load(x, (i * m, c * k), (m, k)",
    "the index of the load counts entries: it counts tiles, so it is (i, c) and not (i · m, c · k)",
)
tiled_product.mistake(
    "ct.store(out, (i, j), acc)",
    "ct.store(out, (j, i), acc)",
    "the result is stored at (j, i): block (i, j) computes tile (i, j)",
)
for _new in (
    "i, j = ct.bid(0), 0",
    "i, j = 0, ct.bid(1)",
    "i, j = 0, 0",
    "i, j = ct.bid(0), ct.bid(0)",
):
    tiled_product.mistake(
        "i, j = ct.bid(0), ct.bid(1)",
        _new,
        "several blocks compute the same tile, a race: a block has two numbers, i = ct.bid(0) and "
        "j = ct.bid(1)",
    )
for _old in (
    ", (m, k), padding_mode=ct.PaddingMode.ZERO",
    ", (k, n), padding_mode=ct.PaddingMode.ZERO",
):
    tiled_product.mistake(_old, _old.partition(", padding")[0], _PADDING)
tiled_product.mistake(
    "range(ct.cdiv(x.shape[1], k))",
    "range(x.shape[1] // k)",
    "the last tile along D is left out: // rounds down. Round up with ct.cdiv",
)
for _new in ("range(x.shape[1])", "range(ct.cdiv(x.shape[1], k) + 1)"):
    tiled_product.mistake(
        "range(ct.cdiv(x.shape[1], k))",
        _new,
        "the loop goes beyond the last tile along D: there are ct.cdiv(D, k) tiles",
    )
tiled_product.mistake(
    "acc = ct.mma(left, right, acc)",
    "acc = ct.mma(left, right, ct.full((m, n), 0.0, ct.float64))",
    "only the last product is kept: ct.mma(left, right, acc) adds to acc",
)
tiled_product.mistake(
    "acc = ct.mma(left, right, acc)",
    "acc = acc + ct.mma(left, right, acc)",
    "acc is added twice: ct.mma(left, right, acc) includes acc already",
)
tiled_product.mistake(
    "        ct.store(out, (i, j), acc)", "            ct.store(out, (i, j), acc)", _ONCE
)
tiled_product.mistake(
    "ct.load(y, (c, j), (k, n)",
    "ct.load(y, (j, c), (k, n)",
    "the tile of y is (j, c): the product needs tile (c, j), since c counts along D",
)
for _new in ("ct.full((m, n), 0.0, ct.float32)", "ct.full((m, n), 0.0, np.float32)"):
    tiled_product.mistake(
        "ct.full((m, n), 0.0, ct.float64)",
        _new,
        "the sums are float32: the arrays are float64, so start with ct.float64",
    )

_TILE = "tile = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)"
_PEAK = "new = ct.maximum(peak, ct.max(tile, axis=1, keepdims=True))"
_SUM = "total = total * ct.exp(peak - new) + terms"
softmax_rows.mistake(
    _TILE,
    "tile = ct.load(x, (i, j), (m, n))",
    "padding is used in the sum: beyond the edge a tile holds anything, and NaN here. Load it with "
    "padding_mode=ct.PaddingMode.NEG_INF, so that e^(−∞) = 0",
)
softmax_rows.mistake(
    _TILE,
    "tile = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.ZERO)",
    "zeros beyond the edge count in the sum, since e^(0 − peak) is not 0: pad with −∞, NEG_INF",
)
for _new in ("total = total + terms", "total += terms"):
    softmax_rows.mistake(
        _SUM,
        _new,
        "the old sum is not rescaled: it is relative to the old maximum, so multiply it by "
        "e^(peak − new)",
    )
softmax_rows.mistake(
    _SUM,
    "total = total * ct.exp(new - peak) + terms",
    "the factor is e^(new − peak); the old sum has to be multiplied by e^(peak − new)",
)
softmax_rows.mistake(
    _SUM, "total = terms", "only the sum of the last tile is kept: add it to the rescaled total"
)
softmax_rows.mistake(
    _PEAK,
    "new = ct.max(tile, axis=1, keepdims=True)",
    "the maximum is that of the last tile alone: take the larger of peak and that of the tile",
)
for _new in (
    "new = ct.maximum(peak, ct.max(tile))",
    "new = ct.maximum(peak, ct.max(tile, keepdims=True))",
):
    softmax_rows.mistake(
        _PEAK, _new, "the maximum is taken over the whole tile: each row has its own, axis=1"
    )
softmax_rows.mistake(
    _PEAK,
    "new = ct.maximum(peak, ct.max(tile, axis=0, keepdims=True))",
    "the maximum runs along the columns: each row has its own, axis=1",
)
softmax_rows.mistake(
    _PEAK,
    "new = ct.maximum(peak, 0.0)",
    "no maximum is subtracted, so large entries overflow: subtract that of the row",
)
softmax_rows.mistake(
    "            peak = new\n",
    "",
    "peak is never updated: at the end of each step it becomes new",
)
softmax_rows.mistake(
    "ct.exp(tile - peak) / total",
    "ct.exp(tile - peak)",
    "the result is not divided by the sum of the row, total",
)
softmax_rows.mistake(
    "ct.exp(tile - peak) / total",
    "ct.exp(tile) / total",
    "the maximum is not subtracted from the entries: total is relative to it, so e^(tile − peak)",
)
softmax_rows.mistake(
    "i, tiles = ct.bid(0), ct.cdiv(x.shape[1], n)",
    "i, tiles = ct.bid(0), x.shape[1] // n",
    "the last, incomplete tile of each row is left out: // rounds down. Round up with ct.cdiv",
)
softmax_rows.mistake(
    "i, tiles = ct.bid(0), ct.cdiv(x.shape[1], n)",
    "i, tiles = 0, ct.cdiv(x.shape[1], n)",
    "all blocks store to the same rows, a race: block ct.bid(0) computes the rows of tile "
    "ct.bid(0)",
)
softmax_rows.mistake(
    "i, tiles = ct.bid(0), ct.cdiv(x.shape[1], n)",
    "i, tiles = ct.bid(0) * m, ct.cdiv(x.shape[1], n)",
    "the index counts rows: it counts tiles, so it is ct.bid(0) and not ct.bid(0) · m",
)
for _new in ("ct.store(out, (i, 0), ct.exp(tile - peak) / total)",):
    softmax_rows.mistake(
        "ct.store(out, (i, j), ct.exp(tile - peak) / total)",
        _new,
        "all tiles of a row are stored at the same place, (i, 0): the tile belongs at (i, j)",
    )
softmax_rows.mistake(
    "tile = ct.load(x, (i, j), (m, n))\n",
    "tile = ct.load(x, (0, j), (m, n))\n",
    "every block loads the first rows in the second loop: block i needs tile (i, j)",
)
softmax_rows.mistake(
    """        for j in range(tiles):
            tile = ct.load(x, (i, j), (m, n))
            ct.store(out, (i, j), ct.exp(tile - peak) / total)
""",
    "            ct.store(out, (i, j), ct.exp(tile - peak) / total)\n",
    "a tile is stored before the sum of its row is known: go through the tiles a second time",
)

for _task, _olds in (
    (softmax_rows, ("ct.max(tile, axis=1, keepdims=True)",
                    "ct.sum(ct.exp(tile - new), axis=1, keepdims=True)")),
    (attention_in_blocks, ("ct.max(scores, axis=1, keepdims=True)",
                           "ct.sum(p, axis=1, keepdims=True)")),
):  # fmt: skip
    for _old in _olds:
        _task.mistake(
            _old,
            _old.replace(", keepdims=True", ""),
            "a maximum or sum of each row has the shape (m,), which is a row: keepdims=True makes "
            "it a column, (m, 1)",
        )

_MASK = "scores = ct.where((at < s).reshape((1, n)), scores, -np.inf)"
_NOT_HIDDEN = (
    "keys beyond the edge are not hidden: their score is 0, and e^(0 − peak) counts in the sum. "
    "Put −∞ where j · n + arange(n) is S or more"
)
attention_in_blocks.mistake(_MASK, "pass", _NOT_HIDDEN)
attention_in_blocks.mistake(
    _MASK, "scores = ct.where((at < s).reshape((1, n)), scores, 0.0)", _NOT_HIDDEN
)
for _new in ("at = ct.arange(n, dtype=ct.int32)", "at = j + ct.arange(n, dtype=ct.int32)"):
    attention_in_blocks.mistake(
        "at = j * n + ct.arange(n, dtype=ct.int32)",
        _new,
        "the offset of the tile is missing or wrong: the keys of tile j are j · n + arange(n)",
    )
attention_in_blocks.mistake("(at < s)", "(at <= s)", "key S is visible: the last one is S − 1")
attention_in_blocks.mistake("(at < s)", "(at < s - 1)", "the last key, S − 1, is hidden")
attention_in_blocks.mistake("(at < s)", "(at < t)", "only T keys count: there are S")
attention_in_blocks.mistake(
    "acc = ct.mma(p, v, acc * shrink)",
    "acc = ct.mma(p, v, acc)",
    "acc is not rescaled: it is relative to the old maximum, so multiply it by e^(peak − new)",
)
attention_in_blocks.mistake(
    "total * shrink +",
    "total +",
    "total is not rescaled: it is relative to the old maximum, so multiply it by e^(peak − new)",
)
attention_in_blocks.mistake(
    """            total = total * shrink + ct.sum(p, axis=1, keepdims=True)
            acc = ct.mma(p, v, acc * shrink)
""",
    """            total = total + ct.sum(p, axis=1, keepdims=True)
            acc = ct.mma(p, v, acc)
""",
    "total and acc are not rescaled: they are relative to the old maximum, so multiply both by "
    "e^(peak − new)",
)
attention_in_blocks.mistake(
    "ct.exp(peak - new)",
    "ct.exp(new - peak)",
    "the factor is e^(new − peak); the old sums have to be multiplied by e^(peak − new)",
)
attention_in_blocks.mistake(
    "            peak = new\n", "", "peak is never updated: at the end of each step it becomes new"
)
attention_in_blocks.mistake(
    "acc / total", "acc", "out is not divided by the sum of the row: store acc / total"
)
for _new, _what in (
    ("ct.log(total)", "the maximum is missing"),
    ("peak", "the logarithm of total is missing"),
    ("peak + total", "total is added, not its logarithm"),
    ("peak + ct.log2(total)", "the logarithm has base 2"),
):
    attention_in_blocks.mistake(
        "(peak + ct.log(total))",
        f"({_new})",
        f"{_what} in lse: it is peak + ln total, because total is Σ e^(score − peak)",
    )
attention_in_blocks.mistake(
    "scale * ct.mma(q, k",
    "scale**2 * ct.mma(q, k",
    "the scores are multiplied by scale twice; once is enough",
)
attention_in_blocks.mistake(
    "ct.load(query, (i, 0)",
    "ct.load(query, (0, 0)",
    "every block loads the first tile of queries: block i needs tile (i, 0)",
)
attention_in_blocks.mistake(
    "scale * ct.mma(q, k",
    "ct.mma(q, k",
    "the factor scale is missing: scores are scale · Q Kᵀ",
)
attention_in_blocks.mistake(
    "ct.load(key, (0, j), (d, n), order=(1, 0), padding_mode=zero)",
    "ct.load(key, (j, 0), (n, d), padding_mode=zero).reshape((d, n))",
    "reshape does not transpose: load the tile of keys with its axes exchanged, order=(1, 0)",
)
attention_in_blocks.mistake(
    "ct.load(key, (0, j), (d, n), order=(1, 0), padding_mode=zero)",
    "ct.load(key, (j, 0), (d, n), order=(1, 0), padding_mode=zero)",
    "the index is in the wrong order: with order=(1, 0) the axes are (width, key), so it is (0, j)",
)
attention_in_blocks.mistake(
    "ct.load(key, (0, j), (d, n), order=(1, 0), padding_mode=zero)",
    "ct.load(key, (j, 0), (n, d), padding_mode=zero)",
    "the keys are not transposed: Q Kᵀ needs a tile (D, n), loaded with order=(1, 0)",
)
attention_in_blocks.mistake(
    "ct.load(value, (j, 0), (n, dv), padding_mode=zero)",
    "ct.load(value, (j, 0), (n, dv))",
    "values beyond the edge are NaN, and 0 · NaN is NaN: pad with zeros, "
    "padding_mode=ct.PaddingMode.ZERO",
)
attention_in_blocks.mistake(
    "ct.load(value, (j, 0)",
    "ct.load(value, (0, 0)",
    "every step uses the first tile of values: it should use tile (j, 0)",
)
attention_in_blocks.mistake(
    "range(ct.cdiv(s, n))",
    "range(s // n)",
    "the last, incomplete tile of keys is left out: // rounds down. Round up with ct.cdiv",
)
attention_in_blocks.mistake(
    "range(ct.cdiv(s, n))", "range(ct.cdiv(t, n))", "only T keys count: there are S"
)
attention_in_blocks.mistake(
    "i, zero = ct.bid(0)",
    "i, zero = 0",
    "all blocks store to the same place, a race: block ct.bid(0) computes tile ct.bid(0) of the "
    "queries",
)
attention_in_blocks.mistake(
    "        ct.store(out, (i, 0), acc / total)", "            ct.store(out, (i, 0), acc / total)",
    _ONCE,
)  # fmt: skip

_STORE_K, _STORE_V = "ct.store(dkey, (j, 0), scale * acc_k)", "ct.store(dvalue, (j, 0), acc_v)"
key_gradients_in_blocks.mistake(
    _STORE_K,
    "ct.store(dkey, (j, 0), acc_k)",
    "the factor scale is missing in dkey: the scores are scale · Q Kᵀ, so dkey = scale · dscoresᵀ "
    "Q",
)
key_gradients_in_blocks.mistake(
    _STORE_V,
    "ct.store(dvalue, (j, 0), scale * acc_v)",
    "dvalue has the factor scale; out = weights V has none",
)
for _old in (f"        {_STORE_K}", f"        {_STORE_K}\n        {_STORE_V}"):
    key_gradients_in_blocks.mistake(_old, _old.replace("        ", "            "), _ONCE)
key_gradients_in_blocks.mistake(
    "ds = p * (dp - mean)",
    "ds = scale * p * (dp - mean)",
    "dkey has the factor scale twice, in dscores and in the store; once is enough",
)
key_gradients_in_blocks.mistake(
    "ds = p * (dp - mean)",
    "ds = p * (mean - dp)",
    "the sign is flipped: dscores = weights · (dweights − delta)",
)
key_gradients_in_blocks.mistake(
    "ds = p * (dp - mean)",
    "ds = p * dp",
    "delta is missing: dscores = weights · (dweights − delta)",
)
key_gradients_in_blocks.mistake(
    "ds = p * (dp - mean)",
    "ds = dp - mean",
    "the factor weights is missing: dscores = weights · (dweights − delta)",
)
key_gradients_in_blocks.mistake(
    "acc_v = ct.mma(p, g, acc_v)",
    "acc_v = ct.mma(ds, g, acc_v)",
    "dvalue is computed from dscores: it is weightsᵀ dout",
)
key_gradients_in_blocks.mistake(
    "ct.mma(k, columns, none) - logs)",
    "ct.mma(k, columns, none))",
    "the weights are not normalised: they are e^(scores − lse)",
)
key_gradients_in_blocks.mistake(
    "ct.exp(scale * ct.mma(k, columns, none)",
    "ct.exp(ct.mma(k, columns, none)",
    "the factor scale is missing in the scores: scale · Q Kᵀ, as in the forward",
)
for _old, _name in (
    ("ct.load(lse, (i,), (m,), padding_mode=zero)", "lse"),
    ("ct.load(delta, (i,), (m,), padding_mode=zero)", "delta"),
):
    key_gradients_in_blocks.mistake(
        f"{_old}.reshape((1, m))",
        f"{_old}.reshape((m, 1))",
        "lse or delta is a column here, so it applies to keys: tiles are (n, m), keys first, and "
        "these two belong to queries, (1, m)",
    )
    key_gradients_in_blocks.mistake(
        _old,
        _old.replace("(i,)", "(j,)"),
        f"{_name} is loaded at j, the tile of keys: it belongs to the queries, tile i",
    )
    key_gradients_in_blocks.mistake(_old, _old.replace(", padding_mode=zero", ""), _PADDING)
for _old in (
    "q = ct.load(query, (i, 0), (m, d), padding_mode=zero)",
    "g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)",
    "ct.load(query, (0, i), (d, m), order=(1, 0), padding_mode=zero)",
    "ct.load(dout, (0, i), (dv, m), order=(1, 0), padding_mode=zero)",
):
    key_gradients_in_blocks.mistake(_old, _old.replace(", padding_mode=zero", ""), _PADDING)
key_gradients_in_blocks.mistake(
    "acc_v = ct.mma(p, g, acc_v)\n            acc_k = ct.mma(ds, q, acc_k)",
    "acc_v = ct.mma(p, g, 0 * acc_v)\n            acc_k = ct.mma(ds, q, 0 * acc_k)",
    "only the last tile of queries counts: a key's gradient is a sum over all of them",
)
key_gradients_in_blocks.mistake(
    "range(ct.cdiv(t, m))",
    "range(t // m)",
    "the last, incomplete tile of queries is left out: // rounds down. Round up with ct.cdiv",
)
key_gradients_in_blocks.mistake(
    "range(ct.cdiv(t, m))", "range(ct.cdiv(s, m))", "the loop runs over S queries: there are T"
)
key_gradients_in_blocks.mistake(
    "j, zero = ct.bid(0)",
    "j, zero = 0",
    "all blocks store to the same place, a race: block ct.bid(0) computes tile ct.bid(0) of the "
    "keys",
)
