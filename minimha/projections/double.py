"""The double form: two products in a row, which do no more than one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd import ops
from minimha_autograd.backend import namespace

from ..functional import linear
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Double(Stacked):
    """Two matrices in a row for each role: x first_q w_q + b_q. Their product, a single matrix,
    does the same. Starts with first_q = first_k = first_v = 1."""

    first_q: Any  # (M, M)
    first_k: Any  # (Mk, Mk)
    first_v: Any  # (Mv, Mv)

    form = "double"
    rearranges = False

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        firsts = (query, self.first_q), (key, self.first_k), (value, self.first_v)
        return super().project(*(linear(x, first) for x, first in firsts))

    def to_stacked(self) -> Stacked:
        w_q = ops.matmul(self.first_q, self.w_q)
        w_k = ops.matmul(self.first_k, self.w_k)
        w_v = ops.matmul(self.first_v, self.w_v)
        return Stacked(self.sizes, w_q, w_k, w_v, self.b_q, self.b_k, self.b_v)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        matrices, xp = [stacked.w_q, stacked.w_k, stacked.w_v], namespace(stacked.w_q)
        ones = [xp.eye(w.shape[0], dtype=w.dtype, device=w.device) for w in matrices]
        weights = [*matrices, stacked.b_q, stacked.b_k, stacked.b_v, *ones]
        return cls(stacked.sizes, *weights)
