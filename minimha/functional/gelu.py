"""GELU, the smooth gate of GPT-2."""

from __future__ import annotations

import math

from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Pullback, operation


@operation
def gelu(x: Array) -> tuple[Array, Pullback]:
    """y = x · g with g = (1 + tanh u) / 2, u = √(2/π) · (x + 0.044715 x³), the tanh form.

        dx = dy · (g + x · g′),  g′ = 2 g (1 − g) · u′,  u′ = √(2/π) · (1 + 3 · 0.044715 x²)

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    xp = namespace(x)
    c, a = math.sqrt(2 / math.pi), 0.044715
    square = x * x  # x**3 would call the general power, ten times slower than two products
    gate = 0.5 + 0.5 * xp.tanh(x * (c + c * a * square))

    def pullback(dy: Array) -> tuple[Array]:
        slope = 2 * gate * (1 - gate) * (c + 3 * c * a * square)
        return (dy * (gate + x * slope),)

    return x * gate, pullback
