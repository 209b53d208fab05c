"""Operations entry by entry. Two arguments broadcast; the wrapper sums the gradients back."""

from __future__ import annotations

from ..backend import Array, is_array, namespace
from ..operation import Pullback, operation


@operation
def add(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a + b.   da = dy, db = dy."""
    return a + b, lambda dy: (dy, dy)


@operation
def subtract(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a − b.   da = dy, db = −dy."""
    return a - b, lambda dy: (dy, -dy)


@operation
def multiply(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a · b.   da = dy · b, db = dy · a."""

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        return dy * b if wanted[0] else None, dy * a if wanted[1] else None

    return a * b, pullback


@operation
def divide(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = a / b.   da = dy / b, db = −dy · y / b."""
    y = a / b

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = dy / b
        return da if wanted[0] else None, -da * y if wanted[1] else None

    return y, pullback


@operation
def negative(x: Array) -> tuple[Array, Pullback]:
    """y = −x.   dx = −dy."""
    return -x, lambda dy: (-dy,)


@operation
def pow(a: Array, b: Array, *, wanted: tuple[bool, ...]) -> tuple[Array, Pullback]:
    """y = aᵇ.   da = dy · b · aᵇ⁻¹, db = dy · y · log a."""
    xp, y = namespace(a, b), a**b

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = db = None
        if wanted[0]:  # the power 0 has slope 0, though 0⁻¹ is infinite
            less = xp.where(b == 0, xp.ones_like(b), b - 1) if is_array(b) else b and b - 1
            da = dy * (b * a**less)
        if wanted[1]:  # 0 to a positive power stays 0, though log 0 is infinite
            base = a if is_array(a) else xp.full_like(b, a)
            db = dy * y * xp.log(xp.where(base == 0, xp.ones_like(base), base))
        return da, db

    return y, pullback


@operation
def exp(x: Array) -> tuple[Array, Pullback]:
    """y = eˣ.   dx = dy · y."""
    y = namespace(x).exp(x)
    return y, lambda dy: (dy * y,)


@operation
def log(x: Array) -> tuple[Array, Pullback]:
    """y = log x, the natural logarithm.   dx = dy / x."""
    return namespace(x).log(x), lambda dy: (dy / x,)


@operation
def sqrt(x: Array) -> tuple[Array, Pullback]:
    """y = √x.   dx = dy / (2 y)."""
    y = namespace(x).sqrt(x)
    return y, lambda dy: (dy / (2 * y),)


@operation
def tanh(x: Array) -> tuple[Array, Pullback]:
    """y = tanh x.   dx = dy · (1 − y²)."""
    y = namespace(x).tanh(x)
    return y, lambda dy: (dy * (1 - y * y),)


@operation
def where(condition: Array, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a where the boolean condition holds, b elsewhere.   Each gets dy where it was taken."""
    xp = namespace(condition, a, b)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        zero = xp.zeros_like(dy)
        return None, xp.where(condition, dy, zero), xp.where(condition, zero, dy)

    return xp.where(condition, a, b), pullback
