"""Scaled dot-product attention: the public function, the implementations, and the choice of one."""

from .dispatch import IMPLEMENTATIONS, Dispatch, implementation
from .loop import attention_loop
from .reference import attention, pair_scores, weighted_sum
from .scaled_dot_product import check, explain_dispatch, scaled_dot_product_attention
from .steps import attention_steps

__all__ = [
    "IMPLEMENTATIONS",
    "Dispatch",
    "attention",
    "attention_loop",
    "attention_steps",
    "check",
    "explain_dispatch",
    "implementation",
    "pair_scores",
    "scaled_dot_product_attention",
    "weighted_sum",
]
