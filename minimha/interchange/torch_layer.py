"""The weights of `torch.nn.MultiheadAttention`. torch itself need not be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from ..functional.checks import integer
from ..multihead import MultiHeadAttention
from . import states
from .states import matrix, mismatches, packed, refuse, set_state, state, unpacked, with_biases


def to_torch(mha: MultiHeadAttention) -> dict[str, np.ndarray]:
    """The weights under the names and in the shapes of `torch.nn.MultiheadAttention`.

    If keys and values are as wide as queries, W^Q, W^K and W^V are one in_proj_weight (3·M, M). If
    they have widths Mk and Mv, there are q_proj_weight (M, M), k_proj_weight (M, Mk) and
    v_proj_weight (M, Mv). out_proj.weight is (M, M); in_proj_bias (3·M,) and out_proj.bias (M,) are
    there if this layer has a bias. torch keeps each matrix as (out, in), the transpose of ours.
    In the double form, where queries, keys and values are each multiplied by two matrices, the
    product of the two is written.

    Raises ValueError, with all reasons, for a layer that torch cannot represent, such as one in the
    bilinear form; TypeError for a module that is not a MultiHeadAttention.
    """
    states.require(MultiHeadAttention, "mha", mha)
    refuse("torch.nn.MultiheadAttention has no such layer", beyond_torch(mha))
    ours = state(mha.convert("stacked"))
    separate = len({ours[f"w_{role}"].shape for role in "qkv"}) > 1
    return packed(names_in_torch(separate=separate, bias="b_o" in ours), ours)


def names_in_torch(*, separate: bool = False, bias: bool) -> dict[str, str]:
    """A dictionary from torch's names of the weights to ours, such as {"out_proj.weight": "w_o.T"},
    as `packed` takes it.

    separate  whether torch's layer holds W^Q, W^K and W^V as three matrices instead of one
    bias      whether it has biases
    """
    names = with_biases({"in_proj_*": "?_{q,k,v}.T", "out_proj.*": "?_o.T"}, bias)
    if separate:
        del names["in_proj_weight"]
        names |= {f"{role}_proj_weight": f"w_{role}.T" for role in "qkv"}
    return names


def from_torch(
    arrays: Mapping[str, Any],
    num_heads: int,
    *,
    prefix: str = "",
    form: str = "stacked",
    dropout: float = 0.0,
) -> MultiHeadAttention:
    """The layer with the weights of a `torch.nn.MultiheadAttention`, on the host.

    arrays     its state_dict(), of torch's tensors or NumPy's arrays; `to_torch` lists names and
               shapes. The dtype stays the same, except that bfloat16, which NumPy lacks, becomes
               float32
    num_heads  H, which the weights do not determine
    prefix     the path to the layer in the state_dict() of a larger module:
               "layers.0.self_attn". Entries under other paths are ignored
    form       the form of the projections in the layer, one of `projections.FORMS`
    dropout    as in MultiHeadAttention

    torch's add_zero_attn is not visible in the weights and does not exist here.

    Raises ValueError, with all reasons, for entries that are missing, extra (such as bias_k and
    bias_v of add_bias_kv) or of the wrong shape or dtype, and for an M that H does not divide;
    TypeError for arrays that are not a dictionary.
    """
    entries = states.entries_under(prefix, arrays)
    num_heads = integer(num_heads, "num_heads", least=1)
    where = f"the entries under {prefix.rstrip('.')}" if prefix else "the entries"
    if "out_proj.weight" not in entries:
        end = ".out_proj.weight"
        places = ", ".join(name.removesuffix(end) for name in arrays if name.endswith(end))
        raise ValueError(
            f"{where} lack out_proj.weight, which every torch.nn.MultiheadAttention has"
            + (f". Such layers have the prefix {places}" if places else "")
        )
    out = matrix("out_proj.weight", entries["out_proj.weight"], "(M, M)")
    m, dtype = out.shape[0], out.dtype
    separate = [f"{role}_proj_weight" for role in "qkv"]
    apart = "in_proj_weight" not in entries and any(name in entries for name in separate)
    bias = not {"in_proj_bias", "out_proj.bias"}.isdisjoint(entries)
    names = names_in_torch(separate=apart, bias=bias)

    def input_width(name: str) -> int:  # Mk and Mv are free
        x = states.on_host(entries.get(name)) if apart else ""
        return m if isinstance(x, str) or x.ndim != 2 else x.shape[1]

    _, kdim, vdim = map(input_width, separate)
    one_head = MultiHeadAttention(m, 1, kdim=kdim, vdim=vdim, dtype=dtype.name)
    wrong = mismatches(entries, packed(names, state(one_head)))  # H does not change the shapes
    if m % num_heads:
        wrong.append(f"M = {m} must be a multiple of num_heads = {num_heads}")
    refuse(f"{where} do not make a torch.nn.MultiheadAttention", wrong)
    mha = MultiHeadAttention(
        m, num_heads, kdim=kdim, vdim=vdim, bias=bias, dropout=dropout, dtype=dtype.name
    )
    set_state(mha, unpacked(names, entries))
    return mha.convert(form)


def beyond_torch(mha: MultiHeadAttention) -> list[str]:
    """A list of sentences, one for each feature of this layer that torch's layer lacks."""
    m, h, g = mha.sizes.d_model, mha.sizes.num_heads, mha.sizes.num_kv_heads
    d, dv = mha.sizes.head_dim, mha.sizes.v_head_dim
    reasons = {
        f"keys there have as many heads as queries, and here are {g} and {h}": g != h,
        f"heads there are M/H = {m}/{h} wide, and here head_dim is {d}": d * h != m,
        f"values there are as wide as keys, and here v_head_dim is {dv}, head_dim {d}": dv != d,
    }
    return [reason for reason, holds in reasons.items() if holds] + beyond_plain(mha)


def beyond_plain(mha: MultiHeadAttention) -> list[str]:
    """A list of sentences, one for each feature of this layer that the layers of torch and of Keras
    both lack."""
    default = 1 / math.sqrt(mha.sizes.head_dim)
    usual = isinstance(mha.scale, Real) and math.isclose(mha.scale, default, rel_tol=1e-15)
    reasons = {
        f"the scale there is 1/√D = {default:.6g}, and here {mha.scale}": not usual,
        "softcap does not exist there": mha.softcap is not None,
        "sink does not exist there": mha.sink is not None,
        "qk_norm does not exist there": mha.norm_q is not None,
        "rope does not exist there": mha.rope is not None,
        "alibi does not exist there": mha.alibi,
        "W^Q and W^K are separate there, and the bilinear form has only their product: "
        'convert("stacked") factors it, up to rounding': mha.form == "bilinear",
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if mha.form != "bilinear":
        names = ["b_qkv", "b_o"] if mha.form == "fused" else ["b_q", "b_k", "b_v", "b_o"]
        here = [name for name in names if getattr(mha, name) is not None]
        if here not in ([], names):
            found.append(f"there are all biases there or none, and here {', '.join(here)} alone")
    return found
