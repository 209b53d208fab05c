"""The per-head form of the projections: a small matrix of each head for each of Q, K and V, as in
the paper's picture."""

from __future__ import annotations

from typing import Any, Self

from minimha_autograd import ops
from minimha_autograd.backend import Array, namespace

from ..functional import linear
from .form import blocks
from .stacked import Stacked


class PerHead(Stacked):
    """The weights of the stacked form, each cut into a list: w_q has one matrix for each query
    head, b_q one bias, and so on. An entry of the list is the block of columns of one head."""

    form = "per-head"

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        q = _in_heads(query, self.w_q, self.b_q)  # (…, H, T, D)
        k = _in_heads(key, self.w_k, self.b_k)  # (…, G, S, D)
        v = _in_heads(value, self.w_v, self.b_v)  # (…, G, S, Dv)
        return q, k, v

    def to_stacked(self) -> Stacked:
        return Stacked(
            self.sizes,
            w_q=_side_by_side(self.w_q),  # (M, H·D)
            w_k=_side_by_side(self.w_k),  # (Mk, G·D)
            w_v=_side_by_side(self.w_v),  # (Mv, G·Dv)
            b_q=_side_by_side(self.b_q),
            b_k=_side_by_side(self.b_k),
            b_v=_side_by_side(self.b_v),
        )

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        h = stacked.sizes.num_heads
        g = stacked.sizes.num_kv_heads
        return cls(
            stacked.sizes,
            w_q=blocks(stacked.w_q, h),  # H matrices (M, D)
            w_k=blocks(stacked.w_k, g),  # G matrices (Mk, D)
            w_v=blocks(stacked.w_v, g),  # G matrices (Mv, Dv)
            b_q=blocks(stacked.b_q, h),
            b_k=blocks(stacked.b_k, g),
            b_v=blocks(stacked.b_v, g),
        )


def _in_heads(x: Any, ws: list[Any], bs: list[Any] | None) -> Any:
    """x multiplied by the matrix of each head, plus the bias of the head if there are biases:
    (…, T, M) -> (…, H, T, D). ws and bs list the matrices and the biases; bs is None without
    biases."""
    if bs is None:
        bs = [None] * len(ws)
    heads = [linear(x, w, b) for w, b in zip(ws, bs, strict=True)]  # H times (…, T, D)
    return ops.stack(heads, axis=-3)


def _side_by_side(heads: list[Array] | None) -> Array | None:
    """The columns of all heads in one matrix: the inverse of `blocks`."""
    if heads is None:  # no bias
        return None
    xp = namespace(*heads)
    return xp.concat(heads, axis=-1)
