"""Whether two results of the same call differ only by rounding, or because each call draws random
numbers.

A sum of n terms tᵢ has an error of at most (n − 1) · eps/2 · Σ |tᵢ| in any order, so two orders
differ by at most twice this. Typically they differ by √n · eps · max |tᵢ|, since rounding errors
have both signs and partly cancel. The order may change between calls: a GPU adds up the gradients
of a repeated entry in the order in which its threads finish, and on a CPU the order can depend on
where an array lies in memory.
Source of the bound: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .numeric import largest

ROUNDINGS = 1024
"""Two results of the same call may differ by this many eps of the largest term: enough for a sum of
a million terms of both signs in the typical case, and for one of 32 terms in the worst case."""


def is_rounding(
    one: np.ndarray,
    other: np.ndarray,
    size: float,
    nearby: Callable[[], np.ndarray],
    elsewhere: Callable[[], list[np.ndarray]],
) -> bool:
    """Whether two results of the same call, which should be equal, differ only by rounding.

    size       roughly the largest term of the sums that give the result
    nearby     computes the result at inputs that are changed by √eps of their size
    elsewhere  computes the result in the other precision, float32 for float64 and vice versa, a
               few times, since two of these results may be equal by chance

    Rounding errors are small compared with the terms. If the terms cancel, the result does not show
    how large they are. Then one of two observations must show that it is rounding: moving the
    inputs changes the result a hundred times more than calling again, or the difference between two
    calls is roughly proportional to the eps of the precision in which they are computed.
    """
    if one.shape != other.shape:
        return False
    most = apart(one, other)
    eps = float(np.finfo(one.dtype).eps)
    if most <= ROUNDINGS * eps * size:
        return True

    # f is called again only if the results differ by more than this.
    try:
        if most <= 0.01 * largest(nearby() - one):
            return True
        first, *others = elsewhere()
    except Exception:  # whatever f raises, it was not asked about these inputs
        return False

    # f may compute in its own precision, whatever that of its inputs: then nothing excuses it.
    if first.dtype == one.dtype:
        return False

    # Differences by rounding are proportional to eps, those between random numbers do not depend on
    # it. The limit is halfway between the two ratios, on a logarithmic scale.
    there = max(apart(first, again) for again in others)
    halfway = (eps / float(np.finfo(first.dtype).eps)) ** 0.5
    return most <= halfway * there if halfway < 1 else there <= most / halfway


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between entries of two results; two NaN count as equal."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0, abs(one - other)).max(initial=0.0))
