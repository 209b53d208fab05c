"""Multi-head attention from scratch, all the way down.

    import minimha as mh

Axis letters, here and everywhere: B batch, H query heads, G key and value heads, T query positions,
S key positions, D head width of Q and K, Dv head width of V, M model width.
"""

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
from minimha_autograd.extension import providers
from minimha_autograd.first_use import on_first_use

__version__ = "0.1.0"

# Where a higher room plugs into a lower one: an extension point, and the function that computes it.
providers.update({
    "minimha_autograd.backend:large_sum": "minimha.functional.sums:add",
    "minimha_autograd.backend:device_sum": "minimha.functional.sums:device_sum",
    "minimha_autograd.gradcheck.check:explain": "minimha.diagnosis.explanation:explain",
    "minimha.functional.implementations:register_kernels": "minimha.kernels:register_all",
    "minimha.masks.mask:picture": "minimha.pictures.masks:mask_svg",
})  # fmt: skip

if TYPE_CHECKING:
    from . import (
        attention,
        cost,
        diagnosis,
        functional,
        homework,
        interchange,
        masks,
        nn,
        parallel,
        pictures,
        projections,
        training,
    )
    from .attention import (
        attention_steps,
        explain_dispatch,
        gated_delta_rule,
        implementation,
        linear_attention,
        merge_attention,
        scaled_dot_product_attention,
    )
    from .diagnosis import diagnose
    from .kernels.invariance import batch_invariant
    from .multihead import (
        KeyValueCache,
        LatentAttention,
        MultiHeadAttention,
        QKNorm,
        multi_head_attention,
        positions,
    )
    from .nn import MLP, SGD, Adam, AdamW, Dropout, Embedding, LayerNorm, Linear, Module, RMSNorm
    from .transformers import GPT, Block, EncoderDecoder, generate, speculate
else:  # a room is entered on first use: `import minimha` loads the engine alone
    __getattr__, __dir__ = on_first_use(__name__, {
        "attention": "attention_steps explain_dispatch gated_delta_rule implementation "
                     "linear_attention merge_attention scaled_dot_product_attention",
        "cost": "",
        "course": "",
        "diagnosis": "diagnose",
        "functional": "",
        "homework": "",
        "interchange": "",
        "kernels.invariance": "batch_invariant",
        "masks": "",
        "multihead": "KeyValueCache LatentAttention MultiHeadAttention QKNorm "
                     "multi_head_attention positions",
        "nn": "MLP SGD Adam AdamW Dropout Embedding LayerNorm Linear Module RMSNorm",
        "parallel": "",
        "pictures": "",
        "projections": "",
        "training": "",
        "transformers": "GPT Block EncoderDecoder generate speculate",
    })  # fmt: skip

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
