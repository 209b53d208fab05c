"""What softmax does to a row, in forms that LLVM turns into vector instructions by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from .exp2 import exp
from .jit import FAST, kernel


@kernel
def largest(row: Any) -> Any:
    """The largest entry; NaN if there is one.

    A maximum of floats does not become vector code, one of integers does: the bits of a float are
    an integer in the same order, but for negative ones, where all bits but the sign are turned.
    """
    if row.itemsize == 4:
        return row.dtype.type(np.int32(_largest_bits(row.view(np.int32))).view(np.float32))
    return row.dtype.type(np.int64(_largest_bits(row.view(np.int64))).view(np.float64))


@kernel
def _largest_bits(bits: Any) -> Any:
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
