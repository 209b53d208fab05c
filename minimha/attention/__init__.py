"""Scaled dot-product attention: the public function, its implementations, its parts and steps."""

from typing import TYPE_CHECKING

from minimha_autograd.first_use import on_first_use

from . import loop  # noqa: F401  registers itself
from .arguments import Arguments
from .dispatch import Dispatch, explain_dispatch, implementation
from .linear import gated_delta_rule, linear_attention
from .merging import merge_attention
from .scaled_dot_product import scaled_dot_product_attention
from .steps import attention_steps

if TYPE_CHECKING:
    from .registered import IMPLEMENTATIONS
else:
    __getattr__, __dir__ = on_first_use(__name__, {"registered": "IMPLEMENTATIONS"})

__all__ = [
    "IMPLEMENTATIONS", "Arguments", "Dispatch", "attention_steps", "explain_dispatch",
    "gated_delta_rule", "implementation", "linear_attention", "merge_attention",
    "scaled_dot_product_attention",
]  # fmt: skip
