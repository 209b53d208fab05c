"""Transformers built from the layers: a block, a GPT, and its generation."""

from .block import Block, norm_layer
from .generation import check_sampling, generate, probabilities
from .gpt import GPT

__all__ = ["GPT", "Block", "check_sampling", "generate", "norm_layer", "probabilities"]
