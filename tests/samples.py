"""One record an operation: sample inputs, settings, and the value by other means.

The generic tests loop over these records. An operation without one fails the suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import minimha as mh
from minimha import functional, ops

RNG = np.random.default_rng(1729)
B, H, T, S, D, DV, M = 2, 3, 5, 4, 6, 7, 8  # all different, so that swapped axes cannot pass


@dataclass(frozen=True)
class Sample:
    """An operation at one set of inputs.

    reference  the value, or the values, by NumPy or by a loop
    analytic   whether the complex step holds, to be demanded of the check
    """

    operation: Any
    inputs: tuple[Any, ...]
    reference: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    analytic: bool = True

    def __str__(self) -> str:
        shapes = "x".join(str(np.shape(x)).replace(" ", "") for x in self.inputs)
        return f"{self.operation.__name__}-{shapes}"


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, shape)


def looped_attention(query, key, value, bias=None, *, mask=None, scale=None):
    """Attention as the sum it is, a query at a time, over the visible keys only."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shape = (*query.shape[:-1], key.shape[-2])
    bias = np.broadcast_to(0.0 if bias is None else bias, shape)
    mask = np.broadcast_to(True if mask is None else mask, shape)
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    weights = np.zeros(shape)
    for at in np.ndindex(query.shape[:-1]):
        lead = at[:-1]
        scores = {
            j: math.exp(scale * float(query[at] @ key[(*lead, j)]) + bias[(*at, j)])
            for j in range(shape[-1])
            if mask[(*at, j)]
        }
        for j, e in scores.items():
            weights[(*at, j)] = e / sum(scores.values())
            out[at] += weights[(*at, j)] * value[(*lead, j)]
    return out, weights


