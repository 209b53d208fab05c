"""Modules hold parameters: layers, the transformer block and a small GPT."""

from .layers import Embedding, LayerNorm, Linear, RMSNorm
from .module import Module
from .transformer import GPT, Block

__all__ = ["GPT", "Block", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm"]
