"""Transformers built from the layers: a block and a small GPT."""

from .gpt import GPT, Block

__all__ = ["GPT", "Block"]
