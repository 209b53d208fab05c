"""Softmax, with the rule for what is masked."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, is_complex, namespace
from minimha_autograd.ops.fits import axes


@operation(fits=axes)
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) over axis.   dx = y · (dy − Σ dy · y).

    mask  boolean, broadcasts to x; where it is False, y is 0 and x gets no gradient

    A row without anything visible, because the mask hides all or every entry is −∞ or there are
    none, gives zeros and zero gradients. Subtracting the largest entry changes nothing (a common
    factor cancels), and keeps exp from overflowing.
    """
    xp = namespace(x)
    if mask is not None:
        backend.require(backend.is_boolean, mask, "mask")
        x = xp.where(mask, x, xp.full_like(x, -math.inf))
    if x.shape[axis] == 0:
        y = x
    else:
        peak = xp.max(xp.real(x) if is_complex(x) else x, axis=axis, keepdims=True)
        y = xp.exp(x - xp.where(peak == -math.inf, xp.zeros_like(peak), peak))
        total = xp.sum(y, axis=axis, keepdims=True)
        y = y / xp.where(total == 0, xp.ones_like(total), total)

    def pullback(dy: Array) -> tuple[Array]:
        return (y * (dy - xp.sum(dy * y, axis=axis, keepdims=True)),)

    return y, pullback
