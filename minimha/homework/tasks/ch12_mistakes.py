"""Common mistakes in the tasks of chapter 12, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch12_gpu import key_gradients_in_blocks, softmax_rows, tiled_product

tiled_product.mistakes += patches(r"""
- return ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)
+ return x.shape[0] // m, y.shape[1] // n
the grid is too small: // rounds down, so no block computes the last, incomplete tiles. Round up
with ct.cdiv
- range(ct.cdiv(x.shape[1], k))
+ range(x.shape[1] // k)
the last tile along D is left out: // rounds down. Round up with ct.cdiv
+ range(ct.cdiv(y.shape[1], k))
the loop runs over tiles along M: the sum of a product runs along D
- left = ct.load(x, (i, c), (m, k), padding_mode=ct.PaddingMode.ZERO)
-             right = ct.load(y, (c, j), (k, n), padding_mode=ct.PaddingMode.ZERO)
+ left = ct.load(x, (i, c), (m, k), padding_mode=ct.PaddingMode.NEG_INF)
+             right = ct.load(y, (c, j), (k, n), padding_mode=ct.PaddingMode.NEG_INF)
the padding −∞ is for a maximum; in a product pad with zeros, which add nothing
- acc = ct.mma(left, right, acc)
+ acc = ct.mma(left, right, ct.full((m, n), 0.0, ct.float64))
only the last product is kept: ct.mma(left, right, acc) adds to acc
+ acc = acc + ct.mma(left, right, acc)
acc is added twice: ct.mma(left, right, acc) includes acc already
""")

softmax_rows.mistakes += patches(r"""
- tile = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
+ tile = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.ZERO)
zeros beyond the edge count in the sum, since e^(0 − peak) is not 0: pad with −∞, NEG_INF
- total = total * ct.exp(peak - new) + terms
+ total = total + terms
the old sum is not rescaled: it is relative to the old maximum, so multiply it by e^(peak − new)
+ total = total * ct.exp(new - peak) + terms
the factor is e^(new − peak); the old sum has to be multiplied by e^(peak − new)
+ total = (total + terms) * ct.exp(peak - new)
- peak = new
+ pass
total becomes 0: peak is never updated, or the new terms are multiplied by e^(peak − new), too,
which is 0 in the first step. It is only for the old total
- total = total * ct.exp(peak - new) + terms
+ total = terms
only the sum of the last tile is kept: add it to the rescaled total
- new = ct.maximum(peak, ct.max(tile, axis=1, keepdims=True))
+ new = ct.max(tile, axis=1, keepdims=True)
the maximum is that of the last tile alone: take the larger of peak and that of the tile
+ new = ct.maximum(peak, ct.max(tile, axis=0, keepdims=True))
the maximum runs along the columns: each row has its own, axis=1
+ new = ct.maximum(peak, ct.max(tile))
- peak = ct.full((m, 1), -np.inf
+ peak = ct.full((m, 1), 0.0
peak is larger than the maximum of its row, so every exp of a row can be 0: start from −∞, and take
the maximum of each row, not of the whole tile: axis=1
- ct.sum(ct.exp(tile - new), axis=1, keepdims=True)
+ ct.sum(ct.exp(tile - new))
the sum is that of the whole tile: each row has its own, axis=1
- ct.store(out, (i, j), ct.exp(tile - peak) / total)
+ tile = ct.exp(tile - ct.max(tile, axis=1, keepdims=True))
+             ct.store(out, (i, j), tile / ct.sum(tile, axis=1, keepdims=True))
this is the softmax of each tile alone: maximum and sum belong to the whole row
- ct.exp(tile - peak) / total
+ ct.exp(tile - ct.max(tile, axis=1, keepdims=True)) / total
the second loop subtracts the maximum of each tile: total is relative to peak, that of the row
+ tile - peak - ct.log(total)
this is the logarithm of the softmax: softmax is e^x / Σ e^x
+ ct.exp(tile - peak)
the result is not divided by the sum of the row: divide by total
+ ct.exp(tile) / total
the maximum is not subtracted from the entries: total is relative to it, so e^(tile − peak)
- i, tiles = ct.bid(0), ct.cdiv(x.shape[1], n)
+ i, tiles = ct.bid(0), x.shape[1] // n
the last, incomplete tile of each row is left out: // rounds down. Round up with ct.cdiv
- tile = ct.load(x, (i, j), (m, n))
+ tile = ct.load(x, (0, j), (m, n))
every block loads the first rows in the second loop: block i needs tile (i, j)
-         for j in range(tiles):
-             tile = ct.load(x, (i, j), (m, n))
-             ct.store(out, (i, j), ct.exp(tile - peak) / total)
+             ct.store(out, (i, j), ct.exp(tile - peak) / total)
a tile is stored before the sum of its row is known: go through the tiles a second time
""")

key_gradients_in_blocks.mistakes += patches(r"""
- ct.store(dkey, (j, 0), scale * acc_k)
+ ct.store(dkey, (j, 0), acc_k)
the factor scale is missing in dkey: the scores are scale · Q Kᵀ, so dkey = scale · dscoresᵀ Q
- ct.store(dvalue, (j, 0), acc_v)
+ ct.store(dvalue, (j, 0), scale * acc_v)
dvalue has the factor scale; out = weights V has none
- ds = p * (dp - mean)
+ ds = scale * p * (dp - mean)
dkey has the factor scale twice, in dscores and in the store; once is enough
+ ds = p * dp
delta is missing: dscores = weights · (dweights − delta)
+ ds = p * dp - mean
delta is outside the bracket: dscores = weights · (dweights − delta)
+ ds = p * (dp + mean)
delta is added, not subtracted: dscores = weights · (dweights − delta)
+ ds = p * (dp - scale * mean)
delta has no factor scale: dscores = weights · (dweights − delta)
+ ds = dp - mean
the factor weights is missing: dscores = weights · (dweights − delta)
- acc_v = ct.mma(p, g, acc_v)
+ acc_v = ct.mma(ds, g, acc_v)
dvalue is computed from dscores: it is weightsᵀ dout
- acc_k = ct.mma(ds, q, acc_k)
+ acc_k = ct.mma(p, q, acc_k)
dkey is computed from the weights: it is scale · dscoresᵀ Q
- p = ct.exp(scale * ct.mma(k, columns, none) - logs)
+ p = ct.exp(scale * ct.mma(k, columns, none)); p = p / ct.sum(p, axis=0, keepdims=True)
the weights are normalised in each tile: the sum of a row runs over all keys, so e^(scores − lse)
+ p = ct.exp(scale * ct.mma(k, columns, none)) / logs
lse is a logarithm: the weights are e^(scores − lse), not e^scores / lse
- ct.mma(k, columns, none) - logs)
+ ct.mma(k, columns, none))
the weights are not normalised: they are e^(scores − lse)
- ct.exp(scale * ct.mma(k, columns, none)
+ ct.exp(ct.mma(k, columns, none)
the factor scale is missing in the scores: scale · Q Kᵀ, as in the forward
- ct.load(lse, (i,), (m,), padding_mode=zero).reshape((1, m))
+ ct.load(lse, (i,), (m,), padding_mode=zero).reshape((m, 1))
lse or delta is a column here, so it applies to keys: tiles are (n, m), keys first, and these two
belong to queries, (1, m)
- ct.load(lse, (i,), (m,), padding_mode=zero)
+ ct.load(lse, (j,), (m,), padding_mode=zero)
lse is loaded at j, the tile of keys: it belongs to the queries, tile i
- ct.load(delta, (i,), (m,), padding_mode=zero)
+ ct.load(delta, (j,), (m,), padding_mode=zero)
delta is loaded at j, the tile of keys: it belongs to the queries, tile i
- acc_v = ct.mma(p, g, acc_v)
-             acc_k = ct.mma(ds, q, acc_k)
+ acc_v = ct.mma(p, g, 0 * acc_v)
+             acc_k = ct.mma(ds, q, 0 * acc_k)
only the last tile of queries counts: a key's gradient is a sum over all of them
- range(ct.cdiv(t, m))
+ range(t // m)
the last, incomplete tile of queries is left out: // rounds down. Round up with ct.cdiv
+ range(ct.cdiv(s, m))
the loop runs over S queries: there are T
+ range(ct.cdiv(s, n))
tiles of queries are missing: each block goes through all of them, range(ct.cdiv(T, m))
- q = ct.load(query, (i, 0), (m, d), padding_mode=zero)
-             g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
-             columns = ct.load(query, (0, i)
+ q = ct.load(query, (0, 0), (m, d), padding_mode=zero)
+             g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
+             columns = ct.load(query, (0, 0)
every step uses the first tile of queries: it should use tile i
""")
