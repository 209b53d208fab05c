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
        lse     = log Σ exp(scores)          dscores += weights · dlse
        dropped = keep · weights / (1 − p)   dweights += keep · ddropped / (1 − p)
        out     = dropped V                  ddropped = dout Vᵀ,  dV = droppedᵀ dout

    with u = scaled / softcap and dsoftcap = dcapped · (t − u · (1 − t²)). If softcap, bias or keep
    is None, its line changes nothing. Read the right column from the bottom up. It begins with
    dweights, the gradient of the returned weights, or 0 if they are not used. With a sink, softmax
    is `sink_softmax`, which gives dsink as well.

    `products` computes Q Kᵀ, `sums_over_keys` weights V, and `sums_over_queries` weightsᵀ dout. In
    these, H query heads share G ≤ H heads of keys and values, and hidden pairs contribute nothing.
    The pullback returns the gradients of bias, scale and softcap for every pair, (…, H, T, S);
    `operation` sums them to the shapes of the inputs.

    Shapes are as in `scaled_dot_product_attention`; wanted says which of the seven gradients to
    compute. A pair that the mask or a bias of −∞ hides contributes nothing, even if it is NaN. lse
    is None unless x.return_lse is True.
    """
    query, key, value, bias, sink, scale, softcap = x.inputs
    visible = visible_pairs(x.resolved_mask(), bias)  # broadcasts to (…, H, T, S)

    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])  # 1/√D

    # All stages from raw to dropped are (…, H, T, S).
    raw = products(query, key, visible)
    scaled, pull_scaled = _scaled(raw, scale, visible, wanted.scale)
    capped, pull_capped = _capped(scaled, softcap, visible, wanted.softcap)
    scores = capped
    if bias is not None:
        scores = capped + bias
    weights, pull_weights = _normalised(scores, sink, visible)
    lse = None
    if x.return_lse:
        lse = log_sums(scores, sink, visible)  # (…, H, T)
    dropped, pull_dropped = drop_weights(weights, x.resolved_keep(), x.p)
    out = sums_over_keys(dropped, value, visible)  # (…, H, T, Dv)

    wants_scores = (  # whether any gradient goes through the scores: all but that of the values
        wanted.query or wanted.key or wanted.bias or wanted.sink or wanted.scale or wanted.softcap
    )

    def pullback(dout: Array | None, dweights: Array | None, dlse: Array | None) -> Gradients:
        dvalue = None
        if dout is not None and wanted.value:
            dvalue = sums_over_queries(dropped, dout, visible, value)  # (…, G, S, Dv)
        if not wants_scores:
            return Gradients(value=dvalue)

        # The weights have two uses, whose gradients add up: they are returned, and they make out.
        if dout is not None:
            ddropped = products(dout, value, visible)  # (…, H, T, S)
            of_out = pull_dropped(ddropped)
            dweights = of_out if dweights is None else dweights + of_out
        if dweights is None:  # only lse has a gradient
            dweights = namespace(weights).zeros_like(weights)

        dscores, dsink = pull_weights(dweights, dlse)  # (…, H, T, S), (…, H)
        dbias = None
        if wanted.bias:
            dbias = dscores
        dscaled, dsoftcap = pull_capped(dscores)
        draw, dscale = pull_scaled(dscaled)

        dquery = None
        if wanted.query:
            dquery = sums_over_keys(draw, key, visible)  # (…, H, T, D)
        dkey = None
        if wanted.key:
            dkey = sums_over_queries(draw, query, visible, key)  # (…, G, S, D)
        return Gradients(dquery, dkey, dvalue, dbias, dsink, dscale, dsoftcap)

    return (out, weights, lse), pullback


def _scaled(raw: Array, scale: Any, visible: Array | None, wanted: bool) -> tuple[Array, Pullback]:
    """y = scale · raw.   draw = scale · dy, and dscale = dy · raw if it is wanted, or else None.

    At hidden pairs, where the boolean array `visible` is False, the scale may be NaN.
    """
    # The scale of a hidden pair may be NaN. It would multiply the gradient there, 0, and 0 · NaN is
    # NaN: so hidden pairs have the scale 1 instead.
    scale = ones_where_hidden(scale, visible)
    saved = None
    if wanted:  # or else raw, (…, H, T, S), need not stay in memory
        saved = raw

    def pullback(dy: Array) -> tuple[Array, Array | None]:
        draw = scale * dy
        if saved is None:
            return draw, None
        return draw, dy * saved

    return scale * raw, pullback


def _capped(
    scaled: Array, softcap: Any, visible: Array | None, wanted: bool
) -> tuple[Array, Pullback]:
    """y = softcap · t, t = tanh(u), u = scaled / softcap; with None for softcap y = scaled.

    dscaled = dy · (1 − t²), and dsoftcap = dy · (t − u · (1 − t²)) if it is wanted, or
    else None. At hidden pairs, where the boolean array `visible` is False, softcap may be NaN.
    """
    if softcap is None:
        return scaled, lambda dy: (dy, None)
    softcap = ones_where_hidden(softcap, visible)  # for the reason in `_scaled`
    u = scaled / softcap  # (…, H, T, S)
    t = namespace(u).tanh(u)
    saved = u if wanted else None  # t, which both gradients need, is kept in any case

    def pullback(dy: Array) -> tuple[Array, Array | None]:
        slope = 1 - t * t  # tanh'(u)
        dscaled = dy * slope
        if saved is None:
            return dscaled, None
        return dscaled, dy * (t - saved * slope)

    return softcap * t, pullback


def _normalised(scores: Array, sink: Array | None, visible: Array | None) -> tuple[Array, Pullback]:
    """The softmax of the scores, with a sink, which broadcasts to (…, H), unless that is None. At
    hidden pairs, where the boolean array `visible` is False, the weights are 0; None hides nothing.

    The pullback takes the gradients of the weights and of lse, the latter None if lse is not used.
    It returns the gradients of the scores and of the sink, the latter None without a sink."""
    if sink is None:
        weights, pull = masked_softmax(scores, mask=visible)

        def without_sink(dy: Array, dlse: Array | None) -> tuple[Array, None]:
            (dscores,) = pull(dy, dlse)
            return dscores, None

        return weights, without_sink

    logit = sink[..., None, None]  # (…, H, 1, 1): every query of a head has the same sink
    weights, pull_both = softmax_with_sink(scores, logit, visible)

    def pullback(dy: Array, dlse: Array | None) -> tuple[Array, Array]:
        dscores, dlogit = pull_both(dy, dlse)
        dsink = namespace(dlogit).sum(dlogit, axis=(-2, -1))  # (…, H)
        return dscores, dsink

    return weights, pullback


def drop_weights(weights: Array, keep: Array | None, p: float) -> tuple[Array, Pullback]:
    """The weights after dropout with probability p, and the pullback from their gradient to that of
    the weights. keep is True for the weights that dropout keeps, which are divided by 1 − p; if it
    is None, the weights stay unchanged."""
    if keep is None:
        return weights, lambda dy: dy
    dropped, pull = dropout.function(weights, keep, p=p)

    def pullback(dy: Array) -> Any:
        dweights, _ = pull(dy)  # None for keep
        return dweights

    return dropped, pullback


def visible_pairs(mask: Array | None, bias: Array | None) -> Array | None:
    """A boolean array that is True for the pairs that neither the mask nor a bias of −∞ hides. None
    if there is no mask, and no bias of −∞; on a GPU, if there is neither a mask nor a bias."""
    if bias is None:
        return mask
    xp = namespace(bias)
    real = bias
    if backend.is_complex(bias):
        real = xp.real(bias)
    hidden = real == -math.inf

    # On a GPU we combine them without asking whether any is hidden: the host would have to wait for
    # the answer.
    if backend.on_host(bias) and not xp.any(hidden):
        return mask
    if mask is None:
        return ~hidden
    return mask & ~hidden


@operation
def pair_scores(
    query: Array, key: Array, *, mask: Array | None = None, wanted: Wanted
) -> tuple[Array, Pullback]:
    """y = Q Kᵀ for query (…, H, T, D), key (…, G, S, D), y (…, H, T, S).   dQ = dy K, dK = dyᵀ Q.

    Query head h reads key head h // (H // G). At a hidden pair, where the boolean mask is False,
    y is finite even if the query or the key is not. There, dy must be 0, or NaN or infinite, which
    the pullback replaces by 0.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        if mask is not None and not known_finite(dy):
            dy = hide(dy, mask | namespace(dy).isfinite(dy))
        dquery = None
        if wanted.query:
            dquery = sums_over_keys(dy, key, mask)  # (…, H, T, D)
        dkey = None
        if wanted.key:
            dkey = sums_over_queries(dy, query, mask, key)  # (…, G, S, D)
        return dquery, dkey

    return products(query, key, mask), pullback


@operation
def weighted_sum(
    weights: Array, value: Array, *, mask: Array | None = None, wanted: Wanted
) -> tuple[Array, Pullback]:
    """y = weights · V for weights (…, H, T, S), value (…, G, S, Dv), y (…, H, T, Dv).

        dweights = dy Vᵀ,  dV = weightsᵀ dy

    Query head h reads value head h // (H // G). A hidden pair, where the boolean mask is False,
    must have weight 0. It contributes nothing to y and dV, even if its value or dy is NaN.
    """

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dweights = None
        if wanted.weights:
            dweights = products(dy, value, mask)  # (…, H, T, S)
        dvalue = None
        if wanted.value:
            dvalue = sums_over_queries(weights, dy, mask, value)  # (…, G, S, Dv)
        return dweights, dvalue

    return sums_over_keys(weights, value, mask), pullback
