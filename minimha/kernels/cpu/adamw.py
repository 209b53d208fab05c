"""A step of AdamW in one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional import acceleration
from .arrays import Array, exact, floats, plain, shared
from .parallel import led, own


@acceleration.register("adamw")
def adamw(
    p: Array, g: Array, m: Array, v: Array, betas: Any, decay: float, rate: float, eps: float
) -> Any:
    """As the reference in `optim`; m and v, which are the optimiser's own, change in place."""
    if not floats(p, g, m, v) or not p.shape == g.shape == m.shape == v.shape:
        return None
    p, g, m, v = map(plain, (p, g, m, v))
    new = np.empty(p.shape, p.dtype)  # and not p: what a pullback saved stays as it was
    flat = [a.reshape(-1) for a in (p, g, m, v, new)]
    numbers = (*map(float, betas), float(decay), float(rate), float(eps))
    _adamw(shared(p.size, 5 * p.nbytes), *flat, *numbers)
    return new, m, v


@exact
def _adamw(part, p, g, m, v, new, beta1, beta2, decay, rate, eps):
    if led(part):
        return
    p, g, m = own(p, part), own(g, part), own(m, part)
    v, new = own(v, part), own(new, part)
    b1, c1 = p.dtype.type(beta1), p.dtype.type(1 - beta1)
    b2, c2 = p.dtype.type(beta2), p.dtype.type(1 - beta2)
    decay, rate, eps = p.dtype.type(decay), p.dtype.type(rate), p.dtype.type(eps)
    for i in range(p.size):
        m[i] = b1 * m[i] + c1 * g[i]
        v[i] = b2 * v[i] + c2 * (g[i] * g[i])
        new[i] = decay * p[i] - rate * (m[i] / (math.sqrt(v[i]) + eps))
