"""The weights of `torch.nn.MultiheadAttention`, which needs not be installed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..checks import integer
from ..multihead import MultiHeadAttention
from ..projections import FORMS
from .states import Fit, misfits, on_host, require_dictionary, set_state, state


def to_torch(mha: MultiHeadAttention) -> dict[str, np.ndarray]:
    """The weights under the names and in the shapes of `torch.nn.MultiheadAttention`.

    With Mk = Mv = M the three weights are one in_proj_weight (3·M, M); otherwise they are
    q_proj_weight (M, M), k_proj_weight (M, Mk) and v_proj_weight (M, Mv). out_proj.weight is
    (M, M); in_proj_bias (3·M,) and out_proj.bias (M,) are there if this layer has a bias. torch
    keeps each matrix as (out, in), the transpose of ours. The layer may be in any form but the
    bilinear one; the double form is multiplied out.

    Raises ValueError with the reasons, all at once, for a layer that torch does not have; TypeError
    for another module.
    """
    if not isinstance(mha, MultiHeadAttention):
        raise TypeError(f"mha must be a MultiHeadAttention, not a {type(mha).__name__}")
    reasons = _beyond_torch(mha)
    if reasons:
        raise ValueError("torch.nn.MultiheadAttention has no such layer: " + "; ".join(reasons))
    return _to_theirs(state(mha.convert("stacked")))


def from_torch(
    arrays: Mapping[str, Any],
    num_heads: int,
    *,
    prefix: str = "",
    form: str = "stacked",
    dropout: float = 0.0,
) -> MultiHeadAttention:
    """The layer with the weights of a `torch.nn.MultiheadAttention`, on the host.

    arrays     its state_dict(), of torch's tensors or NumPy's arrays; `to_torch` says the names and
               shapes. The dtype stays, but bfloat16, which NumPy lacks, becomes float32 exactly
    num_heads  H, which the weights do not tell
    prefix     where the layer stands in the state_dict() of a larger module:
               "layers.0.self_attn". Entries elsewhere are passed over
    form       of the projections, one of `projections.FORMS`
    dropout    as of MultiHeadAttention

    add_zero_attn and batch_first leave no trace among the weights: the first does not exist here,
    and inputs here are always (…, T, M). In torch's boolean masks True means hidden, here visible.

    Raises ValueError where entries are missing, extra, misshapen, of another dtype than the others
    or no arrays, for bias_k and bias_v, and for an M that H does not divide: all of it is named at
    once. Raises TypeError for what is no dictionary.
    """
    require_dictionary(arrays)
    num_heads = integer(num_heads, "num_heads", least=1)
    place = prefix.rstrip(".") + "." if prefix.rstrip(".") else ""
    entries = {
        str(name).removeprefix(place): x
        for name, x in arrays.items()
        if str(name).startswith(place)
    }
    where = f"the entries under {place[:-1]}" if place else "the entries"
    if not entries.keys() & _TORCH.keys():
        raise ValueError(
            f"none of {where} is one of a torch.nn.MultiheadAttention, which are "
            + ", ".join(_TORCH)
            + _layers_elsewhere(arrays)
        )
    d_model, fits = _torch_fits(entries)
    wrong = misfits({n: x for n, x in entries.items() if n not in _BIAS_KV}, fits)
    wrong += [
        f"{name} comes of add_bias_kv, a learned key and value behind all others, which do not "
        "exist here"
        for name in _BIAS_KV
        if name in entries
    ]
    if d_model % num_heads:
        wrong.append(f"M = {d_model} must be a multiple of num_heads = {num_heads}")
    if wrong:
        raise ValueError(f"{where} do not make a torch.nn.MultiheadAttention: " + "; ".join(wrong))
    ours = _from_theirs({name: backend.to_numpy(entries[name]) for name in fits})
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


def _to_theirs(ours: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacked weights under torch's names, each matrix transposed."""
    weights = [ours[f"w_{role}"].T.copy() for role in "qkv"]  # in row-major order
    if len({w.shape[1] for w in weights}) == 1:
        theirs = {"in_proj_weight": np.concatenate(weights)}
    else:
        theirs = {f"{role}_proj_weight": w for role, w in zip("qkv", weights, strict=True)}
    theirs["out_proj.weight"] = ours["w_o"].T.copy()
    if "b_o" in ours:
        theirs["in_proj_bias"] = np.concatenate([ours[f"b_{role}"] for role in "qkv"])
        theirs["out_proj.bias"] = ours["b_o"]
    return theirs


