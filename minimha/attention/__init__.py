"""Scaled dot-product attention: the public function, the implementations, and the choice of one."""

from typing import Any

from .arguments import Arguments, attention_operation, check, library_of
from .dispatch import PROVIDERS, Dispatch, choose, implementation, implementations, register
from .loop import attention_loop
from .merging import merge_attention, merged
from .reference import attention, pair_scores, weighted_sum
from .scaled_dot_product import explain_dispatch, scaled_dot_product_attention
from .steps import attention_steps

__all__ = [
    "IMPLEMENTATIONS",
    "PROVIDERS",
    "Arguments",
    "Dispatch",
    "attention",
    "attention_loop",
    "attention_operation",
    "attention_steps",
    "check",
    "choose",
    "explain_dispatch",
    "implementation",
    "library_of",
    "merge_attention",
    "merged",
    "pair_scores",
    "register",
    "scaled_dot_product_attention",
    "weighted_sum",
]


def __getattr__(name: str) -> Any:
    """`IMPLEMENTATIONS`, by name; reading it loads the kernels."""
    if name == "IMPLEMENTATIONS":
        return implementations()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
