"""What neural networks add to the engine's operations, each with its hand-derived pullback."""

from .attention import attention, scaled_dot_product_attention
from .cross_entropy import cross_entropy
from .embedding import embedding
from .gelu import gelu
from .layer_norm import layer_norm
from .softmax import softmax

__all__ = [
    "attention",
    "cross_entropy",
    "embedding",
    "gelu",
    "layer_norm",
    "scaled_dot_product_attention",
    "softmax",
]
