"""Operations entry by entry. Two arguments broadcast; the wrapper sums the gradients back.

Complex numbers come only from the complex-step check, which reads a derivative off their imaginary
part: where an operation has to choose, the real part decides.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .. import backend
from ..backend import Array, beside, is_array, is_complex, is_floating, namespace, put, some
from ..operation import operation
from ..pullback import Pullback
from .fits import broadcasting


@operation(fits=broadcasting)
def add(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a + b.   da = dy, db = dy."""
    return a + b, lambda dy: (dy, dy)


@operation(fits=broadcasting)
def subtract(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a − b.   da = dy, db = −dy."""
    return a - b, lambda dy: (dy, -dy)


@operation(fits=broadcasting)
def multiply(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a · b.   da = dy · b, db = dy · a."""
    y = a * b
    a, b = a if wanted[1] else None, b if wanted[0] else None  # what no gradient needs may go
    return y, lambda dy: (None if b is None else dy * b, None if a is None else dy * a)


@operation(fits=broadcasting)
def divide(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a / b.   da = dy / b, db = −dy · y / b."""
    y = a / b
    ratio = y if wanted[1] else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = dy / b
        return da, None if ratio is None else -da * ratio

    return y, pullback


@operation
def negative(x: Array) -> tuple[Array, Pullback]:
    """y = −x.   dx = −dy."""
    return -x, lambda dy: (-dy,)


@operation(fits=broadcasting)
def pow(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = aᵇ.   da = dy · b · aᵇ⁻¹, db = dy · y · log a."""
    xp = namespace(a, b)
    if is_array(a) and is_array(b) and not (is_floating(b) or is_complex(b)):
        b = xp.astype(b, a.dtype)  # b − 1 would leave the range of a narrow integer
    y, wants_a = a**b, wanted[0]
    power = y if wanted[1] else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = db = None
        if wants_a:  # the power 0 has slope 0, though 0⁻¹ is infinite
            slope = b * a ** (b - 1) if is_array(b) or b else xp.zeros_like(a)
            da = dy * (xp.where(b == 0, xp.zeros_like(slope), slope) if is_array(b) else slope)
        if power is not None:  # 0 to a positive power stays 0, though log 0 is infinite
            base = a if is_array(a) else xp.full_like(b, a)
            real = xp.real(b) if is_complex(b) else b
            stays = (base == 0) & (real >= 0)
            db = dy * power * xp.log(xp.where(stays, xp.ones_like(base), base))
        return da, db

    return y, pullback


@operation
def abs(x: Array) -> tuple[Array, Pullback]:
    """y = |x|.   dx = dy · sign x, which is 0 at 0."""
    xp = namespace(x)
    if is_complex(x):
        sign = xp.astype(xp.sign(xp.real(x)), x.dtype)
        return x * sign, lambda dy: (dy * sign,)
    return xp.abs(x), lambda dy: (dy * namespace(x).sign(x),)


@operation
def exp(x: Array) -> tuple[Array, Pullback]:
    """y = eˣ.   dx = dy · y."""
    y = namespace(x).exp(x)
    return y, lambda dy: (dy * y,)


@operation
def expm1(x: Array) -> tuple[Array, Pullback]:
    """y = eˣ − 1, exact near 0.   dx = dy · (y + 1)."""
    y = namespace(x).expm1(x)
    return y, lambda dy: (dy * y + dy,)


@operation
def log(x: Array) -> tuple[Array, Pullback]:
    """y = log x, the natural logarithm.   dx = dy / x."""
    return namespace(x).log(x), lambda dy: (dy / x,)


@operation
def log1p(x: Array) -> tuple[Array, Pullback]:
    """y = log(1 + x), exact near 0.   dx = dy / (1 + x)."""
    return namespace(x).log1p(x), lambda dy: (dy / (x + beside(1, x)),)


@operation
def sqrt(x: Array) -> tuple[Array, Pullback]:
    """y = √x.   dx = dy / (2 y)."""
    y = namespace(x).sqrt(x)
    return y, lambda dy: (dy / (y + y),)


@operation
def tanh(x: Array) -> tuple[Array, Pullback]:
    """y = tanh x.   dx = dy · (1 − y²)."""
    y = namespace(x).tanh(x)
    return y, lambda dy: (dy - dy * y * y,)


@operation
def sin(x: Array) -> tuple[Array, Pullback]:
    """y = sin x.   dx = dy · cos x."""
    return namespace(x).sin(x), lambda dy: (dy * namespace(x).cos(x),)


@operation
def cos(x: Array) -> tuple[Array, Pullback]:
    """y = cos x.   dx = −dy · sin x."""
    return namespace(x).cos(x), lambda dy: (dy * -namespace(x).sin(x),)


@operation
def erf(x: Array) -> tuple[Array, Pullback]:
    """y = 2/√π ∫₀ˣ exp(−t²) dt.   dx = dy · 2/√π · exp(−x²)."""
    xp = namespace(x)
    return backend.erf(x), lambda dy: (dy * xp.exp(-x * x) * (2 / math.sqrt(math.pi)),)


@operation(fits=broadcasting)
def maximum(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = the larger of a and b.   It gets dy; where a = b, each gets half."""
    return _choice(operator.gt, a, b, wanted)


@operation(fits=broadcasting)
def minimum(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = the smaller of a and b.   It gets dy; where a = b, each gets half."""
    return _choice(operator.lt, a, b, wanted)


def _choice(
    beats: Callable[[Array, Array], Array], a: Array, b: Array, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    xp = namespace(a, b)
    if type(a) is not type(b):  # one is a number
        a, b = _beside(a, b), _beside(b, a)
    if is_complex(a) or is_complex(b):
        a, b = (x if is_complex(x) else x + 0j for x in (a, b))
        real_a, real_b = xp.real(a), xp.real(b)
        y = xp.where(beats(real_a, real_b) | (real_a == real_b), a, b)
    else:
        real_a, real_b = a, b
        y = getattr(xp, "maximum" if beats is operator.gt else "minimum")(a, b)
    tie = some(real_a == real_b)
    a_wins = beats(real_a, real_b) if wanted[0] else None
    b_wins = beats(real_b, real_a) if wanted[1] else None

    return y, lambda dy: (_share(dy, a_wins, tie), _share(dy, b_wins, tie))


def _share(dy: Array, mask: Array | None, tie: Array | None = None) -> Array | None:
    """dy where the mask holds, half of it where there is a tie, 0 elsewhere."""
    if mask is None:
        return None
    dx = put(namespace(dy).zeros_like(dy), mask, dy)
    return dx if tie is None else put(dx, tie, dy * beside(0.5, dy))


def _beside(x: Any, other: Array) -> Array:
    """A number as an array that meets the other: of its dtype, unless that would cut it short."""
    if is_array(x):
        return x
    fits = isinstance(x, int) or is_floating(other) or is_complex(other)
    dtype = other.dtype if fits else None
    return namespace(other).asarray(x, dtype=dtype, device=other.device)


@operation(fits=broadcasting)
def where(
    condition: Array, a: Array, b: Array, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = a where the boolean condition holds, b elsewhere.   Each gets dy where it was taken.

    Raises TypeError for a condition that is not boolean.
    """
    backend.require(backend.is_boolean, condition, "condition")
    xp = namespace(condition)
    if type(a) is not type(b) and is_array(a) != is_array(
        b
    ):  # the oldest array-api-strict makes a float64 of a number
        a, b = _beside(a, b), _beside(b, a)

    to_a, to_b = condition if wanted[1] else None, ~condition if wanted[2] else None
    y = xp.where(condition, a, b)
    return y, lambda dy: (None, _share(dy, to_a), _share(dy, to_b))


@operation
def clip(x: Array, *, min: float | None = None, max: float | None = None) -> tuple[Array, Pullback]:
    """y = x kept between two numbers, or on one side of one.   dx = dy where min ≤ x ≤ max."""
    xp, two_parts = namespace(x), is_complex(x)
    real = xp.real(x) if two_parts else x
    y = xp.clip(real, min, max)
    inside = y == real
    if two_parts:
        y = xp.where(inside, x, xp.astype(y, x.dtype))
    return y, lambda dy: (_share(dy, inside),)


@operation(converts=True)
def astype(x: Array, *, dtype: Any) -> tuple[Array, Pullback]:
    """y = x in another dtype, given as such, by name or as NumPy's.   dx = dy in the dtype of x.

    Nothing flows back from integers and booleans. Raises TypeError for a name that is no dtype.
    """
    xp, before = namespace(x), x.dtype
    dtype = backend.dtype(xp, dtype)
    return xp.astype(x, dtype), lambda dy: (xp.astype(dy, before),)
