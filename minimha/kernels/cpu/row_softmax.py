"""The steps of softmax on a row, in forms that LLVM compiles to vector instructions."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from .exp import exp
from .jit import kernel, reduction, widest_vectors


@kernel(forceinline=True)
def row_max(row):
    """The largest entry of a row, or NaN if an entry is NaN.

    If the sign bit of a NaN is set, the result may be another entry above −∞ instead; in exp(row −
    maximum), the entry of the NaN is NaN in either case. LLVM vectorises the maximum of integers,
    but not of floats, so the bits of the floats are compared as integers. These are in the same
    order as floats whose sign bit is 0, and in the reverse order if it is 1.
    """
    widest_vectors()
    most = _bits(row[0])
    for j in range(len(row)):
        most = max(most, _bits(row[j]))
    if most >= 0:
        return _from_bits(most)
    least = most
    for j in range(len(row)):
        least = min(least, _bits(row[j]))
    y = _from_bits(least)
    if y == -math.inf:  # as an integer, NaN with a sign is larger
        for j in range(len(row)):
            if row[j] != -math.inf:
                return row[j]
    return y


def _bits(x):
    """The bits of a float as a signed integer of the same width, inside a kernel."""


def _from_bits(x):
    """The float that has the bits of the integer x, inside a kernel: the inverse of `_bits`."""


@overload(_bits, inline="always")
def _compiled_bits(x):
    if x == types.float32:
        return lambda x: np.float32(x).view(np.int32)
    return lambda x: np.float64(x).view(np.int64)


@overload(_from_bits, inline="always")
def _compiled_from_bits(x):
    if x == types.int32:
        return lambda x: np.int32(x).view(np.float32)
    return lambda x: np.int64(x).view(np.float64)


@reduction
def exp_minus(row, peak):
    """Replace a row by exp(row − peak), for a peak that no entry exceeds. Returns the sum of the
    new row, whose terms are added in an order that is fast."""
    widest_vectors()
    y = row.dtype.type(0)
    for j in range(len(row)):
        x = exp(row[j] - peak)
        row[j] = x
        y += x
    return y


@kernel
def scale_by(row, factor):
    """Multiply a row by a factor, in place."""
    for j in range(len(row)):
        row[j] *= factor


@kernel
def is_finite(row):
    """Whether all entries of a row are finite: in NaN and ±∞, all bits of the exponent are 1. (A
    test whether the sum of all x − x is 0 would not work: the compiler simplifies this sum to 0.)
    """
    widest_vectors()
    infinite = _bits(row.dtype.type(math.inf))
    most = _bits(row.dtype.type(0))
    for j in range(len(row)):
        most = max(most, _bits(abs(row[j])))
    return most < infinite


@reduction
def dot(row, other):
    """The sum of the products row[j] · other[j]. The compiler chooses an order of the additions
    that is fast and depends only on the length of the row."""
    y = row.dtype.type(0)
    for j in range(len(row)):
        y += row[j] * other[j]
    return y
