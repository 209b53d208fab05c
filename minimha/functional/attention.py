"""Scaled dot-product attention: the operation on arrays, and the public function around it.

Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1.
"""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Pullback, array_of, backend, operation
from minimha_autograd.backend import Array, namespace

from .. import masks
from .softmax import softmax


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    *,
    bias: Any = None,
    scale: float | None = None,
    return_weights: bool = False,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V: each query takes the mean of the values that it attends to.

    query   (…, H, T, D)
    key     (…, H, S, D)
    value   (…, H, S, Dv)
    mask    one of `minimha.masks`, or a boolean array that broadcasts to (…, H, T, S);
            True = may attend
    bias    broadcasts to (…, H, T, S), is added to the scores and is differentiable; an entry of
            −∞ counts as masked
    scale   1/√D by default, so that scores of independent entries of variance 1 have variance 1

    Returns the output (…, H, T, Dv), and with return_weights also the weights (…, H, T, S): arrays
    for arrays, Tensors if any argument is one. A query that may attend to nothing gets the output
    0, weights 0 and gradients 0. The gradients are those of `attention`. A NaN or an
    infinity in a value that is hidden is not kept out: its weight is 0, and 0 · NaN is NaN.

    Raises ValueError for shapes that do not fit, TypeError for dtypes, and for masks that are not
    boolean; each names the argument and what is required.
    """
    q, k, v, b = map(array_of, (query, key, value, bias))
    check(q, k, v)
    if b is not None:
        _check_bias(b, q, k)
    out, weights = attention(query, key, value, bias, mask=masks.resolve(mask, q, k), scale=scale)
    return (out, weights) if return_weights else out


@operation
def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    *,
    mask: Array | None = None,
    scale: float | None = None,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Array, Array], Pullback]:
    """Attention on arrays: the values (out, weights) and the pullback to query, key, value, bias.

        scores  = scale · Q Kᵀ + bias          dQ      = scale · dscores K
        weights = softmax(scores)              dK      = scale · dscoresᵀ Q
        out     = weights V                    dV      = weightsᵀ dout

        dweights = dout Vᵀ, and what flows back to the weights themselves
        dscores  = weights · (dweights − Σ dweights · weights) = dbias

    Shapes as in `scaled_dot_product_attention`; mask is a boolean array.
    """
    xp = namespace(query, key, value)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * xp.matmul(query, xp.matrix_transpose(key))  # (…, H, T, S)
    if bias is not None:
        scores = scores + bias
    weights, pull_softmax = softmax.with_pullback(scores, mask=mask)
    out = xp.matmul(weights, value)  # (…, H, T, Dv)

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dvalue = None
        if dout is not None:
            if wanted[2]:
                dvalue = xp.matmul(xp.matrix_transpose(weights), dout)
            through_out = xp.matmul(dout, xp.matrix_transpose(value))
            dweights = through_out if dweights is None else dweights + through_out
        (dscores,) = pull_softmax(dweights)
        dquery = scale * xp.matmul(dscores, key) if wanted[0] else None
        dkey = scale * xp.matmul(xp.matrix_transpose(dscores), query) if wanted[1] else None
        return dquery, dkey, dvalue, dscores

    return (out, weights), pullback


def check(query: Array, key: Array, value: Array) -> None:
    """Raise unless these are query (…, H, T, D), key (…, H, S, D) and value (…, H, S, Dv)."""
    given = {"query (…, H, T, D)": query, "key (…, H, S, D)": key, "value (…, H, S, Dv)": value}
    for name, x in given.items():
        if not backend.is_array(x):
            raise TypeError(f"{name} must be an array or a Tensor, not {type(x).__name__}")
        if not (backend.is_floating(x) or backend.is_complex(x)):
            raise TypeError(f"{name} has dtype {x.dtype}: attention needs floating-point numbers")
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: it needs two axes at least")
    shapes = ", ".join(f"{name} is {tuple(x.shape)}" for name, x in given.items())
    if query.shape[-1] != key.shape[-1] or not query.shape[-1]:
        raise ValueError(f"query and key need the same width D, at least 1: {shapes}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value need the same number of positions S: {shapes}")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(f"query, key and value need the same batch and heads (…, H): {shapes}")


def _check_bias(bias: Any, query: Array, key: Array) -> None:
    if not backend.is_array(bias):
        raise TypeError(f"bias must be an array or a Tensor, not {type(bias).__name__}")
    scores = (*query.shape[:-1], key.shape[-2])
    shape = tuple(bias.shape)
    if not masks.broadcasts(shape, scores):
        raise ValueError(
            f"bias has shape {shape}, which does not broadcast to (…, H, T, S) {scores}"
        )
    if not (backend.is_floating(bias) or backend.is_complex(bias)):
        raise TypeError(
            f"bias has dtype {bias.dtype}: it is added to the scores; a boolean or integer mask "
            "goes to mask, as boolean, True = may attend"
        )
