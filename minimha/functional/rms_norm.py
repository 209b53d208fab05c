"""Root mean square normalisation: layer normalisation without the mean."""

from __future__ import annotations

from minimha_autograd import Pullback, backend, in_float32, operation
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


@operation
@accelerated
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> tuple[Array, Pullback]:
    """y = x̂ · weight with x̂ = x / σ, σ = √(mean(x²) + eps), over the last axis M.

        dweight = dy · x̂,  g = dy · weight
        dx = (g − x̂ · mean(g · x̂)) / σ

    x (…, M) with M at least 1, weight (M,). Raises ValueError for other shapes, or a negative eps.
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    xp = namespace(x)
    if not x.ndim or not x.shape[-1] or weight.shape != x.shape[-1:]:
        raise ValueError("x (…, M) and weight (M,) need the same width M, at least 1")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, not {eps}")
    if backend.is_half(x):
        return in_float32(rms_norm, x, weight, eps=eps)

    def mean(a: Array) -> Array:
        return xp.sum(a, axis=-1, keepdims=True) / a.shape[-1]

    inverse = 1 / xp.sqrt(mean(x * x) + eps)  # the product, not |x|²: it keeps imaginary parts
    normed = x * inverse

    def pullback(dy: Array) -> tuple[Array, Array]:
        g = dy * weight
        return (g - normed * mean(g * normed)) * inverse, dy * normed

    return normed * weight, pullback
