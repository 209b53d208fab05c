"""Multi-head attention as an operation on arrays and as a layer, latent attention, their cache, and
positions."""

from . import positions
from .cache import KeyValueCache
from .latent import LatentAttention
from .layer import MultiHeadAttention
from .operation import multi_head_attention
from .qk_norm import QKNorm

__all__ = [
    "KeyValueCache", "LatentAttention", "MultiHeadAttention", "QKNorm", "multi_head_attention",
    "positions",
]  # fmt: skip
