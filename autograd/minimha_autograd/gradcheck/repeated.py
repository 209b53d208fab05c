"""Whether two results of one call differ by rounding only, or because numbers are drawn anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .numeric import largest

ROUNDINGS = 1024
"""By how many roundings of the largest term two results of one call may differ."""


def is_rounding(
    one: np.ndarray, other: np.ndarray, size: float, nearby: Callable[[], np.ndarray]
) -> bool:
    """Whether two results of the same call differ by rounding at most.

    size    about the largest of the terms that were added up
    nearby  computes the result at inputs that are moved by √eps

    Rounding is small beside the terms. Where these cancel and the result reacts to every move of
    the inputs, it is at least small beside what the move changes. Random numbers are not: they are
    drawn anew in each call, nearby or not.
    """
    if one.shape != other.shape:
        return False

    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0, abs(one - other))
    most = float(apart.max(initial=0.0))

    eps = float(np.finfo(one.dtype).eps)
    if most <= ROUNDINGS * eps * size:
        return True

    # Only where the results differ by more is f called once more.
    try:
        moved = nearby()
    except Exception:  # whatever f raises, it was not asked about these inputs
        return False
    return most <= 0.01 * largest(moved - one)
