"""GELU, SiLU, dropout and AdamW, in one pass over the entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import functional
from .arrays import Array, are_floats, contiguous, flat, in_chunks
from .exp import exp
from .jit import kernel, strict_kernel, widest_vectors
from .parallel import distributed, own

_C, _A = math.sqrt(2 / math.pi), 0.044715


@functional.acceleration.register("gelu")
def gelu(x: Array) -> Any:
    """As `functional.gelu`; only x is saved."""
    return _gate(x, _gelu, _gelu_backward)


@functional.acceleration.register("silu")
def silu(x: Array) -> Any:
    """As `functional.silu`; only x is saved."""
    return _gate(x, _silu, _silu_backward)


def _gate(x: Array, forward: Any, backward: Any) -> Any:
    if not are_floats(x):
        return None
    x, y = contiguous(x), np.empty(x.shape, x.dtype)
    forward(in_chunks(x.size, x.nbytes), flat(x), flat(y))

    def pullback(dy: Array) -> tuple[Array]:
        dx = np.empty(x.shape, x.dtype)
        backward(in_chunks(x.size, x.nbytes), flat(x), flat(dy), flat(dx))
        return (dx,)

    return y, pullback


@strict_kernel
def _gelu(chunk, x, y):
    if distributed(chunk):
        return
    x, y = own(x, chunk), own(y, chunk)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(10)
    b1, b3 = x.dtype.type(-2 * _C), x.dtype.type(-2 * _C * _A)
    for i in range(x.size):
        z = _clip(x[i], bound)
        y[i] = _at_least(x[i], -bound) / (one + exp(z * (b1 + b3 * (z * z))))


@strict_kernel
def _gelu_backward(chunk, x, dy, dx):
    if distributed(chunk):
        return
    x, dy, dx = own(x, chunk), own(dy, chunk), own(dx, chunk)
    widest_vectors()
    one, two, bound = x.dtype.type(1), x.dtype.type(2), x.dtype.type(10)
    b1, b3 = x.dtype.type(-2 * _C), x.dtype.type(-2 * _C * _A)
    c1, c3 = x.dtype.type(_C), x.dtype.type(3 * _C * _A)
    for i in range(x.size):
        z = _clip(x[i], bound)
        square = z * z
        gate = one / (one + exp(z * (b1 + b3 * square)))
        slope = two * gate * (one - gate) * (c1 + c3 * square)
        dx[i] = dy[i] * (gate + z * slope)


@strict_kernel
def _silu(chunk, x, y):
    if distributed(chunk):
        return
    x, y = own(x, chunk), own(y, chunk)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(80)
    for i in range(x.size):
        y[i] = _at_least(x[i], -bound) / (one + exp(-_clip(x[i], bound)))


@strict_kernel
def _silu_backward(chunk, x, dy, dx):
    if distributed(chunk):
        return
    x, dy, dx = own(x, chunk), own(dy, chunk), own(dx, chunk)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(80)
    for i in range(x.size):
        z = _clip(x[i], bound)
        gate = one / (one + exp(-z))
        dx[i] = dy[i] * gate * (one + z * (one - gate))


@kernel(forceinline=True)
def _at_least(x, bound):
    return bound if x < bound else x  # NaN stays


@kernel(forceinline=True)
def _clip(x, bound):
    x = -bound if x < -bound else x
    return bound if x > bound else x


@functional.acceleration.register("dropout")
def dropout(x: Array, keep: Array, *, p: float) -> Any:
    """As `functional.dropout`, for a keep of the shape of x."""
    if not are_floats(x) or type(keep) is not Array or type(p) is not float or not 0 <= p < 1:
        return None
    if keep.dtype != np.bool_ or keep.shape != x.shape:
        return None

    def dropped(a: Array) -> Array:
        y = np.empty(a.shape, a.dtype)
        _dropout(in_chunks(a.size, a.nbytes), flat(a), flat(keep), 1 - p, flat(y))
        return y

    return dropped(x), lambda dy: (dropped(dy), None)


@strict_kernel
def _dropout(chunk, x, keep, probability, y):
    if distributed(chunk):
        return
    x, keep, y = own(x, chunk), own(keep, chunk), own(y, chunk)
    zero, probability = x.dtype.type(0), x.dtype.type(probability)
    for i in range(x.size):
        y[i] = x[i] / probability if keep[i] else zero


@functional.acceleration.register("adamw")
def adamw(
    p: Array, g: Array, m: Array, v: Array, betas: Any, decay: float, rate: float, eps: float
) -> Any:
    """As the reference in `nn.optimisers`. m and v, which only the optimiser holds, change in
    place; p, which a pullback may have saved, does not."""
    if not are_floats(p, g, m, v) or not p.shape == g.shape == m.shape == v.shape:
        return None
    m, v, new = contiguous(m), contiguous(v), np.empty(p.shape, p.dtype)
    numbers = (*map(float, betas), float(decay), float(rate), float(eps))
    _adamw(in_chunks(p.size, 5 * p.nbytes), *map(flat, (p, g, m, v, new)), *numbers)
    return new, m, v


@strict_kernel
def _adamw(chunk, p, g, m, v, new, beta1, beta2, decay, rate, eps):
    if distributed(chunk):
        return
    p, g, m = own(p, chunk), own(g, chunk), own(m, chunk)
    v, new = own(v, chunk), own(new, chunk)
    b1, c1 = p.dtype.type(beta1), p.dtype.type(1 - beta1)
    b2, c2 = p.dtype.type(beta2), p.dtype.type(1 - beta2)
    decay, rate, eps = p.dtype.type(decay), p.dtype.type(rate), p.dtype.type(eps)
    for i in range(p.size):
        m[i] = b1 * m[i] + c1 * g[i]
        v[i] = b2 * v[i] + c2 * (g[i] * g[i])
        new[i] = decay * p[i] - rate * (m[i] / (math.sqrt(v[i]) + eps))
