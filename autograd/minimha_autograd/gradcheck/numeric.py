"""Numeric derivatives of a function L of one host array x.

They work on the host in NumPy, whatever library the function itself computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Loss = Callable[[np.ndarray], Any]

NODES: dict[str, tuple[float, ...]] = {
    "central": (1,),
    "fourth-order": (1, 2),
    "richardson": (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16),
}
"""The steps, in units of h, whose central differences each method combines."""

BOUNDS = {
    "central": {"float64": 1e-6, "float32": 1e-2},
    "fourth-order": {"float64": 1e-9, "float32": 1e-3},
    "richardson": {"float64": 1e-10, "float32": 1e-3},
    "complex step": {"float64": 1e-12, "float32": 1e-5},
}
"""The error allowed against each method in this precision, relative to the largest entry."""


def weights(method: str) -> list[float]:
    """How a method weighs the central differences at its nodes s.

    A central difference at s·h is the derivative plus a series in (s·h)². Lagrange's polynomial
    through n of them, taken at 0, is free of its first n − 1 terms: with two nodes that is the
    fourth-order formula, with h, h/2, h/4 … Richardson's.
    """
    squares = [s * s for s in NODES[method]]
    return [
        float(np.prod([t / (t - s) for j, t in enumerate(squares) if j != k]))
        for k, s in enumerate(squares)
    ]


def differences(
    loss: Loss, x: np.ndarray, own: np.ndarray, method: str, rounding: float, relative: float
) -> tuple[np.ndarray, np.ndarray]:
    """dL/dx by differences, entry by entry, and the uncertainty of each entry, its doubt.

        Σ wₛ (L(x + s h eₖ) − L(x − s h eₖ)) / 2 s h        over the nodes s of the method

    own       the scale of each entry, at most 1
    rounding  the rounding error of L
    relative  the doubt at which an entry is settled, relative to the largest entry

    No step suits every function: a large one misses the curvature of L, crosses a kink or leaves
    the domain; a small one is lost in rounding. So h decreases by factors of ten, and each entry
    keeps the estimate that agrees best with the previous one; their difference, plus the rounding,
    is its doubt. Most entries settle at once. Those that do not settle on the scale of the largest
    entry are tried again on their own scale. If no two steps give numbers, the doubt is infinite.
    """
    nodes, factors = NODES[method], weights(method)
    first = 10 * float(np.finfo(x.dtype).eps) ** (1 / (2 * len(nodes) + 1))
    unit = max(1.0, largest(x))
    noise = rounding * sum(abs(w) / s for w, s in zip(factors, nodes, strict=True))

    def estimate(h: np.ndarray, where: np.ndarray) -> np.ndarray:
        terms = [w * _central(loss, x, s * h, where) for w, s in zip(factors, nodes, strict=True)]
        return np.asarray(sum(terms))

    best, doubt = np.full(x.shape, np.nan), np.full(x.shape, np.inf)

    def unsettled() -> np.ndarray:
        size = abs(best[np.isfinite(doubt)]).max(initial=0.0)
        return ~((doubt <= relative * size) & (doubt <= 0.1 * abs(best)))

    for scale in (np.full(x.shape, unit), own):
        hopeless = (scale is own) & (scale > 1e-3 * unit)
        h = first * scale
        before = estimate(h, unsettled() & ~hopeless)
        for _ in range(12):
            h, where = h / 10, unsettled() & ~hopeless
            if not where.any():
                break
            now = estimate(h, where)
            new = np.where(np.isfinite(now), abs(now - before) + noise / h, np.inf)
            # across a pole estimates are far too small, and so are doubts, but not in proportion
            sure = (new <= 1e-3 * abs(now)) & (doubt > 0.1 * abs(best))
            better = where & ((new < doubt) | sure)
            best, doubt = np.where(better, now, best), np.where(better, new, doubt)
            hopeless |= (noise / h > doubt) & ~(abs(now) > 10 * noise / h)
            before = now
    return best, doubt


def _at(loss: Loss, x: np.ndarray) -> Any:
    """L(x), or NaN if f raises an error: a step may leave its domain."""
    try:
        return loss(x)
    except (ArithmeticError, ValueError):
        return np.nan


def _central(loss: Loss, x: np.ndarray, h: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Central differences of the requested entries, NaN elsewhere."""
    result = np.full(x.shape, np.nan)
    for k in map(tuple, np.argwhere(where)):
        up, down = x.copy(), x.copy()
        up[k] += h[k]
        down[k] -= h[k]
        step = float(up[k]) - float(down[k])  # 2h as it was rounded
        rise = _at(loss, up) - _at(loss, down)
        result[k] = rise / (step if np.isfinite(step) and step else 2 * h[k])
    return result


