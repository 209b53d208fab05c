"""GELU, the smooth gate of GPT-2."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


@operation
@accelerated
def gelu(x: Array) -> tuple[Array, Pullback]:
    """y = x · g with g = (1 + tanh u) / 2 = 1 / (1 + e^(−2u)), u = √(2/π) · (x + 0.044715 x³).

        dx = dy · (g + x · g′),  g′ = 2 g (1 − g) · u′,  u′ = √(2/π) · (1 + 3 · 0.044715 x²)

    This is the tanh form. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    xp = namespace(x)
    c, a = math.sqrt(2 / math.pi), 0.044715
    # beyond ±10 the gate is 0 or 1 in all but name, and e^(−2u) would overflow
    x = ops.clip(x, min=-10.0)
    z = ops.clip(x, max=10.0)
    square = z * z  # z**3 would call the general power, ten times slower than two products
    gate = 1 / (1 + xp.exp(z * (-2 * c - 2 * c * a * square)))  # 1 + tanh u would lose its digits

    def pullback(dy: Array) -> tuple[Array]:
        slope = 2 * gate * (1 - gate) * (c + 3 * c * a * square)
        return (dy * (gate + z * slope),)

    return x * gate, pullback
