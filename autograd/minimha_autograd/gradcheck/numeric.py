"""Numeric derivatives of a function L of one host array x, entry by entry.

They work on the host in NumPy, whatever library the function itself computes with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Loss = Callable[[np.ndarray], Any]


def central_difference(
    loss: Loss, x: np.ndarray, rounding: float, relative: float
) -> tuple[np.ndarray, np.ndarray]:
    """(L(x + h eₖ) − L(x − h eₖ)) / 2h, and for each entry how far it is in doubt.

    rounding  the rounding error of L
    relative  the doubt at which an entry is settled, relative to the largest entry

    No step suits all: the error is h² L‴/6 by truncation and rounding / h by cancellation. So h
    falls by tens from eps^¼, and each entry keeps the difference that agrees best with the one
    before; how far they disagree, with the rounding, is its doubt. Most entries settle at once.
    """
    finite = x[np.isfinite(x)]
    h = float(np.finfo(x.dtype).eps) ** 0.25 * max(1.0, float(abs(finite).max(initial=0.0)))
    before = _differences(loss, x, h, np.ones(x.shape, dtype=bool))
    best, doubt = before.copy(), np.full(x.shape, np.inf)
    for _ in range(8):
        h /= 10
        open_ = ~(doubt <= relative * abs(best[np.isfinite(doubt)]).max(initial=0.0))
        if not open_.any():
            break
        now = _differences(loss, x, h, open_)
        new = np.where(np.isfinite(now), abs(now - before) + rounding / h, np.inf)
        better = open_ & (new < doubt)
        best, doubt = np.where(better, now, best), np.where(better, new, doubt)
        before = now
    return best, doubt


def _differences(loss: Loss, x: np.ndarray, h: float, where: np.ndarray) -> np.ndarray:
    """Central differences of the entries asked for, NaN elsewhere."""
    result = np.full(x.shape, np.nan)
    for k in zip(*np.nonzero(where), strict=True) if x.ndim else [()]:
        up, down = x.copy(), x.copy()
        up[k] += h
        down[k] -= h
        step = float(up[k]) - float(down[k])  # 2h as it was rounded
        result[k] = (loss(up) - loss(down)) / (step if np.isfinite(step) and step else 2 * h)
    return result


def complex_step(loss: Loss, x: np.ndarray) -> np.ndarray:
    """Im L(x + i h eₖ) / h with h = 1e-20.

    Nothing is subtracted, so nothing cancels: the error is that of L itself. It needs an analytic
    L, and is silently wrong where L drops an imaginary part, as abs or a cast does.
    Source: Squire and Trapp, "Using complex variables to estimate derivatives of real functions",
    SIAM Review 40 (1998).
    """
    h, result = 1e-20, np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(np.result_type(x.dtype, np.complex64))
        z[k] += 1j * h
        result[k] = loss(z).imag / h
    return result


def jiggled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """x with each entry moved by two units in the last place: as good as x, if x was rounded."""
    eps = np.finfo(x.dtype).eps
    moved = x * (1 + 2 * eps * rng.choice([-1.0, 1.0], size=x.shape))
    return np.asarray(moved, dtype=x.dtype)  # an array, also without axes