def complex_step(loss: Loss, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Im L(x + i h eₖ) / h, with h about 1e-20 times the scale of an entry.

    Nothing is subtracted, so nothing cancels: the error is that of L itself. It needs an analytic
    L, and is silently wrong where L drops an imaginary part, as abs or a cast does.
    Source: Squire and Trapp, "Using complex variables to estimate derivatives of real functions",
    SIAM Review 40 (1998).
    """
    result = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(np.result_type(x.dtype, np.complex64))
        z[k] += 1j * h[k]
        result[k] = loss(z).imag / h[k]
    return result


def along(loss: Loss, x: np.ndarray, direction: np.ndarray) -> Loss:
    """L on the line through x in a direction: t -> L(x + t · direction), t without axes."""
    return lambda t: loss(x + t * direction)


def slopes(loss: Loss, x: np.ndarray, k: tuple[int, ...], rounding: float) -> tuple[float, float]:
    """The slopes of L at the entry k from the left and from the right, where L has a kink there.

    At a kink the difference of the slopes is the same for every step; for a smooth function it
    decreases with the step. Without a kink both are NaN.
    """
    scale = max(1.0, abs(float(x[k])))
    level = loss(x)
    sides = []
    for h in (scale * 10.0**-n for n in ((3, 4, 5) if x.dtype == np.float64 else (1, 2))):
        moved = []
        for signed in (-h, h):
            y = x.copy()
            y[k] += signed
            step = float(y[k]) - float(x[k])
            moved.append((_at(loss, y) - level) / (step or signed))
        sides.append((*moved, 4 * rounding / h))
    gaps = [right - left for left, right, _ in sides]
    left, right, noise = sides[-1]
    same = all(abs(gap - gaps[-1]) <= 0.1 * abs(gaps[-1]) + noise for gap in gaps)
    return (left, right) if same and abs(gaps[-1]) > 10 * noise else (np.nan, np.nan)


def largest(x: np.ndarray) -> float:
    """The size of the largest finite entry."""
    return float(abs(x[np.isfinite(x)]).max(initial=0.0))


def scales(x: np.ndarray) -> np.ndarray:
    """The scale of each entry: its size, or that of the largest where it is zero; at most 1."""
    size = np.where(np.isfinite(x), abs(x), 0)
    size = np.where(size == 0, size.max(initial=0.0) or 1.0, size)
    return np.clip(size, float(np.finfo(x.dtype).tiny) ** (1 / 3), 1.0)


def perturbed(
    arrays: Sequence[np.ndarray], rng: np.random.Generator, roundings: float = 2
) -> list[np.ndarray]:
    """Arrays with each entry changed by two units in the last place, as by different rounding, or
    by another number of them.

    Entries of equal size stay equal, so that arrays at a kink stay there.
    """
    flat = np.concatenate([abs(x).ravel() for x in arrays])
    _, where = np.unique(flat, return_inverse=True)
    signs = np.split(
        rng.choice([-1.0, 1.0], size=flat.size)[where], np.cumsum([x.size for x in arrays])[:-1]
    )
    return [
        np.asarray(
            x * (1 + roundings * np.finfo(x.dtype).eps * sign.reshape(x.shape)), dtype=x.dtype
        )
        for x, sign in zip(arrays, signs, strict=True)
    ]
