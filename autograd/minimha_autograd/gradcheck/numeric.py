"""Numeric derivatives of a function L of one host array x, entry by entry.

Both work on the host in NumPy, whatever library the function itself computes with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Loss = Callable[[np.ndarray], Any]


def central_difference(loss: Loss, x: np.ndarray, h: float) -> np.ndarray:
    """(L(x + h eₖ) − L(x − h eₖ)) / 2h.   Error: h² L'''/6 truncated, eps |L| / h rounded."""
    return _entrywise(lambda up, down: (loss(up) - loss(down)) / (2 * h), x, h, -h)


def complex_step(loss: Loss, x: np.ndarray) -> np.ndarray:
    """Im L(x + i h eₖ) / h with h = 1e-20.

    Nothing is subtracted, so nothing cancels: the error is that of L itself. It needs an analytic
    L, and is silently wrong where L drops an imaginary part (abs, a comparison, a cast).
    Source: Squire and Trapp, "Using complex variables to estimate derivatives of real functions",
    SIAM Review 40 (1998).
    """
    h = 1e-20
    z = x.astype(np.result_type(x.dtype, np.complex64))
    return _entrywise(lambda up: loss(up).imag / h, z, 1j * h).real


def _entrywise(derivative: Callable[..., Any], x: np.ndarray, *steps: complex) -> np.ndarray:
    result = np.empty(x.shape, dtype=np.result_type(x.dtype, np.float64))
    for k in np.ndindex(x.shape):
        moved = []
        for step in steps:
            y = x.copy()
            y[k] += step
            moved.append(y)
        result[k] = derivative(*moved)
    return result
