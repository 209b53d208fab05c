"""The bilinear form: the products W^Q W^Kᵀ as they appear in the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd import backend, ops, widened
from minimha_autograd.backend import Array, namespace

from ..functional.checks import integer
from ..functional.masked_products import is_finite
from .form import Form, blocks, finite, ranks, rounding
from .operations import merge_heads, project_in
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Bilinear(Form):
    """W_i = W_i^Q W_i^Kᵀ for each head, and the scores x W_i x'ᵀ: attention whose queries are x W_i
    and whose keys are the inputs x' themselves.

    With biases (xW_Q + b_Q)(x'W_K + b_K)ᵀ = x W x'ᵀ + (W_K b_Q) · x' + terms of the query alone,
    which do not affect softmax: b_qk = W_K b_Q stays, b_K drops out. `factored` factors b_qk
    together with W_i, as one more row below W_i.
    """

    w_qk: Any  # (H, M, Mk)
    b_qk: Any  # (H, Mk)
    w_v: Any  # (Mv, G·Dv)
    b_v: Any  # (G·Dv,)

    form = "bilinear"
    rearranges = False

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        g = self.sizes.num_kv_heads
        x = ops.expand_dims(query, axis=-3)  # (…, 1, T, M)
        q = ops.matmul(x, self.w_qk)  # (…, H, T, Mk)
        if self.b_qk is not None:
            b_qk = ops.expand_dims(self.b_qk, axis=1)  # (H, 1, Mk)
            q = ops.add(q, b_qk)

        # Every key head reads the inputs themselves.
        k = ops.expand_dims(key, axis=-3)  # (…, 1, S, Mk)
        shape = (*k.shape[:-3], g, *k.shape[-2:])
        k = ops.broadcast_to(k, shape)  # (…, G, S, Mk)
        v = project_in(value, self.w_v, self.b_v, num_heads=g)  # (…, G, S, Dv)
        return q, k, v

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        h = stacked.sizes.num_heads
        g = stacked.sizes.num_kv_heads
        xp = namespace(stacked.w_q)

        # Each W^K serves H/G query heads.
        w_q = xp.stack(blocks(stacked.w_q, h))  # (H, M, D)
        w_k = xp.stack(blocks(stacked.w_k, g))  # (G, Mk, D)
        w_k = xp.repeat(w_k, h // g, axis=0)  # (H, Mk, D)
        w_qk = ops.matmul(w_q, xp.matrix_transpose(w_k))  # (H, M, Mk)
        if is_finite(w_q) and is_finite(w_k) and not is_finite(w_qk):
            raise ValueError(
                f"W_i^Q W_i^Kᵀ overflows {w_qk.dtype}: convert weights of a wider dtype"
            )

        b_qk = None
        if stacked.b_q is not None:
            b_q = xp.stack(blocks(stacked.b_q, h))  # (H, D)
            b_qk = ops.matmul(w_k, b_q[..., None])  # (H, Mk, 1)
            b_qk = b_qk[..., 0]  # (H, Mk)
        return cls(stacked.sizes, w_qk, b_qk, stacked.w_v, stacked.b_v)

    def to_stacked(self) -> Stacked:
        return self.factored()

    def factored(self, head_dim: int | None = None) -> Stacked:
        """The stacked form in which W_i^Q W_i^Kᵀ is the best approximation of W_i of rank D, from
        its singular value decomposition:

            W_i = U Σ Vᵀ,  W_i^Q = U √Σ,  W_i^K = V √Σ, only the D largest of Σ

        For heads that share a W^K, the matrices W_i are factored as one, in which each stands below
        the one before.

        head_dim  D. If None, D is that of `sizes`, and W_i of a higher rank raises ValueError
        """
        sizes = self.sizes
        if head_dim is not None:
            head_dim = integer(head_dim, "head_dim", least=1)
            sizes = sizes._replace(head_dim=head_dim)
        d = sizes.head_dim
        g = sizes.num_kv_heads
        w = self.w_qk
        b = self.b_qk
        xp = namespace(w)
        h, m, mk = w.shape

        # b_qk, too, is a product with W^K, that of b_q: one more row of W_i.
        rows = w
        if b is not None:
            rows = xp.concat([w, b[:, None, :]], axis=1)  # (H, M + 1, Mk)
        groups = xp.reshape(rows, (g, -1, mk))  # (G, H/G · (M + 1), Mk)
        u, sigma, vt = xp.linalg.svd(finite(widened(groups)), full_matrices=False)
        if head_dim is None:
            rank = max(ranks(sigma, w))
            _check_rank(rank, d, has_bias=b is not None, shares=g < h)

        # Singular values that may be mere rounding become 0, and so do their columns.
        limit = rounding(sigma, w)  # (G, 1)
        kept = xp.where(sigma > limit, sigma, xp.zeros_like(sigma))
        root = xp.sqrt(kept[:, None, :d])  # (G, 1, at most D)
        left = u[..., :d] * root  # (G, H/G · (M + 1), at most D)
        right = xp.matrix_transpose(vt)[..., :d] * root  # (G, Mk, at most D)

        # There may be fewer singular values than D: the other columns are 0.
        missing = max(0, d - sigma.shape[-1])
        zeros = ((0, 0), (0, 0), (0, missing))
        left = ops.pad(left, zeros)
        right = ops.pad(right, zeros)

        left = xp.reshape(left, (h, -1, d))  # (H, M + 1, D)
        left = xp.astype(left, w.dtype)
        right = xp.astype(right, w.dtype)  # (G, Mk, D)
        w_q = left[:, :m, :]  # (H, M, D)
        b_q = b_k = None
        if b is not None:
            b_q = xp.reshape(left[:, m, :], (h * d,))  # (H·D,)
            b_k = xp.zeros((g * d,), dtype=w.dtype, device=w.device)  # (G·D,)

        stacked = Stacked(
            sizes,
            w_q=merge_heads(w_q),  # (M, H·D)
            w_k=merge_heads(right),  # (Mk, G·D)
            w_v=self.w_v,
            b_q=b_q,
            b_k=b_k,
            b_v=self.b_v,
        )
        cut = _norm(sigma[:, d:])
        if cut:
            stacked.truncation_error = cut / _norm(sigma)
        return stacked


def _check_rank(
    rank: int,
    d: int,
    *,
    has_bias: bool,
    shares: bool,
) -> None:
    """Raise ValueError if the rank of W_i is more than d, the width D of the heads.

    The message says if W_i is factored together with the bias b_qk (has_bias), or with the other
    heads that share its W^K (shares).
    """
    if rank <= d:
        return
    others = []
    if has_bias:
        others.append("b_qk")
    if shares:
        others.append("the heads that share its W^K")
    together = f", factored with {' and '.join(others)}," if others else ""
    raise ValueError(
        f"W_i = W_i^Q W_i^Kᵀ{together} is of rank {rank}, more than D = {d}: give the "
        "head_dim to keep, and read `truncation_error`"
    )


def _norm(x: Array) -> float:
    """The square root of the sum of squares, computed without overflow."""
    return math.hypot(*backend.to_numpy(x).ravel().tolist())
