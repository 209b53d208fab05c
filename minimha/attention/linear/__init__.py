"""Attention with a state of constant size: linear attention and the gated delta rule."""

from .operations import gated_delta_rule, linear_attention

__all__ = ["gated_delta_rule", "linear_attention"]
