"""The double form: two products in a row, which do no more than one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd.backend import Array, namespace

from ..functional import linear
from .form import Form
from .operations import project_in
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Double(Form):
    """Two matrices in a row for each role: x first_q w_q + b_q. Their product, one matrix, does the
    same. Starts with first_q = first_k = first_v = 1."""

    first_q: Any  # (M, M)
    first_k: Any  # (Mk, Mk)
    first_v: Any  # (Mv, Mv)
    w_q: Any  # (M, H·D), as in the stacked form
    w_k: Any
    w_v: Any
    b_q: Any
    b_k: Any
    b_v: Any

    form = "double"
    rearranges = False

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        h, g = self.sizes.num_heads, self.sizes.num_kv_heads
        return (
            project_in(linear(query, self.first_q), self.w_q, self.b_q, num_heads=h),
            project_in(linear(key, self.first_k), self.w_k, self.b_k, num_heads=g),
            project_in(linear(value, self.first_v), self.w_v, self.b_v, num_heads=g),
        )

    def to_stacked(self) -> Stacked:
        products = self.first_q @ self.w_q, self.first_k @ self.w_k, self.first_v @ self.w_v
        return Stacked(self.sizes, *products, self.b_q, self.b_k, self.b_v)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        def one(w: Array) -> Array:
            return namespace(w).eye(w.shape[0], dtype=w.dtype, device=w.device)

        return cls(
            stacked.sizes,
            first_q=one(stacked.w_q),
            first_k=one(stacked.w_k),
            first_v=one(stacked.w_v),
            w_q=stacked.w_q,
            w_k=stacked.w_k,
            w_v=stacked.w_v,
            b_q=stacked.b_q,
            b_k=stacked.b_k,
            b_v=stacked.b_v,
        )
