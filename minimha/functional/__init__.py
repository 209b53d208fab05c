"""What neural networks add to the engine's operations, each with its hand-derived pullback."""

from . import acceleration as acceleration
from .cross_entropy import cross_entropy
from .dropout import drop, dropout
from .embedding import embedding
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear
from .rms_norm import rms_norm
from .rope import rope
from .silu import silu
from .softmax import sink_softmax, softmax

__all__ = [
    "cross_entropy",
    "drop",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "rms_norm",
    "rope",
    "silu",
    "sink_softmax",
    "softmax",
]
