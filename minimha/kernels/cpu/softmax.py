"""Softmax and cross entropy: a row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...functional import acceleration
from .arrays import Array, as_rows, exact, floats, plain, shared
from .parallel import led
from .rows import exp_less, largest, weighted


@acceleration.register("softmax")
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> Any:
    """As `functional.softmax`, over the last axis; y is saved, and the mask."""
    if not floats(x) or not x.ndim or type(axis) is not int or axis not in (-1, x.ndim - 1):
        return None
    if mask is not None:
        if type(mask) is not Array or mask.dtype != np.bool_ or not _reaches(mask, x):
            return None
        mask = as_rows(np.broadcast_to(mask, x.shape))
    shape, x = x.shape, as_rows(x)
    y = np.empty(shape, x.dtype)
    out, visible = y.reshape(x.shape), _EVERYTHING if mask is None else mask
    _softmax(shared(len(x), x.nbytes), x, visible, out)
    return y, _pullback(y, mask)


def _pullback(y: Array, mask: Array | None) -> Any:
    def pullback(dy: Array) -> tuple[Array]:
        dx, visible = np.empty(y.shape, y.dtype), _EVERYTHING if mask is None else mask
        rows, dy, into = (a.reshape(-1, y.shape[-1]) for a in (y, plain(dy), dx))
        _through_softmax(shared(len(rows), y.nbytes), rows, visible, dy, into)
        return (dx,)

    return pullback


_EVERYTHING = np.ones((0, 0), bool)
"""What stands for no mask, so that there is one type of masks to compile for."""


def _reaches(mask: Array, x: Array) -> bool:
    """Whether the mask broadcasts to x."""
    lengths = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    return mask.ndim <= x.ndim and all(n in (1, m) for n, m in lengths)


@acceleration.register("cross_entropy")
def cross_entropy(logits: Array, targets: Array) -> Any:
    """As `functional.cross_entropy`; the probabilities are saved."""
    if not floats(logits) or type(targets) is not Array or targets.dtype.kind not in "iu":
        return None
    if logits.shape[:-1] != targets.shape or not logits.ndim:
        return None
    shape, x = logits.shape, as_rows(logits)
    targets = targets.astype(np.int64, order="C").reshape(-1)  # a copy that is ours alone
    if targets.min() < 0 or targets.max() >= shape[-1]:
        return None
    count, odds, losses = len(x), np.empty(x.shape, x.dtype), np.empty(len(x))
    _cross_entropy(shared(count, x.nbytes), x, targets, odds, losses)

    def pullback(dy: Array) -> tuple[Array, None]:
        dx, each = np.empty(shape, odds.dtype), float(dy) / count
        into = dx.reshape(odds.shape)
        _through_cross_entropy(shared(count, dx.nbytes), odds, targets, each, into)
        return dx, None

    return np.asarray(losses.mean(), x.dtype), pullback


@exact
def _softmax(part, x, visible, y):
    if led(part):
        return
    zero, one, lowest = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-np.inf)
    for i in range(part[0], part[1]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]
        if visible.size:
            for j in range(x.shape[1]):
                y[i, j] = y[i, j] if visible[i, j] else lowest
        peak = largest(y[i])
        total = exp_less(y[i], zero if peak == lowest else peak)
        total = one if total == zero else total
        for j in range(x.shape[1]):
            y[i, j] = y[i, j] / total
        if visible.size and math.isnan(total):
            for j in range(x.shape[1]):
                y[i, j] = y[i, j] if visible[i, j] else zero


@exact
def _through_softmax(part, y, visible, dy, dx):
    if led(part):
        return
    zero = y.dtype.type(0)
    for i in range(part[0], part[1]):
        if visible.size:
            for j in range(y.shape[1]):
                dx[i, j] = dy[i, j] if visible[i, j] else zero
        else:
            for j in range(y.shape[1]):
                dx[i, j] = dy[i, j]
        mean = weighted(y[i], dx[i])
        for j in range(y.shape[1]):
            dx[i, j] = y[i, j] * (dx[i, j] - mean)
        if visible.size and not math.isfinite(mean):
            for j in range(y.shape[1]):
                dx[i, j] = dx[i, j] if visible[i, j] else zero


@exact
def _cross_entropy(part, x, targets, odds, losses):
    if led(part):
        return
    for i in range(part[0], part[1]):
        for j in range(x.shape[1]):
            odds[i, j] = x[i, j]
        peak = largest(x[i])
        total = exp_less(odds[i], peak)
        losses[i] = math.log(total) - (x[i, targets[i]] - peak)
        for j in range(x.shape[1]):
            odds[i, j] = odds[i, j] / total


@exact
def _through_cross_entropy(part, odds, targets, each, dx):
    if led(part):
        return
    each, one = odds.dtype.type(each), odds.dtype.type(1)
    for i in range(part[0], part[1]):
        for j in range(odds.shape[1]):
            dx[i, j] = odds[i, j] * each
        dx[i, targets[i]] = (odds[i, targets[i]] - one) * each
