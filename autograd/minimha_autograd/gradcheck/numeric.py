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
    found = []
    for k, s in enumerate(squares):
        others = squares[:k] + squares[k + 1 :]
        factors = [t / (t - s) for t in others]  # Lagrange's, at 0
        found.append(float(np.prod(factors)))
    return found


def differences(
    loss: Loss,
    x: np.ndarray,
    own: np.ndarray,
    method: str,
    rounding: float,
    relative: float,
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
    nodes = NODES[method]
    factors = weights(method)
    pairs = list(zip(factors, nodes, strict=True))

    # The series leaves an error of the order of h²ⁿ for n nodes, and rounding one of eps / h. They
    # are equal for h = eps^(1 / (2n + 1)). The first step is ten times larger.
    order = 2 * len(nodes)
    first = 10 * float(np.finfo(x.dtype).eps) ** (1 / (order + 1))
    unit = max(1.0, largest(x))
    noise = rounding * sum(abs(w) / s for w, s in pairs)  # an estimate's rounding error, times h

    def estimate(h: np.ndarray, where: np.ndarray) -> np.ndarray:
        terms = [w * _central(loss, x, s * h, where) for w, s in pairs]
        return np.asarray(sum(terms))

    best = np.full(x.shape, np.nan)  # of the estimates so far
    doubt = np.full(x.shape, np.inf)

    def unsettled() -> np.ndarray:
        known = np.isfinite(doubt)
        size = abs(best[known]).max(initial=0.0)
        small = doubt <= relative * size  # beside the largest entry
        sharp = doubt <= 0.1 * abs(best)  # beside the entry itself
        return ~(small & sharp)

    for scale in (np.full(x.shape, unit), own):
        # On its own scale an entry that is not much smaller gets about the same steps again.
        hopeless = (scale is own) & (scale > 1e-3 * unit)
        h = first * scale
        before = estimate(h, unsettled() & ~hopeless)
        for _ in range(12):
            h = h / 10
            where = unsettled() & ~hopeless
            if not where.any():
                break
            now = estimate(h, where)
            change = abs(now - before) + noise / h
            new = np.where(np.isfinite(now), change, np.inf)  # the doubt of this estimate

            # Across a pole estimates are far too small, and so are doubts, but not in proportion.
            sure = (new <= 1e-3 * abs(now)) & (doubt > 0.1 * abs(best))
            better = where & ((new < doubt) | sure)
            best = np.where(better, now, best)
            doubt = np.where(better, new, doubt)

            # Smaller steps round more. Where rounding alone exceeds the doubt, no later estimate is
            # better, except for one that is far larger than its rounding.
            hopeless |= (noise / h > doubt) & ~(abs(now) > 10 * noise / h)
            before = now
    return best, doubt


def _at(loss: Loss, x: np.ndarray) -> Any:
    """L(x), or NaN if f raises an error: a step may leave its domain."""
    try:
        return loss(x)
    except (ArithmeticError, ValueError):
        return np.nan  # then the estimate is NaN, too, and a smaller step decides


def _central(
    loss: Loss,
    x: np.ndarray,
    h: np.ndarray,
    where: np.ndarray,
) -> np.ndarray:
    """Central differences of the requested entries, NaN elsewhere."""
    result = np.full(x.shape, np.nan)
    for k in map(tuple, np.argwhere(where)):
        up = x.copy()
        down = x.copy()
        up[k] += h[k]
        down[k] -= h[k]
        rise = _at(loss, up) - _at(loss, down)

        # The step as it was rounded, unless it vanished or became infinite.
        step = float(up[k]) - float(down[k])
        if not np.isfinite(step) or step == 0:
            step = 2 * h[k]
        result[k] = rise / step
    return result


def complex_step(loss: Loss, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Im L(x + i h eₖ) / h, with h about 1e-20 times the scale of an entry.

    Nothing is subtracted, so nothing cancels: the error is that of L itself. It needs an analytic
    L, and is silently wrong where L drops an imaginary part, as abs or a cast does.
    Source: Squire and Trapp, "Using complex variables to estimate derivatives of real functions",
    SIAM Review 40 (1998).
    """
    result = np.empty(x.shape)
    dtype = np.result_type(x.dtype, np.complex64)  # complex128 for float64
    for k in np.ndindex(x.shape):
        z = x.astype(dtype)
        z[k] += 1j * h[k]
        result[k] = loss(z).imag / h[k]  # L(x + ih) = L(x) + ih L′(x) − …, so h may be tiny
    return result


def along(loss: Loss, x: np.ndarray, direction: np.ndarray) -> Loss:
    """L on the line through x in a direction: t -> L(x + t · direction), t without axes."""
    return lambda t: loss(x + t * direction)


def slopes(
    loss: Loss,
    x: np.ndarray,
    k: tuple[int, ...],
    rounding: float,
) -> tuple[float, float]:
    """The slopes of L at the entry k from the left and from the right, where L has a kink there.

    At a kink the difference of the slopes is the same for every step; for a smooth function it
    decreases with the step. Without a kink both are NaN.
    """
    scale = max(1.0, abs(float(x[k])))
    level = loss(x)
    powers: tuple[int, ...] = (1, 2)  # float32 rounds too much for smaller steps
    if x.dtype == np.float64:
        powers = (3, 4, 5)

    lefts = []
    rights = []
    for power in powers:
        h = scale * 10.0**-power
        lefts.append(_one_sided(loss, x, k, -h, level))
        rights.append(_one_sided(loss, x, k, h, level))
    gaps = [right - left for left, right in zip(lefts, rights, strict=True)]

    # The smallest step decides, and the others have to show the same gap.
    noises = [4 * rounding / (scale * 10.0**-power) for power in powers]
    gap = gaps[-1]
    noise = noises[-1]
    same = all(abs(other - gap) <= 0.1 * abs(gap) + noise for other in gaps)
    if same and abs(gap) > 10 * noise:
        return lefts[-1], rights[-1]
    return np.nan, np.nan


def _one_sided(
    loss: Loss,
    x: np.ndarray,
    k: tuple[int, ...],
    h: float,
    level: Any,
) -> float:
    """The slope of L between x, where it is `level`, and a step away at the entry k."""
    moved = x.copy()
    moved[k] += h
    step = float(moved[k]) - float(x[k])  # as it was rounded
    slope: float = (_at(loss, moved) - level) / (step or h)
    return slope


def largest(x: np.ndarray) -> float:
    """The size of the largest finite entry."""
    return float(abs(x[np.isfinite(x)]).max(initial=0.0))


def scales(x: np.ndarray) -> np.ndarray:
    """The scale of each entry: its size, or that of the largest where it is zero; at most 1."""
    size = np.where(np.isfinite(x), abs(x), 0)
    largest_size = size.max(initial=0.0) or 1.0
    size = np.where(size == 0, largest_size, size)
    smallest = float(np.finfo(x.dtype).tiny) ** (1 / 3)
    return np.clip(size, smallest, 1.0)


def perturbed(
    arrays: Sequence[np.ndarray], rng: np.random.Generator, roundings: float = 2
) -> list[np.ndarray]:
    """Arrays with each entry changed by two units in the last place, as by different rounding, or
    by another number of them.

    Entries of equal size stay equal, so that arrays at a kink stay there.
    """
    sizes = np.concatenate([abs(x).ravel() for x in arrays])
    _, number = np.unique(sizes, return_inverse=True)  # of each entry's size among the sizes

    # One random sign for each size.
    signs = rng.choice([-1.0, 1.0], size=sizes.size)[number]
    ends = np.cumsum([x.size for x in arrays])
    moved = []
    for x, sign in zip(arrays, np.split(signs, ends[:-1]), strict=True):
        eps = np.finfo(x.dtype).eps
        factor = 1 + roundings * eps * sign.reshape(x.shape)
        moved.append(np.asarray(x * factor, dtype=x.dtype))
    return moved
