"""Elementwise operations: functions of one array from a table of derivatives, then those of two.

Two arguments broadcast, but their pullbacks return gradients of the shape of y. Where an argument
was repeated, its gradient is the sum over the copies: the tape adds them up after each pullback
(`Node._fitted` in tape.py, with `unbroadcast` of backend.py).

By default an operation receives 16-bit floats as float32, and its value is rounded once. `native`
says when it receives them as they are: `always`, or for `alike` arrays, of one shape; `widened`
makes float32 of an array. See half.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import backend
from ..backend import Array, is_array, is_complex, is_floating, namespace
from ..half import alike, always, widened
from ..operation import Operation, Wanted, operation
from ..tape import Pullback
from .complex_step import absolute, real, sign
from .requirements import broadcasting


class _Function(NamedTuple):
    """A row of the table `_FUNCTIONS`: a function y = f(x), with dx = dy · f′(x)."""

    formula: str  # f(x), for the docstring
    derivative: str  # f′(x), likewise
    saved: str | None  # what f′ is computed from: "x", "y" where that is easier, or nothing
    slope: Callable[[Any], Any]  # f′, as a function of what is saved


# A new function of this kind needs a row here, a line below, and its name in `ops/__init__.py`.
_FUNCTIONS = {
    "negative": _Function("−x", "−1", None, lambda _: -1),
    "abs": _Function("|x|", "sign x, which is 0 at 0", "x", sign),
    "exp": _Function("eˣ", "y", "y", lambda y: y),
    "expm1": _Function("eˣ − 1, accurate near 0", "(y + 1)", "y", lambda y: y + 1),
    "log": _Function("log x, the natural logarithm", "1 / x", "x", lambda x: 1 / x),
    "log1p": _Function("log(1 + x), accurate near 0", "1 / (1 + x)", "x", lambda x: 1 / (1 + x)),
    "sqrt": _Function("√x", "1 / (2 y)", "y", lambda y: 1 / (2 * y)),
    "tanh": _Function("tanh x", "(1 − y²)", "y", lambda y: 1 - y * y),
    "sin": _Function("sin x", "cos x", "x", lambda x: namespace(x).cos(x)),
    "cos": _Function("cos x", "−sin x", "x", lambda x: -namespace(x).sin(x)),
    "erf": _Function(
        "2/√π ∫₀ˣ exp(−t²) dt",
        "2/√π · exp(−x²)",
        "x",
        lambda x: 2 / math.sqrt(math.pi) * namespace(x).exp(-x * x),
    ),
}

# The library's function of the same name computes y, except in these rows.
_OTHERWISE: dict[str, Callable[[Array], Array]] = {
    "abs": absolute,  # the standard's has no complex derivative
    "erf": backend.erf,  # the standard has none
}


def _unary(name: str) -> Operation:
    """The operation of this name, made from its row of the table `_FUNCTIONS`."""
    row = _FUNCTIONS[name]
    saves_x = row.saved == "x"
    saves_y = row.saved == "y"
    otherwise = _OTHERWISE.get(name)

    def function(x: Array) -> tuple[Array, Pullback]:
        value = otherwise or getattr(namespace(x), name)
        y = value(x)

        # What the pullback closes over is kept until backward(): here at most one array.
        saved = None
        if saves_x:
            saved = x
        elif saves_y:
            saved = y

        def pullback(dy: Array) -> tuple[Array]:
            # Looked up only here. If the pullback closed over f′, then at each call the tape would
            # search that function for arrays, too, to check later that none has changed.
            slope = _FUNCTIONS[name].slope
            return (dy * slope(saved),)

        return y, pullback

    # The wrapper takes the name, for messages and the registry, and the text from the function.
    function.__name__ = name
    function.__qualname__ = name
    function.__doc__ = f"y = {row.formula}.   dx = dy · {row.derivative}."

    # These change no more than a sign, which is exact in 16 bits, too.
    native = None
    if name in ("negative", "abs"):
        native = always
    lifted: Operation = operation(function, native=native)
    return lifted


# Written out rather than made in a loop, so that editors and type checkers know the names.
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

    # If b is a bias (M,) and dy is (B, T, M), the tape sums over B and T: see the top of the page.
    return y, lambda dy: (dy, dy)


@operation(requirement=broadcasting, native=alike)
def subtract(a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a − b.   da = dy, db = −dy."""
    y = a - b
    return y, lambda dy: (dy, -dy)


