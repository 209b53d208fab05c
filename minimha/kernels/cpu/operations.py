"""The compiled operations; importing this module registers them all."""

from . import adamw, embeddings, gates, linear, norms, softmax

__all__ = ["adamw", "embeddings", "gates", "linear", "norms", "softmax"]
