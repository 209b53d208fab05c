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
    """x itself if it is row-major, aligned and writeable, otherwise a copy that is: kernels are
    compiled for such arrays alone."""
    return x if x.flags.carray else x.copy()


def in_memory(x: Array) -> tuple[Array, bool]:
    """Return (stored, transposed): the matrix x as it lies in memory, for kernels that read
    row-major arrays. `stored` is x, or the transpose of x if only that is in row-major order, and
    `transposed` says whether it is the transpose. If neither is in this order, `stored` is a copy
    of x."""
    transposed = x.flags.f_contiguous and not x.flags.c_contiguous
    return contiguous(x.T if transposed else x), transposed


def flat(x: Array) -> Array:
    """The entries of x as a contiguous array with one axis, (number of entries,): a view of x if
    possible, otherwise a copy."""
    return contiguous(x).ravel()


def as_rows(x: Array) -> Array:
    """x (…, M) as a contiguous matrix (number of rows, M): a view of x if possible, otherwise a
    copy."""
    return contiguous(x).reshape(-1, x.shape[-1])


def as_indices(x: Any, limit: int) -> Array | None:
    """A copy of the entries of x as an array of int64 with one axis; later changes of x do not
    change it. None unless x is a non-empty array of integers from 0 to limit − 1."""
    if type(x) is not Array or x.dtype.kind not in "iu" or not x.size:
        return None
    indices = x.astype(np.int64, order="C").reshape(-1)
    return indices if indices.min() >= 0 and indices.max() < limit else None


def in_chunks(count: int, nbytes: int) -> tuple[Any, ...]:
    """Make the argument `chunk` of a kernel that loops over range(count), as `parallel.whole` does:
    choose the number of chunks into which the threads divide this range.

    nbytes is the size of an array that the kernel reads or writes, or a multiple of it if each
    entry takes more work. A small array does not justify waking other threads, so one thread then
    computes the whole range.
    """
    chunks = min(count, nbytes // _CHUNK)
    return whole(count, min(threads.number(), chunks) if chunks > 1 else 1)
