"""The operations of neural networks that the engine lacks, each with its hand-derived pullback."""

from . import acceleration
from .checks import check_probability, integer
from .cross_entropy import cross_entropy
from .dropout import Draw, draw, drop, dropout
from .embedding import embedding
from .gates import gelu, relu, silu
from .linear import linear, linear_maps
from .masked_products import (
    hide,
    is_finite,
    known_finite,
    ones_where_hidden,
    products,
    sums_over_keys,
    sums_over_queries,
)
from .norms import layer_norm, rms_norm
from .rope import rope, turns
from .softmax import log_sums, masked_softmax, sink_softmax, softmax, softmax_with_sink
from .sums import add

__all__ = [
    "Draw",
    "acceleration",
    "add",
    "check_probability",
    "cross_entropy",
    "draw",
    "drop",
    "dropout",
    "embedding",
    "gelu",
    "hide",
    "integer",
    "is_finite",
    "known_finite",
    "layer_norm",
    "linear",
    "linear_maps",
    "log_sums",
    "masked_softmax",
    "ones_where_hidden",
    "products",
    "relu",
    "rms_norm",
    "rope",
    "silu",
    "sink_softmax",
    "softmax",
    "softmax_with_sink",
    "sums_over_keys",
    "sums_over_queries",
    "turns",
]
