"""Multi-head attention from scratch, all the way down.

    import minimha as mh

Axis letters, here and everywhere: B batch, H query heads, G key and value heads, T query positions,
S key positions, D head width of Q and K, Dv head width of V, M model width.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
from minimha_autograd.gradcheck import EXPLAINERS

from . import attention, functional, masks, nn, projections
from .attention import (
    attention_steps,
    explain_dispatch,
    gated_delta_rule,
    implementation,
    linear_attention,
    merge_attention,
    scaled_dot_product_attention,
)
from .functional.implementations import PROVIDERS
from .multihead import (
    KeyValueCache,
    LatentAttention,
    MultiHeadAttention,
    QKNorm,
    multi_head_attention,
    positions,
)
from .nn import MLP, SGD, Adam, AdamW, Dropout, Embedding, LayerNorm, Linear, Module, RMSNorm

if TYPE_CHECKING:
    from . import cost, diagnosis, homework, interchange, parallel, pictures, training
    from .diagnosis import diagnose
    from .kernels.invariance import batch_invariant
    from .transformers import GPT, Block, EncoderDecoder, generate, speculate

__version__ = "0.1.0"
EXPLAINERS.append(f"{__name__}.diagnosis.explanation")
masks.Mask.svg = lambda mask: importlib.import_module(f"{__name__}.pictures.masks").mask_svg(mask)
PROVIDERS += [f"{__name__}.kernels.operations", f"{__name__}.kernels.attention"]

__all__ = [
    "GPT", "MLP", "SGD", "Adam", "AdamW", "Block", "Dropout", "Embedding", "EncoderDecoder",
    "GradcheckError", "KeyValueCache", "LatentAttention", "LayerNorm", "Linear", "Module",
    "MultiHeadAttention", "QKNorm", "RMSNorm", "Tensor", "attention", "attention_steps", "backend",
    "batch_invariant", "cost", "detect_anomaly", "diagnose", "diagnosis", "explain_dispatch",
    "functional", "gated_delta_rule", "generate", "gradcheck", "homework", "implementation",
    "interchange", "linear_attention", "masks", "merge_attention", "multi_head_attention", "nn",
    "no_grad", "operation", "ops", "parallel", "pictures", "positions", "projections",
    "scaled_dot_product_attention", "speculate", "training",
]  # fmt: skip

_ROOMS = {
    "cost", "course", "diagnosis", "homework", "interchange", "parallel", "pictures", "training",
    "transformers",
}  # fmt: skip
_NAMES = {
    "batch_invariant": "kernels.invariance",
    "diagnose": "diagnosis",
    **dict.fromkeys(("GPT", "Block", "EncoderDecoder", "generate", "speculate"), "transformers"),
}


def __getattr__(name: str) -> Any:
    """Load a subpackage that gradient checks and attention do not need, on first use."""
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__  # an editor completes also what is not loaded yet
