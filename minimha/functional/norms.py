"""Normalisation of rows: by mean and variance, or by the root mean square alone."""

from __future__ import annotations

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from .implementations import accelerated


@operation
@accelerated
def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5
) -> tuple[Array, Pullback]:
    """y = x̂ · weight + bias with x̂ = (x − mean(x)) / σ, σ = √(variance(x) + eps), over the axis M.

        dbias = Σ dy,  dweight = Σ dy · x̂, summed over the rows
        dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ  with g = dy · weight

    x (…, M) with at least one axis, weight (M,), bias (M,) or None. Raises ValueError for other
    shapes.
    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
    """
    xp = namespace(x)
    columns = x.shape[-1:]  # (M,), or () if x has no axes
    row_axes = tuple(range(x.ndim - 1))
    if not columns or any(p.shape != columns for p in (weight, bias) if p is not None):
        raise ValueError(f"weight and bias must have the width of x, {tuple(columns) or '(M,)'}")

    centred = x - _mean(x)
    sigma = xp.sqrt(_mean(centred * centred) + eps)  # var() would drop imaginary parts
    x_hat = centred / sigma

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        g = dy * weight
        dx = (g - _mean(g) - x_hat * _mean(g * x_hat)) / sigma
        dbias = None if bias is None else xp.sum(dy, axis=row_axes)
        return dx, xp.sum(dy * x_hat, axis=row_axes), dbias

    y = x_hat * weight
    return y if bias is None else y + bias, pullback


@operation
@accelerated
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> tuple[Array, Pullback]:
    """y = x̂ · weight with x̂ = x / σ, σ = √(mean(x²) + eps), over the axis M.

        dweight = Σ dy · x̂, summed over the rows
        dx = (g − x̂ · mean(g · x̂)) / σ  with g = dy · weight

    x (…, M) with M at least 1, weight (M,). Raises ValueError for other shapes, or a negative eps.
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    xp = namespace(x)
    row_axes = tuple(range(x.ndim - 1))
    if not x.ndim or not x.shape[-1] or weight.shape != x.shape[-1:]:
        raise ValueError("x (…, M) and weight (M,) need the same width M, at least 1")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, not {eps}")

    sigma = xp.sqrt(_mean(x * x) + eps)  # |x|² would drop imaginary parts
    x_hat = x / sigma

    def pullback(dy: Array) -> tuple[Array, Array]:
        g = dy * weight
        return (g - x_hat * _mean(g * x_hat)) / sigma, xp.sum(dy * x_hat, axis=row_axes)

    return x_hat * weight, pullback


def _mean(x: Array) -> Array:
    return namespace(x).sum(x, axis=-1, keepdims=True) / x.shape[-1]
