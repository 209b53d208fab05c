"""The per-head form: small matrices, one for each head and role, as in the paper's picture."""

from __future__ import annotations

from typing import Any, Self

from minimha_autograd import ops
from minimha_autograd.backend import Array, namespace

from ..functional import linear
from .form import blocks
from .stacked import Stacked


class PerHead(Stacked):
    """Each weight is a list with one matrix per head: the blocks of columns of the stacked
    weight."""

    form = "per-head"

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        def role(x: Any, w: list[Any], b: list[Any] | None) -> Any:
            heads = zip(w, b or [None] * len(w), strict=True)
            return ops.stack([linear(x, w_i, b_i) for w_i, b_i in heads], axis=-3)

        return (
            role(query, self.w_q, self.b_q),
            role(key, self.w_k, self.b_k),
            role(value, self.w_v, self.b_v),
        )

    def to_stacked(self) -> Stacked:
        def joined(heads: list[Array] | None) -> Array | None:
            return None if heads is None else namespace(*heads).concat(heads, axis=-1)

        weights = self.w_q, self.w_k, self.w_v, self.b_q, self.b_k, self.b_v
        return Stacked(self.sizes, *map(joined, weights))

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        h, g = stacked.sizes.num_heads, stacked.sizes.num_kv_heads
        matrices = blocks(stacked.w_q, h), blocks(stacked.w_k, g), blocks(stacked.w_v, g)
        biases = blocks(stacked.b_q, h), blocks(stacked.b_k, g), blocks(stacked.b_v, g)
        return cls(stacked.sizes, *matrices, *biases)
