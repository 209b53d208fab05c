"""2^x in a form that LLVM turns into vector instructions."""

from __future__ import annotations

import math

from numba import types
from numba.extending import overload
from numpy import float32, int32

from .jit import FAST, kernel

_SHIFT = float32(1.5 * 2**23)  # where the floats are the integers: adding it rounds
_LOG2E = float32(math.log2(math.e))
_LOWEST, _ONE, _ZERO = float32(-126), float32(1), float32(0)
_C1, _C2, _C3, _C4, _C5, _C6 = map(
    float32, (0.6931472028, 0.2402264792, 0.0555033247, 0.0096184374, 0.0013398874, 0.0001535336)
)  # 2^f for |f| ≤ ½, to 2e-9 of it


@kernel(forceinline=True)
def exp2(x):
    """2^x of a float32 up to 127; 0 below −126, where floats lose their digits; NaN of NaN.

    The nearest integer n is split off, the rest f goes through a polynomial, and 2^n is a float
    whose exponent is n. A loop over entries becomes vector code, with no call in it.
    """
    shifted = x + _SHIFT
    f = x - (shifted - _SHIFT)
    p = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    n = int32(float32(shifted).view(int32) + int32(127))  # the digits above n leave in the shift
    power = int32(int32(n) << int32(23)).view(float32)
    return _ZERO if x < _LOWEST else p * power


def exp(x):
    """e^x of a float32 up to 88, by `exp2`, or of a float64."""
    return exp2(x * _LOG2E) if type(x) is float32 else math.exp(x)


@overload(exp, jit_options={"fastmath": set(FAST), "error_model": "numpy"})
def _compiled(x):
    return (lambda x: exp2(x * _LOG2E)) if x == types.float32 else (lambda x: math.exp(x))  # noqa: PLW0108
