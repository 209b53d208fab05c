"""Arithmetic for arrays that were broadcast, and for several query heads that share a key head."""

from __future__ import annotations

import math

import numpy as np


def summed_to(x: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """Sum x over the axes along which an array of this shape is repeated when it is broadcast to
    the shape of x. Returns None if it cannot be broadcast to the shape of x."""
    if x is None or x.ndim < len(shape):
        return None
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    for k, n in enumerate(shape):
        if n == 1 != x.shape[k]:
            x = x.sum(axis=k, keepdims=True)
    return x if x.shape == shape else None


def in_same_place(pairs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the batch of products a[i] @ b[i], of this shape, (…, n, m), given the products
    a[i] @ b[j] of all pairs, as np.dot(a, b) computes them: `pairs` (…, n, …, m). Returns None if
    `pairs` has another shape."""
    *batch, n, m = shape if len(shape) > 2 else (0, 0, 0)
    if pairs.shape != (*batch, n, *batch, m):
        return None
    places = range(math.prod(batch))
    flat = pairs.reshape(len(places), n, len(places), m)
    return flat[places, :, places].reshape(shape)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return a @ b. If one array has fewer heads (axis −3), each of its heads is multiplied with a
    group of heads of the other array. Returns None if the shapes do not fit."""
    if a.ndim >= 3 <= b.ndim and 0 not in (heads := (a.shape[-3], b.shape[-3])):
        a = np.repeat(a, max(heads[1] // heads[0], 1), axis=-3)
        b = np.repeat(b, max(heads[0] // heads[1], 1), axis=-3)
    try:
        return np.matmul(a, b)
    except ValueError:
        return None


def by_group(x: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Reshape x (…, H, m, n) to (…, G, H/G, m, n), where G is the number of heads of `like`.
    Returns None unless x has more heads than `like`, and a multiple of them."""
    if not x.ndim == like.ndim >= 3:
        return None
    heads, groups = x.shape[-3], like.shape[-3]
    if not 1 <= groups < heads or heads % groups:
        return None
    return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:])


def summed_over_groups(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Add up the heads of x in each group that shares a head of `like`. Returns x unchanged if it
    does not have more heads than `like`."""
    groups = by_group(x, like)
    return x if groups is None else groups.sum(axis=-3)


def through_softmax(p: np.ndarray, dp: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the gradient of the scores, P · (dP − Σ P · dP), from the weights P = softmax(scores)
    along an axis and their gradient dP."""
    return np.asarray(p * (dp - (p * dp).sum(axis=axis, keepdims=True)))
