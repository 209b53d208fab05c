"""Layer normalisation, and RMS normalisation as its case without mean and bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional.implementations import batch_invariance, register
from .arrays import Array, are_floats, as_rows, contiguous, in_chunks
from .jit import reduction, strict_kernel
from .parallel import share

_BLOCK = 64
"""The number of rows whose contributions to the gradients of the parameters are summed before they
are added to the total, which keeps rounding errors small."""


@register("layer_norm")
def layer_norm(x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5) -> Any:
    """The value and the pullback of `functional.layer_norm`, which has the same arguments, or None
    for arrays that the kernel does not support. The pullback keeps x, the weight, and the mean and
    1/σ of each row."""
    shift = np.zeros_like(weight) if bias is None else bias
    if not are_floats(x, weight, shift) or not weight.shape == shift.shape == x.shape[-1:]:
        return None
    y, pull = _normalise(x, weight, contiguous(shift), eps)
    return y, pull if bias is not None else lambda dy: (*pull(dy)[:2], None)


@register("rms_norm")
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> Any:
    """The value and the pullback of `functional.rms_norm`, or None for arrays that the kernel does
    not support. The pullback keeps x, the weight and, for each row, a mean of 0 and 1/σ, where σ²
    is the mean of x² plus eps."""
    if not are_floats(x, weight) or weight.shape != x.shape[-1:] or not eps >= 0:
        return None
    return _normalise(x, weight, None, eps)


def _normalise(x: Array, weight: Array, bias: Array | None, eps: float) -> Any:
    """The value and the pullback of `layer_norm` or, if bias is None, of `rms_norm`, for x (…, M),
    weight (M,) and bias (M,). Numba compiles the kernels separately for the two."""
    shape, x, weight = x.shape, as_rows(x), contiguous(weight)
    y, statistics = np.empty(shape, x.dtype), np.empty((2, len(x)), x.dtype)  # mean and 1/σ
    chunks = in_chunks(len(x), x.nbytes)
    _forward(chunks, x, weight, bias, x.dtype.type(eps), as_rows(y), statistics)
    invariant = batch_invariance.get()

    def pullback(dy: Array) -> tuple[Array, ...]:
        dx, blocks = np.empty(shape, x.dtype), -(-len(x) // _BLOCK)
        totals = tuple(np.zeros(p.shape, p.dtype) for p in (weight, bias) if p is not None)
        sums = np.zeros((len(totals), blocks, x.shape[1]), x.dtype)
        chunks = in_chunks(blocks, x.nbytes)
        dy = as_rows(dy)
        if invariant:
            _backward_in_blocks(chunks, x, weight, bias, statistics, dy, as_rows(dx), sums)
            _totals_in_order(in_chunks(x.shape[1], x.nbytes), x, statistics, dy, totals)
        else:
            _backward(chunks, x, weight, bias, statistics, dy, as_rows(dx), sums, totals)
        return dx, *totals

    return y, pullback


@strict_kernel
def _forward(chunk, x, weight, bias, eps, y, statistics):
    zero, one, width = x.dtype.type(0), x.dtype.type(1), x.dtype.type(x.shape[1])
    for i in range(*share(chunk)):
        mean = zero if bias is None else _sum(x[i]) / width
        inverse = one / math.sqrt(_sum_of_squares(x[i], mean) / width + eps)
        statistics[0, i], statistics[1, i] = mean, inverse
        for j in range(x.shape[1]):
            y[i, j] = (x[i, j] - mean) * inverse * weight[j]
            if bias is not None:
                y[i, j] += bias[j]


@strict_kernel
def _backward(chunk, x, weight, bias, statistics, dy, dx, sums, totals):
    """Store the gradient of x (R, M) in dx, and add the gradients of weight and bias to `totals`, a
    tuple with an array (M,) for each of them. For `rms_norm`, bias is None, and `totals` has one
    array.

    chunk       made by `parallel.whole`; divides the blocks of `_BLOCK` rows among threads
    statistics  (2, R), the mean and 1/σ of each row
    dy          (R, M), the gradient of the result
    sums        (len(totals), blocks, M), zeros: memory for the sums over each block
    """
    _backward_in_blocks(chunk, x, weight, bias, statistics, dy, dx, sums)
    for k in range(len(totals)):
        for block in range(sums.shape[1]):
            for j in range(sums.shape[2]):
                totals[k][j] += sums[k, block, j]


@strict_kernel
def _backward_in_blocks(chunk, x, weight, bias, statistics, dy, dx, sums):
    zero = x.dtype.type(0)
    for block in range(*share(chunk)):
        dweight, dbias = sums[0, block], sums[-1, block]
        for i in range(block * _BLOCK, min(len(x), (block + 1) * _BLOCK)):
            mean, inverse = statistics[0, i], statistics[1, i]
            mean_g, mean_gx = _means(x[i], dy[i], weight, mean, inverse)
            if bias is None:
                mean_g = zero
            for j in range(x.shape[1]):
                normed = (x[i, j] - mean) * inverse
                dx[i, j] = (dy[i, j] * weight[j] - mean_g - normed * mean_gx) * inverse
                dweight[j] += dy[i, j] * normed
                if bias is not None:
                    dbias[j] += dy[i, j]


@strict_kernel
def _totals_in_order(chunk, x, statistics, dy, totals):
    """Add the gradients of weight and bias to `totals`, a tuple with an array (M,) for each of
    them, row by row, so that rows of dy that are 0 change nothing. `statistics` (2, R) has the mean
    and 1/σ of each row of x (R, M). `chunk`, made by `parallel.whole`, divides the M columns among
    threads."""
    start, stop = share(chunk)
    dweight, dbias = totals[0][start:stop], totals[-1][start:stop]
    for i in range(len(x)):
        mean, inverse = statistics[0, i], statistics[1, i]
        row, drow = x[i, start:stop], dy[i, start:stop]
        for j in range(len(row)):
            dweight[j] += drow[j] * ((row[j] - mean) * inverse)
        if len(totals) > 1:
            for j in range(len(row)):
                dbias[j] += drow[j]


@reduction
def _sum(x):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += x[j]
    return total


@reduction
def _sum_of_squares(x, mean):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += (x[j] - mean) * (x[j] - mean)
    return total


@reduction
def _means(x, dy, weight, mean, inverse):
    """The means of g and of g · x̂ over one row x (M,), where g = dy · weight, and x̂ = (x − mean)
    · inverse is the normalised row; `mean` is the mean of x, or 0 for `rms_norm`, and `inverse` is
    1/σ."""
    g = gx = x.dtype.type(0)
    for j in range(x.size):
        g += dy[j] * weight[j]
        gx += dy[j] * weight[j] * ((x[j] - mean) * inverse)
    width = x.dtype.type(x.size)
    return g / width, gx / width
