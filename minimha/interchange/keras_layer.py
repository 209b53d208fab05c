"""The weights of `keras.layers.MultiHeadAttention`. Keras itself need not be installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..multihead import MultiHeadAttention
from .states import mismatches, on_host, refuse, require, set_state, state, unpacked
from .torch_layer import beyond_plain

_NAMES = {
    f"{theirs} {kind}": f"{letter}_{role}"
    for theirs, role in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))
    for kind, letter in (("kernel", "w"), ("bias", "b"))
}
"""Keras's names of the weights, in Keras's order, and our names."""


def to_keras(mha: MultiHeadAttention) -> list[np.ndarray]:
    """The weights for the set_weights() of a `keras.layers.MultiHeadAttention(H, D, Dv)`.

    Their order is query kernel (M, H, D) and bias (H, D), key kernel (Mk, G, D) and bias (G, D),
    value kernel (Mv, G, Dv) and bias (G, Dv), output kernel (H, Dv, M) and bias (M,), without the
    biases if there are none. Mk and Mv are the widths of the keys' and the values' inputs. With G ≠
    H they fit a `keras.layers.GroupQueryAttention`, for which Dv = D. In the double form, where
    queries, keys and values are each multiplied by two matrices, the product of the two is written.

    Raises ValueError, with all reasons, for a layer that Keras cannot represent, such as one in the
    bilinear form, which has one matrix in place of W^Q W^Kᵀ; TypeError for a module that is not a
    MultiHeadAttention.
    """
    require(MultiHeadAttention, "mha", mha)
    h, g = mha.sizes.num_heads, mha.sizes.num_kv_heads
    d, dv = mha.sizes.head_dim, mha.sizes.v_head_dim
    reasons = beyond_plain(mha)
    if g != h and dv != d:
        reasons.append(
            "with grouped heads, values there are as wide as keys, and here "
            f"v_head_dim is {dv}, head_dim {d}"
        )
    refuse("keras.layers.MultiHeadAttention has no such layer", reasons)
    shapes = {
        "w_q": (-1, h, d), "b_q": (h, d), "w_k": (-1, g, d), "b_k": (g, d),
        "w_v": (-1, g, dv), "b_v": (g, dv), "w_o": (h, dv, -1), "b_o": (-1,),
    }  # fmt: skip
    ours = state(mha.convert("stacked"))
    return [ours[name].reshape(shapes[name]) for name in _NAMES.values() if name in ours]


def from_keras(
    weights: Sequence[Any], *, form: str = "stacked", dropout: float = 0.0
) -> MultiHeadAttention:
    """The layer with the weights of a `keras.layers.MultiHeadAttention`, in NumPy arrays.

    weights  its get_weights(), whose order and shapes are those of `to_keras`. The shapes determine
             all sizes, and the dtype stays the same
    form     of the projections, one of `projections.FORMS`
    dropout  as in MultiHeadAttention

    Raises ValueError, with all reasons, unless there are 8 weights or, without biases, 4; also for
    weights of other shapes or dtypes, such as those of a layer whose output is not as wide as its
    query.
    """
    names = [name for name in _NAMES if len(weights) == 8 or "kernel" in name]
    if len(weights) != len(names):
        raise ValueError(
            f"weights has {len(weights)} entries, but must have 8, or 4 without biases: "
            "pass layer.get_weights()"
        )
    theirs = dict(zip(names, weights, strict=True))
    kernels: dict[str, Any] = {name: on_host(x) for name, x in theirs.items() if "kernel" in name}
    wrong = [
        f"{name} is {x if isinstance(x, str) else f'{x.dtype} {x.shape}'}"
        for name, x in kernels.items()
        if isinstance(x, str) or x.dtype.kind != "f" or x.ndim != 3
    ]
    refuse("kernels must be floating-point numbers with 3 axes", wrong)
    (m, h, d), (mk, g, _), (mv, _, dv), _ = (x.shape for x in kernels.values())
    mha = MultiHeadAttention(
        m, h, num_kv_heads=g, head_dim=d, v_head_dim=dv, kdim=mk, vdim=mv, bias=len(names) == 8,
        dropout=dropout, dtype=kernels["query kernel"].dtype.name,
    )  # fmt: skip
    wrong = mismatches(theirs, dict(zip(names, to_keras(mha), strict=True)))
    refuse("weights do not make a keras.layers.MultiHeadAttention", wrong)
    ours = unpacked({name: _NAMES[name] for name in names}, theirs)
    parameters = mha.named_parameters()
    set_state(mha, {name: ours[name].reshape(p.shape) for name, p in parameters})
    return mha.convert(form)
