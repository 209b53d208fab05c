"""GELU, the smooth gate of GPT-2."""

from __future__ import annotations

import math

from minimha_autograd.backend import Array, is_complex, namespace
from minimha_autograd.operation import Pullback, operation


@operation
def gelu(x: Array) -> tuple[Array, Pullback]:
    """y = x · g with g = (1 + tanh u) / 2 = 1 / (1 + e^(−2u)), u = √(2/π) · (x + 0.044715 x³).

        dx = dy · (g + x · g′),  g′ = 2 g (1 − g) · u′,  u′ = √(2/π) · (1 + 3 · 0.044715 x²)

    This is the tanh form. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    xp = namespace(x)
    c, a = math.sqrt(2 / math.pi), 0.044715
    square = x * x  # x**3 would call the general power, ten times slower than two products
    u = x * (c + c * a * square)
    positive = (xp.real(u) if is_complex(u) else u) > 0
    small = xp.exp(xp.where(positive, -2 * u, 2 * u))  # e^(−2|u|), which cannot overflow
    one = xp.ones_like(small)
    gate = xp.where(positive, one, small) / (1 + small)
    rest = xp.where(positive, small, one) / (1 + small)  # 1 − g, which would lose its digits

    def pullback(dy: Array) -> tuple[Array]:
        slope = 2 * gate * rest * (c + 3 * c * a * xp.where(small == 0, small, square))
        return (dy * (gate + x * slope),)

    return x * gate, pullback
