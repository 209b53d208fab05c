"""Multi-head attention from scratch, all the way down.

    import minimha as mh

Axis letters, here and everywhere: B batch, H heads, T query positions, S key positions,
D head width of Q and K, Dv head width of V, M model width.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

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
from minimha_autograd.gradcheck import SIGNATURES

from . import functional, interchange, masks, pictures, positions, projections
from .functional import (
    attention_steps,
    explain_dispatch,
    implementation,
    scaled_dot_product_attention,
)
from .modules import GPT, Block, Embedding, LayerNorm, Linear, Module, RMSNorm
from .multihead import KeyValueCache, MultiHeadAttention, multi_head_attention
from .optim import AdamW

if TYPE_CHECKING:
    from . import conventions, cost, diagnosis, homework

__version__ = "0.1.0"
SIGNATURES.append(f"{__name__}.diagnosis")

__all__ = [
    "GPT",
    "AdamW",
    "Block",
    "Embedding",
    "GradcheckError",
    "KeyValueCache",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "RMSNorm",
    "Tensor",
    "attention_steps",
    "backend",
    "conventions",
    "cost",
    "detect_anomaly",
    "diagnosis",
    "explain_dispatch",
    "functional",
    "gradcheck",
    "homework",
    "implementation",
    "interchange",
    "masks",
    "multi_head_attention",
    "no_grad",
    "operation",
    "ops",
    "pictures",
    "positions",
    "projections",
    "scaled_dot_product_attention",
]


def __getattr__(name: str) -> ModuleType:
    """What few programs need is loaded when it is first asked for."""
    if name in ("conventions", "cost", "diagnosis", "homework"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
