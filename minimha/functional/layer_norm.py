"""Layer normalisation."""

from __future__ import annotations

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


@operation
@accelerated
def layer_norm(
    x: Array, weight: Array, bias: Array, *, eps: float = 1e-5
) -> tuple[Array, Pullback]:
    """y = x̂ · weight + bias with x̂ = (x − mean) / σ, σ = √(variance + eps), over the last axis M.

        dbias = dy,  dweight = dy · x̂,  g = dy · weight
        dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ

    x (…, M), weight (M,), bias (M,).
    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
    """
    xp, width = namespace(x), x.shape[-1]
    if weight.shape != (width,) or bias.shape != (width,):
        raise ValueError(f"weight and bias must have the width of x, ({width},)")

    def mean(a: Array) -> Array:
        return xp.sum(a, axis=-1, keepdims=True) / width

    centred = x - mean(x)
    inverse = 1 / xp.sqrt(mean(centred * centred) + eps)  # no var(): it would drop imaginary parts
    normed = centred * inverse

    def pullback(dy: Array) -> tuple[Array, Array, Array]:
        g = dy * weight
        dx = (g - mean(g) - normed * mean(g * normed)) * inverse
        return dx, dy * normed, dy

    return normed * weight + bias, pullback
