"""Softmax, with a mask, and with a sink."""

from __future__ import annotations

import math
from collections.abc import Callable

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, is_complex, namespace
from minimha_autograd.ops import logsumexp
from minimha_autograd.ops.requirements import axes

from .implementations import accelerated
from .masked_products import hide, known_finite


@operation(requirement=axes)
@accelerated
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) over axis.   dx = y · (dy − Σ dy · y).

    mask  boolean, broadcasts to x; where it is False, y and dx are 0, whatever the values
          of x and dy there

    A row without visible entries (it is empty, the mask hides all of it, or all its entries are −∞)
    gives zeros and, for a finite dy, zero gradients.
    """
    return masked_softmax(x, axis, mask)


def masked_softmax(
    x: Array, axis: int = -1, mask: Array | None = None
) -> tuple[Array, Callable[..., tuple[Array]]]:
    """`softmax` on arrays, without kernels. The pullback also takes the gradient of `log_sums`, or
    None: dx = y · (dy − Σ dy · y + dlse)."""
    xp = namespace(x)
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        x = xp.where(mask, x, xp.full_like(x, -math.inf))
    e = xp.exp(x - _largest(x, axis))  # the common factor cancels, and exp cannot overflow
    total = xp.sum(e, axis=axis, keepdims=True)
    y = e / xp.where(total == 0, 1.0, total)
    if mask is not None and not known_finite(total):  # a row has a visible NaN
        y = hide(y, mask)

    def pullback(dy: Array, dlse: Array | None = None) -> tuple[Array]:
        if mask is not None and not known_finite(dy):
            dy = hide(dy, mask)
        mean = xp.sum(dy * y, axis=axis, keepdims=True)
        if dlse is not None:
            mean = mean - xp.expand_dims(dlse, axis=axis)
        dx = y * (dy - mean)
        return (dx if mask is None or known_finite(mean) else hide(dx, mask),)

    return y, pullback


def log_sums(x: Array, sink: Array | None = None, mask: Array | None = None) -> Array:
    """log Σ exp(x) over the last axis, where the mask is True; with a sink, which broadcasts to the
    other axes but the last, log(exp(sink) + Σ exp(x)). −∞ where no entry takes part."""
    xp = namespace(x)
    if mask is not None:
        x = xp.where(mask, x, xp.full_like(x, -math.inf))
    if sink is not None:
        x = xp.concat([x, xp.broadcast_to(sink[..., None, None], (*x.shape[:-1], 1))], axis=-1)
    return logsumexp(x, axis=-1)


def _largest(x: Array, axis: int) -> Array:
    """The largest entry of each row; 0 where there is none above −∞."""
    xp, real = namespace(x), x
    if is_complex(x):
        real = xp.real(x)
    if not x.shape[axis]:
        return xp.sum(real, axis=axis, keepdims=True)
    peak = xp.max(real, axis=axis, keepdims=True)
    return xp.where(peak == -math.inf, 0.0, peak)


@operation
def sink_softmax(x: Array, sink: Array, *, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / (exp(sink) + Σ exp(x)) over the last axis: softmax of x with one more column,
    the sink, which is then dropped.

        dx = y · (dy − Σ dy · y)          dsink = −y_sink · Σ dy · y

    sink broadcasts to (…, 1); mask as in `softmax`. With sink = 0, all weights of a row
    can be small, so that a query can attend to nothing.
    Source: Miller, "Attention Is Off By One" (2023); Xiao et al., "Efficient Streaming Language
    Models with Attention Sinks" (2023), section 3.3.
    """
    return softmax_with_sink(x, sink, mask)


def softmax_with_sink(
    x: Array, sink: Array, mask: Array | None
) -> tuple[Array, Callable[..., tuple[Array, Array]]]:
    """`sink_softmax` on arrays; dsink is (…, 1), as if sink were."""
    xp = namespace(x, sink)
    column = xp.broadcast_to(sink, (*x.shape[:-1], 1))
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        always = xp.ones_like(column, dtype=xp.bool)
        mask = xp.concat([xp.broadcast_to(mask, x.shape), always], axis=-1)
    y, pull = masked_softmax(xp.concat([x, column], axis=-1), -1, mask)

    def pullback(dy: Array, dlse: Array | None = None) -> tuple[Array, Array]:
        (dx,) = pull(xp.concat([dy, xp.zeros_like(column)], axis=-1), dlse)
        return dx[..., :-1], dx[..., -1:]

    return y[..., :-1], pullback
