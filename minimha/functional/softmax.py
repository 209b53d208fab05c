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
def softmax(
    x: Array,
    *,
    axis: int = -1,
    mask: Array | None = None,
) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) over axis.   dx = y · (dy − Σ dy · y).

    mask  boolean, broadcasts to x; where it is False, y and dx are 0, whatever the values
          of x and dy there

    A row without visible entries (it is empty, the mask hides all of it, or all its entries are −∞)
    gives zeros and, for a finite dy, zero gradients.
    """
    return masked_softmax(x, axis, mask)


def masked_softmax(
    x: Array,
    axis: int = -1,
    mask: Array | None = None,
) -> tuple[Array, Callable[..., tuple[Array]]]:
    """The value y and the pullback of `softmax`, for arrays and without kernels.

        e = exp(x − peak),  total = Σ e,  y = e / total
        mean = Σ dy · y,  dx = y · (dy − mean + dlse)

    peak is the largest entry of each row. The pullback also takes dlse, the gradient of the result
    of `log_sums`; None counts as 0. The comments give the shapes for x (…, T, S) and axis −1.
    """
    xp = namespace(x)
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        x = xp.where(mask, x, xp.full_like(x, -math.inf))

    # The factor exp(−peak) cancels in e / total, and without it exp could overflow.
    peak = _largest(x, axis)  # (…, T, 1)
    e = xp.exp(x - peak)  # (…, T, S)
    total = xp.sum(e, axis=axis, keepdims=True)  # (…, T, 1)

    # In a row without visible entries total is 0: it is divided by 1 and stays 0.
    divisor = xp.where(total == 0, 1.0, total)
    y = e / divisor  # (…, T, S)

    # A visible NaN makes its whole row NaN, but hidden entries are 0 even there.
    if mask is not None and not known_finite(total):
        y = hide(y, mask)

    def pullback(
        dy: Array,
        dlse: Array | None = None,
    ) -> tuple[Array]:
        # A hidden dy may be NaN, which would spread through the mean.
        if mask is not None and not known_finite(dy):
            dy = hide(dy, mask)

        mean = xp.sum(dy * y, axis=axis, keepdims=True)  # (…, T, 1)
        if dlse is not None:
            mean = mean - xp.expand_dims(dlse, axis=axis)
        dx = y * (dy - mean)  # (…, T, S)

        # In a hidden entry, 0 · NaN would be NaN.
        if mask is not None and not known_finite(mean):
            dx = hide(dx, mask)
        return (dx,)

    return y, pullback


def log_sums(
    x: Array,
    sink: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """log Σ exp(x) over the last axis, only over entries where the mask is True; −∞ if there are no
    such entries.

    x (…, H, T, S), the result (…, H, T). With a sink, which broadcasts to (…, H), it is
    log(exp(sink) + Σ exp(x)).
    """
    xp = namespace(x)
    if mask is not None:
        x = xp.where(mask, x, xp.full_like(x, -math.inf))

    # The sink is one more column.
    if sink is not None:
        row_shape = x.shape[:-1]  # (…, H, T)
        column = xp.broadcast_to(sink[..., None, None], (*row_shape, 1))  # (…, H, T, 1)
        x = xp.concat([x, column], axis=-1)  # (…, H, T, S + 1)
    return logsumexp(x, axis=-1)


def _largest(x: Array, axis: int) -> Array:
    """The largest entry of each row, with axis kept as an axis of length 1; 0 for a row whose
    entries are all −∞, or that has none."""
    xp = namespace(x)
    if is_complex(x):  # in a gradient check by the complex step
        x = xp.real(x)
    if not x.shape[axis]:
        return xp.sum(x, axis=axis, keepdims=True)

    # x − peak must not be −∞ − (−∞), which is NaN.
    peak = xp.max(x, axis=axis, keepdims=True)
    return xp.where(peak == -math.inf, 0.0, peak)


@operation
def sink_softmax(
    x: Array,
    sink: Array,
    *,
    mask: Array | None = None,
) -> tuple[Array, Pullback]:
    """y = exp(x) / (exp(sink) + Σ exp(x)) over the last axis: softmax of x with one more column,
    the sink, which is then dropped.

        dx = y · (dy − Σ dy · y)          dsink = −y_sink · Σ dy · y

    x (…, S), sink broadcasts to (…, 1), mask as in `softmax`, y_sink the dropped column. With a
    sink, even if it is 0, all weights y of a row can be small: a query can attend to nothing.
    Source: Miller, "Attention Is Off By One" (2023); Xiao et al., "Efficient Streaming Language
    Models with Attention Sinks" (2023), section 3.3.
    """
    return softmax_with_sink(x, sink, mask)


def softmax_with_sink(
    x: Array,
    sink: Array,
    mask: Array | None,
) -> tuple[Array, Callable[..., tuple[Array, Array]]]:
    """The value and the pullback of `sink_softmax`, for arrays. The pullback also takes dlse, the
    gradient of the result of `log_sums` with this sink; None counts as 0. It returns dx, and dsink
    with an entry for each row of x, (…, 1), not summed to the shape of sink."""
    xp = namespace(x, sink)
    row_shape = x.shape[:-1]  # (…, T)
    column = xp.broadcast_to(sink, (*row_shape, 1))  # (…, T, 1)

    # The mask hides keys, never the sink.
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        mask = xp.broadcast_to(mask, x.shape)
        visible = xp.ones_like(column, dtype=xp.bool)
        mask = xp.concat([mask, visible], axis=-1)  # (…, T, S + 1)
    y, pull = masked_softmax(xp.concat([x, column], axis=-1), -1, mask)  # (…, T, S + 1)

    def pullback(
        dy: Array,
        dlse: Array | None = None,
    ) -> tuple[Array, Array]:
        # The weight of the sink was dropped, so its dy is 0.
        dy_sink = xp.zeros_like(column)  # (…, T, 1)
        (dx,) = pull(xp.concat([dy, dy_sink], axis=-1), dlse)  # (…, T, S + 1)
        dsink = dx[..., -1:]
        return dx[..., :-1], dsink

    return y[..., :-1], pullback
