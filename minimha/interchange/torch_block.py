"""The weights of `torch.nn.TransformerEncoderLayer`. torch itself need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..nn import LayerNorm
from ..transformers import Block
from .states import mismatches, on_host, require_dictionary, set_state, state
from .torch_layer import beyond_torch, from_torch, to_torch

_NAMES = {
    "linear1": "mlp.widen",
    "linear2": "mlp.narrow",
    "norm1": "norm_attention",
    "norm2": "norm_mlp",
}
"""torch's names for the parts of a block, except for attention, and ours."""


def block_to_torch(block: Block) -> dict[str, np.ndarray]:
    """The weights under the names and in the shapes of `torch.nn.TransformerEncoderLayer`.

    These are `to_torch(block.attention)` after "self_attn.", and weight and bias of linear1,
    linear2, norm1 and norm2; torch keeps each matrix as (out, in). The layer there needs the same
    norm_first and layer_norm_eps, and the same activation: torch's activation="gelu" is x · Φ(x),
    from which ours differs by up to 5e-4; `lambda x: gelu(x, approximate="tanh")` with
    torch.nn.functional.gelu is the same.

    Raises ValueError, with all reasons, for a block that torch cannot represent; TypeError for
    another module.
    """
    if not isinstance(block, Block):
        raise TypeError(f"block must be a Block, not a {type(block).__name__}")
    reasons = beyond_torch(block.attention)
    if block.cross is not None:
        reasons.append("cross-attention is in torch.nn.TransformerDecoderLayer")
    if not isinstance(block.norm_attention, LayerNorm):
        reasons.append("norms there are layer norms, and here RMS norms")
    if block.mlp.gate is not None:
        reasons.append("the perceptron there has no gate, and here it is SwiGLU")
    if reasons:
        raise ValueError(
            "torch.nn.TransformerEncoderLayer has no such layer: " + "; ".join(reasons)
        )
    theirs = {f"self_attn.{name}": x for name, x in to_torch(block.attention).items()}
    ours = state(block)
    for there, here in _NAMES.items():
        for kind in ("weight", "bias"):
            if f"{here}.{kind}" in ours:
                theirs[f"{there}.{kind}"] = ours[f"{here}.{kind}"].T.copy()
    return theirs


def block_from_torch(
    arrays: Mapping[str, Any],
    num_heads: int,
    *,
    norm_first: bool = False,
    activation: str = "relu",
    norm_eps: float = 1e-5,
    prefix: str = "",
    dropout: float = 0.0,
) -> Block:
    """The block with the weights of a `torch.nn.TransformerEncoderLayer`, on the host.

    arrays      its state_dict(), of torch's tensors or NumPy's arrays. The dtype stays the same,
                except that bfloat16, which NumPy lacks, becomes float32
    prefix      the path to the layer in the state_dict() of a larger module, such as "layers.0".
                Entries elsewhere are ignored
    activation  "relu", or "gelu" for the tanh form: see `block_to_torch`

    num_heads, norm_first, activation and norm_eps do not show in the weights; their defaults are
    torch's.
    Raises ValueError, with all reasons, for entries that are missing, extra or of another shape or
    dtype; TypeError for arrays that are not a dictionary.
    """
    require_dictionary(arrays)
    start = f"{prefix.rstrip('.')}." if prefix else ""
    entries = {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}
    wide = on_host(entries.get("linear1.weight"))
    if isinstance(wide, str) or wide.dtype.kind != "f" or wide.ndim != 2:
        what = wide if isinstance(wide, str) else f"{wide.dtype} {wide.shape}"
        raise ValueError(
            f"{start}linear1.weight is {what}, but must be floating-point numbers (hidden, M)"
        )
    hidden, m = wide.shape
    block = Block(
        m, num_heads, hidden=hidden, activation=activation, norm_eps=norm_eps,
        norm_first=norm_first, bias="linear1.bias" in entries, dropout=dropout,
        dtype=wide.dtype.name,
    )  # fmt: skip
    required = {name: (x.shape, x.dtype) for name, x in block_to_torch(block).items()}
    if wrong := mismatches(entries, required):
        raise ValueError(
            "entries do not make a torch.nn.TransformerEncoderLayer: " + "; ".join(wrong)
        )
    attention = state(from_torch(entries, num_heads, prefix="self_attn"))
    ours = {f"attention.{name}": x for name, x in attention.items()}
    for there, here in _NAMES.items():
        for kind in ("weight", "bias"):
            if f"{there}.{kind}" in entries:
                ours[f"{here}.{kind}"] = backend.to_numpy(entries[f"{there}.{kind}"]).T
    set_state(block, ours)
    return block
