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
    """The weights with which a method adds up central differences with the steps s·h, where s are
    its `NODES`.

    A central difference with step s·h is the derivative plus a series in (s·h)². Lagrange's
    polynomial through n of these differences, evaluated at step 0, lacks the first n − 1 terms of
    the series: for the steps h and 2h that is the fourth-order formula, for h, h/2, h/4 …
    Richardson's.
    """
    squares = [s * s for s in NODES[method]]
    found = []
    for k, s in enumerate(squares):
        # The polynomial that is 1 at this node and 0 at the others has a factor (t − z) / (t − s)
        # for each other node t. At z = 0 that is t / (t − s).
        others = squares[:k] + squares[k + 1 :]
        factors = [t / (t - s) for t in others]
        weight = np.prod(factors)
        found.append(float(weight))
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
    relative  an entry is settled if its doubt is at most this share of the largest entry, and at
              most a tenth of the entry itself

    No step suits every function: a large one misses the curvature of L, crosses a kink or leaves
    the domain; a small one is lost in rounding. So h decreases by factors of ten, and each entry
    keeps the estimate that agrees best with the previous one; their difference, plus the rounding,
    is its doubt. Most entries settle after a few steps. The steps are at first in proportion to
    the largest entry of x, or to 1 if that is larger; entries that do not settle are tried again
    with steps in proportion to their own scale. If no two successive steps give numbers, the doubt
    is infinite.
    """
    nodes = NODES[method]
    factors = weights(method)
    pairs = list(zip(factors, nodes, strict=True))  # (wₛ, s)

    # The series leaves an error of the order of h²ⁿ for n nodes, and rounding one of eps / h. They
    # are equal for h = eps^(1 / (2n + 1)). The first step is ten times larger.
    eps = float(np.finfo(x.dtype).eps)
    order = 2 * len(nodes)
    balanced = eps ** (1 / (order + 1))
    first = 10 * balanced
    unit = max(1.0, largest(x))

    # Both values in a central difference are off by the rounding, and their difference is divided
    # by 2 s h. So an estimate with step h has a rounding error of up to noise / h.
    noise = rounding * sum(abs(w) / s for w, s in pairs)

    def estimate(
        h: np.ndarray,
        where: np.ndarray,
    ) -> np.ndarray:
        terms = []
        for w, s in pairs:
            slope = _central(loss, x, s * h, where)  # x's shape
            terms.append(w * slope)
        return np.asarray(sum(terms))

    # Both in x's shape. Before the first estimate nothing is known, and the doubt is infinite.
    best = np.full(x.shape, np.nan)
    doubt = np.full(x.shape, np.inf)

    def unsettled() -> np.ndarray:
        known = np.isfinite(doubt)
        size = abs(best[known]).max(initial=0.0)
        small = doubt <= relative * size  # beside the largest entry
        sharp = doubt <= 0.1 * abs(best)  # beside the entry itself
        return ~(small & sharp)

    common = np.full(x.shape, unit)
    for scale in (common, own):
        # Entries that no smaller step can improve. On its own scale, an entry that is not much
        # smaller than the largest would get about the same steps again.
        finished = np.zeros(x.shape, bool)
        if scale is own:
            finished = own > 1e-3 * unit

        h = first * scale
        before = estimate(h, unsettled() & ~finished)
        for _ in range(12):
            h = h / 10
            where = unsettled() & ~finished
            if not where.any():
                break
            now = estimate(h, where)

            # The doubt of this estimate.
            from_rounding = noise / h
            change = abs(now - before) + from_rounding
            new = np.where(np.isfinite(now), change, np.inf)

            # A step across a pole gives an estimate that is far too small, and so is its doubt. It
            # gives way to a later estimate whose doubt is larger, but small beside the estimate.
            sure = new <= 1e-3 * abs(now)
            unsure_so_far = doubt > 0.1 * abs(best)
            better = where & ((new < doubt) | (sure & unsure_so_far))
            best = np.where(better, now, best)
            doubt = np.where(better, new, doubt)

            # Smaller steps round more. Where rounding alone exceeds the doubt, no later estimate is
            # better, except for one that is far larger than its rounding.
            too_small = from_rounding > doubt
            clear = abs(now) > 10 * noise / h
            finished |= too_small & ~clear
            before = now
    return best, doubt


def _at(loss: Loss, x: np.ndarray) -> Any:
    """L(x), or NaN if it raises an ArithmeticError or ValueError, as a step beyond the domain of L
    may."""
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
    """Central differences of L with the step h[k] for each entry k at which `where` is true, NaN
    for the other entries."""
    result = np.full(x.shape, np.nan)
    for k in map(tuple, np.argwhere(where)):
        up = x.copy()
        up[k] += h[k]

        down = x.copy()
        down[k] -= h[k]
        rise = _at(loss, up) - _at(loss, down)

        # x + h is rounded, so the points are not exactly 2h apart. Divide by their real distance,
        # unless it vanished or became infinite.
        step = float(up[k]) - float(down[k])
        if not np.isfinite(step) or step == 0:
            step = 2 * h[k]
        result[k] = rise / step
    return result


def complex_step(
    loss: Loss,
    x: np.ndarray,
    h: np.ndarray,
) -> np.ndarray:
    """dL/dx by the complex step, entry by entry: Im L(x + i hₖ eₖ) / hₖ. A step of h is about 1e-20
    times the scale of its entry.

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

        # L(x + ih) = L(x) + ih L′(x) − …: the next imaginary term has h³, so h may be tiny.
        rise = loss(z).imag
        result[k] = rise / h[k]
    return result


