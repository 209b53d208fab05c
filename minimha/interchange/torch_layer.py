"""The weights of `torch.nn.MultiheadAttention`. torch itself need not be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..functional import integer
from ..multihead import MultiHeadAttention
from .states import Required, mismatches, on_host, require_dictionary, set_state, state


def to_torch(mha: MultiHeadAttention) -> dict[str, np.ndarray]:
    """The weights under the names and in the shapes of `torch.nn.MultiheadAttention`.

    With Mk = Mv = M the three weights are one in_proj_weight (3·M, M); otherwise they are
    q_proj_weight (M, M), k_proj_weight (M, Mk) and v_proj_weight (M, Mv). out_proj.weight is
    (M, M); in_proj_bias (3·M,) and out_proj.bias (M,) are there if this layer has a bias. torch
    keeps each matrix as (out, in), the transpose of ours. The double form is multiplied out.

    Raises ValueError, with all reasons, for a layer that torch cannot represent, such as one in the
    bilinear form; TypeError for another module.
    """
    if not isinstance(mha, MultiHeadAttention):
        raise TypeError(f"mha must be a MultiHeadAttention, not a {type(mha).__name__}")
    if reasons := beyond_torch(mha):
        raise ValueError("torch.nn.MultiheadAttention has no such layer: " + "; ".join(reasons))
    ours = state(mha.convert("stacked"))
    w = {role: ours[f"w_{role}"].T.copy() for role in "qkvo"}  # in row-major order
    if w["q"].shape == w["k"].shape == w["v"].shape:
        theirs = {"in_proj_weight": np.concatenate([w["q"], w["k"], w["v"]])}
    else:
        theirs = {f"{role}_proj_weight": w[role] for role in "qkv"}
    theirs["out_proj.weight"] = w["o"]
    if "b_o" in ours:
        theirs["in_proj_bias"] = np.concatenate([ours["b_q"], ours["b_k"], ours["b_v"]])
        theirs["out_proj.bias"] = ours["b_o"]
    return theirs


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
               "layers.0.self_attn". Entries elsewhere are ignored
    form       of the projections, one of `projections.FORMS`
    dropout    as in MultiHeadAttention

    torch's add_zero_attn is not visible in the weights and does not exist here.

    Raises ValueError, with all reasons, for entries that are missing, extra (such as bias_k and
    bias_v of add_bias_kv) or of another shape or dtype, and for an M that H does not divide;
    TypeError for arrays that are not a dictionary.
    """
    require_dictionary(arrays)
    num_heads = integer(num_heads, "num_heads", least=1)
    prefix = prefix.rstrip(".")
    where, start = (f"the entries under {prefix}", f"{prefix}.") if prefix else ("the entries", "")
    entries = {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}
    if "out_proj.weight" not in entries:
        end = ".out_proj.weight"
        places = ", ".join(name.removesuffix(end) for name in arrays if name.endswith(end))
        raise ValueError(
            f"{where} lack out_proj.weight, which every torch.nn.MultiheadAttention has"
            + (f". Such layers have the prefix {places}" if places else "")
        )
    required = _required(entries)
    wrong = mismatches(entries, required)
    d_model = required["out_proj.weight"][0][0]
    if d_model % num_heads:
        wrong.append(f"M = {d_model} must be a multiple of num_heads = {num_heads}")
    if wrong:
        raise ValueError(f"{where} do not make a torch.nn.MultiheadAttention: " + "; ".join(wrong))
    ours = _from_theirs({name: backend.to_numpy(entries[name]) for name in required})
    mha = MultiHeadAttention(
        d_model,
        num_heads,
        kdim=ours["w_k"].shape[0],
        vdim=ours["w_v"].shape[0],
        bias="b_o" in ours,
        dropout=dropout,
        dtype=ours["w_o"].dtype.name,
    )
    set_state(mha, ours)
    return mha.convert(form)


def _from_theirs(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacked weights under our names, each matrix transposed."""
    if "in_proj_weight" in theirs:
        w_q, w_k, w_v = np.split(theirs["in_proj_weight"], 3)
    else:
        w_q, w_k, w_v = (theirs[f"{role}_proj_weight"] for role in "qkv")
    ours = {"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T, "w_o": theirs["out_proj.weight"].T}
    if "out_proj.bias" in theirs:
        b_q, b_k, b_v = np.split(theirs["in_proj_bias"], 3)
        ours |= {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": theirs["out_proj.bias"]}
    return ours


def _required(entries: dict[str, Any]) -> Required:
    """The shapes and dtype of the layer, found from its out_proj.weight (M, M)."""
    out = on_host(entries["out_proj.weight"])
    if isinstance(out, str) or out.dtype.kind != "f" or out.ndim != 2:
        what = out if isinstance(out, str) else f"{out.dtype} {out.shape}"
        raise ValueError(f"out_proj.weight is {what}, but must be floating-point numbers (M, M)")
    m = out.shape[0]

    def input_width(name: str) -> int:  # Mk and Mv are free
        x = on_host(entries.get(name))
        return m if isinstance(x, str) or x.ndim != 2 else x.shape[1]

    shapes: dict[str, tuple[int, ...]] = {
        "q_proj_weight": (m, m),
        "k_proj_weight": (m, input_width("k_proj_weight")),
        "v_proj_weight": (m, input_width("v_proj_weight")),
    }
    if "in_proj_weight" in entries or not shapes.keys() & entries.keys():
        shapes = {"in_proj_weight": (3 * m, m)}
    shapes["out_proj.weight"] = (m, m)
    if {"in_proj_bias", "out_proj.bias"} & entries.keys():
        shapes |= {"in_proj_bias": (3 * m,), "out_proj.bias": (m,)}
    return {name: (shape, out.dtype) for name, shape in shapes.items()}


def beyond_torch(mha: MultiHeadAttention) -> list[str]:
    """What this layer has that torch's lacks."""
    m, h, g = mha.sizes.d_model, mha.sizes.num_heads, mha.sizes.num_kv_heads
    d, dv = mha.sizes.head_dim, mha.sizes.v_head_dim
    reasons = {
        f"keys there have as many heads as queries, and here are {g} and {h}": g != h,
        f"heads there are M/H = {m}/{h} wide, and here head_dim is {d}": d * h != m,
        f"values there are as wide as keys, and here v_head_dim is {dv}, head_dim {d}": dv != d,
    }
    return [reason for reason, holds in reasons.items() if holds] + beyond_plain(mha)


def beyond_plain(mha: MultiHeadAttention) -> list[str]:
    """What this layer has that the layers of torch and Keras both lack."""
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
