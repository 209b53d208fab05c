"""Reference values of operations, computed in another way: by plain formulas on NumPy arrays."""

from __future__ import annotations

import attention_paths
import numpy as np
from attention_paths import formula


def attended(
    query, key, value, mask=None, bias=None, sink=None, scale=None, softcap=None, *,
    keep=None, dropout=0.0, **_,
):  # fmt: skip
    """Attention and its weights, by the formula that all paths must agree with."""
    cotangents = np.zeros((*query.shape[:-1], value.shape[-1])), np.zeros(1)
    inputs = query, key, value, *cotangents, mask, bias, sink, scale, softcap, keep, dropout
    return formula(attention_paths.Case(*inputs)).result[:2]


def attended_in_heads(query, key, value, w_q, w_k, w_v, w_o, *biases, num_heads, mask=None):
    """Multi-head attention as drawn in the paper: project, attend in each head, concatenate."""
    b_q, b_k, b_v, b_o = biases or (0.0,) * 4
    inputs = (query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v)
    q, k, v = (heads(x @ w + b, num_heads) for x, w, b in inputs)
    out, weights = attended(q, k, v, mask)
    return np.concatenate(list(np.moveaxis(out, -3, 0)), axis=-1) @ w_o + b_o, weights


def normed(x, weight, bias=0.0, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def turned(x, offset=0, positions=None, base=10000.0, width=None, interleaved=False, scaling=None):
    """Rotary positions with complex numbers: each pair of columns times e^{iθ}."""
    width = width or x.shape[-1]
    t = np.arange(offset, offset + x.shape[-2]) if positions is None else positions
    if t.ndim == x.ndim - 2 > 1:  # (B, T)
        t = t[:, None, :]
    y = x.copy()
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
        theta = base ** (-2 * i / width)
        if scaling is not None:
            turns = scaling.context * theta / (2 * np.pi)
            if turns <= scaling.low:
                theta = theta / scaling.factor
            elif turns < scaling.high:
                theta *= np.interp(turns, scaling[1:3], (1 / scaling.factor, 1))
        pair = (x[..., a] + 1j * x[..., b]) * np.exp(1j * t * theta)
        y[..., a], y[..., b] = pair.real, pair.imag
    return y


def root_mean_square_normed(x, weight, eps=1e-6):
    square = np.einsum("...m,...m->...", x, x)[..., None] / x.shape[-1]
    return weight * x * (square + eps) ** -0.5


def softmaxed(x, sink=-np.inf, axis=-1, mask=True):
    e = np.where(mask, np.exp(x), 0.0)
    total = e.sum(axis=axis, keepdims=True) + np.exp(sink)
    return e / np.where(total == 0, 1.0, total)


def heads(y, count):
    return np.stack(np.split(y, count, axis=-1), axis=-3)


def fused_projections(x, w, b=0.0, num_heads=1, num_kv_heads=1, head_dim=1):
    counts = num_heads, num_kv_heads, num_kv_heads
    parts = np.split(x @ w + b, head_dim * np.cumsum(counts[:2]), axis=-1)
    return tuple(map(heads, parts, counts))


def likelihood(logits, targets):
    p = softmaxed(logits)
    return np.mean([-np.log(p[k][targets[k]]) for k in np.ndindex(targets.shape)])


def by_axis(function):
    """A NumPy function as a reference; it takes a list where ours takes several arrays."""
    return lambda *arrays, axis=0: function(arrays, axis=axis)


def cut(x, sections, axis=0):
    return tuple(np.split(x, sections, axis=axis))


def merged_parts(*arrays):
    outs, lses = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
    parts = [np.exp(lse)[..., None] for lse in lses]
    total = sum(parts)
    seen = np.where(total == 0, 1, total)
    out = sum(part * out for part, out in zip(parts, outs, strict=True)) / seen
    return out, np.where(total == 0, -np.inf, np.log(seen))[..., 0]


def remembered(query, key, value, beta=None, log_decay=None, state=0.0, **_):
    """Linear attention or, with beta, the gated delta rule: the recurrence with explicit matrices."""
    state = np.zeros((*query.shape[:-2], query.shape[-1], value.shape[-1])) + state
    log_decay = np.zeros(query.shape[:-1]) + (0.0 if log_decay is None else log_decay)
    out, erased = np.zeros(value.shape), np.eye(query.shape[-1])
    for t in range(query.shape[-2]):
        k, v = key[..., t, :], value[..., t, :]
        if beta is not None:
            b = np.broadcast_to(beta, query.shape[:-1])[..., t]
            erased = np.eye(k.shape[-1]) - b[..., None, None] * k[..., :, None] * k[..., None, :]
            v = b[..., None] * v
        state = np.exp(log_decay[..., t])[..., None, None] * (erased @ state)
        state = state + k[..., :, None] * v[..., None, :]
        out[..., t, :] = np.einsum("...ij,...i->...j", state, query[..., t, :])
    return out, state


def variance(x, axis=None, correction=0.0, keepdims=False):
    return np.var(x, axis=axis, ddof=correction, keepdims=keepdims)


def log_of_sum(x, axis=None, keepdims=False):
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))