def _from_theirs(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `_to_theirs`."""
    if "in_proj_weight" in theirs:
        weights = np.split(theirs["in_proj_weight"], 3)
    else:
        weights = [theirs[f"{role}_proj_weight"] for role in "qkv"]
    ours = {f"w_{role}": w.T for role, w in zip("qkv", weights, strict=True)}
    ours["w_o"] = theirs["out_proj.weight"].T
    if "out_proj.bias" in theirs:
        biases = np.split(theirs["in_proj_bias"], 3)
        ours |= {f"b_{role}": b for role, b in zip("qkv", biases, strict=True)}
        ours["b_o"] = theirs["out_proj.bias"]
    return ours


_TORCH: dict[str, tuple[int, ...]] = {
    "in_proj_weight": (3, 1),
    "q_proj_weight": (1, 1),
    "k_proj_weight": (1, 0),
    "v_proj_weight": (1, 0),
    "in_proj_bias": (3,),
    "out_proj.weight": (1, 1),
    "out_proj.bias": (1,),
}
"""How many times M the axes of torch's weights are; 0 stands for Mk and Mv, which are free."""

_BIAS_KV = "bias_k", "bias_v"


def _torch_fits(entries: dict[str, Any]) -> tuple[int, dict[str, Fit]]:
    """M, and the names, shapes and dtype of the layer that the entries must have come from.

    M and the dtype are what most entries say, so that the one that is wrong is the one that is
    named. M is 0 where none says it.
    """
    found = {name: x for name in _TORCH if (x := on_host(entries.get(name))) is not None}
    d_model = _commonest(
        length // times
        for name, x in found.items()
        for length, times in zip(x.shape, _TORCH[name], strict=False)
        if times and length and length % times == 0
    )
    dtype = _commonest(x.dtype.newbyteorder("=") for x in found.values() if x.dtype.kind == "f")
    m, dtype = d_model or 0, dtype or np.dtype("float32")
    separate = {f"{role}_proj_weight" for role in "qkv"}
    if "in_proj_weight" not in entries and separate & entries.keys():
        left_out = {"in_proj_weight"}
    else:
        left_out = separate
    if not {"in_proj_bias", "out_proj.bias"} & entries.keys():
        left_out |= {"in_proj_bias", "out_proj.bias"}
    fits = {}
    for name, times in _TORCH.items():
        if name not in left_out:
            x = found.get(name)
            given = x.shape if x is not None and x.ndim == len(times) else (m,) * len(times)
            shape = tuple(t * m or n for t, n in zip(times, given, strict=True))
            fits[name] = shape, dtype
    return m, fits


def _commonest(votes: Iterable[Any]) -> Any:
    """What comes most often, or None of nothing."""
    return max(Counter(votes).items(), key=lambda item: item[1], default=(None, 0))[0]


def _layers_elsewhere(arrays: Mapping[str, Any]) -> str:
    """A hint where in a larger dictionary such layers stand."""
    end = ".out_proj.weight"
    places = [n.removesuffix(end) for n in map(str, arrays) if n.endswith(end)]
    return ". Such layers stand under the prefix " + ", ".join(places) if places else ""


def _beyond_torch(mha: MultiHeadAttention) -> list[str]:
    """What of a layer torch's does not have."""
    sizes, reasons = mha.sizes, []
    m, h, g, d = sizes.d_model, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    if g != h:
        reasons.append(f"keys there have as many heads as queries, and here are {g} and {h}")
    if d * h != m:
        reasons.append(f"heads there are M/H = {m}/{h} wide, and here head_dim is {d}")
    if sizes.v_head_dim != d:
        reasons.append(
            "values there are as wide as keys, and here v_head_dim is "
            f"{sizes.v_head_dim}, head_dim {d}"
        )
    usual = 1 / math.sqrt(d)
    if not isinstance(mha.scale, Real) or not math.isclose(mha.scale, usual, rel_tol=1e-15):
        reasons.append(f"the scale there is 1/√D = {usual:.6g}, and here {mha.scale}")
    more = {
        "softcap": mha.softcap,
        "sink": mha.sink,
        "qk_norm": mha.norm_q,
        "rope": mha.rope,
        "alibi": mha.alibi or None,
    }
    reasons += [f"{name} does not exist there" for name, x in more.items() if x is not None]
    if mha.form == "bilinear":
        reasons.append(
            "W^Q and W^K stand there by themselves, and the bilinear form has their product alone: "
            'convert("stacked") factors it, up to rounding'
        )
    names = [name for name in FORMS[mha.form].names if name.startswith("b_")] + ["b_o"]
    held = [name for name in names if getattr(mha, name) is not None]
    if held not in ([], names):
        reasons.append(f"there are all biases there or none, and here {', '.join(held)} alone")
    dtypes = sorted({str(p.dtype) for p in mha.parameters()})
    if len(dtypes) > 1:
        reasons.append(f"all weights there are of one dtype, and here of {', '.join(dtypes)}")
    return reasons
