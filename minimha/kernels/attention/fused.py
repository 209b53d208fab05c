"""Attention that stores all scores and passes over them once: the code on the host."""

from __future__ import annotations

import numpy as np

from minimha_autograd.operation import Wanted

from ...attention.arguments import Gradients
from ..shared import as_given, four_axes, obstacle_to_fused
from .layout import SILENT, KernelArguments, compiled, heads_first

obstacle = obstacle_to_fused


@SILENT
def forward(x: KernelArguments) -> tuple[np.ndarray, np.ndarray] | None:
    """The output of attention, (…, H, T, Dv), and the weights (B, H, T, S), which `backward` needs.
    Returns None if any output is not finite, since only `attention.reference` handles NaN and
    infinity."""
    query, key, value = _heads_first(x)
    (b, h, t, _), dv = query.shape, value.shape[-1]
    weights = (_grouped(query, x) @ key.mT).reshape(b, h, t, -1)
    for t0, t1, inside in x.mask_blocks():
        compiled("attention_one_pass").weights_from_scores(
            x.shared(b * h), weights, x.start, x.stop, inside, x.bias, x.scale, t0, t1
        )
    out = (_grouped(weights, x) @ value).reshape(*x.shape[:-1], dv)
    return (out, weights) if np.all(np.isfinite(out)) else None


@SILENT
def backward(
    x: KernelArguments,
    out: np.ndarray,
    weights: np.ndarray,
    dout: np.ndarray,
    dlse: None,
    wanted: Wanted,
) -> Gradients | None:
    """The gradients of query, key and value, and of the bias if it is `wanted`. The others are
    None: this implementation supports neither a sink nor a softcap, and takes no array as scale.

    out, weights  the results of `forward` for the same x, of which only the weights are used
    dout          the gradient of out
    dlse          None, since this implementation does not compute lse, the log-sum-exp of the
                  scores

    Returns None if any gradient is not finite, since only `attention.reference` handles NaN and
    infinity.
    """
    query, key, value = _heads_first(x)
    (b, h, t, _), s = query.shape, key.shape[2]
    dout = _grouped(four_axes(dout), x)
    dvalue = _grouped(weights, x).mT @ dout
    dscores = (dout @ value.mT).reshape(weights.shape)
    nonfinite = np.zeros(1, bool)
    compiled("attention_one_pass").scores_backward(
        x.shared(b * h * t), weights.reshape(-1, s), dscores.reshape(-1, s), nonfinite
    )
    if nonfinite[0]:
        return None
    grouped = _grouped(dscores, x)
    dquery = x.scale * (grouped @ key).reshape(query.shape)
    dkey = x.scale * (grouped.mT @ _grouped(query, x))
    if not all(np.all(np.isfinite(dx)) for dx in (dquery, dkey, dvalue)):
        return None
    dbias = dscores if wanted.bias else None
    return as_given(x.shape, x.heads[1], dquery, dkey, dvalue, dbias, None)


def _grouped(y: np.ndarray, x: KernelArguments) -> np.ndarray:
    """Reshape y (B, H, T, N) to (B, G, H/G · T, N), so that the rows of all heads that share a key
    head become the rows of one matrix. x.heads is (H, G)."""
    return y.reshape(y.shape[0], x.heads[1], -1, y.shape[-1])


def _heads_first(x: KernelArguments) -> tuple[np.ndarray, ...]:
    h, g = x.heads
    return heads_first(x.query, h), heads_first(x.key, g), heads_first(x.value, g)