@operation(requirement=broadcasting)
def multiply(
    a: Array,
    b: Array,
    *,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
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
def divide(
    a: Array,
    b: Array,
    *,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
    """y = a / b.   da = dy / b, db = −dy · y / b."""
    y = a / b

    # Both gradients need b, but only db needs y.
    saved_y = None
    if wanted.b:
        saved_y = y

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        # Computed even if da is not wanted, because db = −(dy / b) · y contains it.
        da = dy / b
        db = None
        if saved_y is not None:
            db = -da * saved_y  # dy · (−a / b²), without a
        return da, db

    return y, pullback


@operation(requirement=broadcasting)
def pow(
    a: Array,
    b: Array,
    *,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
    """y = aᵇ.   da = dy · b · aᵇ⁻¹, 0 where b = 0;  db = dy · y · log a, 0 where a = 0 ≤ b."""
    xp = namespace(a, b)
    if is_array(a) and is_array(b) and not (is_floating(b) or is_complex(b)):
        b = xp.astype(b, a.dtype)  # b − 1 would leave the range of a narrow integer
    y = a**b

    # Each gradient needs both a and b, so the pullback keeps them anyway, but only db needs y.
    saved_y = None
    if wanted.b:
        saved_y = y

    # The tape searches what the pullback closes over for arrays: a boolean is faster to pass over
    # than the named tuple.
    wants_a = wanted.a

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        da = None
        db = None
        if wants_a:
            da = dy * _slope_of_power(a, b)
        if saved_y is not None:
            base = a
            if not is_array(a):
                base = xp.full_like(b, a)

            # 0 to a positive power stays 0, though log 0 is infinite: there, log 1 = 0 instead.
            stays = (base == 0) & (real(b) >= 0)
            log_base = xp.log(xp.where(stays, xp.ones_like(base), base))
            db = dy * saved_y * log_base
        return da, db

    return y, pullback


def _slope_of_power(a: Array, b: Array) -> Array:
    """The derivative b · aᵇ⁻¹ of aᵇ with respect to a: 0 where b = 0, also at a = 0, where 0 · 0⁻¹
    would be NaN."""
    if is_array(b):
        xp = namespace(b)
        slope = b * a ** (b - 1)
        return xp.where(b == 0, xp.zeros_like(slope), slope)

    # The common case: one exponent for all entries, as in x**2.
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
    """The value and the pullback of `maximum` if `larger` is true, else those of `minimum`."""
    xp = namespace(a, b)
    a, b = _as_arrays(a, b)
    real_a = real(a)
    real_b = real(b)
    a_wins = real_a > real_b if larger else real_a < real_b
    tie = real_a == real_b

    # No comparison with a NaN is true. So where b is NaN, it is chosen anyway.
    takes_a = a_wins | tie | xp.isnan(real_a)
    y = xp.where(takes_a, a, b)

    def pullback(dy: Array) -> tuple[Array, Array]:
        # Half of dy for each of two equal numbers: the mean of the slopes on both sides.
        of_tie = xp.where(tie, dy / 2, xp.zeros_like(dy))
        da = xp.where(a_wins, dy, of_tie)
        db = dy - da  # together they are dy
        return da, db

    return y, pullback


def _as_arrays(a: Any, b: Any) -> tuple[Array, Array]:
    """a and b as two arrays, where one of them may be a number."""
    if not is_array(a):
        a = _array_like(a, b)
    if not is_array(b):
        b = _array_like(b, a)
    return a, b


def _array_like(number: Any, other: Array) -> Array:
    """A number as an array without axes, in the library and on the device of `other`. It has
    the dtype of `other`; but for a number such as 0.5 beside integers the library chooses it."""
    # In the dtype of the other, unless that would truncate it: 0.5 beside integers stays 0.5.
    dtype = None
    if isinstance(number, int) or is_floating(other) or is_complex(other):
        dtype = other.dtype
    xp = namespace(other)
    return xp.asarray(
        number,
        dtype=dtype,  # None: the library chooses
        device=other.device,
    )


@operation(requirement=broadcasting, native=always)
def where(
    condition: Array,
    a: Array,
    b: Array,
) -> tuple[Array, Pullback]:
    """y = a where the boolean condition is True, else b.   Each gets dy where it was chosen.

    Raises TypeError for a condition that is not boolean.
    """
    backend.require(backend.is_boolean, condition, "condition")
    xp = namespace(condition)

    # Old versions of array-api-strict would make a number a float64.
    if is_array(a) or is_array(b):
        a, b = _as_arrays(a, b)

    y = xp.where(condition, a, b)

    # Only the condition is saved: the gradients depend on no entry of a or b.
    def pullback(dy: Array) -> tuple[Array | None, ...]:
        zero = xp.zeros_like(dy)
        da = xp.where(condition, dy, zero)
        db = xp.where(condition, zero, dy)
        return None, da, db  # booleans have no gradient

    return y, pullback


@operation(native=always)
def clip(
    x: Array,
    *,
    min: Any = None,
    max: Any = None,
) -> tuple[Array, Pullback]:
    """y = x limited to min ≤ y ≤ max.   dx = dy where min ≤ x ≤ max, else 0.

    min, max  numbers, arrays, or None for no bound; an array of floats must have the dtype of x
    """
    xp = namespace(x)
    low = _bound("min", min, x)
    high = _bound("max", max, x)

    # In float32, so that no bound is rounded to 16 bits before it is compared.
    before = widened(real(x))
    y = backend.clip(before, low, high)
    inside = y == before  # False for a NaN
    if is_complex(x):
        y = xp.where(inside, x, xp.astype(y, x.dtype))

    # The booleans are saved, which take less memory than x.
    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.where(inside, dy, xp.zeros_like(dy))
        return (dx,)

    return y, pullback


def _bound(name: str, bound: Any, x: Array) -> Any:
    """The bound of clip called `name`, "min" or "max"; one of 16-bit floats becomes float32. Raises
    TypeError for an array of floats whose dtype or library is not that of x."""
    # A bound is a setting, so the wrapper does not compare its dtype with that of x.
    if is_array(bound) and is_floating(bound) and is_floating(x):
        same_library = namespace(bound) is namespace(x)
        if not same_library or bound.dtype != x.dtype:
            fix = "convert one, nothing is converted silently"
            raise TypeError(f"{name} is {backend.described(bound)}: {fix}")
    return widened(bound)


@operation(converts=True, native=always)
def astype(x: Array, *, dtype: Any) -> tuple[Array, Pullback]:
    """y = x converted to dtype.   dx = dy in the dtype of x.

    dtype  a dtype of the library of x or of NumPy, or the name of one, such as "float32"

    No gradient flows to or from integers and booleans. Raises TypeError for a name that is not a
    dtype.
    """
    xp = namespace(x)
    dtype = backend.dtype(xp, dtype)  # the library's own, for any name of it
    y = xp.astype(x, dtype)

    # The tape rounds to 16 bits, after adding up all parts.
    before = x.dtype
    if backend.is_half(x):
        before = xp.float32

    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.astype(dy, before)
        return (dx,)

    return y, pullback
