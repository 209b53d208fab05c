"""The fused form: one matmul for all three roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd.backend import namespace

from .form import Form
from .operations import of_roles, project_fused
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Fused(Form):
    """One matrix, with those of Q, K and V side by side. For self-attention only."""

    w_qkv: Any  # (M, (H + G)·D + G·Dv)
    b_qkv: Any  # ((H + G)·D + G·Dv,)

    form = "fused"

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        if query is not key or key is not value:
            raise ValueError(
                "the fused form is for self-attention, where query, key and value are the same: "
                'call convert("stacked") for three different inputs'
            )
        h, g, d = self.sizes.num_heads, self.sizes.num_kv_heads, self.sizes.head_dim
        return project_fused(query, self.w_qkv, self.b_qkv, num_heads=h, num_kv_heads=g, head_dim=d)

    def to_stacked(self) -> Stacked:
        counts = self.sizes.num_heads, self.sizes.num_kv_heads, self.sizes.head_dim
        biases = (None,) * 3 if self.b_qkv is None else of_roles(self.b_qkv, *counts)
        return Stacked(self.sizes, *of_roles(self.w_qkv, *counts), *biases)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        widths = stacked.sizes.d_model, stacked.sizes.kdim, stacked.sizes.vdim
        if len(set(widths)) > 1:
            raise ValueError(
                "the fused form is one matrix for one input: queries, keys and values of widths "
                f"{', '.join(map(str, widths))} need the stacked form"
            )
        biases = [stacked.b_q, stacked.b_k, stacked.b_v]
        missing = [name for name, b in zip(("b_q", "b_k", "b_v"), biases, strict=True) if b is None]
        if 0 < len(missing) < 3:
            raise ValueError(
                "the fused form has one bias for all three roles: without "
                f"{' and '.join(missing)} keep another form, or set them to zeros"
            )
        xp = namespace(stacked.w_q)
        w_qkv = xp.concat([stacked.w_q, stacked.w_k, stacked.w_v], axis=-1)
        return cls(stacked.sizes, w_qkv, None if missing else xp.concat(biases, axis=-1))
