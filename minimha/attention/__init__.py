"""Scaled dot-product attention: the public function, its implementations, its parts and steps."""

from typing import Any

from . import loop  # noqa: F401  registers itself
from .arguments import Arguments
from .dispatch import Dispatch, explain_dispatch, implementation
from .linear import gated_delta_rule, linear_attention
from .merging import merge_attention
from .scaled_dot_product import scaled_dot_product_attention
from .steps import attention_steps

__all__ = [
    "IMPLEMENTATIONS", "Arguments", "Dispatch", "attention_steps", "explain_dispatch",
    "gated_delta_rule", "implementation", "linear_attention", "merge_attention",
    "scaled_dot_product_attention",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`IMPLEMENTATIONS`, by name; reading it loads the kernels."""
    if name == "IMPLEMENTATIONS":
        from ..functional.implementations import implementations

        return implementations("attention")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
