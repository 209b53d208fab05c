"""When two arrays count as equal up to rounding, and by which factor they differ if they do not."""

from __future__ import annotations

from typing import Any

import numpy as np

MEASURED = {"float64": 1e-6, "float32": 1e-3}
"""The relative error that a numerical derivative may have, by dtype."""


def rounding(*arrays: np.ndarray) -> float:
    """Return the relative error to expect when numbers are added in another order: 1e-5 if any of
    the arrays is float32, otherwise 1e-11."""
    return 1e-5 if any(x.dtype == np.float32 for x in arrays) else 1e-11


def is_close(a: np.ndarray, b: np.ndarray, tolerance: float | None = None) -> bool:
    """Whether two arrays have the same shape and differ by at most the tolerance, relative to the
    largest finite entry of b: sums in another order round differently. NaN is equal to NaN.

    tolerance  by default `rounding` of the two arrays
    """
    if a.shape != b.shape or not {a.dtype.kind, b.dtype.kind} <= set("biufc"):
        return a.shape == b.shape and bool((a == b).all())
    relative = rounding(a, b) if tolerance is None else tolerance
    a, b = (x.astype(complex if x.dtype.kind == "c" else float) for x in (a, b))
    largest = np.max(abs(b), initial=0.0, where=np.isfinite(b))
    return np.allclose(a, b, rtol=0, atol=relative * largest, equal_nan=True)


def is_rounded(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of floats, which were computed in the same way, differ only by rounding.

    The difference of two entries is compared with the size of the entry plus the size of a small
    entry of b, the first decile of its sizes, since an entry near 0 may be the rounding error of
    larger terms that cancel. It is not compared with the largest entry, which may be a masked
    score, −1e9 or the lowest float.
    """
    if a.shape != b.shape:
        return False
    sizes = abs(b[np.isfinite(b) & (b != 0)])
    small = np.quantile(sizes, 0.1) if sizes.size else 0.0
    relative = rounding(a, b)
    return np.allclose(a, b, rtol=relative, atol=relative * small, equal_nan=True)


def factor(a: np.ndarray, b: np.ndarray, axis: int | None = None) -> Any:
    """Return the number c for which c · a is closest to b, in least squares, or with an axis one
    such number for each vector along this axis. The number is 0 if a is 0."""
    squares = (a * a).sum(axis=axis, keepdims=axis is not None)
    return (a * b).sum(axis=axis, keepdims=axis is not None) / np.where(squares == 0, 1, squares)
