"""The double form of the projections: two linear maps one after the other, which together can do
no more than a single one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd import ops
from minimha_autograd.backend import Array, namespace

from ..functional import linear
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Double(Stacked):
    """Two matrices, one after the other, for each of Q, K and V: x first_q w_q + b_q. Their
    product, a single matrix, does the same. At the start first_q, first_k and first_v are identity
    matrices."""

    first_q: Any  # (M, M)
    first_k: Any  # (Mk, Mk)
    first_v: Any  # (Mv, Mv)

    form = "double"
    rearranges = False

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        query = linear(query, self.first_q)  # (…, T, M)
        key = linear(key, self.first_k)  # (…, S, Mk)
        value = linear(value, self.first_v)  # (…, S, Mv)
        return super().project(query, key, value)

    def to_stacked(self) -> Stacked:
        # (x first) w = x (first w): there is no nonlinearity between the two.
        w_q = ops.matmul(self.first_q, self.w_q)  # (M, H·D)
        w_k = ops.matmul(self.first_k, self.w_k)  # (Mk, G·D)
        w_v = ops.matmul(self.first_v, self.w_v)  # (Mv, G·Dv)
        return Stacked(self.sizes, w_q, w_k, w_v, self.b_q, self.b_k, self.b_v)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        return cls(
            stacked.sizes,
            w_q=stacked.w_q,
            w_k=stacked.w_k,
            w_v=stacked.w_v,
            b_q=stacked.b_q,
            b_k=stacked.b_k,
            b_v=stacked.b_v,
            first_q=_identity_before(stacked.w_q),  # (M, M)
            first_k=_identity_before(stacked.w_k),  # (Mk, Mk)
            first_v=_identity_before(stacked.w_v),  # (Mv, Mv)
        )


def _identity_before(w: Array) -> Array:
    """The identity matrix I (M, M) with I w = w, for w (M, N)."""
    xp = namespace(w)
    return xp.eye(w.shape[0], dtype=w.dtype, device=w.device)
