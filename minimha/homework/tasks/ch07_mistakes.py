"""Common mistakes in the tasks of chapter 07, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch07_multihead import head_contributions, merge_heads, multi_head_attention, repeat_heads

merge_heads.mistakes += patches(r"""
- return swapped.reshape(*swapped.shape[:-2], -1)
+ return x.mean(axis=-3)
this is the mean of the heads; keep them, side by side in a row
+ return x.sum(axis=-3)
this is the sum of the heads; keep them, side by side in a row
+ return np.concatenate([x.mean(axis=-3)] * x.shape[-3], axis=-1)
each head is replaced by the mean of all heads; keep them, side by side in a row
- (dy.reshape(swapped.shape).swapaxes(-3, -2),)
+ (dy,)
the pullback undoes both steps in reverse order: reshape dy to (…, T, H, D), then swap T and H
- dy.reshape(swapped.shape).swapaxes(-3, -2)
+ np.moveaxis(dy.reshape(*swapped.shape[:-2], x.shape[-1], -1), -1, -3)
the columns are cut as (D, H), but head h is a block of D columns: reshape to (…, T, H, D)
+ dy.reshape(swapped.shape)
dx is (…, T, H, D): the pullback has to swap T and H back
- return swapped.reshape(
+ return x.reshape(
x is reshaped without a swap, which mixes positions and heads: swap H and T first, then merge H
and D by a reshape
- x.swapaxes(-3, -2)
+ x.swapaxes(1, 2)
the axes are counted from the front, which fits only one number of axes before H: count from the
back, x.swapaxes(-3, -2)
""")

repeat_heads.mistakes += patches(r"""
- np.repeat(x, rep, axis=-3)
+ np.tile(x, (rep, 1, 1))
the heads are in the order 0 1 0 1 0 1; the copies of a head have to be adjacent, 0 0 0 1 1 1:
np.repeat(x, rep, axis=-3)
+ np.repeat(x, rep, axis=-2)
the wrong axis is repeated: the heads are axis −3, whatever comes before them
+ x[..., np.arange(rep * x.shape[-3]) % rep, :, :]
head h is head h % rep of x; it should be h // rep: each head of x appears rep times in a row,
np.repeat(x, rep, axis=-3)
- groups.sum(axis=-3)
+ dy[..., : x.shape[-3], :, :]
- groups.sum(axis=-3)
+ dy[..., -x.shape[-3] :, :, :]
dx is the first or the last heads of dy alone; rep adjacent query heads share a head of x, so dx is
the sum over these: reshape to (…, G, rep, S, D), then sum over rep
+ groups[..., 0, :, :] * rep
dx is rep times one head of dy; rep adjacent query heads share a head of x, so dx is the sum over
these: reshape to (…, G, rep, S, D), then sum over rep
+ np.broadcast_to(dy.sum(axis=-3, keepdims=True), x.shape)
dx is the sum over all query heads; rep adjacent query heads share a head of x, so dx is the sum
over these: reshape to (…, G, rep, S, D), then sum over rep
+ sum(dy[..., r : r + x.shape[-3], :, :] for r in range(rep))
the groups of query heads overlap: heads g · rep to (g + 1) · rep − 1 belong to head g of x
+ groups.sum(axis=-4)
dx is the sum over the wrong axis, along the groups; rep adjacent query heads share a head of x,
so dx is the sum over these: reshape to (…, G, rep, S, D), then sum over rep
""")

head_contributions.mistakes += patches(r"""
- return heads @ w_o.reshape(num_heads, width, -1)
+ parts = [heads[h] @ w_o[h * width : (h + 1) * width] for h in range(num_heads)]
+     return np.stack(parts)
heads[h] is item h of the first axis, which may be the batch: head h is heads[..., h, :, :]
+ cut = [slice(h * width, (h + 1) * width) for h in range(num_heads)]
+     return np.stack([heads[..., h, :, :] @ w_o[:, c] for h, c in enumerate(cut)], axis=-3)
the columns of w_o are cut into heads: its rows belong to the heads, w_o[h·D : (h + 1)·D]
+ own = heads @ w_o.reshape(num_heads, width, -1)
+     return np.stack([own.mean(axis=-3)] * num_heads, axis=-3)
the output is divided equally among the heads; each head contributes its own product with its D
rows of w_o
+ return (heads @ w_o.reshape(num_heads, width, -1)).sum(axis=-3)
this is the whole output, summed over the heads: keep one contribution for each head
- w_o.reshape(num_heads, width, -1)
+ w_o.reshape(-1, num_heads, width).transpose(1, 2, 0)
w_o is cut along its columns, as if it were (M, H·D): its rows belong to the heads, w_o.reshape(H,
D, M)
+ w_o.T.reshape(num_heads, width, -1)
w_o is transposed: its rows belong to the heads, w_o.reshape(H, D, M)
+ w_o
a head has D columns and w_o has H·D rows: head h is multiplied by rows h·D to (h + 1)·D − 1,
w_o.reshape(H, D, M)
- heads @ w_o.reshape(num_heads, width, -1)
+ heads.sum(axis=-3, keepdims=True) @ w_o.reshape(num_heads, width, -1)
the heads are added up first: head h is multiplied by block h of w_o, rows h·D to (h + 1)·D − 1
- return heads @
+ heads = heads.reshape(*heads.shape[:-3], heads.shape[-2], num_heads, width).swapaxes(-3, -2)
+     return heads @
the heads are reshaped without a swap, which mixes heads and positions: head h is multiplied by
block h of w_o, rows h·D to (h + 1)·D − 1
""")

multi_head_attention.mistakes += patches(r"""
- query, pull_q = linear(x, w_q)
+ w_q, w_k, w_v = (  # zero outside the block of rows and columns of each head
+         w * np.kron(np.eye(num_heads), np.ones([n // num_heads for n in w.shape]))
+         for w in (w_q, w_k, w_v)
+     )
+     query, pull_q = linear(x, w_q)
each head gets only a slice of the columns of x, as if w_q, w_k and w_v were block-diagonal. Every
head reads all of x: project first, x @ w_q, then split the result. To see it, change one column
of x: every head must change
- query = tap("query", split(
+ query = key = value = x; query = tap("query", split(
x itself is split into heads, so each head gets only a slice of the columns of x, and w_q, w_k and
w_v are not used: project first, x @ w_q, then split the result
+ num_heads = 1; query = tap("query", split(
there is one head over all columns: split into num_heads heads
+ split = lambda y, _: y; query = tap("query", split(
query, key and value are not split into heads: split(query, num_heads) after the projection
- key, pull_k = linear(x, w_k)
+ key, pull_k = linear(x, w_q)
the keys are made with w_q; key = x w_k
+ key, pull_k = linear(x, w_v)
the keys are made with w_v; key = x w_k
- value, pull_v = linear(x, w_v)
+ value, pull_v = linear(x, w_k)
the values are made with w_k; value = x w_v
- pull_attention = attention(query, key, value)
+ pull_attention = attention(query, value, key)
query, key and value are in the wrong order: attention(query, key, value)
+ pull_attention = attention(query / query.shape[-1] ** 0.5, key, value)
1/√D is applied twice: attention divides by √D already
- merge(heads)
+ heads.reshape(*x.shape[:-1], -1)
the heads are merged by a reshape alone, which mixes heads and positions: use merge, which swaps H
and T first
+ heads
the heads are not merged: merge(heads) is (…, T, H·Dv), as w_o needs it
+ heads.sum(axis=-3)
the heads are added up; put them side by side, merge(heads), so that w_o can combine them
- return y, pullback
+ return merged, pullback
the output projection is missing: y = merged w_o is (…, T, M)
+ return y + x, pullback
the output is y, without x: a residual connection belongs to the block, not to attention
- return dx_q + dx_k + dx_v
+ return (dx_q + dx_k + dx_v) / 3
x is used three times, for query, key and value: dx is the sum of the three gradients
- split(query, num_heads))
+ split(query, w_q.shape[1] // num_heads))
split gets the width of a head instead of the number of heads: split(…, num_heads)
- dheads = split(dmerged, num_heads)
+ dheads = merge(dmerged)
dheads = split(dmerged, num_heads): dmerged comes from the pullback of the output projection, and
split is the pullback of merge
- dquery, dkey, dvalue = pull_attention
+ dvalue, dkey, dquery = pull_attention
dquery, dkey and dvalue are in the wrong order: the pullback of attention returns them in this one
- dmerged, dw_o = pull_o(dy)
+ dw_o, dmerged = pull_o(dy)
two gradients are exchanged: the pullback of linear returns that of its input first, then that of
its matrix
- merge(dquery)
+ dquery
dquery, dkey and dvalue are still split into heads: merge each before the pullback of its
projection
""")
