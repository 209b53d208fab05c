"""Attention with all scores in memory and one pass over them, from the host's side."""

from __future__ import annotations

from typing import Any

import numpy as np

from .given import Given, four_axes, heads_first, shared


def obstacle(sink: Any, softcap: Any, keep: Any, panels: bool) -> str | None:
    """What the one pass does not do."""
    for name, x in {"sink": sink, "softcap": softcap, "dropout": keep}.items():
        if x is not None:
            return f"it knows no {name}"
    return None


def forward(x: Given) -> tuple[np.ndarray, np.ndarray] | None:
    """The output, in the shape of the query, and the weights (B, H, T, S); None unless finite."""
    from .cpu import attention_one_pass

    query, key, value = _heads_first(x)
    (b, h, t, _), dv = query.shape, value.shape[-1]
    weights = (_folded(query, x) @ key.mT).reshape(b, h, t, -1)
    for t0, t1, rest in x.slabs():
        attention_one_pass.weights_from_scores(
            shared(x, b * h), weights, x.first, x.last, rest, x.bias, x.scale, t0, t1
        )
    out = (_folded(weights, x) @ value).reshape(*x.shape[:-1], dv)
    return (out, weights) if np.all(np.isfinite(out)) else None


def backward(
    x: Given, out: np.ndarray, weights: np.ndarray, dout: np.ndarray, wanted: tuple[bool, ...]
) -> tuple[np.ndarray | None, ...] | None:
    """The gradients of the seven inputs of attention; None unless they are finite."""
    from .cpu import attention_one_pass

    query, key, value = _heads_first(x)
    (b, h, t, _), s = query.shape, key.shape[2]
    dout = _folded(four_axes(dout), x)
    dvalue = _folded(weights, x).mT @ dout
    dscores = (dout @ value.mT).reshape(weights.shape)
    nonfinite = np.zeros(1, bool)
    attention_one_pass.scores_backward(
        shared(x, b * h * t), weights.reshape(-1, s), dscores.reshape(-1, s), nonfinite
    )
    if nonfinite[0]:
        return None
    rows = _folded(dscores, x)
    dq = x.scale * (rows @ key).reshape(query.shape)
    dk = x.scale * (rows.mT @ _folded(query, x))
    if not all(np.all(np.isfinite(dx)) for dx in (dq, dk, dvalue)):
        return None
    of_keys = x.shape[:-3] + dk.shape[1:2] if len(x.shape) > 2 else ()
    return (
        dq.reshape(*x.shape[:-1], -1),
        dk.reshape(*of_keys, *dk.shape[2:]),
        dvalue.reshape(*of_keys, *dvalue.shape[2:]),
        dscores.reshape(x.shape) if wanted[3] else None,
        None,
        None,
        None,
    )


def _folded(y: np.ndarray, x: Given) -> np.ndarray:
    """(B, H, T, N) as (B, G, H/G · T, N): the queries that share a key head, one after another."""
    return y.reshape(y.shape[0], x.heads[1], -1, y.shape[-1])


def _heads_first(x: Given) -> tuple[np.ndarray, ...]:
    h, g = x.heads
    return heads_first(x.query, h), heads_first(x.key, g), heads_first(x.value, g)
