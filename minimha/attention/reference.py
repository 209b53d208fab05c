"""Attention on arrays: the reference, stage by stage, with its hand-derived backward.

Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1.
"""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ..functional import dropout
from ..functional.implementations import register
from ..functional.masked_products import (
    hide,
    known_finite,
    ones_where_hidden,
    products,
    sums_over_keys,
    sums_over_queries,
)
from ..functional.softmax import log_sums, masked_softmax, softmax_with_sink
from .arguments import Arguments, Gradients


@register("attention", "reference")
def attention(x: Arguments, wanted: Wanted) -> tuple[tuple[Array, Array, Array | None], Pullback]:
    """The values (out, weights, lse) of attention and the pullback to the seven inputs.

        raw     = Q Kᵀ                       dQ = draw K,  dK = drawᵀ Q
        scaled  = scale · raw                draw = scale · dscaled,  dscale = dscaled · raw
        capped  = softcap · t, t = tanh(u)   dscaled = dcapped · (1 − t²)
        scores  = capped + bias              dcapped = dbias = dscores
        weights = softmax(scores)            dscores = weights · (dweights − Σ dweights · weights)
        lse     = log Σ exp(scores)                    + weights · dlse
        dropped = keep · weights / (1 − p)   dweights = keep · ddropped / (1 − p)
        out     = dropped V                  ddropped = dout Vᵀ,  dV = droppedᵀ dout

    with u = scaled / softcap and dsoftcap = dcapped · (t − u · (1 − t²)). Read the right column
    from the bottom up. With a sink, softmax is `sink_softmax`.

    Shapes are as in `scaled_dot_product_attention`; wanted says which of the seven gradients to
    compute. A pair that the mask or a bias of −∞ hides contributes nothing, even if it is NaN. lse
    is None unless it is asked for.
    """
    query, key, value, bias, sink, scale, softcap = x.inputs
    visible = visible_pairs(x.resolved_mask(), bias)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else ones_where_hidden(scale, visible)
    softcap = ones_where_hidden(softcap, visible)
    through_scores = (  # the gradients of all inputs but the values
        wanted.query or wanted.key or wanted.bias or wanted.sink or wanted.scale or wanted.softcap
    )

    raw = products(query, key, visible)  # (…, H, T, S)
    scaled, pull_scaled = _scaled(raw, scale, wanted.scale)
    capped, pull_capped = _capped(scaled, softcap, wanted.softcap)
    scores = capped if bias is None else capped + bias
    weights, pull_weights = _normalised(scores, sink, visible)
    lse = log_sums(scores, sink, visible) if x.return_lse else None
    dropped, pull_dropped = drop_weights(weights, x.resolved_keep(), x.p)
    out = sums_over_keys(dropped, value, visible)  # (…, H, T, Dv)

    def pullback(dout: Array | None, dweights: Array | None, dlse: Array | None) -> Gradients:
        dvalue = None
        if dout is not None:
            dvalue = sums_over_queries(dropped, dout, visible, value) if wanted.value else None
        if not through_scores:
            return Gradients(value=dvalue)
        if dout is not None:
            through_out = pull_dropped(products(dout, value, visible))
            dweights = through_out if dweights is None else dweights + through_out
        if dweights is None:
            dweights = namespace(weights).zeros_like(weights)
        dscores, dsink = pull_weights(dweights, dlse)
        dscaled, dsoftcap = pull_capped(dscores)
        draw, dscale = pull_scaled(dscaled)
        dquery = sums_over_keys(draw, key, visible) if wanted.query else None
        dkey = sums_over_queries(draw, query, visible, key) if wanted.key else None
        dbias = dscores if wanted.bias else None
        return Gradients(dquery, dkey, dvalue, dbias, dsink, dscale, dsoftcap)

    return (out, weights, lse), pullback


