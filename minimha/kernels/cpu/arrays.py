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
    """Whether all arguments are NumPy arrays of the same dtype, float32 or float64, and x is not
    empty."""
    if type(x) is not Array or x.dtype not in FLOATS:
        return False
    for a in others:  # a loop, since all() of a generator takes twice as long
        if type(a) is not Array or a.dtype != x.dtype:
            return False
    return bool(x.size)


def contiguous(x: Array) -> Array:
    """x, or a copy if it is not row-major, aligned and writeable: kernels are compiled for such
    arrays alone."""
    return x if x.flags.carray else x.copy()


def in_memory(x: Array) -> tuple[Array, bool]:
    """The matrix x, or its transpose if that is the one in row-major order, and whether it is the
    transpose. If neither is in this order, x is copied."""
    transposed = x.flags.f_contiguous and not x.flags.c_contiguous
    return contiguous(x.T if transposed else x), transposed


def flat(x: Array) -> Array:
    """The entries of x as a contiguous array (size,), if possible a view."""
    return contiguous(x).ravel()


def as_rows(x: Array) -> Array:
    """x as a contiguous matrix (number of rows, length of the last axis), if possible a view."""
    return contiguous(x).reshape(-1, x.shape[-1])


def as_indices(x: Any, limit: int) -> Array | None:
    """A copy of x as one axis of int64, which later changes of x do not reach. None unless x is an
    array of integers from 0 to limit − 1, and not empty."""
    if type(x) is not Array or x.dtype.kind not in "iu" or not x.size:
        return None
    indices = x.astype(np.int64, order="C").reshape(-1)
    return indices if indices.min() >= 0 and indices.max() < limit else None


def in_chunks(count: int, nbytes: int) -> tuple[Any, ...]:
    """The argument `chunk` of a kernel, which stands for range(count) (see `parallel`): divided
    among threads if the arrays that the kernel reads or writes, of nbytes bytes, are large enough.
    """
    chunks = min(count, nbytes // _CHUNK)
    return whole(count, min(threads.number(), chunks) if chunks > 1 else 1)
