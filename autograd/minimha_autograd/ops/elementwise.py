"""Elementwise operations. Two arguments broadcast; the wrapper sums their gradients back.

Complex numbers come only from the complex-step check, which reads a derivative off their imaginary
part: where an operation has to choose, the real part decides.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from .. import backend
from ..backend import Array, is_array, is_complex, is_floating, namespace
from ..half import alike, always, widened
from ..operation import Operation, Wanted, operation
from ..tape import Pullback
from .requirements import broadcasting


def _real(x: Array) -> Array:
    return namespace(x).real(x) if is_complex(x) else x


def _sign(x: Array) -> Array:
    xp = namespace(x)
    return xp.astype(xp.sign(_real(x)), x.dtype)


# y = f(x) and its derivative f′(x)
_FUNCTIONS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "negative": ("−x", "−1", lambda _: -1),
    "abs": ("|x|", "sign x, which is 0 at 0", _sign),
    "exp": ("eˣ", "y", lambda y: y),
    "expm1": ("eˣ − 1, accurate near 0", "(y + 1)", lambda y: y + 1),
    "log": ("log x, the natural logarithm", "1 / x", lambda x: 1 / x),
    "log1p": ("log(1 + x), accurate near 0", "1 / (1 + x)", lambda x: 1 / (1 + x)),
    "sqrt": ("√x", "1 / (2 y)", lambda y: 1 / (2 * y)),
    "tanh": ("tanh x", "(1 − y²)", lambda y: 1 - y * y),
    "sin": ("sin x", "cos x", lambda x: namespace(x).cos(x)),
    "cos": ("cos x", "−sin x", lambda x: -namespace(x).sin(x)),
    "erf": (
        "2/√π ∫₀ˣ exp(−t²) dt",
        "2/√π · exp(−x²)",
        lambda x: 2 / math.sqrt(math.pi) * namespace(x).exp(-x * x),
    ),
}

# Those that the standard lacks or computes differently.
_OTHERWISE: dict[str, Callable[[Array], Array]] = {
    "abs": lambda x: _sign(x) * x if is_complex(x) else namespace(x).abs(x),
    "erf": backend.erf,
}


def _unary(name: str) -> Operation:
    """An operation from the table, which saves what its derivative needs: x, y, or nothing."""
    formula, derivative, slope = _FUNCTIONS[name]
    (argument,) = inspect.signature(slope).parameters
    otherwise = _OTHERWISE.get(name)

    def function(x: Array) -> tuple[Array, Pullback]:
        y = (otherwise or getattr(namespace(x), name))(x)
        saved = None
        if argument == "x":
            saved = x
        elif argument == "y":
            saved = y

        def pullback(dy: Array) -> tuple[Array]:
            # Looked up again, since guarding a function in the closure takes longer.
            _, _, slope = _FUNCTIONS[name]
            return (dy * slope(saved),)

        return y, pullback

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"y = {formula}.   dx = dy · {derivative}."
    is_exact = name in ("negative", "abs")
    lifted: Operation = operation(function, native=always if is_exact else None)
    return lifted


negative, abs, exp, expm1 = map(_unary, ("negative", "abs", "exp", "expm1"))
log, log1p, sqrt, tanh = map(_unary, ("log", "log1p", "sqrt", "tanh"))
sin, cos, erf = map(_unary, ("sin", "cos", "erf"))


@operation(requirement=broadcasting, native=alike)
def add(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a + b.   da = dy, db = dy."""
    return backend.add(a, b), lambda dy: (dy, dy)


