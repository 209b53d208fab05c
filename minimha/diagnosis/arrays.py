"""Arrays that were broadcast, and heads that share a key head."""

from __future__ import annotations

import math

import numpy as np


def summed_to(x: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """x summed to this shape: over the axes along which an array of this shape is repeated if it is
    broadcast to the shape of x. None if it cannot be broadcast to that."""
    if x is None or x.ndim < len(shape):
        return None
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    for k, n in enumerate(shape):
        if n == 1 != x.shape[k]:
            x = x.sum(axis=k, keepdims=True)
    return x if x.shape == shape else None


def in_same_place(pairs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Of the products of all pairs of matrices (…, n, …, m), which np.dot computes, only those of
    matrices with the same batch index: (…, n, m), which is `shape`. None for other shapes."""
    *batch, n, m = shape if len(shape) > 2 else (0, 0, 0)
    if pairs.shape != (*batch, n, *batch, m):
        return None
    places = range(math.prod(batch))
    flat = pairs.reshape(len(places), n, len(places), m)
    return flat[places, :, places].reshape(shape)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """a @ b. If one of them has fewer heads, each of these serves a group of the other's heads.
    None if they do not broadcast."""
    if a.ndim >= 3 <= b.ndim and 0 not in (heads := (a.shape[-3], b.shape[-3])):
        a = np.repeat(a, max(heads[1] // heads[0], 1), axis=-3)
        b = np.repeat(b, max(heads[0] // heads[1], 1), axis=-3)
    try:
        return np.matmul(a, b)
    except ValueError:
        return None


def by_group(x: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """x (…, H, m, n) as (…, G, H/G, m, n), if `like` has G heads and x has more; else None."""
    if not x.ndim == like.ndim >= 3:
        return None
    heads, groups = x.shape[-3], like.shape[-3]
    if not 1 <= groups < heads or heads % groups:
        return None
    return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:])


def summed_over_groups(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """x with the heads of each group added up, where there are more of them than in like."""
    groups = by_group(x, like)
    return x if groups is None else groups.sum(axis=-3)


def through_softmax(p: np.ndarray, dp: np.ndarray, axis: int = -1) -> np.ndarray:
    """The pullback of softmax: P · (dP − Σ P · dP)."""
    return np.asarray(p * (dp - (p * dp).sum(axis=axis, keepdims=True)))
