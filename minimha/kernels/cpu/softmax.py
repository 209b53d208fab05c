"""Softmax and cross entropy, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import functional
from .arrays import Array, are_floats, as_rows, in_chunks
from .jit import strict_kernel
from .parallel import distributed
from .row_softmax import dot, exp_minus, row_max

_NO_MASK = np.ones((0, 0), bool)
"""Stands for None, so that kernels are compiled for one type of masks."""


@functional.acceleration.register("softmax")
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> Any:
    """As `functional.softmax`, over the last axis; y is saved, and the mask."""
    if not are_floats(x) or not x.ndim or type(axis) is not int or axis not in (-1, x.ndim - 1):
        return None
    visible = _NO_MASK
    if mask is not None:
        if type(mask) is not Array or mask.dtype != np.bool_:
            return None
        try:
            visible = as_rows(np.broadcast_to(mask, x.shape))
        except ValueError:
            return None
    y, rows = np.empty(x.shape, x.dtype), as_rows(x)
    _softmax(in_chunks(len(rows), x.nbytes), rows, visible, as_rows(y))

    def pullback(dy: Array) -> tuple[Array]:
        dx, rows = np.empty(y.shape, y.dtype), as_rows(y)
        chunks = in_chunks(len(rows), y.nbytes)
        _softmax_backward(chunks, rows, visible, as_rows(dy), as_rows(dx))
        return (dx,)

    return y, pullback


@strict_kernel
def _softmax(chunk, x, visible, y):
    if distributed(chunk):
        return
    zero, one, lowest = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-np.inf)
    for i in range(chunk[0], chunk[1]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]
        if visible.size:
            for j in range(x.shape[1]):
                y[i, j] = y[i, j] if visible[i, j] else lowest
        peak = row_max(y[i])
        total = exp_minus(y[i], zero if peak == lowest else peak)
        total = one if total == zero else total
        for j in range(x.shape[1]):
            y[i, j] = y[i, j] / total
        if visible.size and math.isnan(total):
            for j in range(x.shape[1]):
                y[i, j] = y[i, j] if visible[i, j] else zero


@strict_kernel
def _softmax_backward(chunk, y, visible, dy, dx):
    if distributed(chunk):
        return
    zero = y.dtype.type(0)
    for i in range(chunk[0], chunk[1]):
        for j in range(y.shape[1]):
            dx[i, j] = dy[i, j]
        if visible.size:
            for j in range(y.shape[1]):
                dx[i, j] = dx[i, j] if visible[i, j] else zero
        mean = dot(y[i], dx[i])
        for j in range(y.shape[1]):
            dx[i, j] = y[i, j] * (dx[i, j] - mean)
        if visible.size and not math.isfinite(mean):
            for j in range(y.shape[1]):
                dx[i, j] = dx[i, j] if visible[i, j] else zero


@functional.acceleration.register("cross_entropy")
def cross_entropy(logits: Array, targets: Array) -> Any:
    """As `functional.cross_entropy`; the probabilities are saved."""
    if not are_floats(logits) or type(targets) is not Array or targets.dtype.kind not in "iu":
        return None
    if logits.shape[:-1] != targets.shape or not logits.ndim:
        return None
    classes = targets.astype(np.int64, order="C").reshape(-1)  # a copy, so nobody can change it
    if classes.min() < 0 or classes.max() >= logits.shape[-1]:
        return None
    rows = as_rows(logits)
    probabilities, losses = np.empty(rows.shape, rows.dtype), np.empty(len(rows))
    _cross_entropy(in_chunks(len(rows), rows.nbytes), rows, classes, probabilities, losses)
    shape = logits.shape

    def pullback(dy: Array) -> tuple[Array, None]:
        dx = np.empty(shape, probabilities.dtype)
        chunks, mean = in_chunks(len(losses), dx.nbytes), float(dy) / len(losses)
        _cross_entropy_backward(chunks, probabilities, classes, mean, as_rows(dx))
        return dx, None

    return np.asarray(losses.mean(), rows.dtype), pullback


@strict_kernel
def _cross_entropy(chunk, x, classes, probabilities, losses):
    if distributed(chunk):
        return
    for i in range(chunk[0], chunk[1]):
        for j in range(x.shape[1]):
            probabilities[i, j] = x[i, j]
        peak = row_max(x[i])
        total = exp_minus(probabilities[i], peak)
        losses[i] = math.log(total) - (x[i, classes[i]] - peak)
        for j in range(x.shape[1]):
            probabilities[i, j] = probabilities[i, j] / total


@strict_kernel
def _cross_entropy_backward(chunk, probabilities, classes, dy, dx):
    if distributed(chunk):
        return
    dy, one = probabilities.dtype.type(dy), probabilities.dtype.type(1)
    for i in range(chunk[0], chunk[1]):
        for j in range(probabilities.shape[1]):
            dx[i, j] = probabilities[i, j] * dy
        dx[i, classes[i]] = (probabilities[i, classes[i]] - one) * dy
