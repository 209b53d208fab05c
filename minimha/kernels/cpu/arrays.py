"""Arrays in the form that kernels need."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import threads
from .parallel import whole

Array = np.ndarray
FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_CHUNK = 2**17  # bytes that justify another thread


def are_floats(x: Any, *others: Any) -> bool:
    """Whether all arguments are arrays of the same type, one of `FLOATS`, and x is not empty."""
    if type(x) is not Array or x.dtype not in FLOATS:
        return False
    for a in others:  # a loop, since all() of a generator takes twice as long
        if type(a) is not Array or a.dtype != x.dtype:
            return False
    return bool(x.size)


def contiguous(x: Array) -> Array:
    """x, or a copy if it is not contiguous, aligned and writeable: kernels are compiled for one
    layout."""
    return x if x.flags.carray else x.copy()


def in_memory(x: Array) -> tuple[Array, bool]:
    """The matrix x or its transpose, whichever is contiguous, and whether it is the transpose."""
    transposed = x.flags.f_contiguous and not x.flags.c_contiguous
    return contiguous(x.T if transposed else x), transposed


def flat(x: Array) -> Array:
    """The entries of x as one contiguous axis, (size,)."""
    return contiguous(x).ravel()


def as_rows(x: Array) -> Array:
    """x as a contiguous matrix (number of rows, length of the last axis)."""
    return contiguous(x).reshape(-1, x.shape[-1])


def as_indices(x: Any, limit: int) -> Array | None:
    """A flat copy as int64, independent of x; None unless x is an array of integers from 0 to
    limit − 1."""
    if type(x) is not Array or x.dtype.kind not in "iu" or not x.size:
        return None
    indices = x.astype(np.int64, order="C").reshape(-1)
    return indices if indices.min() >= 0 and indices.max() < limit else None


def in_chunks(count: int, nbytes: int) -> tuple[Any, ...]:
    """range(count) for a kernel, in chunks for several threads if the arrays have enough bytes."""
    chunks = min(count, nbytes // _CHUNK)
    return whole(count, min(threads.number(), chunks) if chunks > 1 else 1)
