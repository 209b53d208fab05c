"""Multi-head attention: the operation on arrays, the layer, its cache, and positions."""

from . import positions
from .cache import KeyValueCache
from .layer import MultiHeadAttention
from .operation import multi_head_attention

__all__ = ["KeyValueCache", "MultiHeadAttention", "multi_head_attention", "positions"]
