"""Scaled dot-product attention: the public function. `dispatch` chooses what computes it."""

from __future__ import annotations

from typing import Any

from minimha_autograd import Pullback, backend, half, operation
from minimha_autograd.backend import Array
from minimha_autograd.operation import Wanted

from .. import masks
from .arguments import arguments
from .dispatch import choose, computed
from .reference import drop_weights


@operation(settings=("mask",), describes=False, native=half.always)
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: masks.Mask | Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    *,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    return_weights: bool | str = False,
    return_lse: bool = False,
    implementation: str = "auto",
    wanted: Wanted,
) -> tuple[Any, Pullback]:
    """softmax(scale · Q Kᵀ + bias) V: each query receives a weighted mean of the values.

    query    (…, H, T, D)
    key      (…, G, S, D); query head h reads key and value head h // (H // G)
    value    (…, G, S, Dv)
    mask     one of `minimha.masks`, or a boolean array that broadcasts to (…, H, T, S);
             True = may attend
    bias     broadcasts to (…, H, T, S) and is added to the scores; an entry of −∞ counts as masked
    scale    1/√D by default, so that scores of independent entries of mean 0 and variance 1 have
             variance 1
    softcap  limits the scaled scores to softcap · tanh(scores / softcap), before the bias is added
    sink     broadcasts to (…, H): one more logit in the softmax of each head, without a value
    dropout  the probability, 0 to 1, with which each weight is set to 0; the others are scaled by
             1/(1 − dropout)
    rng      the generator that draws which weights are kept; on a GPU it draws only a seed for this
    keep     boolean, broadcasts to (…, H, T, S): which weights to keep, instead of a draw
    return_weights
             True for the weights (…, H, T, S) as well, "dropped" for those after dropout
    return_lse
             True for lse (…, H, T) as well: the logarithm of the sum of exp(scores) of each query,
             including the sink; `merge_attention` needs it to join attention over different keys
    implementation
             one of `attention.IMPLEMENTATIONS`; "auto": see `minimha.implementation`

    Returns the output (…, H, T, Dv), then the weights and lse if asked for: arrays for arrays,
    Tensors if one of the first eight arguments, query to softcap, is one. Gradients flow to query,
    key, value and bias, and to scale, softcap and sink where these are Tensors, by the formulas of
    `attention`. A query that may attend to no key has the output 0, weights 0, gradients 0 and,
    without a sink, lse −∞. Hidden keys and values contribute nothing, even if they are NaN or
    infinite.

    Raises ValueError for shapes that do not match and for the boolean arrays that `masks.resolve`
    refuses, TypeError for wrong dtypes and for masks that are not boolean; the errors name the
    argument and what is required.
    """
    x = arguments(
        query, key, value, mask, bias, sink, scale, softcap, dropout=dropout, rng=rng, keep=keep,
        return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip
    chosen = choose(implementation, x)
    (out, weights, lse), pullback = computed(chosen, x, wanted)

    # Implementations return the weights before dropout.
    pull_dropped: Any = None
    if return_weights == "dropped":
        weights, pull_dropped = half.in_float32(drop_weights, weights, x.resolved_keep(), x.p)

    def pull(*cotangents: Array | None) -> tuple[Array | None, ...]:
        # One for each value returned, in the order below.
        given = iter(cotangents)
        dout = next(given)  # (…, H, T, Dv)
        dweights = next(given) if return_weights else None  # (…, H, T, S)
        dlse = next(given) if return_lse else None  # (…, H, T)
        if pull_dropped is not None and dweights is not None:
            dweights = pull_dropped(dweights)
        dquery, dkey, dvalue, dbias, dsink, dscale, dsoftcap = pullback(dout, dweights, dlse)
        return dquery, dkey, dvalue, None, dbias, dsink, dscale, dsoftcap  # None for the mask

    values = [out]
    if return_weights:
        values.append(weights)
    if return_lse:
        values.append(lse)
    if len(values) == 1:
        return out, pull
    return tuple(values), pull
