"""e^x in a form that LLVM compiles to vector instructions."""

from __future__ import annotations

import math

from numba import types
from numba.extending import overload
from numpy import float32, int32

from .jit import FAST, kernel

_LOG2E, _LN2 = float32(math.log2(math.e)), float32(math.log(2))
_SHIFT = float32(1.5 * 2**23 + 127)  # adding it rounds: floats of this size are 1 apart
_LOWEST, _ONE = float32(-127 * math.log(2)), float32(1)
_C2, _C3, _C4, _C5, _C6 = map(
    float32, (0.4999998808, 0.1666652858, 0.0416693240, 0.0083680302, 0.0013767987)
)  # e^f for |f| ≤ ½ ln 2, with a relative error of 4e-9


@kernel(forceinline=True)
def exp32(x):
    """e^x for a float32 x ≤ 88. The result is 0 for x below −87.7, where it would be a subnormal
    number, and NaN for NaN.

    e^x = 2^n e^f for x = n ln 2 + f with an integer n. A polynomial approximates e^f. Adding a
    large number, `_SHIFT`, to x / ln 2 rounds it to n, and the last bits of this sum are the
    exponent bits of 2^n as a float. The function calls no other, so LLVM compiles a loop over
    entries to vector instructions. The order of operations suits CPUs with fused multiply-add.
    """
    x = _LOWEST if x < _LOWEST else x  # NaN stays
    shifted = x * _LOG2E + _SHIFT
    f = x - (shifted - _SHIFT) * _LN2
    p = _ONE + f * (_ONE + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    power = int32(float32(shifted).view(int32) << int32(23)).view(float32)  # 2^n, 0 for n = −127
    return p * power


def exp(x):
    """e^x inside a kernel, by `exp32` for a float32 and by the C library for a float64."""


@overload(exp, jit_options={"fastmath": set(FAST), "error_model": "numpy"})
def _compiled(x):
    return (lambda x: exp32(x)) if x == types.float32 else (lambda x: math.exp(x))  # noqa: PLW0108
