"""Building networks: modules, layers, optimisers."""

from .layers import Embedding, LayerNorm, Linear, RMSNorm
from .module import Module, parameter
from .optimisers import AdamW

__all__ = [
    "AdamW", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm", "parameter",
]  # fmt: skip
