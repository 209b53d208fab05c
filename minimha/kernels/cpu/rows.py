"""What softmax does to a row, in forms that LLVM turns into vector instructions by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from .exp import exp
from .jit import FAST, kernel, widest_vectors


@kernel(forceinline=True)
def largest(row: Any) -> Any:
    """The largest entry; NaN if there is one, but for one with a sign where more than −∞ stands
    beside it: what is taken off each entry then leaves it NaN.

    A maximum of floats does not become vector code, one of integers does: the bits of floats
    without a sign are integers in the same order, and those of floats with one in the reverse.
    """
    widest_vectors()
    most = bits(row[0])
    for j in range(len(row)):
        most = max(most, bits(row[j]))
    if most >= 0:
        return of_bits(most)
    least = most
    for j in range(len(row)):
        least = min(least, bits(row[j]))
    y = of_bits(least)
    if y == -math.inf:  # among integers NaN with a sign is more
        for j in range(len(row)):
            if row[j] != -math.inf:
                return row[j]
    return y


def bits(x: Any) -> Any:
    """Those of a float, as an integer with a sign."""
    return x.view(f"i{x.itemsize}")


def of_bits(x: Any) -> Any:
    """The inverse."""
    return x.view(f"f{x.itemsize}")


@overload(bits, inline="always")
def _compiled_bits(x):
    if x == types.float32:
        return lambda x: np.float32(x).view(np.int32)
    return lambda x: np.float64(x).view(np.int64)


@overload(of_bits, inline="always")
def _compiled_of_bits(x):
    if x == types.int32:
        return lambda x: np.int32(x).view(np.float32)
    return lambda x: np.int64(x).view(np.float64)


@kernel
def bounds(first: Any, last: Any) -> tuple[int, int]:
    """The least of first and the largest of last; no less than that, where all rows are empty."""
    low, high = first[0], last[0]
    for i in range(len(first)):
        low, high = min(low, first[i]), max(high, last[i])
    return low, max(low, high)


@kernel(fastmath={*FAST, "reassoc"}, forceinline=True)
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
    widest_vectors()
    infinite = bits(row.dtype.type(math.inf))
    most = bits(row.dtype.type(0))
    for j in range(len(row)):
        most = max(most, bits(abs(row[j])))
    return most < infinite


@kernel(fastmath={*FAST, "reassoc"})
def weighted(row: Any, other: Any) -> Any:
    """Σ row · other, in whatever order is fast: always the same for a length."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] * other[j]
    return y
