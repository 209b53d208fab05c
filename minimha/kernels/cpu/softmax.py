"""Softmax and cross entropy, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional.implementations import register
from .arrays import Array, are_floats, as_indices, as_rows, in_chunks
from .jit import strict_kernel
from .parallel import share
from .row_softmax import dot, exp_minus, row_max, scale_by


@register("softmax")
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> Any:
    """The value y and the pullback of `functional.softmax` over the last axis and without a mask.
    Returns None in other cases, and for arrays that the kernel does not support. The pullback keeps
    only y."""
    if mask is not None or not are_floats(x) or not x.ndim or axis not in (-1, x.ndim - 1):
        return None
    y, x = np.empty(x.shape, x.dtype), as_rows(x)
    _softmax(in_chunks(len(x), x.nbytes), x, as_rows(y))

    def pullback(dy: Array) -> tuple[Array]:
        dx, rows = np.empty(y.shape, y.dtype), as_rows(y)
        _softmax_backward(in_chunks(len(rows), y.nbytes), rows, as_rows(dy), as_rows(dx))
        return (dx,)

    return y, pullback


@strict_kernel
def _softmax(chunk, x, y):
    zero, one, lowest = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-np.inf)
    for i in range(*share(chunk)):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]
        peak = row_max(x[i])
        total = exp_minus(y[i], zero if peak == lowest else peak)
        scale_by(y[i], one / (one if total == zero else total))


@strict_kernel
def _softmax_backward(chunk, y, dy, dx):
    for i in range(*share(chunk)):
        mean = dot(y[i], dy[i])
        for j in range(y.shape[1]):
            dx[i, j] = y[i, j] * (dy[i, j] - mean)


@register("cross_entropy")
def cross_entropy(logits: Array, targets: Array) -> Any:
    """The value and the pullback of `functional.cross_entropy`, or None for arrays that the kernel
    does not support. The pullback keeps the probabilities, softmax of the logits, and the targets.
    """
    if not are_floats(logits) or not logits.ndim:
        return None
    classes = as_indices(targets, logits.shape[-1])
    if classes is None or targets.shape != logits.shape[:-1]:
        return None
    rows, shape = as_rows(logits), logits.shape
    probabilities, losses = np.empty(rows.shape, rows.dtype), np.empty(len(rows))
    _cross_entropy(in_chunks(len(rows), rows.nbytes), rows, classes, probabilities, losses)

    def pullback(dy: Array) -> tuple[Array, None]:
        dx = np.empty(shape, probabilities.dtype)
        chunks, mean = in_chunks(len(losses), dx.nbytes), dx.dtype.type(float(dy) / len(losses))
        _cross_entropy_backward(chunks, probabilities, classes, mean, as_rows(dx))
        return dx, None

    return np.asarray(_mean(losses), rows.dtype), pullback


@strict_kernel
def _mean(losses):
    """The mean of the losses, an array with one axis, summed from first to last, as
    `batch_invariant` promises."""
    total = 0.0
    for loss in losses:
        total += loss
    return total / len(losses)


@strict_kernel
def _cross_entropy(chunk, x, classes, probabilities, losses):
    one = x.dtype.type(1)
    for i in range(*share(chunk)):
        for j in range(x.shape[1]):
            probabilities[i, j] = x[i, j]
        peak = row_max(x[i])
        total = exp_minus(probabilities[i], peak)
        losses[i] = math.log(total) - (x[i, classes[i]] - peak)
        scale_by(probabilities[i], one / total)


@strict_kernel
def _cross_entropy_backward(chunk, probabilities, classes, dy, dx):
    one = probabilities.dtype.type(1)
    for i in range(*share(chunk)):
        for j in range(probabilities.shape[1]):
            dx[i, j] = probabilities[i, j] * dy
        dx[i, classes[i]] = (probabilities[i, classes[i]] - one) * dy
