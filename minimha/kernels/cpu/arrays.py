"""What kernels are given: plain arrays, and pieces of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .. import threads
from .jit import kernel

Array = np.ndarray
FLOATS = np.dtype(np.float32), np.dtype(np.float64)
exact = functools.partial(kernel, fastmath={"contract", "nsz"})
"""As `kernel`, with roots and quotients as they should be: 1/√∞ is 0, its estimate would be NaN."""

in_any_order = functools.partial(kernel, fastmath={"contract", "nsz", "reassoc"}, forceinline=True)
"""Of a kernel that takes a sum, whose order is then the compiler's. Not for what splits off an
integer by adding a large number."""

_PIECE = 2**17  # bytes that are worth handing over to another thread


def floats(x: Any, *others: Any) -> bool:
    """Whether all are arrays of one of the `FLOATS`, x with entries."""
    if not all(type(a) is Array for a in (x, *others)):
        return False
    return bool(x.size) and x.dtype in FLOATS and all(a.dtype == x.dtype for a in others)


def plain(x: Array) -> Array:
    """x, or a copy where it is not contiguous, aligned and writeable: kernels are compiled once."""
    return x if x.flags.carray else x.copy()


def as_rows(x: Array) -> Array:
    """The same as (rows, width of the last axis)."""
    return plain(x).reshape(-1, x.shape[-1])


def shared(count: int, nbytes: int) -> tuple[Any, ...]:
    """range(count) for a kernel: threads share arrays of so many bytes."""
    return threads.part(count, min(threads.number(), count, nbytes // _PIECE))
