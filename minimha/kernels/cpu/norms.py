"""Layer normalisation, and that by the root mean square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional import acceleration
from .arrays import Array, as_rows, exact, floats, in_any_order, plain, shared
from .parallel import led

_BLOCK = 64
"""Rows whose gradients are summed before they join the others: rounding stays small."""


@acceleration.register("layer_norm")
def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Any:
    """As `functional.layer_norm`; x is saved, and two numbers a row."""
    if not floats(x, weight, bias) or not weight.shape == bias.shape == x.shape[-1:]:
        return None
    shape, x = x.shape, as_rows(x)
    weight, bias = plain(weight), plain(bias)
    y, rows = np.empty(shape, x.dtype), np.empty((2, len(x)), x.dtype)  # means, inverses of σ
    out = y.reshape(x.shape)
    _layer_norm(shared(len(x), x.nbytes), x, weight, bias, eps, out, rows)

    def pullback(dy: Array) -> tuple[Array, Array, Array]:
        dx, dy = np.empty(shape, x.dtype), as_rows(dy)
        into = dx.reshape(x.shape)
        sums = np.zeros((2, -(-len(x) // _BLOCK), x.shape[1]), x.dtype)
        count = sums.shape[1]
        _through_layer_norm(shared(count, x.nbytes), x, weight, rows, dy, into, sums)
        return dx, *sums.sum(axis=1)

    return y, pullback


@acceleration.register("rms_norm")
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> Any:
    """As `functional.rms_norm`; x is saved, and one number a row."""
    if not floats(x, weight) or weight.shape != x.shape[-1:] or not eps >= 0:
        return None
    shape, x, weight = x.shape, as_rows(x), plain(weight)
    y, inverses = np.empty(shape, x.dtype), np.empty(len(x), x.dtype)
    out = y.reshape(x.shape)
    _rms_norm(shared(len(x), x.nbytes), x, weight, eps, out, inverses)

    def pullback(dy: Array) -> tuple[Array, Array]:
        dx, dy = np.empty(shape, x.dtype), as_rows(dy)
        into = dx.reshape(x.shape)
        sums = np.zeros((-(-len(x) // _BLOCK), x.shape[1]), x.dtype)
        count = len(sums)
        _through_rms_norm(shared(count, x.nbytes), x, weight, inverses, dy, into, sums)
        return dx, sums.sum(axis=0)

    return y, pullback


@exact
def _layer_norm(part, x, weight, bias, eps, y, rows):
    if led(part):
        return
    width, eps, one = x.dtype.type(x.shape[1]), x.dtype.type(eps), x.dtype.type(1)
    for i in range(part[0], part[1]):
        mean = _sum(x[i]) / width
        inverse = one / math.sqrt(_squares(x[i], mean) / width + eps)
        rows[0, i], rows[1, i] = mean, inverse
        for j in range(x.shape[1]):
            y[i, j] = (x[i, j] - mean) * inverse * weight[j] + bias[j]


@exact
def _through_layer_norm(part, x, weight, rows, dy, dx, sums):
    if led(part):
        return
    count = x.shape[1]
    width = x.dtype.type(count)
    for block in range(part[0], part[1]):
        dweight, dbias = sums[0, block], sums[1, block]
        for i in range(block * _BLOCK, min(len(x), (block + 1) * _BLOCK)):
            mean, inverse = rows[0, i], rows[1, i]
            g, gx = _means(x[i], dy[i], weight, mean, inverse, width)
            for j in range(count):
                normed = (x[i, j] - mean) * inverse
                dx[i, j] = (dy[i, j] * weight[j] - g - normed * gx) * inverse
                dweight[j] += dy[i, j] * normed
                dbias[j] += dy[i, j]


@exact
def _rms_norm(part, x, weight, eps, y, inverses):
    if led(part):
        return
    width, eps, one = x.dtype.type(x.shape[1]), x.dtype.type(eps), x.dtype.type(1)
    for i in range(part[0], part[1]):
        inverse = one / math.sqrt(_squares(x[i], x.dtype.type(0)) / width + eps)
        inverses[i] = inverse
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * inverse * weight[j]


@exact
def _through_rms_norm(part, x, weight, inverses, dy, dx, sums):
    if led(part):
        return
    count, zero = x.shape[1], x.dtype.type(0)
    width = x.dtype.type(count)
    for block in range(part[0], part[1]):
        dweight = sums[block]
        for i in range(block * _BLOCK, min(len(x), (block + 1) * _BLOCK)):
            inverse = inverses[i]
            _, gx = _means(x[i], dy[i], weight, zero, inverse, width)
            for j in range(count):
                normed = x[i, j] * inverse
                dx[i, j] = (dy[i, j] * weight[j] - normed * gx) * inverse
                dweight[j] += dy[i, j] * normed


@in_any_order
def _sum(x):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += x[j]
    return total


@in_any_order
def _squares(x, mean):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += (x[j] - mean) * (x[j] - mean)
    return total


@in_any_order
def _means(x, dy, weight, mean, inverse, width):
    """mean(g) and mean(g · x̂) of a row, with g = dy · weight."""
    g = gx = x.dtype.type(0)
    for j in range(x.size):
        g += dy[j] * weight[j]
        gx += dy[j] * weight[j] * ((x[j] - mean) * inverse)
    return g / width, gx / width
