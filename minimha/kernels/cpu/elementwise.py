"""Sums, GELU, SiLU, dropout and AdamW, in one pass over the entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...functional.implementations import register
from .arrays import Array, are_floats, contiguous, flat, in_chunks
from .exp import exp
from .jit import kernel, strict_kernel, widest_vectors
from .parallel import own, share


@register("add")
def add(a: Any, b: Any) -> Any:
    """The sum a + b, as in `functional.add`. None unless a and b are contiguous arrays of the same
    shape and dtype, float32 or float64, and not empty."""
    if not are_floats(a, b) or a.shape != b.shape or not (a.flags.carray and b.flags.carray):
        return None
    y = np.empty(a.shape, a.dtype)
    _add(in_chunks(a.size, a.nbytes), flat(a), flat(b), flat(y))
    return y


@strict_kernel
def _add(chunk, a, b, y):
    part = share(chunk)
    a, b, y = own(a, part), own(b, part), own(y, part)
    for i in range(a.size):
        y[i] = a[i] + b[i]


@register("gelu")
def gelu(x: Array, times: Array | None = None) -> Any:
    """The value and the pullback of `functional.gelu`: gelu(x), or gelu(x) · times if `times` is
    given. Returns None for arrays that the kernel does not support."""
    c = 2 * math.sqrt(2 / math.pi)
    return _gate(x, times, c, c * 0.044715, bound=10)


@register("silu")
def silu(x: Array, times: Array | None = None) -> Any:
    """The value and the pullback of `functional.silu`: silu(x), or silu(x) · times if `times` is
    given. Returns None for arrays that the kernel does not support."""
    return _gate(x, times, 1, 0, bound=80)


def _gate(x: Array, times: Array | None, c1: float, c3: float, bound: float) -> Any:
    """The value y = x · g and its pullback, with g = 1 / (1 + e^(−u)), u = c1 x + c3 x³. If `times`
    is given, y is multiplied by it. The pullback keeps only x and `times`. Without `times`,

        dx = dy · (g + x · dg),  dg = g · (1 − g) · du,  du = c1 + 3 c3 x²

    Beyond ±bound, g is 0 or 1 up to rounding, and e^(−u) could overflow, so u is computed from x
    limited to ±bound. Returns None for arrays that the kernel does not support.
    """
    if not are_floats(x):
        return None
    x, y, numbers = contiguous(x), np.empty(x.shape, x.dtype), _numbers(x, c1, c3, bound)
    if times is not None:
        if not are_floats(times, x) or times.shape != x.shape:
            return None
        return _gate_times(x, contiguous(times), numbers, y)
    _gate_forward(in_chunks(x.size, x.nbytes), flat(x), numbers, flat(y))

    def pullback(dy: Array) -> tuple[Array, None]:
        dx = np.empty(x.shape, x.dtype)
        _gate_backward(in_chunks(x.size, x.nbytes), flat(x), numbers, flat(dy), flat(dx))
        return dx, None

    return y, pullback


def _gate_times(x: Array, times: Array, numbers: Any, y: Array) -> Any:
    """The value x · g · times, which is stored in y, and its pullback. `numbers` is (c1, c3,
    bound), which determine g as in `_gate`."""
    chunks = in_chunks(x.size, x.nbytes)
    _gate_times_forward(chunks, flat(x), flat(times), numbers, flat(y))

    def pullback(dy: Array) -> tuple[Array, Array]:
        dx = np.empty(x.shape, x.dtype)
        dtimes = np.empty(x.shape, x.dtype)
        chunks = in_chunks(x.size, x.nbytes)
        _gate_times_backward(
            chunks, flat(x), flat(times), numbers, flat(dy), flat(dx), flat(dtimes)
        )
        return dx, dtimes

    return y, pullback


def _numbers(x: Array, *numbers: float) -> tuple[Any, ...]:
    return tuple(map(x.dtype.type, numbers))


@strict_kernel
def _gate_forward(chunk, x, numbers, y):
    part, (c1, c3, bound) = share(chunk), numbers
    x, y, one = own(x, part), own(y, part), x.dtype.type(1)
    widest_vectors()
    for i in range(x.size):
        z = _clip(x[i], bound)
        y[i] = _at_least(x[i], -bound) / (one + exp(-z * (c1 + c3 * (z * z))))


@strict_kernel
def _gate_backward(chunk, x, numbers, dy, dx):
    part, (c1, c3, bound) = share(chunk), numbers
    x, dy, dx = own(x, part), own(dy, part), own(dx, part)
    one, three = x.dtype.type(1), x.dtype.type(3)
    widest_vectors()
    for i in range(x.size):
        z = _clip(x[i], bound)
        square = z * z
        g = one / (one + exp(-z * (c1 + c3 * square)))
        dg = g * (one - g) * (c1 + three * c3 * square)
        dx[i] = dy[i] * (g + z * dg)


@strict_kernel
def _gate_times_forward(chunk, x, times, numbers, y):
    part = share(chunk)
    x, times, y = own(x, part), own(times, part), own(y, part)
    c1, c3, bound = numbers
    one = x.dtype.type(1)
    widest_vectors()
    for i in range(x.size):
        z = _clip(x[i], bound)
        y[i] = _at_least(x[i], -bound) / (one + exp(-z * (c1 + c3 * (z * z)))) * times[i]


@strict_kernel
def _gate_times_backward(chunk, x, times, numbers, dy, dx, dtimes):
    part = share(chunk)
    x, times, dy = own(x, part), own(times, part), own(dy, part)
    dx, dtimes = own(dx, part), own(dtimes, part)
    c1, c3, bound = numbers
    one = x.dtype.type(1)
    three = x.dtype.type(3)
    widest_vectors()
    for i in range(x.size):
        z = _clip(x[i], bound)
        square = z * z
        below = one + exp(-z * (c1 + c3 * square))
        g = one / below
        dg = g * (one - g) * (c1 + three * c3 * square)
        dx[i] = dy[i] * times[i] * (g + z * dg)
        dtimes[i] = dy[i] * (_at_least(x[i], -bound) / below)


@kernel(forceinline=True)
def _at_least(x, bound):
    return bound if x < bound else x  # NaN stays


@kernel(forceinline=True)
def _clip(x, bound):
    x = _at_least(x, -bound)
    return bound if x > bound else x


@register("dropout")
def dropout(x: Array, keep: Array, *, p: float) -> Any:
    """The value and the pullback of `functional.dropout`. The boolean array `keep` says which
    entries of x are kept, and p is the probability with which entries were dropped. Returns None
    for arguments that the kernel does not support, such as a `keep` of another shape than x."""
    if not are_floats(x) or type(keep) is not Array or type(p) is not float or not 0 <= p < 1:
        return None
    if keep.dtype != np.bool_ or keep.shape != x.shape:
        return None

    def dropped(a: Array) -> Array:
        y = np.empty(a.shape, a.dtype)
        _dropout(in_chunks(a.size, a.nbytes), flat(a), flat(keep), *_numbers(a, 1 - p), flat(y))
        return y

    return dropped(x), lambda dy: (dropped(dy), None)


@strict_kernel
def _dropout(chunk, x, keep, probability, y):
    part = share(chunk)
    x, keep, y, zero = own(x, part), own(keep, part), own(y, part), x.dtype.type(0)
    for i in range(x.size):
        y[i] = x[i] / probability if keep[i] else zero


@register("adamw")
def adamw(
    parameters: Sequence[tuple[Array, ...]], betas: Any, decay: float, rate: float, eps: float
) -> Any:
    """A step of AdamW for all `parameters`, tuples (p, g, m, v) of a parameter, its gradient and
    its two moments. Returns a list with the next (p, m, v) for each. The formulas, and the
    arguments from betas to eps, are those of `nn.optimisers._adamw`. Returns None for arrays that
    the kernel does not support.

    m and v belong to the optimiser, so they change in place. p does not, since a pullback may have
    kept it.
    """
    for p, g, m, v in parameters:
        if not are_floats(p, g, m, v) or not p.shape == g.shape == m.shape == v.shape:
            return None
    numbers = tuple(map(float, (*betas, decay, rate, eps)))
    moved = []
    for p, g, m, v in parameters:
        m, v = contiguous(m), contiguous(v)  # noqa: PLW2901
        new = np.empty(p.shape, p.dtype)
        chunks = in_chunks(p.size, 5 * p.nbytes)
        _adamw(chunks, contiguous(p), contiguous(g), m, v, new, numbers)
        moved.append((new, m, v))
    return moved


@strict_kernel
def _adamw(chunk, p, g, m, v, new, numbers):
    part, (b1, b2, decay, rate, eps), number = share(chunk), numbers, p.dtype.type
    p, g, new = own(p.reshape(-1), part), own(g.reshape(-1), part), own(new.reshape(-1), part)
    m, v = own(m.reshape(-1), part), own(v.reshape(-1), part)
    b1, c1, b2, c2 = number(b1), number(1 - b1), number(b2), number(1 - b2)
    decay, rate, eps = number(decay), number(rate), number(eps)
    for i in range(p.size):
        m[i] = b1 * m[i] + c1 * g[i]
        v[i] = b2 * v[i] + c2 * (g[i] * g[i])
        new[i] = decay * p[i] - rate * (m[i] / (math.sqrt(v[i]) + eps))
