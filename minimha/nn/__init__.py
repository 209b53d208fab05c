"""Building and training networks: modules, layers, optimisers, data, training."""

from .layers import Embedding, LayerNorm, Linear, RMSNorm
from .module import Module, parameter
from .optimisers import AdamW

__all__ = [
    "AdamW", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm", "data", "parameter",
    "training",
]  # fmt: skip
