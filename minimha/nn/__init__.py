"""Building networks: modules, layers, optimisers."""

from .layers import MLP, Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module, parameter
from .optimisers import AdamW

__all__ = [
    "MLP", "AdamW", "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm", "parameter",
]  # fmt: skip
