"""Modules hold parameters: layers, the transformer block and a small GPT."""

from ..module import Module
from .layers import Embedding, LayerNorm, Linear, RMSNorm
from .transformer import GPT, Block

__all__ = ["GPT", "Block", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm"]
