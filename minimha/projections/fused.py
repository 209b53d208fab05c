"""The fused form of the projections: Q, K and V by a single product of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from minimha_autograd.backend import namespace

from .form import Form
from .operations import of_roles, project_fused
from .stacked import Stacked


@dataclass(eq=False, repr=False)
class Fused(Form):
    """One matrix w_qkv, in which the matrices of Q, K and V stand side by side. For self-attention
    only."""

    w_qkv: Any  # (M, (H + G)·D + G·Dv)
    b_qkv: Any  # ((H + G)·D + G·Dv,)

    form = "fused"

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        if query is not key or key is not value:
            raise ValueError(
                "the fused form is for self-attention, where query, key and value are the same: "
                'call convert("stacked") for three different inputs'
            )
        return project_fused(
            query,
            self.w_qkv,
            self.b_qkv,
            num_heads=self.sizes.num_heads,
            num_kv_heads=self.sizes.num_kv_heads,
            head_dim=self.sizes.head_dim,
        )

    def to_stacked(self) -> Stacked:
        h = self.sizes.num_heads
        g = self.sizes.num_kv_heads
        d = self.sizes.head_dim
        w_q, w_k, w_v = of_roles(self.w_qkv, h, g, d)  # (M, H·D), (M, G·D), (M, G·Dv)
        b_q = b_k = b_v = None
        if self.b_qkv is not None:
            b_q, b_k, b_v = of_roles(self.b_qkv, h, g, d)  # (H·D,), (G·D,), (G·Dv,)
        return Stacked(self.sizes, w_q, w_k, w_v, b_q, b_k, b_v)

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Self:
        widths = stacked.sizes.d_model, stacked.sizes.kdim, stacked.sizes.vdim  # M, Mk, Mv
        if len(set(widths)) > 1:
            raise ValueError(
                "the fused form is one matrix for one input: queries, keys and values of widths "
                f"{', '.join(map(str, widths))} need the stacked form"
            )
        biases = {"b_q": stacked.b_q, "b_k": stacked.b_k, "b_v": stacked.b_v}
        missing = [name for name, b in biases.items() if b is None]

        # Zeros in place of a missing bias would be trained.
        if 0 < len(missing) < 3:
            raise ValueError(
                "the fused form has one bias for all three roles: without "
                f"{' and '.join(missing)} keep another form, or set them to zeros"
            )

        # x [W_q W_k W_v] = [x W_q  x W_k  x W_v]: all columns side by side.
        matrices = [stacked.w_q, stacked.w_k, stacked.w_v]
        xp = namespace(stacked.w_q)
        w_qkv = xp.concat(matrices, axis=-1)  # (M, (H + G)·D + G·Dv)
        b_qkv = None
        if not missing:
            b_qkv = xp.concat(list(biases.values()), axis=-1)  # ((H + G)·D + G·Dv,)
        return cls(stacked.sizes, w_qkv, b_qkv)
