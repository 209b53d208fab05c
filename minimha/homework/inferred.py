"""What a wrong result turns out to be: words for a whole family of mistakes, or "".

Each function compares a student's array with what is known about the right one. The words say what
the array is, so they hold however the student came to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def product(name: str, yours: Any, right: np.ndarray, arrays: dict[str, np.ndarray]) -> str:
    """Which product of two of these arrays it is, and which it should be."""
    if not isinstance(yours, np.ndarray) or yours.dtype == bool:
        return ""
    mine = next((text for text, made in _products(arrays, yours) if _multiple(made, yours)), "")
    theirs = next((text for text, made in _products(arrays, right) if _multiple(made, right)), "")
    if not mine or mine == theirs:
        return ""
    return f"{name} = {mine}{f'; it should be {theirs}' if theirs else ''}"


def _products(arrays: dict[str, np.ndarray], like: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """All products of two arrays, each transposed or not, in the shape of like, if need be
    after a split into heads."""
    h = like.shape[-3] if like.ndim > 2 else 0
    for (a, x), (b, y) in itertools.product(arrays.items(), repeat=2):
        for left, right in itertools.product((False, True), repeat=2):
            text = f"{a}{'.mT' * left} @ {b}{'.mT' * right}"
            try:
                made = (x.mT if left else x) @ (y.mT if right else y)
            except ValueError:
                continue
            if made.shape == like.shape:
                yield text, made
            elif h and made.shape == (*like.shape[:-3], like.shape[-2], h * like.shape[-1]):
                heads = made.reshape(*made.shape[:-1], h, like.shape[-1])
                yield f"split({text})", heads.swapaxes(-3, -2)


def _multiple(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether b is a number times a, which has its shape, and neither is 0."""
    if not np.isfinite(b).all():
        return False
    ratio = np.sum(a * b) / (np.sum(a * a) or 1)
    return bool(abs(ratio) > 1e-12 and abs(ratio * a - b).max() <= 1e-9 * abs(b).max())


def weights(yours: Any) -> str:
    """Why these are no weights of a softmax over the last axis without a mask."""
    if not isinstance(yours, np.ndarray) or yours.ndim < 2 or yours.dtype == bool:
        return ""

    def sum_to_1(axis: int | tuple[int, ...]) -> bool:
        return np.allclose(yours.sum(axis=axis), 1)

    several = [tuple(range(-count, 0)) for count in range(2, yours.ndim + 1)]
    other = next((axis for axis in range(yours.ndim - 1) if sum_to_1(axis)), None)
    facts = [
        (np.isnan(yours).any(), "a weight is NaN: look for ∞ / ∞, 0 / 0 or −∞ − (−∞)"),
        (sum_to_1(-1) and not np.triu(yours, 1).any(), "later keys are hidden: no mask is needed"),
        (
            sum_to_1(-1) and yours.max(axis=-1).min() == 1,
            "one key gets all the weight: is that e^x?",
        ),
        (sum_to_1(-1), ""),
        (
            other is not None,
            f"the weights sum to 1 along axis {other}: softmax runs along the keys, axis=-1, so "
            "that the weights of each query sum to 1",
        ),
        (
            any(map(sum_to_1, several)),
            "the sum runs over whole matrices: each row needs its own, "
            "e.sum(axis=-1, keepdims=True)",
        ),
        ((yours < 0).any(), "a weight is negative: is exp missing?"),
        (True, "the rows do not sum to 1: divide each row by its own sum"),
    ]
    return next(text for holds, text in facts if holds)


def rearranged(yours: Any, x: np.ndarray, axes: str) -> str:
    """In which order it has the axes of x, if it is x with axes swapped, then reshaped."""
    if not isinstance(yours, np.ndarray) or yours.size != x.size:
        return ""
    for order in itertools.permutations(range(x.ndim)):
        if (x.transpose(order).reshape(yours.shape) == yours).all():
            letters = ", ".join(axes.split()[k] for k in order)
            return f"x with its axes in the order ({letters}), reshaped to {yours.shape}"
    return ""


def rows_used(f: Callable[[np.ndarray], Any], w: np.ndarray) -> dict[int, list[int]]:
    """For each head of f(w), (…, H, T, M), the rows of w that it depends on."""
    used: dict[int, list[int]] = {}
    for row in range(len(w)):
        changed = w + (np.arange(len(w)) == row)[:, None]
        moved = np.moveaxis(np.asarray(f(changed) != f(w)), -3, 0)
        for head in (h for h, x in enumerate(moved) if x.any()):
            used.setdefault(head, []).append(row)
    return used


def is_equal(yours: Any, known: Any) -> bool:
    """Whether both are the same array up to rounding."""
    both = isinstance(yours, np.ndarray) and isinstance(known, np.ndarray)
    return both and yours.shape == known.shape and np.allclose(yours, known, rtol=1e-9, atol=1e-12)
