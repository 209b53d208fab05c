"""GELU, SiLU and dropout: an entry at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional import acceleration
from .arrays import Array, exact, floats, plain, shared
from .exp import exp
from .jit import widest_vectors
from .parallel import led, own

_C, _A = math.sqrt(2 / math.pi), 0.044715


@acceleration.register("gelu")
def gelu(x: Array) -> Any:
    """As `functional.gelu`; only x is saved."""
    return _gate(x, "gelu")


@acceleration.register("silu")
def silu(x: Array) -> Any:
    """As `functional.silu`; only x is saved."""
    return _gate(x, "silu")


def _gate(x: Array, name: str) -> Any:
    if not floats(x):
        return None
    x, y = plain(x), np.empty(x.shape, x.dtype)
    flat, into = x.reshape(-1), y.reshape(-1)
    _FORWARD[name](shared(x.size, x.nbytes), flat, into)

    def pullback(dy: Array) -> tuple[Array]:
        dx = np.empty(x.shape, x.dtype)
        flat, out, into = x.reshape(-1), plain(dy).reshape(-1), dx.reshape(-1)
        _BACKWARD[name](shared(x.size, x.nbytes), flat, out, into)
        return (dx,)

    return y, pullback


@exact
def _gelu(part, x, y):
    if led(part):
        return
    x, y = own(x, part), own(y, part)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(10)
    b1, b3 = x.dtype.type(-2 * _C), x.dtype.type(-2 * _C * _A)
    for i in range(x.size):
        a = -bound if x[i] < -bound else x[i]
        z = bound if a > bound else a
        y[i] = a / (one + exp(z * (b1 + b3 * (z * z))))


@exact
def _through_gelu(part, x, dy, dx):
    if led(part):
        return
    x, dy, dx = own(x, part), own(dy, part), own(dx, part)
    widest_vectors()
    one, two, bound = x.dtype.type(1), x.dtype.type(2), x.dtype.type(10)
    b1, b3 = x.dtype.type(-2 * _C), x.dtype.type(-2 * _C * _A)
    c1, c3 = x.dtype.type(_C), x.dtype.type(3 * _C * _A)
    for i in range(x.size):
        z = -bound if x[i] < -bound else x[i]
        z = bound if z > bound else z
        square = z * z
        gate = one / (one + exp(z * (b1 + b3 * square)))
        slope = two * gate * (one - gate) * (c1 + c3 * square)
        dx[i] = dy[i] * (gate + z * slope)


@exact
def _silu(part, x, y):
    if led(part):
        return
    x, y = own(x, part), own(y, part)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(80)
    for i in range(x.size):
        a = -bound if x[i] < -bound else x[i]
        z = bound if a > bound else a
        y[i] = a / (one + exp(-z))


@exact
def _through_silu(part, x, dy, dx):
    if led(part):
        return
    x, dy, dx = own(x, part), own(dy, part), own(dx, part)
    widest_vectors()
    one, bound = x.dtype.type(1), x.dtype.type(80)
    for i in range(x.size):
        z = -bound if x[i] < -bound else x[i]
        z = bound if z > bound else z
        gate = one / (one + exp(-z))
        dx[i] = dy[i] * gate * (one + z * (one - gate))


_FORWARD = {"gelu": _gelu, "silu": _silu}
_BACKWARD = {"gelu": _through_gelu, "silu": _through_silu}


@acceleration.register("dropout")
def dropout(x: Array, keep: Array, *, p: float) -> Any:
    """As `functional.dropout`, for a keep of the shape of x."""
    fits = floats(x) and type(keep) is Array and keep.dtype == np.bool_ and keep.shape == x.shape
    if not fits or type(p) is not float or not 0 <= p < 1:
        return None
    keep = plain(keep)

    def kept(a: Array) -> Array:
        a = plain(a)
        y = np.empty(a.shape, a.dtype)
        flat, kept, into = a.reshape(-1), keep.reshape(-1), y.reshape(-1)
        _dropout(shared(a.size, a.nbytes), flat, kept, 1 - p, into)
        return y

    return kept(x), lambda dy: (kept(dy), None)


@exact
def _dropout(part, x, keep, share, y):
    if led(part):
        return
    x, keep, y = own(x, part), own(keep, part), own(y, part)
    zero, share = x.dtype.type(0), x.dtype.type(share)
    for i in range(x.size):
        y[i] = x[i] / share if keep[i] else zero
