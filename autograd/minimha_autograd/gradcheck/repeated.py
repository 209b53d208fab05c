"""Whether two results of one call differ by rounding only, or because numbers are drawn anew.

A sum of n terms tᵢ, in any order, is off by at most (n − 1) · eps/2 · Σ |tᵢ|, so that two orders
differ by at most twice as much; typical is √n · eps · max |tᵢ|, since roundings have either sign.
A GPU adds up the gradients of repeated entries in the order in which its threads finish, and a CPU
chooses the order by the place of an array in memory.
Source of the bound: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .numeric import largest

ROUNDINGS = 1024
"""By how many roundings of the largest term two results of one call may differ: those of a million
terms, typically, and at most those of thirty."""


def is_rounding(
    one: np.ndarray,
    other: np.ndarray,
    size: float,
    nearby: Callable[[], np.ndarray],
    elsewhere: Callable[[], tuple[np.ndarray, np.ndarray]],
) -> bool:
    """Whether two results of the same call differ by rounding at most.

    size       about the largest of the terms that were added up
    nearby     computes the result at inputs that are moved by √eps
    elsewhere  computes two results in the other precision, float32 for float64 and vice versa

    Rounding is small beside the terms. Where these cancel, so that nothing shows their size, two
    questions tell it from random numbers, which are drawn anew in each call. Does the result react
    much more to a move of the inputs? And do two results differ as much more, or less, in the other
    precision as its eps is larger or smaller?
    """
    if one.shape != other.shape:
        return False
    most = apart(one, other)
    eps = float(np.finfo(one.dtype).eps)
    if most <= ROUNDINGS * eps * size:
        return True

    # Only where the results differ by more is f called again.
    try:
        if most <= 0.01 * largest(nearby() - one):
            return True
        pair = elsewhere()
    except Exception:  # whatever f raises, it was not asked about these inputs
        return False

    # Rounding is proportional to eps, and random numbers do not depend on it: the limit is halfway,
    # as a ratio.
    there = apart(*pair)
    halfway = (eps / float(np.finfo(pair[0].dtype).eps)) ** 0.5
    return most <= halfway * there if halfway < 1 else there <= most / halfway


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two results; entries that are both NaN are the same."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0, abs(one - other)).max(initial=0.0))
