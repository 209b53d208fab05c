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
    which do not affect softmax: b_qk = W_K b_Q stays, b_K drops out. b_qk is factored together
    with W_i, as another row below it.
    """

    w_qk: Any  # (H, M, Mk)
    b_qk: Any  # (H, Mk)
    w_v: Any  # (Mv, G·Dv)
    b_v: Any  # (G·Dv,)

    form = "bilinear"
    rearranges = False

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        g = self.sizes.num_kv_heads
        q = ops.matmul(ops.expand_dims(query, axis=-3), self.w_qk)  # (…, H, T, Mk)
        if self.b_qk is not None:
            q = ops.add(q, ops.expand_dims(self.b_qk, axis=1))
        k = ops.expand_dims(key, axis=-3)  # (…, 1, S, Mk)
        k = ops.broadcast_to(k, (*k.shape[:-3], g, *k.shape[-2:]))
        return q, k, project_in(value, self.w_v, self.b_v, num_heads=g)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        h, g = stacked.sizes.num_heads, stacked.sizes.num_kv_heads
        xp = namespace(stacked.w_q)
        w_q = xp.stack(blocks(stacked.w_q, h))  # (H, M, D)
        w_k = xp.repeat(xp.stack(blocks(stacked.w_k, g)), h // g, axis=0)  # (H, Mk, D)
        w_qk = ops.matmul(w_q, xp.matrix_transpose(w_k))
        if is_finite(w_q) and is_finite(w_k) and not is_finite(w_qk):
            raise ValueError(
                f"W_i^Q W_i^Kᵀ overflows {w_qk.dtype}: convert weights of a wider dtype"
            )
        b_qk = None
        if stacked.b_q is not None:
            b_qk = ops.matmul(w_k, xp.stack(blocks(stacked.b_q, h))[..., None])[..., 0]
        return cls(stacked.sizes, w_qk, b_qk, stacked.w_v, stacked.b_v)

    def to_stacked(self) -> Stacked:
        return self.factored()

    def factored(self, head_dim: int | None = None) -> Stacked:
        """The stacked form with the best W_i^Q W_i^Kᵀ ≈ W_i of rank D, by singular values. Heads
        that share a W^K are factored together, as rows of one matrix.

        Raises ValueError without a head_dim, if more than rounding is cut off.
        """
        sizes = self.sizes
        if head_dim is not None:
            sizes = sizes._replace(head_dim=integer(head_dim, "head_dim", least=1))
        w, b, d, g = self.w_qk, self.b_qk, sizes.head_dim, sizes.num_kv_heads
        xp, (h, m, mk) = namespace(w), w.shape
        rows = w if b is None else xp.concat([w, b[:, None, :]], axis=1)  # (H, M + 1, Mk)
        groups = xp.reshape(rows, (g, -1, mk))  # (G, H/G · (M + 1), Mk)
        u, sigma, vt = xp.linalg.svd(finite(widened(groups)), full_matrices=False)
        if head_dim is None and (rank := max(ranks(sigma, w))) > d:
            others = ["b_qk"] * (b is not None) + ["the heads that share its W^K"] * (g < h)
            together = f", factored with {' and '.join(others)}," if others else ""
            raise ValueError(
                f"W_i = W_i^Q W_i^Kᵀ{together} is of rank {rank}, more than D = {d}: give the "
                "head_dim to keep, and read `truncation_error`"
            )
        kept = xp.where(sigma > rounding(sigma, w), sigma, xp.zeros_like(sigma))
        root = xp.sqrt(kept[:, None, :d])  # 0 in a column beyond the rank
        zeros = ((0, 0), (0, 0), (0, max(0, d - sigma.shape[-1])))  # for a D beyond M
        left = ops.pad(u[..., :d] * root, zeros)  # (G, H/G · (M + 1), D)
        right = ops.pad(xp.matrix_transpose(vt)[..., :d] * root, zeros)  # (G, Mk, D)
        left = xp.astype(xp.reshape(left, (h, -1, d)), w.dtype)  # (H, M + 1, D)
        stacked = Stacked(
            sizes,
            w_q=merge_heads(left[:, :m, :]),
            w_k=merge_heads(xp.astype(right, w.dtype)),
            w_v=self.w_v,
            b_q=None if b is None else xp.reshape(left[:, m, :], (h * d,)),
            b_k=None if b is None else xp.zeros((g * d,), dtype=w.dtype, device=w.device),
            b_v=self.b_v,
        )
        if cut := _norm(sigma[:, d:]):
            stacked.truncation_error = cut / _norm(sigma)
        return stacked


def _norm(x: Array) -> float:
    """The square root of the sum of squares, computed without overflow."""
    return math.hypot(*backend.to_numpy(x).ravel().tolist())
