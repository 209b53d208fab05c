"""The operations that `accelerated` finds here by name.

Forward and backward are a pass over memory each, an entry or a row at a time; those of the linear
map are products of matrices. Exponentials are vector code, sums of a row are taken while it is in
the cache, and NaN and infinities go where the references let them go.
"""

from .adamw import adamw
from .embeddings import embedding, rope
from .gates import dropout, gelu, silu
from .linear import linear
from .norms import layer_norm, rms_norm
from .softmax import cross_entropy, softmax

__all__ = [
    "adamw",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "rms_norm",
    "rope",
    "silu",
    "softmax",
]
