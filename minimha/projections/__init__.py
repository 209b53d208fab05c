"""The linear maps of Q, K and V: operations, the forms that hold the weights, conversions.

    form      weights                                  what it is
    per-head  one matrix for each head and role        the paper's picture, in a Python loop
    stacked   w_q (M, H·D), w_k, w_v                   one matmul per role, then split into heads
    fused     w_qkv (M, (H + G)·D + G·Dv)              one matmul for all three roles
    double    first_q (M, M) before w_q, and so on     two products, for which one would do
    bilinear  w_qk (H, M, Mk), w_v                     only the products W_i = W_i^Q W_i^Kᵀ

One matmul is enough for many heads, because x [W₀ W₁ …] = [xW₀ xW₁ …]: heads are blocks of columns.
M, Mk, Mv are the widths of the inputs of Q, K and V; H the number of query heads, G that of key and
value heads; D the width of a head of Q and K, Dv that of V.
"""

from .bilinear import Bilinear
from .double import Double
from .form import FORMS, Form
from .fused import Fused
from .operations import (
    merge_heads,
    project_fused,
    project_in,
    project_out,
    project_self,
    split_heads,
)
from .per_head import PerHead
from .stacked import Projections, Stacked

__all__ = [
    "FORMS", "Form", "Projections", "merge_heads", "project_fused", "project_in", "project_out",
    "project_self", "split_heads",
]  # fmt: skip

FORMS.update({form.form: form for form in (PerHead, Stacked, Fused, Double, Bilinear)})
