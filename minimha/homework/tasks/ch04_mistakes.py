"""Common mistakes in the tasks of chapter 04, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch04_projections import (
    bilinear,
    double,
    fused,
    linear,
    per_head,
    split_heads,
    stack_weights,
    stacked,
)

linear.mistakes += patches(r"""
- x @ weight, pullback
+ x @ weight.T, pullback
weight is transposed; it is (M, N), and y = x W is x @ weight (PyTorch's nn.Linear stores Wᵀ)
- return dy @ weight.T, rows.T @ drows
+ return dy @ weight.T, np.outer(rows[0], drows[0])
dweight comes from one row alone; W is used in every row, so its gradient is the sum: add them up,
+=, or use rows.T @ drows
+ return dy @ weight.T, np.outer(rows.sum(axis=0), drows.sum(axis=0))
x and dy are summed over the rows before the product, so that each row of x meets every row of dy:
in einsum, both need the same letter for the row
+ return dy @ weight.T, (x.mT @ dy).sum(axis=0)
dweight is summed over one axis, whether or not x has one in front: sum over all axes in front,
and over none if x is a matrix
+ dw = x.mT @ dy; return dy @ weight.T, dw.mean(axis=tuple(range(x.ndim - 2)))
dweight is a mean over the batch; every sequence uses W, so its gradient is the sum
+ return dy @ weight.reshape(weight.shape[::-1]), rows.T @ drows
a reshape to (N, M) is not a transpose; it only cuts the same numbers into different rows:
weight.T
+ return dy @ weight.T, rows.reshape(rows.shape[::-1]) @ drows
a reshape is not a transpose; it only cuts the same numbers into different rows: rows.T
+ return dy @ weight, rows.T @ drows
a matrix is not transposed, or on the wrong side: dx (…, T, M) = dy (…, T, N) Wᵀ (N, M), dW (M, N)
= xᵀ (M, T) dy (T, N)
+ return dy @ weight.T, x.T @ dy
this is xᵀ dy for one matrix; with batch axes make one matrix of all rows, of x and of dy:
x.reshape(-1, x.shape[-1])
""")

split_heads.mistakes += patches(r"""
- heads = x.reshape(*x.shape[:-1], num_heads, -1)  # (…, T, H, D)
+ return x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)
a reshape straight to (H, T, D) mixes positions with heads: reshape to (T, H, D), then swap T and
H
+ heads = x.reshape(*x.shape[:-1], -1, num_heads).swapaxes(-1, -2)
the heads are interleaved: head 0 has the columns 0, H, 2H …; they should be 0 to D−1, so reshape
to (T, H, D), not (T, D, H)
+ heads = x.reshape(*x.shape[:-1], -1, num_heads)
this is (…, D, T, H): split the last axis into (H, D), not (D, H)
- return heads.swapaxes(-3, -2)
+ return heads
this is (…, T, H, D): T and H still have to be swapped
+ return np.moveaxis(heads, -2, 0)
the axis of heads is in front of the batch axes; it comes right before T and D, at −3
+ return heads.swapaxes(0, 1)
the axes are counted from the front, where batch axes can be: T and H are the axes −3 and −2
""")

per_head.mistakes += patches(r"""
- return np.stack([x @ w for w in weights], axis=-3)
+ own = [slice(2 * h, 2 * h + 2) for h in range(len(weights))]
+     return np.stack([x[..., k] @ w[k] for k, w in zip(own, weights)], axis=-3)
each head gets only a slice of the columns of x; every head projects all of x with its own matrix,
x @ w, so that it can use any column (chapter 04)
+ h, m, d = weights.shape
+     y = x @ weights.reshape(m, -1)
+     return y.reshape(*y.shape[:-1], h, d).swapaxes(-3, -2)
a reshape of weights (H, M, D) to (M, H·D) cuts through the matrices: multiply x by each
+ return np.stack([x @ weights[0] for w in weights], axis=-3)
all heads use the matrix weights[0]; head h has its own, weights[h]
+ return np.concatenate([x @ w for w in weights], axis=-1)
the heads are side by side in one array (…, T, H·D); np.stack makes an axis of heads
+ return x @ weights
x @ weights broadcasts the batch axes of x against the axis of heads: give x an axis for the
heads, x[..., None, :, :] @ weights, or stack x @ w for each head
+ return np.dot(x, weights)
with more than two axes, np.dot multiplies all pairs of matrices, and the axis of the heads comes
after the axis of the positions: give x an axis for the heads, x[..., None, :, :] @ weights
""")

stack_weights.mistakes += patches(r"""
- np.concatenate(weights, axis=-1)
+ np.concatenate(weights, axis=0)
the matrices are one below the other, (H·M, D); axis=-1 puts them side by side
+ weights.reshape(weights.shape[1], -1)
a reshape of (H, M, D) fills the first rows with head 0 alone: swap H and M before it, to (M, H,
D)
+ weights.transpose(1, 2, 0).reshape(weights.shape[1], -1)
a reshape of (M, D, H) interleaves the heads: reshape (M, H, D), from transpose(1, 0, 2)
+ weights.reshape(-1, weights.shape[1]).T
a reshape of (H, M, D) cuts through the matrices: swap H and M before it, to (M, H, D)
+ np.stack(weights, axis=-1)
np.stack makes an axis of heads, (M, D, H); np.concatenate joins the columns into one matrix
+ weights
this is still the stack of matrices, (H, M, D): join their columns to one matrix (M, H·D)
+ weights.sum(axis=0)
the matrices are added; put them side by side, [W₀ W₁ …] (M, H·D)
- return np.concatenate(weights, axis=-1)
+ rows = [np.kron(e, w) for e, w in zip(np.eye(len(weights)), weights)]
+     return np.concatenate(rows)
the matrices are blocks on a diagonal, so each head sees only a part of x; put them side by side,
(M, H·D)
""")

stacked.mistakes += patches(r"""
- y = x @ weight  # (…, T, H·D)
+ d = x.shape[-1] // num_heads
+     own = [slice(h * d, h * d + d) for h in range(num_heads)]
+     return np.stack([x[..., k] @ weight[k, k] for k in own], axis=-3)
each head gets only a slice of the columns of x; every head projects all of x with its own columns
of weight, so that it can use any column (chapter 04)
+ y = x @ weight.T
weight is transposed; it is (M, H·D), so y = x @ weight (PyTorch's nn.Linear stores Wᵀ)
+ return x[..., None, :, :] @ weight.reshape(num_heads, weight.shape[0], -1)
a reshape of weight to (H, M, D) cuts through its rows; the matrices are blocks of columns: split
the columns of x @ weight instead
- y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)
+ y = y.reshape(*y.shape[:-1], -1, num_heads).swapaxes(-1, -2)
the heads are interleaved: head 0 has the columns 0, H, 2H …; they should be 0 to D−1, so reshape
to (T, H, D), not (T, D, H)
+ y = y.reshape(*y.shape[:-1], -1, num_heads)
this is (…, D, T, H): split the last axis into (H, D), not (D, H)
+ y = y.reshape(*y.shape[:-1], num_heads, x.shape[-1] // num_heads)
- y = y.reshape(*y.shape[:-1], num_heads, -1)  # (…, T, H, D)
+ d = x.shape[-1] // num_heads
+     return np.stack([y[..., h * d : h * d + d] for h in range(num_heads)], axis=-3)
D is computed from M, the width of x: the heads share the columns of weight, so D is
weight.shape[-1] // num_heads
""")

fused.mistakes += patches(r"""
- parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)
-     return tuple(split_heads(part, num_heads) for part in parts)
+ return tuple(np.split(split_heads(x @ weight, num_heads), 3, axis=-1))
the columns are split into heads first, as if they were [q₀ k₀ v₀ q₁ …]; they are [q₀ q₁ … k₀ k₁ …
v₀ v₁ …]: split into q, k, v first
- parts = np.split(x @ weight, 3, axis=-1)  # three times (…, T, H·D)
+ parts = np.moveaxis((x @ weight).reshape(*x.shape[:-1], -1, 3), -1, 0)
every third column goes to q; the columns of q are the first H·D: np.split(x @ weight, 3, axis=-1)
+ m = x.shape[-1]; parts = [(x @ weight)[..., k * m : k * m + m] for k in range(3)]
the columns are cut at M, the width of x; q, k and v have H·D columns each, a third of all
- return tuple(split_heads(part, num_heads) for part in parts)
+ return tuple(parts)
q, k and v are not split into heads: each is (…, T, H·D) and should be (…, H, T, D)
+ d = x.shape[-1] // num_heads
+     return tuple(part.reshape(*part.shape[:-1], num_heads, d) for part in parts)
- return tuple(split_heads(part, num_heads) for part in parts)
+ y = (x @ weight).reshape(*x.shape[:-1], 3, num_heads, x.shape[-1] // num_heads)
D is computed from M, the width of x: the heads share the columns of weight, so D is
weight.shape[-1] // 3 // num_heads
+ heads = [part.reshape(*part.shape[:-1], -1, num_heads) for part in parts]
+     return tuple(np.moveaxis(y, -1, -3) for y in heads)
the heads are interleaved: head 0 has the columns 0, H, 2H … of each part; they should be 0 to D−1,
so reshape to (T, H, D), not (T, D, H)
+ q, k, v = (split_heads(part, num_heads) for part in parts); return q, v, k
k and v are swapped: the columns of weight are [W^Q W^K W^V]
""")

double.mistakes += patches(r"""
- return first @ weights
+ return first.T @ weights
- return first @ weights
+ return first @ weights.mT
a matrix is transposed, or on the wrong side: (x W) Wᵢ = x (W Wᵢ), so the matrix of head i (M, D)
is W (M, N) Wᵢ (N, D)
""")

bilinear.mistakes += patches(r"""
- w_q @ w_k.swapaxes(-1, -2)
+ w_q.swapaxes(-1, -2) @ w_k
this is W^Qᵀ W^K (H, D, D), a sum over M instead of D; (x W^K)ᵀ = W^Kᵀ xᵀ, so W = W^Q W^Kᵀ
+ w_q @ w_q.mT
one of w_q and w_k is used twice and the other not at all: W = W^Q W^Kᵀ
+ w_q @ w_k.reshape(w_k.shape[0], w_k.shape[2], w_k.shape[1])
a reshape is not a transpose; it only cuts the same numbers into different rows: w_k.swapaxes(-1,
-2)
+ w_q @ w_k.swapaxes(-1, -2) / np.sqrt(w_q.shape[-1])
W is divided by √D; here the scores are q kᵀ, without a scale
+ w_q @ w_k
W = W^Q W^Kᵀ needs each W^K transposed: w_k.swapaxes(-1, -2) (.T reverses all three axes)
""")
