"""The weights of `torch.nn.TransformerEncoderLayer`. torch itself need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..nn import LayerNorm, Module
from ..transformers import Block
from . import states
from .states import matrix, mismatches, packed, refuse, set_state, state, unpacked, with_biases
from .torch_layer import beyond_torch, names_in_torch


def _names(bias: bool) -> dict[str, str]:
    """A dictionary from torch's names of the weights to ours, as `packed` takes it; `bias` says
    whether the block has biases."""
    attention = {f"self_attn.{x}": f"attention.{y}" for x, y in names_in_torch(bias=bias).items()}
    others = {
        "linear1.*": "mlp.widen.*.T", "linear2.*": "mlp.narrow.*.T",
        "norm1.*": "norm_attention.*", "norm2.*": "norm_mlp.*",
    }  # fmt: skip
    return attention | with_biases(others, bias)


def block_to_torch(block: Block) -> dict[str, np.ndarray]:
    """The weights under the names and in the shapes of `torch.nn.TransformerEncoderLayer`.

    The dictionary has the entries of `to_torch(block.attention)`, their names preceded by
    "self_attn.", and the weight and bias of linear1, linear2, norm1 and norm2; torch keeps each
    matrix as (out, in). The layer of torch that loads them must have the same norm_first and
    layer_norm_eps, and the same activation. torch's activation="gelu" is x · Φ(x), from which our
    "gelu" differs by up to 5e-4; `lambda x: gelu(x, approximate="tanh")`, with
    torch.nn.functional.gelu, is the same as ours.

    Raises ValueError, with all reasons, for a block that torch cannot represent; TypeError for a
    module that is not a Block.
    """
    states.require(Block, "block", block)
    reasons = beyond_torch(block.attention)
    if block.cross is not None:
        reasons.append("cross-attention is in torch.nn.TransformerDecoderLayer")
    if isinstance(block.norm_mlp_output, Module):
        reasons.append("the outputs of attention and perceptron are not normalised there")
    elif not isinstance(block.norm_attention, LayerNorm):
        reasons.append("norms there are layer norms, and here RMS norms")
    if block.window is not None:
        reasons.append("the layer there has no window: it comes with the mask")
    if block.mlp.gate is not None:
        reasons.append(f"the perceptron there has no gate, and here it is {block.mlp.activation}")
    biased = block.mlp.widen.bias is not None
    if biased != (block.attention.b_o is not None):
        where = "the perceptron" if biased else "attention"
        reasons.append(f"biases there are everywhere or nowhere, and here in {where} alone")
    refuse("torch.nn.TransformerEncoderLayer has no such layer", reasons)
    attention = state(block.attention.convert("stacked"))
    ours = state(block) | {f"attention.{name}": x for name, x in attention.items()}
    return packed(_names("mlp.widen.bias" in ours), ours)


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

    arrays                           its state_dict(), of torch's tensors or NumPy's arrays
    num_heads, norm_first, norm_eps  those of torch's layer, since the weights do not show them
                                     (norm_eps is its layer_norm_eps); the defaults are torch's
    activation                       that of torch's layer: "relu", or "gelu" for the tanh form, see
                                     `block_to_torch`
    prefix                           the path to the layer in the state_dict() of a larger module:
                                     "layers.0". Entries under other paths are ignored
    dropout                          as in `Block`

    Raises ValueError, with all reasons, for entries that are missing, extra or of the wrong shape
    or dtype; TypeError for arrays that are not a dictionary.
    """
    entries = states.entries_under(prefix, arrays)
    name = f"{prefix.rstrip('.')}.linear1.weight".lstrip(".")
    wide = matrix(name, entries.get("linear1.weight"), "(hidden, M)")
    bias = "linear1.bias" in entries
    block = Block(
        wide.shape[1], num_heads, hidden=wide.shape[0], activation=activation, norm_eps=norm_eps,
        norm_first=norm_first, bias=bias, dropout=dropout, dtype=wide.dtype.name,
    )  # fmt: skip
    wrong = mismatches(entries, block_to_torch(block))
    refuse("entries do not make a torch.nn.TransformerEncoderLayer", wrong)
    set_state(block, unpacked(_names(bias), entries))
    return block
