"""What neural networks add to the engine's operations, each with its hand-derived pullback."""

from .attention import attention, pair_scores, weighted_sum
from .attention_loop import attention_loop
from .attention_steps import attention_steps
from .cross_entropy import cross_entropy
from .dropout import drop, dropout
from .embedding import embedding
from .gelu import gelu
from .implementations import IMPLEMENTATIONS, implementation
from .layer_norm import layer_norm
from .linear import linear
from .rms_norm import rms_norm
from .rope import rope
from .scaled_dot_product import explain_dispatch, scaled_dot_product_attention
from .silu import silu
from .softmax import sink_softmax, softmax

__all__ = [
    "IMPLEMENTATIONS",
    "attention",
    "attention_loop",
    "attention_steps",
    "cross_entropy",
    "drop",
    "dropout",
    "embedding",
    "explain_dispatch",
    "gelu",
    "implementation",
    "layer_norm",
    "linear",
    "pair_scores",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "silu",
    "sink_softmax",
    "softmax",
    "weighted_sum",
]
