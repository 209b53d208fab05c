"""Multi-head attention from scratch, all the way down.

    import minimha as mh

Axis letters, here and everywhere: B batch, H heads, T query positions, S key positions,
D head width of Q and K, Dv head width of V, M model width.
"""

from minimha_autograd import (
    GradcheckError,
    Tensor,
    backend,
    detect_anomaly,
    gradcheck,
    no_grad,
    operation,
    ops,
)

from . import conventions, functional, interchange, masks, pictures, projections
from .functional import scaled_dot_product_attention
from .modules import GPT, Block, Embedding, LayerNorm, Linear, Module
from .multihead import MultiHeadAttention, multi_head_attention
from .optim import AdamW

__version__ = "0.1.0"

__all__ = [
    "GPT",
    "AdamW",
    "Block",
    "Embedding",
    "GradcheckError",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Tensor",
    "backend",
    "conventions",
    "detect_anomaly",
    "functional",
    "gradcheck",
    "interchange",
    "masks",
    "multi_head_attention",
    "no_grad",
    "operation",
    "ops",
    "pictures",
    "projections",
    "scaled_dot_product_attention",
]
