"""Building networks: modules, layers, optimisers."""

from .layers import MLP, Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module
from .optimisers import SGD, Adam, AdamW, Optimiser, clip_gradients, decay_groups, warmup_cosine
from .quantise import quantise

__all__ = [
    "MLP", "SGD", "Adam", "AdamW", "Dropout", "Embedding", "LayerNorm", "Linear", "Module",
    "Optimiser", "RMSNorm", "clip_gradients", "decay_groups", "quantise",
    "warmup_cosine",
]  # fmt: skip
