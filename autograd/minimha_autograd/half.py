"""16-bit floats: operations compute in 32 bits and round each result once.

float16 has 11 significant bits, and its largest number is 65,504; bfloat16 has 8 significant bits.
In float16, 400² is infinite. A sum of ones stops growing at 2048 in float16, and at 256 in
bfloat16. So the wrapper around every operation, `operation`, gives its function arrays of float32
and rounds the values once. The tape rounds a gradient once, after all its parts have been added up.

Some operations are *native*: their functions receive the 16-bit arrays themselves. The predicates
`always`, `alike` and `on_device` say when. Their pullbacks do not round: they only move entries of
the cotangent or change signs, or they return float32. Only products of matrices on a device round
each part of a gradient.

*Mixed precision* is the opposite: the arrays are float32, and inside `bfloat16_products` only
matrix products use 16 bits, where a GPU gains most. Their factors are rounded to bfloat16, and
their results become float32 again. All other operations compute in float32 as before.
Source: Micikevicius et al., "Mixed Precision Training" (2018), and Kalamkar et al., "A Study of
BFLOAT16 for Deep Learning Training" (2019).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from . import backend
from .backend import Array, namespace


def widened(x: Any) -> Any:
    """Convert an array of 16-bit floats to float32; return anything else unchanged."""
    if not backend.is_half(x):
        return x
    xp = namespace(x)
    return xp.astype(x, xp.float32)


def rounded(x: Any, dtype: Any) -> Any:
    """Round an array of float32 to a dtype of 16 bits; return anything else unchanged."""
    if not backend.is_array(x):
        return x
    xp = namespace(x)
    if x.dtype != xp.float32:
        return x  # of 16 bits already, or integers
    return xp.astype(x, dtype)


def rounded_like(x: Any, other: Array) -> Any:
    """Round x, an array of float32, to the dtype of `other`, an array of 16-bit floats of the same
    library. Return x unchanged if either is anything else."""
    if type(x) is type(other) and backend.is_half(other):
        return rounded(x, other.dtype)
    return x


def in_float32(function: Callable[..., Any], *arrays: Any) -> tuple[Any, Callable[..., Any]]:
    """Call function(*arrays), which returns a value, or a tuple of values, and its pullback, and
    return both. If any of the arrays has 16-bit floats, the function receives float32 instead. Its
    values are then rounded to 16 bits once; the gradients stay float32, and the tape rounds
    them."""
    halves = [x for x in arrays if backend.is_half(x)]
    if not halves:
        return function(*arrays)
    dtype = halves[0].dtype

    value, pullback = function(*map(widened, arrays))
    if type(value) is tuple:
        value = tuple([rounded(y, dtype) for y in value])
    else:
        value = rounded(value, dtype)
    return value, of_wide(pullback)


def of_wide(pullback: Callable[..., Any]) -> Callable[..., Any]:
    """A function that converts 16-bit cotangents to float32 and passes them to the pullback."""
    return lambda *dys: pullback(*map(widened, dys))


def always(*_: Any) -> bool:
    """True, whatever the arguments are. With this predicate an operation is always native, that
    is, it receives 16-bit floats as they are: it only moves or selects entries, or changes their
    sign, or converts them to float32 itself."""
    return True


def alike(*arrays: Any) -> bool:
    """Whether all arguments are arrays of one shape: then sums and differences are native, that is,
    receive 16-bit floats as they are. They round once, and their gradients are the cotangent or its
    negative.

    Sums and differences of other arguments are computed in float32: a number beside an array would
    otherwise be rounded itself, and the gradients of arrays that broadcast are not the cotangent,
    but sums of its entries. Products are not native even for one shape, since their gradients would
    be rounded before they are added to others.
    """
    shapes = [x.shape for x in arrays if backend.is_array(x)]
    no_number = len(shapes) == len(arrays)
    return no_number and len(set(shapes)) == 1


def on_device(*arrays: Array) -> bool:
    """Whether no argument is an array on the host: then matrix products are native, that is,
    receive 16-bit floats as they are. A GPU multiplies 16-bit matrices several times faster than
    float32 ones, and adds up the products in float32."""
    return not any(backend.is_array(x) and backend.on_host(x) for x in arrays)


_rounds_products = ContextVar("bfloat16_products", default=False)
"""Whether a `bfloat16_products` block is open."""


@contextlib.contextmanager
def bfloat16_products() -> Iterator[None]:
    """Within the `with` block, products of float32 matrices on a device round their factors to
    bfloat16. So do the pullbacks of these products, even if they are called after the block.

    Untried on a GPU. Raises ImportError without ml_dtypes, which defines bfloat16.
    """
    importlib.import_module("ml_dtypes")
    token = _rounds_products.set(True)  # remembers what was set before, so that blocks may nest
    try:
        yield
    finally:
        _rounds_products.reset(token)


def rounds_factors(x: Array) -> bool:
    """Whether a matrix product that has x as a factor rounds its factors to bfloat16: inside
    `bfloat16_products`, if x is an array of float32 on a device."""
    return _rounds_products.get() and not backend.on_host(x) and x.dtype == namespace(x).float32


def around_products(x: Array) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Two functions, to apply to the factors and to the result of a product that has x as a factor.

    If `rounds_factors(x)`, the first rounds a factor to bfloat16, and the second converts the
    result back to float32; otherwise they change nothing.
    """
    if rounds_factors(x):
        return in_bfloat16, widened
    return unchanged, unchanged


def in_bfloat16(x: Any) -> Any:
    """An array of float32 rounded to bfloat16; anything else, such as None, unchanged."""
    if not backend.is_array(x):
        return x
    return rounded(x, backend.dtype(namespace(x), "bfloat16"))


def unchanged(x: Any) -> Any:
    """Return x unchanged."""
    return x


def with_bfloat16(function: Callable[..., Any], *arrays: Any) -> tuple[Any, Callable[..., Any]]:
    """The value and the pullback of a function that multiplies matrices, with factors in bfloat16.

    function  returns a value, or a tuple of values, and their pullback
    arrays    float32; the function receives them as bfloat16, and its pullback receives the
              cotangents as bfloat16

    The values and the gradients are converted back to float32.
    """
    value, pullback = function(*map(in_bfloat16, arrays))
    value = tuple(map(widened, value)) if type(value) is tuple else widened(value)

    def wide_pullback(*dys: Array | None) -> tuple[Any, ...]:
        gradients = pullback(*map(in_bfloat16, dys))
        return tuple(map(widened, gradients))

    return value, wide_pullback
