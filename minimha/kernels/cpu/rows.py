"""What softmax does to a row, in forms that LLVM turns into vector instructions by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import int32

from .exp2 import exp2
from .jit import FAST, kernel

_LOG2E = np.float32(1 / math.log(2))
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
def total(row: Any) -> Any:
    """The sum, in whatever order is fast: always the same for a length."""
    y = row.dtype.type(0)
    for j in range(len(row)):  # an iterator would keep it from becoming vector code
        y += row[j]
    return y


@kernel
def exp_less(row: Any, peak: Any) -> None:
    """row <- exp(row - peak), for a peak that no entry exceeds."""
    if row.itemsize == 4:
        for j in range(len(row)):
            row[j] = exp2((row[j] - peak) * _LOG2E)
    else:
        for j in range(len(row)):
            row[j] = math.exp(row[j] - peak)


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
    """Σ row · other."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] * other[j]
    return y