def along(
    loss: Loss,
    x: np.ndarray,
    direction: np.ndarray,
) -> Loss:
    """L on the line through x in a direction: t -> L(x + t · direction), where t is an array
    without axes."""
    return lambda t: loss(x + t * direction)


def slopes(
    loss: Loss,
    x: np.ndarray,
    k: tuple[int, ...],
    rounding: float,
) -> tuple[float, float]:
    """The slopes of L from the left and from the right, along the entry k of x, if L has a kink at
    x. `rounding` is the rounding error of L.

    At a kink the difference of the slopes is the same for every step; for a smooth function it
    decreases with the step. Without a kink both are NaN.
    """
    scale = max(1.0, abs(float(x[k])))
    level = loss(x)
    powers: tuple[int, ...] = (1, 2)  # float32 rounds too much for smaller steps
    if x.dtype == np.float64:
        powers = (3, 4, 5)

    gaps = []  # one for each step
    for power in powers:
        h = scale * 10.0**-power
        left = _one_sided(loss, x, k, -h, level)
        right = _one_sided(loss, x, k, h, level)
        gaps.append(right - left)

    # The last and smallest step decides, and the others have to show the same gap. It is the
    # difference of two slopes, each from two values of L: four roundings.
    gap = gaps[-1]
    noise = 4 * rounding / h
    tolerance = 0.1 * abs(gap) + noise
    same = all(abs(other - gap) <= tolerance for other in gaps)
    if same and abs(gap) > 10 * noise:
        return left, right
    return np.nan, np.nan


def _one_sided(
    loss: Loss,
    x: np.ndarray,
    k: tuple[int, ...],
    h: float,
    level: Any,
) -> float:
    """The slope of L between x and the point where entry k is larger by h, which may be negative.
    `level` is L(x)."""
    moved = x.copy()
    moved[k] += h
    step = float(moved[k]) - float(x[k])  # as it was rounded
    slope: float = (_at(loss, moved) - level) / (step or h)
    return slope


def largest(x: np.ndarray) -> float:
    """The largest absolute value of the finite entries, 0 if there are none."""
    return float(abs(x[np.isfinite(x)]).max(initial=0.0))


def scales(x: np.ndarray) -> np.ndarray:
    """The scale of each entry: its absolute value, but no more than 1 and no less than a tiny
    positive number. Where an entry is zero or not finite, the largest absolute value takes its
    place."""
    size = np.where(np.isfinite(x), abs(x), 0)
    largest_size = size.max(initial=0.0) or 1.0
    size = np.where(size == 0, largest_size, size)

    # Steps are small shares of a scale, and must not underflow to 0.
    smallest = float(np.finfo(x.dtype).tiny) ** (1 / 3)
    return np.clip(size, smallest, 1.0)


def perturbed(
    arrays: Sequence[np.ndarray],
    rng: np.random.Generator,
    roundings: float = 2,
) -> list[np.ndarray]:
    """Arrays whose entries are larger or smaller by some units in the last place, at random, as if
    they had been rounded differently.

    roundings  the number of these units

    Entries of equal size stay equal, so that arrays at a kink stay there.
    """
    # All entries of all arrays in one row. Entries of equal size get equal numbers.
    flat = [abs(x).ravel() for x in arrays]
    sizes = np.concatenate(flat)
    _, numbers = np.unique(sizes, return_inverse=True)

    # One random sign for each number.
    drawn = rng.choice([-1.0, 1.0], size=sizes.size)
    signs = drawn[numbers]

    # Back to the signs of each array.
    ends = np.cumsum([x.size for x in arrays])
    parts = np.split(signs, ends[:-1])
    moved = []
    for x, sign in zip(arrays, parts, strict=True):
        eps = np.finfo(x.dtype).eps
        factor = 1 + roundings * eps * sign.reshape(x.shape)
        moved.append(np.asarray(x * factor, dtype=x.dtype))
    return moved