@operation(requirement=broadcasting, native=alike)
def subtract(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a − b.   da = dy, db = −dy."""
    return a - b, lambda dy: (dy, -dy)


@operation(requirement=broadcasting)
def multiply(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = a · b.   da = dy · b, db = dy · a."""
    y = a * b

    # Free what no gradient needs.
    saved_a = a if wanted.b else None
    saved_b = b if wanted.a else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None if saved_b is None else dy * saved_b
        db = None if saved_a is None else dy * saved_a
        return da, db

    return y, pullback


@operation(requirement=broadcasting)
def divide(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = a / b.   da = dy / b, db = −dy · y / b."""
    y = a / b
    saved_y = y if wanted.b else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = dy / b
        db = None if saved_y is None else -da * saved_y
        return da, db

    return y, pullback


@operation(requirement=broadcasting)
def pow(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = aᵇ.   da = dy · b · aᵇ⁻¹, 0 where b = 0;  db = dy · y · log a, 0 where a = 0 ≤ b."""
    xp = namespace(a, b)
    if is_array(a) and is_array(b) and not (is_floating(b) or is_complex(b)):
        b = xp.astype(b, a.dtype)  # b − 1 would leave the range of a narrow integer
    y = a**b
    wants_a = wanted.a
    saved_y = y if wanted.b else None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = db = None
        if wants_a:
            # The power 0 has slope 0, though 0⁻¹ is infinite.
            slope = b * a ** (b - 1) if is_array(b) or b else xp.zeros_like(a)
            if is_array(b):
                slope = xp.where(b == 0, xp.zeros_like(slope), slope)
            da = dy * slope
        if saved_y is not None:
            # 0 to a positive power stays 0, though log 0 is infinite.
            base = a if is_array(a) else xp.full_like(b, a)
            real = xp.real(b) if is_complex(b) else b
            stays = (base == 0) & (real >= 0)
            db = dy * saved_y * xp.log(xp.where(stays, xp.ones_like(base), base))
        return da, db

    return y, pullback


@operation(requirement=broadcasting)
def maximum(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = max(a, b).   The larger one gets dy; where a = b, each gets dy / 2."""
    return _choice(a, b, larger=True)


@operation(requirement=broadcasting)
def minimum(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = min(a, b).   The smaller one gets dy; where a = b, each gets dy / 2."""
    return _choice(a, b, larger=False)


def _choice(a: Array, b: Array, larger: bool) -> tuple[Array, Pullback]:
    xp = namespace(a, b)
    a, b = _array_like(a, b), _array_like(b, a)
    real_a, real_b = _real(a), _real(b)
    a_wins = real_a > real_b if larger else real_a < real_b
    tie = real_a == real_b
    y = xp.where(a_wins | tie | xp.isnan(real_a), a, b)  # a NaN in b makes no comparison true

    def pullback(dy: Array) -> tuple[Array, Array]:
        da = xp.where(a_wins, dy, xp.where(tie, dy / 2, xp.zeros_like(dy)))
        return da, dy - da

    return y, pullback


def _array_like(x: Any, other: Array) -> Array:
    """A number as an array for use with the other: of its dtype, unless that would truncate it."""
    if is_array(x):
        return x
    exact = isinstance(x, int) or is_floating(other) or is_complex(other)
    dtype = other.dtype if exact else None
    return namespace(other).asarray(x, dtype=dtype, device=other.device)


@operation(requirement=broadcasting, native=always)
def where(condition: Array, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a where the boolean condition is True, else b.   Each gets dy where it was chosen.

    Raises TypeError for a condition that is not boolean.
    """
    backend.require(backend.is_boolean, condition, "condition")
    xp = namespace(condition)

    # Old versions of array-api-strict would make a number a float64.
    if is_array(a) or is_array(b):
        a, b = _array_like(a, b), _array_like(b, a)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        zero = xp.zeros_like(dy)
        da = xp.where(condition, dy, zero)
        db = xp.where(condition, zero, dy)
        return None, da, db

    return xp.where(condition, a, b), pullback


@operation(native=always)
def clip(x: Array, *, min: Any = None, max: Any = None) -> tuple[Array, Pullback]:
    """y = x limited to min ≤ y ≤ max; either bound may be None.   dx = dy where min ≤ x ≤ max, else
    0. Bounds may also be arrays; those of floats must have the dtype of x."""
    xp = namespace(x)
    real = widened(_real(x))
    y = backend.clip(real, _bound("min", min, x), _bound("max", max, x))
    inside = y == real
    if is_complex(x):
        y = xp.where(inside, x, xp.astype(y, x.dtype))
    return y, lambda dy: (xp.where(inside, dy, xp.zeros_like(dy)),)


def _bound(name: str, bound: Any, x: Array) -> Any:
    if is_array(bound) and is_floating(bound) and is_floating(x):
        same_library = namespace(bound) is namespace(x)
        if not same_library or bound.dtype != x.dtype:
            fix = "convert one, nothing is converted silently"
            raise TypeError(f"{name} is {backend.described(bound)}: {fix}")
    return widened(bound)


@operation(converts=True, native=always)
def astype(x: Array, *, dtype: Any) -> tuple[Array, Pullback]:
    """y = x in another dtype of its library, also by name or NumPy's.   dx = dy in the dtype of x.

    Integers and booleans have no gradient. Raises TypeError for a name that is not a dtype.
    """
    xp = namespace(x)
    dtype = backend.dtype(xp, dtype)

    # The tape rounds to 16 bits, after adding up all parts.
    before = xp.float32 if backend.is_half(x) else x.dtype
    return xp.astype(x, dtype), lambda dy: (xp.astype(dy, before),)
