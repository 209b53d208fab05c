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
    if is_complex(x):
        return namespace(x).real(x)
    return x


def _sign(x: Array) -> Array:
    xp = namespace(x)  # whose sign of a complex z is z / |z|
    return xp.astype(xp.sign(_real(x)), x.dtype)


def _abs(x: Array) -> Array:
    # The standard's |a + ih| has no derivative; this one is analytic away from a = 0.
    if is_complex(x):
        return _sign(x) * x
    return namespace(x).abs(x)


# For each name y = f(x), its derivative f′(x) as a text, and as a function: of y if that is easier
# than of x, or of neither.
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
_OTHERWISE: dict[str, Callable[[Array], Array]] = {"abs": _abs, "erf": backend.erf}


def _unary(name: str) -> Operation:
    """An operation from the table, which saves what its derivative needs: x, y, or nothing."""
    formula, derivative, slope = _FUNCTIONS[name]
    (argument,) = inspect.signature(slope).parameters  # "x", "y" or "_"
    otherwise = _OTHERWISE.get(name)

    def function(x: Array) -> tuple[Array, Pullback]:
        value = otherwise or getattr(namespace(x), name)
        y = value(x)

        # Save no more than that: what is saved is kept until backward().
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

    # The wrapper takes the name, for messages and the registry, and the text from the function.
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"y = {formula}.   dx = dy · {derivative}."

    # These change no more than a sign, which is exact in 16 bits, too.
    native = None
    if name in ("negative", "abs"):
        native = always
    lifted: Operation = operation(function, native=native)
    return lifted


negative = _unary("negative")
abs = _unary("abs")
exp = _unary("exp")
expm1 = _unary("expm1")
log = _unary("log")
log1p = _unary("log1p")
sqrt = _unary("sqrt")
tanh = _unary("tanh")
sin = _unary("sin")
cos = _unary("cos")
erf = _unary("erf")


