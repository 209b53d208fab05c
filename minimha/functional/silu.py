"""SiLU, the gate of Llama's perceptrons, also called swish."""

from __future__ import annotations

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated


@operation
@accelerated
def silu(x: Array) -> tuple[Array, Pullback]:
    """y = x · g with g = 1 / (1 + e^(−x)).   dx = dy · g · (1 + x · (1 − g)).

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016); Ramachandran et al.,
    "Searching for Activation Functions" (2017), as swish with β = 1.
    """
    xp = namespace(x)
    # beyond ±80 the gate is 0 or 1 in all but name, and e^(−x) would overflow
    x = ops.clip(x, min=-80.0)
    z = ops.clip(x, max=80.0)
    gate = 1 / (1 + xp.exp(-z))
    return x * gate, lambda dy: (dy * gate * (1 + z * (1 - gate)),)