def _scaled(raw: Array, scale: Any, wanted: bool) -> tuple[Array, Pullback]:
    """y = scale · raw.   draw = scale · dy, dscale = dy · raw, None unless wanted."""
    saved = raw if wanted else None
    return scale * raw, lambda dy: (scale * dy, None if saved is None else dy * saved)


def _capped(scaled: Array, softcap: Any, wanted: bool) -> tuple[Array, Pullback]:
    """y = softcap · t, t = tanh(u), u = scaled / softcap; with None for softcap y = scaled.

    dscaled = dy · (1 − t²), dsoftcap = dy · (t − u · (1 − t²)), None unless wanted.
    """
    if softcap is None:
        return scaled, lambda dy: (dy, None)
    u = scaled / softcap
    t = namespace(u).tanh(u)
    saved = u if wanted else None

    def pullback(dy: Array) -> tuple[Array, Array | None]:
        slope = 1 - t * t
        return dy * slope, None if saved is None else dy * (t - saved * slope)

    return softcap * t, pullback


def _normalised(scores: Array, sink: Array | None, visible: Array | None) -> tuple[Array, Pullback]:
    """The softmax of the scores, with a sink if there is one, which broadcasts to (…, H). The
    pullback also takes the gradient of lse, or None."""
    if sink is None:
        weights, pull = masked_softmax(scores, mask=visible)
        return weights, lambda dy, dlse: (*pull(dy, dlse), None)
    weights, pull_both = softmax_with_sink(scores, sink[..., None, None], visible)

    def pullback(dy: Array, dlse: Array | None) -> tuple[Array, Array]:
        dscores, dsink = pull_both(dy, dlse)
        return dscores, namespace(dsink).sum(dsink, axis=(-2, -1))

    return weights, pullback


def drop_weights(weights: Array, keep: Array | None, p: float) -> tuple[Array, Pullback]:
    """The weights after dropout; unchanged without a keep."""
    if keep is None:
        return weights, lambda dy: dy
    dropped, pull = dropout.function(weights, keep, p=p)
    return dropped, lambda dy: pull(dy)[0]


def visible_pairs(mask: Array | None, bias: Array | None) -> Array | None:
    """The mask without the pairs whose bias is −∞; None if nothing is hidden."""
    if bias is None:
        return mask
    xp = namespace(bias)
    hidden = (xp.real(bias) if backend.is_complex(bias) else bias) == -math.inf
    if backend.on_host(bias) and not xp.any(hidden):
        return mask
    return ~hidden if mask is None else mask & ~hidden


@operation
def pair_scores(
    query: Array, key: Array, *, mask: Array | None = None, wanted: Wanted
) -> tuple[Array, Pullback]:
    """y = Q Kᵀ for query (…, H, T, D), key (…, G, S, D), y (…, H, T, S).   dQ = dy K, dK = dyᵀ Q.

    A pair that the boolean mask hides is finite in y. The pullback expects its dy to be 0, and
    takes NaN and infinity for 0.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        if mask is not None and not known_finite(dy):
            dy = hide(dy, mask | namespace(dy).isfinite(dy))
        return (
            sums_over_keys(dy, key, mask) if wanted.query else None,
            sums_over_queries(dy, query, mask, key) if wanted.key else None,
        )

    return products(query, key, mask), pullback


@operation
def weighted_sum(
    weights: Array, value: Array, *, mask: Array | None = None, wanted: Wanted
) -> tuple[Array, Pullback]:
    """y = weights · V for weights (…, H, T, S), value (…, G, S, Dv), y (…, H, T, Dv).

        dweights = dy Vᵀ,  dV = weightsᵀ dy

    A pair that the boolean mask hides must have weight 0. It contributes nothing to y and dV, even
    if its value or dy is NaN.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        return (
            products(dy, value, mask) if wanted.weights else None,
            sums_over_queries(weights, dy, mask, value) if wanted.value else None,
        )

    return sums_over_keys(weights, value, mask), pullback
