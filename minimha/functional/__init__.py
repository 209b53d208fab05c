"""What neural networks add to the engine's operations, each with its hand-derived pullback."""

from . import acceleration as acceleration
from .cross_entropy import cross_entropy
from .dropout import drop, dropout
from .embedding import embedding
from .gates import gelu, silu
from .linear import linear
from .norms import layer_norm, rms_norm
from .rope import rope
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
