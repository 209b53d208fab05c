"""What softmax does to a row, in forms that LLVM turns into vector instructions by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .exp import exp
from .jit import FAST, kernel, widest_vectors

_INFINITE_32 = int(np.float32(np.inf).view(np.int32))
_INFINITE_64 = int(np.float64(np.inf).view(np.int64))


@kernel
def largest(row: Any) -> Any:
    """The largest entry; NaN if there is one, but for one with a sign where more than −∞ stands
    beside it: what is taken off each entry then leaves it NaN.

    A maximum of floats does not become vector code, one of integers does: the bits of a float are
    an integer in the same order, but for negative ones, where all bits but the sign are turned.
    """
    if row.itemsize == 4:
        y = row.dtype.type(np.int32(_largest_bits(row.view(np.int32))).view(np.float32))
    else:
        y = row.dtype.type(np.int64(_largest_bits(row.view(np.int64))).view(np.float64))
    if y == -math.inf:  # in that order NaN with a sign is less
        for j in range(len(row)):
            if row[j] != -math.inf:
                return row[j]
    return y


@kernel
def _largest_bits(bits: Any) -> Any:
    widest_vectors()
    integer = bits.dtype.type
    sign, others = integer(8 * bits.itemsize - 1), integer(np.iinfo(bits.dtype).max)
    best = integer(np.iinfo(bits.dtype).min)
    for j in range(len(bits)):
        best = max(best, integer(bits[j] ^ integer(integer(bits[j] >> sign) & others)))
    return integer(best ^ integer(integer(best >> sign) & others))


@kernel
def bounds(first: Any, last: Any) -> tuple[int, int]:
    """The least of first and the largest of last; no less than that, where all rows are empty."""
    low, high = first[0], last[0]
    for i in range(len(first)):
        low, high = min(low, first[i]), max(high, last[i])
    return low, max(low, high)


@kernel(fastmath={*FAST, "reassoc"})
def exp_less(row: Any, peak: Any) -> Any:
    """row <- exp(row - peak), for a peak that no entry exceeds. Returns the sum."""
    widest_vectors()
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


@kernel
def is_finite(row: Any) -> bool:
    """Whether no entry is NaN or infinite: those have all bits of the exponent set. A sum of x − x,
    in any order, would be 0 to the compiler."""
    if row.itemsize == 4:
        return _largest_size(row.view(np.int32)) < _INFINITE_32
    return _largest_size(row.view(np.int64)) < _INFINITE_64


@kernel
def _largest_size(bits: Any) -> Any:
    integer = bits.dtype.type
    others, best = integer(np.iinfo(bits.dtype).max), integer(0)
    for j in range(len(bits)):
        best = max(best, integer(bits[j] & others))
    return best


@kernel(fastmath={*FAST, "reassoc"})
def weighted(row: Any, other: Any) -> Any:
    """Σ row · other, in whatever order is fast: always the same for a length."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] * other[j]
    return y