@operation(requirement=broadcasting, native=alike)
def add(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a + b.   da = dy, db = dy."""
    y = backend.add(a, b)
    return y, lambda dy: (dy, dy)  # the wrapper sums where an array was repeated


@operation(requirement=broadcasting, native=alike)
def subtract(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a − b.   da = dy, db = −dy."""
    y = a - b
    return y, lambda dy: (dy, -dy)


@operation(requirement=broadcasting)
def multiply(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = a · b.   da = dy · b, db = dy · a."""
    y = a * b

    # Each gradient needs the other factor, which is freed if that gradient is not wanted.
    saved_a = None
    saved_b = None
    if wanted.b:
        saved_a = a
    if wanted.a:
        saved_b = b

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None
        db = None
        if saved_b is not None:
            da = dy * saved_b
        if saved_a is not None:
            db = dy * saved_a
        return da, db

    return y, pullback


@operation(requirement=broadcasting)
def divide(a: Array, b: Array, *, wanted: Wanted) -> tuple[Array, Pullback]:
    """y = a / b.   da = dy / b, db = −dy · y / b."""
    y = a / b
    saved_y = None
    if wanted.b:
        saved_y = y

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = dy / b
        db = None
        if saved_y is not None:
            db = -da * saved_y  # dy · (−a / b²), without a
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
    saved_y = None
    if wanted.b:
        saved_y = y

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None
        db = None
        if wants_a:
            da = dy * _slope_of_power(a, b)
        if saved_y is not None:
            # 0 to a positive power stays 0, though log 0 is infinite.
            base = a if is_array(a) else xp.full_like(b, a)
            stays = (base == 0) & (_real(b) >= 0)
            log_base = xp.log(xp.where(stays, xp.ones_like(base), base))
            db = dy * saved_y * log_base
        return da, db

    return y, pullback


def _slope_of_power(a: Array, b: Array) -> Array:
    """b · aᵇ⁻¹, and 0 where b = 0, though 0⁻¹ is infinite."""
    if is_array(b):
        xp = namespace(b)
        slope = b * a ** (b - 1)
        return xp.where(b == 0, xp.zeros_like(slope), slope)
    if b == 0:
        return namespace(a).zeros_like(a)
    return b * a ** (b - 1)


@operation(requirement=broadcasting)
def maximum(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = max(a, b).   The larger one gets dy; where a = b, each gets dy / 2."""
    return _choice(a, b, larger=True)


@operation(requirement=broadcasting)
def minimum(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = min(a, b).   The smaller one gets dy; where a = b, each gets dy / 2."""
    return _choice(a, b, larger=False)


def _choice(a: Array, b: Array, larger: bool) -> tuple[Array, Pullback]:
    """The larger or the smaller number of each pair."""
    xp = namespace(a, b)
    a, b = _as_arrays(a, b)
    real_a = _real(a)
    real_b = _real(b)
    a_wins = real_a > real_b if larger else real_a < real_b
    tie = real_a == real_b

    # No comparison with a NaN is true. So where b is NaN, it is chosen anyway.
    takes_a = a_wins | tie | xp.isnan(real_a)
    y = xp.where(takes_a, a, b)

    def pullback(dy: Array) -> tuple[Array, Array]:
        # Half of dy for each of two equal numbers: the mean of the slopes on both sides.
        of_tie = xp.where(tie, dy / 2, xp.zeros_like(dy))
        da = xp.where(a_wins, dy, of_tie)
        return da, dy - da  # together they are dy

    return y, pullback


def _as_arrays(a: Any, b: Any) -> tuple[Array, Array]:
    """Two arrays, where one of the two may have been a number."""
    if not is_array(a):
        a = _array_like(a, b)
    if not is_array(b):
        b = _array_like(b, a)
    return a, b


def _array_like(number: Any, other: Array) -> Array:
    """A number as an array for use with the other: of its dtype, unless that would truncate it."""
    dtype = None
    if isinstance(number, int) or is_floating(other) or is_complex(other):
        dtype = other.dtype
    return namespace(other).asarray(number, dtype=dtype, device=other.device)


@operation(requirement=broadcasting, native=always)
def where(condition: Array, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a where the boolean condition is True, else b.   Each gets dy where it was chosen.

    Raises TypeError for a condition that is not boolean.
    """
    backend.require(backend.is_boolean, condition, "condition")
    xp = namespace(condition)

    # Old versions of array-api-strict would make a number a float64.
    if is_array(a) or is_array(b):
        a, b = _as_arrays(a, b)

    y = xp.where(condition, a, b)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        zero = xp.zeros_like(dy)
        da = xp.where(condition, dy, zero)
        db = xp.where(condition, zero, dy)
        return None, da, db  # booleans have no gradient

    return y, pullback


@operation(native=always)
def clip(x: Array, *, min: Any = None, max: Any = None) -> tuple[Array, Pullback]:
    """y = x limited to min ≤ y ≤ max; either bound may be None.   dx = dy where min ≤ x ≤ max, else
    0. Bounds may also be arrays; an array of floats must have the dtype of x."""
    xp = namespace(x)
    real = widened(_real(x))  # float32, so that no bound is rounded before it is compared
    low = _bound("min", min, x)
    high = _bound("max", max, x)
    y = backend.clip(real, low, high)
    inside = y == real  # False for a NaN
    if is_complex(x):
        y = xp.where(inside, x, xp.astype(y, x.dtype))

    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.where(inside, dy, xp.zeros_like(dy))
        return (dx,)

    return y, pullback


def _bound(name: str, bound: Any, x: Array) -> Any:
    """A bound of clip, checked here: it is a setting, whose dtype the wrapper does not check."""
    if is_array(bound) and is_floating(bound) and is_floating(x):
        same_library = namespace(bound) is namespace(x)
        if not same_library or bound.dtype != x.dtype:
            fix = "convert one, nothing is converted silently"
            raise TypeError(f"{name} is {backend.described(bound)}: {fix}")
    return widened(bound)  # to the dtype that it is compared in


@operation(converts=True, native=always)
def astype(x: Array, *, dtype: Any) -> tuple[Array, Pullback]:
    """y = x in another dtype of its library, also by name or NumPy's.   dx = dy in the dtype of x.

    Integers and booleans have no gradient. Raises TypeError for a name that is not a dtype.
    """
    xp = namespace(x)
    dtype = backend.dtype(xp, dtype)  # the library's own, for any name of it

    # The tape rounds to 16 bits, after adding up all parts.
    before = xp.float32 if backend.is_half(x) else x.dtype

    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.astype(dy, before)
        return (dx,)

    return xp.astype(x, dtype), pullback
