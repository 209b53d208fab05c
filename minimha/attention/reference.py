"""Attention on arrays: the reference, with its hand-derived backward, and its two products.

Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1.
"""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Pullback, backend, in_float32, operation
from minimha_autograd.backend import Array, namespace

from ..functional.dropout import dropout
from ..functional.masked_products import gather, harmless, hide, is_finite, mix, products
from ..functional.softmax import normalised, through_softmax


@operation
def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    sink: Array | None = None,
    scale: Array | float | None = None,
    softcap: Array | float | None = None,
    *,
    mask: Array | None = None,
    keep: Array | None = None,
    p: float = 0.0,
    return_weights: bool = True,
    wanted: tuple[bool, ...],
) -> tuple[Any, Pullback]:
    """The values (out, weights) of attention and the pullback to all seven arguments.

        raw     = Q Kᵀ                       dQ = draw K,  dK = drawᵀ Q
        scaled  = scale · raw                draw = scale · dscaled,  dscale = dscaled · raw
        capped  = softcap · t, t = tanh(u)   dscaled = dscores · t',  t' = 1 − t²
        scores  = capped + bias              dbias = dscores
        weights = softmax(scores)            dscores = weights · (dweights − Σ dweights · weights)
        dropped = keep · weights / (1 − p)   dweights = keep · ddropped / (1 − p)
        out     = dropped V                  ddropped = dout Vᵀ,  dV = droppedᵀ dout

    with u = scaled / softcap and dsoftcap = dscores · (t − u · t'); the right column is to be read
    upwards. The sink enters the softmax as in `sink_softmax`.

    Shapes as in `scaled_dot_product_attention`; mask is a boolean array, scale and softcap
    broadcast to the scores. A pair that mask or a bias of −∞ hides adds nothing anywhere, even if
    it is NaN. Without return_weights out is the only value.
    """
    inputs = query, key, value, bias, sink, scale, softcap
    if backend.is_half(query):
        settings: dict[str, Any] = {"keep": keep, "p": p, "return_weights": return_weights}
        return in_float32(attention, *inputs, mask=mask, wanted=wanted, **settings)
    xp = namespace(query, key, value)
    visible = visible_pairs(mask, bias)
    factor: Any = 1 / math.sqrt(query.shape[-1]) if scale is None else harmless(scale, visible)
    softcap = harmless(softcap, visible)
    raw = products(query, key, visible)  # (…, H, T, S)
    scores = factor * raw
    if softcap is not None:
        u = scores / softcap
        t = xp.tanh(u)
        scores = softcap * t
        u = u if wanted[6] else None
    if bias is not None:
        scores = scores + bias
    raw = raw if wanted[5] else None  # what the pullback does not name is not kept
    weights, drained = normalised(
        scores, None if sink is None else sink[..., None, None], -1, visible
    )
    dropped, pull_dropout = weights, None
    if keep is not None:
        dropped, pull_dropout = dropout.with_pullback(weights, keep, p=p)
    out = mix(dropped, value, visible)  # (…, H, T, Dv)
    through_scores = any(w for k, w in enumerate(wanted) if k != 2)

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dvalue = None
        if dout is not None:
            dvalue = gather(dropped, dout, visible, value) if wanted[2] else None
            if not through_scores:
                return None, None, dvalue, None, None, None, None
            through_out = products(dout, value, visible)
            if pull_dropout is not None:
                through_out = pull_dropout(through_out)[0]
            dweights = through_out if dweights is None else dweights + through_out
        dscores, mean = through_softmax(weights, dweights, -1, visible)
        dscaled, dsoftcap = dscores, None
        if softcap is not None:
            slope = 1 - t * t
            dscaled = dscores * slope
            dsoftcap = None if u is None else dscores * (t - u * slope)
        dscale = None if raw is None else dscaled * raw
        draw = factor * dscaled
        return (
            mix(draw, key, visible) if wanted[0] else None,
            gather(draw, query, visible, key) if wanted[1] else None,
            dvalue,
            dscores,
            None if drained is None else -xp.sum(drained * mean, axis=(-2, -1)),
            dscale,
            dsoftcap,
        )

    if not return_weights:
        return out, lambda dout: pullback(dout, None)
    return (out, weights), pullback


def visible_pairs(mask: Array | None, bias: Array | None) -> Array | None:
    """The mask, less the pairs whose bias is −∞; None if nothing is hidden."""
    if bias is None:
        return mask
    xp = namespace(bias)
    hidden = (xp.real(bias) if backend.is_complex(bias) else bias) == -math.inf
    if not xp.any(hidden):
        return mask
    return ~hidden if mask is None else mask & ~hidden


@operation
def pair_scores(
    query: Array, key: Array, *, mask: Array | None = None, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = Q Kᵀ for query (…, H, T, D), key (…, G, S, D), y (…, H, T, S).   dQ = dy K, dK = dyᵀ Q.

    What mask, a boolean array, hides adds nothing to the gradients, and is finite in y.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = dy if mask is None or is_finite(dy) else hide(dy, mask)
        return (
            mix(dy, key, mask) if wanted[0] else None,
            gather(dy, query, mask, key) if wanted[1] else None,
        )

    return products(query, key, mask), pullback


@operation
def weighted_sum(
    weights: Array, value: Array, *, mask: Array | None = None, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = weights · V for weights (…, H, T, S), value (…, G, S, Dv), y (…, H, T, Dv).

        dweights = dy Vᵀ,  dV = weightsᵀ dy

    What mask, a boolean array, hides has weight 0 and adds nothing, even if it is NaN.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        return (
            products(dy, value, mask) if wanted[0] else None,
            gather(weights, dy, mask, value) if wanted[1] else None,
        )

    return mix(weights, value, mask), pullback
