"""Normalisation of rows: by mean and variance, or by the root mean square alone."""

from __future__ import annotations

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from .implementations import accelerated


@operation
@accelerated
def layer_norm(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Array, Pullback]:
    """y = x̂ · weight + bias with x̂ = (x − mean(x)) / σ, σ = √(variance(x) + eps), over the axis M.

        dbias = Σ dy,  dweight = Σ dy · x̂, summed over the rows
        dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ  with g = dy · weight

    x (…, M) with at least one axis, weight (M,), bias (M,) or None. Raises ValueError for other
    shapes.
    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
    """
    xp = namespace(x)
    row_axes = tuple(range(x.ndim - 1))
    columns = x.shape[-1:]  # (M,), or () if x has no axes
    fits = columns and weight.shape == columns
    if not fits or (bias is not None and bias.shape != columns):
        raise ValueError(f"weight and bias must have the width of x, {tuple(columns) or '(M,)'}")

    mean = _mean(x)  # (…, 1)
    centred = x - mean  # (…, M)
    variance = _mean(centred * centred)  # (…, 1); var() would drop imaginary parts
    sigma = xp.sqrt(variance + eps)  # (…, 1)
    x_hat = centred / sigma  # (…, M)

    y = x_hat * weight  # (…, M)
    if bias is not None:
        y = y + bias

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        # Every entry of x also changes the mean and the σ of its row: two more terms of dx.
        g = dy * weight  # (…, M)
        mean_g = _mean(g)  # (…, 1)
        mean_gx = _mean(g * x_hat)  # (…, 1)
        dx = (g - mean_g - x_hat * mean_gx) / sigma  # (…, M)

        # All rows use the same weight and bias.
        dweight = xp.sum(dy * x_hat, axis=row_axes)  # (M,)
        dbias = None
        if bias is not None:
            dbias = xp.sum(dy, axis=row_axes)  # (M,)
        return dx, dweight, dbias

    return y, pullback


@operation
@accelerated
def rms_norm(
    x: Array,
    weight: Array,
    *,
    eps: float = 1e-6,
) -> tuple[Array, Pullback]:
    """y = x̂ · weight with x̂ = x / σ, σ = √(mean(x²) + eps), over the axis M.

        dweight = Σ dy · x̂, summed over the rows
        dx = (g − x̂ · mean(g · x̂)) / σ  with g = dy · weight

    x (…, M) with M at least 1, weight (M,). Raises ValueError for other shapes, or a negative eps.
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    xp = namespace(x)
    row_axes = tuple(range(x.ndim - 1))
    fits = x.ndim and x.shape[-1] and weight.shape == x.shape[-1:]
    if not fits:
        raise ValueError("x (…, M) and weight (M,) need the same width M, at least 1")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, not {eps}")

    mean_square = _mean(x * x)  # (…, 1); |x|² would drop imaginary parts
    sigma = xp.sqrt(mean_square + eps)  # (…, 1)
    x_hat = x / sigma  # (…, M)
    y = x_hat * weight  # (…, M)

    def pullback(dy: Array) -> tuple[Array, Array]:
        # Every entry of x also changes the σ of its row: one more term of dx.
        g = dy * weight  # (…, M)
        mean_gx = _mean(g * x_hat)  # (…, 1)
        dx = (g - x_hat * mean_gx) / sigma  # (…, M)

        # All rows use the same weight.
        dweight = xp.sum(dy * x_hat, axis=row_axes)  # (M,)
        return dx, dweight

    return y, pullback


def _mean(x: Array) -> Array:
    """The mean of each row, (…, M) -> (…, 1)."""
    xp = namespace(x)
    return xp.sum(x, axis=-1, keepdims=True) / x.shape[-1]
