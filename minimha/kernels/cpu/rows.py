"""What softmax does to a row, in forms that LLVM turns into vector instructions by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int32

from .exp2 import exp
from .jit import FAST, kernel

_SIGN, _DIGITS, _LEAST = int32(31), int32(2**31 - 1), int32(-(2**31))


@kernel
def largest(row: Any) -> Any:
    """The largest entry; NaN if there is one.

    A maximum of floats does not become vector code, one of integers does: the bits of a float are
    those of an integer in the same order, but for negative ones, whose other bits are to be turned.
    """
    if row.itemsize == 4:
        best, bits = _LEAST, row.view(int32)
        for j in range(len(row)):
            x = bits[j]
            best = max(best, int32(x ^ int32(int32(x >> _SIGN) & _DIGITS)))
        return row.dtype.type(int32(best ^ int32(int32(best >> _SIGN) & _DIGITS)).view(np.float32))
    return row.max()


@kernel(fastmath={*FAST, "reassoc"})
def exp_less(row: Any, peak: Any) -> Any:
    """row <- exp(row - peak), for a peak that no entry exceeds. Returns the sum."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        x = exp(row[j] - peak)
        row[j] = x
        y += x
    return y


@kernel
def scale_by(row: Any, factor: Any) -> None:
    """row <- row · factor."""
    for j in range(len(row)):
        row[j] *= factor


@kernel(fastmath={*FAST, "reassoc"})
def is_finite(row: Any) -> bool:
    """Whether no entry is NaN or infinite: then x − x is 0 for all of them."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] - row[j]
    return y == 0


@kernel(fastmath={*FAST, "reassoc"})
def weighted(row: Any, other: Any) -> Any:
    """Σ row · other, in whatever order is fast: always the same for a length."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] * other[j]
    return y
