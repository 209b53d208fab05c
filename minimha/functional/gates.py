"""The activations of perceptrons: y = x · g, where the gate g lies between 0 and 1.

GELU and SiLU take an optional second factor, as gated perceptrons need it: y = x · g · times.
"""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, half, operation, ops
from minimha_autograd.backend import Array, namespace

from .implementations import accelerated


@operation
@accelerated
def gelu(x: Array, times: Array | None = None) -> tuple[Array, Pullback]:
    """y = x · g with g = (1 + tanh u) / 2 = 1 / (1 + e^(−2u)), u = √(2/π) · (x + 0.044715 x³).

        dx = dy · (g + x · dg),  dg = 2 g (1 − g) · du,  du = √(2/π) · (1 + 3 · 0.044715 x²)

    This is the tanh form, as in GPT-2. An x below −10 counts as −10, where |x · g| < 10⁻³⁶. With
    `times`, of the same shape as x,

        y = x · g · times,  dx = dy · times · (g + x · dg),  dtimes = dy · x · g

    Raises ValueError if `times` has another shape.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    xp = namespace(x)
    c = math.sqrt(2 / math.pi)

    # Beyond ±10, g is 0 or 1 to all digits, and e^(−2u) would overflow.
    x = ops.clip(x, min=-10.0)
    z = ops.clip(x, max=10.0)

    z2 = z * z  # z**3 would call the general power, ten times slower than two products
    u = z * (c + c * 0.044715 * z2)
    g = 1 / (1 + xp.exp(-2 * u))  # 1 + tanh u would lose its digits

    def pullback(dy: Array) -> tuple[Array]:
        du = c + c * 3 * 0.044715 * z2
        dg = 2 * g * (1 - g) * du
        return (dy * (g + z * dg),)

    return _times(x * g, pullback, times)


@operation(native=half.always)
def relu(x: Array) -> tuple[Array, Pullback]:
    """y = x · g with g = 1 where x > 0, else 0.   dx = dy · g.

    At x = 0 the gradient is 0, as in PyTorch 2.13. A NaN stays NaN.
    Source: Nair and Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines" (2010).
    """
    xp = namespace(x)
    g = xp.astype(x > 0, x.dtype)

    def pullback(dy: Array) -> tuple[Array]:
        return (dy * g,)

    return xp.maximum(x, xp.zeros_like(x)), pullback  # x · g would be −0 for negative x


@operation
@accelerated
def silu(x: Array, times: Array | None = None) -> tuple[Array, Pullback]:
    """y = x · g with g = 1 / (1 + e^(−x)).   dx = dy · (g + x · dg),  dg = g · (1 − g).

    The gate of Llama, also called swish. `times` is a second factor, as in `gelu`. An x below −80
    counts as −80, where |x · g| < 10⁻³².
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016); Ramachandran et al.,
    "Searching for Activation Functions" (2017), as swish with β = 1.
    """
    xp = namespace(x)

    # Beyond ±80, g is 0 or 1 to all digits, and e^(−x) would overflow.
    x = ops.clip(x, min=-80.0)
    z = ops.clip(x, max=80.0)
    g = 1 / (1 + xp.exp(-z))

    def pullback(dy: Array) -> tuple[Array]:
        dg = g * (1 - g)
        return (dy * (g + z * dg),)

    return _times(x * g, pullback, times)


def _times(y: Array, pullback: Pullback, times: Array | None) -> tuple[Array, Pullback]:
    """Multiply a value y by `times`: return y · times and its pullback, given the pullback of y as
    a function of one array. If `times` is None, y stays as it is.

    Raises ValueError unless `times` has the shape of y.
    """
    if times is None:
        return y, lambda dy: (*pullback(dy), None)
    if getattr(times, "shape", None) != y.shape:
        given = backend.described(times)
        raise ValueError(f"times must have the shape of x, {tuple(y.shape)}: it is {given}")
    return y * times, lambda dy: (*pullback(dy * times), dy * y)
