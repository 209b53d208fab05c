"""Softmax, with the rule for what is masked, and with a sink."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, is_complex, namespace
from minimha_autograd.ops.fits import axes

from .pairs import hide, is_finite


@operation(fits=axes)
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) over axis.   dx = y · (dy − Σ dy · y).

    mask  boolean, broadcasts to x; where it is False, y is 0 and x gets no gradient, whatever
          stands in x and dy there

    A row without anything visible, because the mask hides all or every entry is −∞ or there are
    none, gives zeros and zero gradients. Subtracting the largest entry changes nothing (a common
    factor cancels), and keeps exp from overflowing.
    """
    y, pull = softmax_with_sink(x, axis=axis, mask=mask)
    return y, lambda dy: pull(dy)[:1]


@operation
def sink_softmax(x: Array, sink: Array, *, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / (exp(sink) + Σ exp(x)) over the last axis: the sink takes weight, and is not
    among the results.

        dx = y · (dy − Σ dy · y)          dsink = −y_sink · Σ dy · y

    sink broadcasts to (…, 1); mask as in `softmax`. With sink = 0 this is the softmax that can say
    nothing.
    Source: Miller, "Attention Is Off By One" (2023); Xiao et al., "Efficient Streaming Language
    Models with Attention Sinks" (2024), section 3.3.
    """
    return softmax_with_sink(x, sink, mask=mask)


def softmax_with_sink(
    x: Array, sink: Array | None = None, *, axis: int = -1, mask: Array | None = None
) -> tuple[Array, Pullback]:
    """Both of the above, and what their pullbacks say, on arrays."""
    xp = namespace(x)

    def real(a: Array) -> Array:
        return xp.real(a) if is_complex(a) else a

    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        x = xp.where(mask, x, xp.full_like(x, -math.inf))
    if x.shape[axis] == 0:
        peak = xp.full_like(real(xp.sum(x, axis=axis, keepdims=True)), -math.inf)
    else:
        peak = xp.max(real(x), axis=axis, keepdims=True)
    if sink is not None:
        peak = xp.maximum(*xp.broadcast_arrays(peak, real(sink)))
    peak = xp.where(peak == -math.inf, xp.zeros_like(peak), peak)
    y = xp.exp(x - peak)
    drained = None if sink is None else xp.exp(sink - peak)
    total = xp.sum(y, axis=axis, keepdims=True)
    total = total if drained is None else total + drained
    total = xp.where(total == 0, xp.ones_like(total), total)
    y = y / total
    if mask is not None and not is_finite(total):  # NaN among what is visible in a row
        y = hide(y, mask)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = dy if mask is None or is_finite(dy) else hide(dy, mask)
        mean = xp.sum(dy * y, axis=axis, keepdims=True)
        dx = y * (dy - mean)
        dx = dx if mask is None or is_finite(mean) else hide(dx, mask)
        return dx, None if drained is None else -mean * drained / total

    return y, pullback
