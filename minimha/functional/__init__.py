"""The operations of neural networks that the engine lacks, each with its hand-derived pullback."""

from .cross_entropy import cross_entropy
from .dropout import drop, dropout
from .embedding import embedding
from .gates import gelu, relu, silu
from .linear import linear
from .norms import layer_norm, rms_norm
from .quantised import Quantised
from .rope import rope
from .softmax import sink_softmax, softmax

__all__ = [
    "Quantised", "cross_entropy", "drop", "dropout", "embedding", "gelu", "layer_norm", "linear",
    "relu", "rms_norm", "rope", "silu", "sink_softmax", "softmax",
]  # fmt: skip
