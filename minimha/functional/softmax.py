"""Softmax, with the rule for what is masked, and with a sink."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, is_complex, namespace
from minimha_autograd.ops.requirements import axes

from .acceleration import accelerated
from .masked_products import hide, is_finite


@operation(requirement=axes)
@accelerated
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) over axis.   dx = y · (dy − Σ dy · y).

    mask  boolean, broadcasts to x; where it is False, y is 0 and x gets no gradient, whatever
          stands in x and dy there

    A row without anything visible, because the mask hides all or every entry is −∞ or there are
    none, gives zeros and zero gradients. Subtracting the largest entry changes nothing (a common
    factor cancels), and keeps exp from overflowing.
    """
    y, _ = normalised(x, None, axis, mask)
    return y, lambda dy: (through_softmax(y, dy, axis, mask)[0],)


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
    y, y_sink = normalised(x, sink, -1, mask)

    def pullback(dy: Array) -> tuple[Array, Array]:
        dx, mean = through_softmax(y, dy, -1, mask)
        return dx, -y_sink * mean

    return y, pullback


def normalised(x: Array, sink: Array | None, axis: int, mask: Array | None) -> tuple[Array, Array]:
    """The values of both, and what the sink takes: None without one."""
    xp, real = namespace(x), x
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        real = x = xp.where(mask, x, xp.full_like(x, -math.inf))
    if is_complex(x):
        real = xp.real(x)
    if x.shape[axis]:
        peak = xp.max(real, axis=axis, keepdims=True)
    else:
        peak = xp.sum(real, axis=axis, keepdims=True) - math.inf
    if sink is not None:
        peak = xp.maximum(*xp.broadcast_arrays(peak, xp.real(sink) if is_complex(sink) else sink))
    peak = xp.where(peak == -math.inf, xp.zeros_like(peak), peak)
    y = xp.exp(x - peak)
    total = xp.sum(y, axis=axis, keepdims=True)
    if sink is not None:
        y_sink = xp.exp(sink - peak)
        total = total + y_sink
    total = xp.where(total == 0, xp.ones_like(total), total)
    y = y / total
    if mask is not None and not is_finite(total):  # NaN among what is visible in a row
        y = hide(y, mask)
    return y, None if sink is None else y_sink / total


def through_softmax(y: Array, dy: Array, axis: int, mask: Array | None) -> tuple[Array, Array]:
    """dx = y · (dy − mean), and the mean Σ dy · y of the gradients, weighted by y."""
    xp = namespace(y)
    if mask is not None and not is_finite(dy):
        dy = hide(dy, mask)
    mean = xp.sum(dy * y, axis=axis, keepdims=True)
    dx = y * (dy - mean)
    return dx if mask is None or is_finite(mean) else hide(dx, mask), mean