def looped_multi_head(query, key, value, w_q, w_k, w_v, w_o, *biases, num_heads, mask=None):
    """Multi-head attention as in the paper's picture: 3·h small matrices and a loop over heads."""
    b_q, b_k, b_v, b_o = biases or (0.0,) * 4
    widths = [w.shape[1] // num_heads for w in (w_q, w_k, w_v)]
    outs, all_weights = [], []
    for head in range(num_heads):
        q, k, v = (
            (x @ w + b)[..., head * d : (head + 1) * d]
            for x, w, b, d in zip(
                (query, key, value), (w_q, w_k, w_v), (b_q, b_k, b_v), widths, strict=True
            )
        )
        out, weights = looped_attention(q, k, v, mask=mask)
        outs.append(out)
        all_weights.append(weights)
    return np.concatenate(outs, axis=-1) @ w_o + b_o, np.stack(all_weights, axis=-3)


def normed(x, weight, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + 1e-5
    ) * weight + bias


def softmaxed(x, axis=-1, mask=True):
    e = np.where(mask, np.exp(x), 0.0)
    return e / e.sum(axis=axis, keepdims=True)


def heads(y, count):
    return np.stack(np.split(y, count, axis=-1), axis=-3)


def likelihood(logits, targets):
    p = softmaxed(logits)
    return np.mean([-np.log(p[k][targets[k]]) for k in np.ndindex(targets.shape)])


MASK = RNG.random((B, 1, T, S)) < 0.6
MASK[1, 0, 2] = False  # a query that may attend to nothing
INDICES = np.array([[1, 0, 1], [4, 1, 1]])  # with repeated entries
QKV = normal(B, H, T, D), normal(B, H, S, D), normal(B, H, S, DV)
WEIGHTS = (normal(M, H * D), normal(M, H * D), normal(M, H * DV), normal(H * DV, M))
BIASES = (normal(H * D), normal(H * D), normal(H * DV), normal(M))

SAMPLES = [
    Sample(ops.add, (normal(B, 1, T), normal(M, 1)), np.add),
    Sample(ops.subtract, (normal(T), normal(B, 1)), np.subtract),
    Sample(ops.multiply, (normal(B, T), normal(T)), np.multiply),
    Sample(ops.divide, (normal(B, T), positive(B, 1)), np.divide),
    Sample(ops.negative, (normal(B, T),), np.negative),
    Sample(ops.pow, (positive(B, 1), normal(T)), np.power),
    Sample(ops.pow, (normal(B, T), 3), lambda x, n: x * x * x),
    Sample(ops.pow, (2.0, normal(T)), np.power),
    Sample(ops.exp, (normal(B, T),), np.exp),
    Sample(ops.log, (positive(B, T),), np.log),
    Sample(ops.sqrt, (positive(B, T),), np.sqrt),
    Sample(ops.tanh, (normal(B, T),), np.tanh),
    Sample(ops.where, (RNG.random((B, T)) < 0.5, normal(T), normal(B, 1)), np.where),
    Sample(ops.sum, (normal(B, T, M),), np.sum),
    Sample(ops.sum, (normal(B, T, M),), lambda x: x.sum((0, 2)), {"axis": (0, -1)}),
    Sample(ops.mean, (normal(B, T, M),), lambda x: x.mean(1), {"axis": 1}),
    Sample(ops.mean, (normal(B, T),), np.mean, {"keepdims": False}),
    Sample(ops.max, (normal(B, T, M),), lambda x: x.max(-2), {"axis": -2}),
    Sample(
        ops.max,
        (normal(B, T),),
        lambda x: x.max(axis=0, keepdims=True),
        {"axis": 0, "keepdims": True},
    ),
    Sample(ops.matmul, (normal(B, 1, T, D), normal(H, D, M)), np.matmul),
    Sample(ops.matmul, (normal(B, T, D), normal(D, M)), np.matmul),
    Sample(ops.matmul, (normal(D), normal(D)), np.matmul),
    Sample(ops.matmul, (normal(B, T, D), normal(D)), np.matmul),
    Sample(ops.matmul, (normal(D), normal(B, D, M)), np.matmul),
    Sample(ops.matmul, (normal(0, T, D), normal(D, M)), np.matmul),
    Sample(ops.matmul, (normal(B, T, 0), normal(0, M)), np.matmul),
    Sample(ops.matrix_transpose, (normal(B, T, M),), lambda x: np.swapaxes(x, -1, -2)),
    Sample(ops.reshape, (normal(B, T, S),), lambda x: x.reshape(S, -1), {"shape": (S, -1)}),
    Sample(
        ops.permute_dims, (normal(B, T, M),), lambda x: x.transpose(2, 0, 1), {"axes": (2, 0, -2)}
    ),
    Sample(
        ops.broadcast_to,
        (normal(T, 1),),
        lambda x: np.broadcast_to(x, (B, T, M)),
        {"shape": (B, T, M)},
    ),
    Sample(
        ops.getitem,
        (normal(B, T, M),),
        lambda x: x[1, ..., ::2],
        {"key": (1, ..., slice(None, None, 2))},
    ),
    Sample(functional.softmax, (normal(B, T, S),), softmaxed),
    Sample(functional.softmax, (normal(B, T),), lambda x: softmaxed(x, 0), {"axis": 0}),
    Sample(functional.softmax, (normal(B, 0),), lambda x: x),
    Sample(functional.attention, QKV, looped_attention),
    Sample(
        functional.attention,
        (*QKV, normal(H, 1, S)),
        lambda *a: looped_attention(*a, mask=MASK, scale=0.3),
        {"mask": MASK, "scale": 0.3},
    ),
    Sample(
        mh.multi_head_attention,
        (normal(B, T, M), normal(B, S, M), normal(B, S, M), *WEIGHTS, *BIASES),
        lambda *a: looped_multi_head(*a, num_heads=H),
        {"num_heads": H},
    ),
    Sample(
        mh.multi_head_attention,
        (normal(B, T, M), normal(B, S, M), normal(B, S, M), *WEIGHTS),
        lambda *a: looped_multi_head(*a, num_heads=H, mask=MASK[:, 0]),
        {"num_heads": H, "mask": MASK},
    ),
    Sample(
        mh.projections.project_in,
        (normal(B, T, M), WEIGHTS[0], BIASES[0]),
        lambda x, w, b: heads(x @ w + b, H),
        {"num_heads": H},
    ),
    Sample(
        mh.projections.project_out,
        (normal(B, H, T, DV), WEIGHTS[3], BIASES[3]),
        lambda x, w, b: np.concatenate([x[:, h] for h in range(H)], axis=-1) @ w + b,
    ),
    Sample(functional.layer_norm, (normal(B, T, M), normal(M), normal(M)), normed),
    Sample(
        functional.gelu,
        (normal(B, T),),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    Sample(functional.embedding, (normal(5, M), INDICES), lambda table, k: table[k]),
    Sample(functional.cross_entropy, (normal(*INDICES.shape, 6), INDICES), likelihood),
]
