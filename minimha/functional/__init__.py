"""What neural networks add to the engine's operations, each with its hand-derived pullback."""

from .attention import attention, scaled_dot_product_attention
from .cross_entropy import cross_entropy
from .dropout import drop, dropout
from .embedding import embedding
from .gelu import gelu
from .layer_norm import layer_norm
from .rms_norm import rms_norm
from .rope import rope
from .softmax import softmax

__all__ = [
    "attention",
    "cross_entropy",
    "drop",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "softmax",
]
