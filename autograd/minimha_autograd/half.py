"""16-bit floats: operations compute in 32 bits and round each result once.

float16 keeps 11 significant bits and ends at 65,504, bfloat16 keeps 8. In 16 bits, 400² is
infinite, and a sum of ones stops growing at 2048, in bfloat16 at 256. So the wrapper around every
operation, `operation`, gives its function arrays of float32. It rounds the values once, and the
tape rounds a gradient once, when all of its parts have been added up.

Some operations are *native*: their functions get the 16-bit arrays themselves, since they move
entries, or round each entry only once anyway. The predicates below say when that is so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import backend
from .backend import Array, namespace


def widened(x: Any) -> Any:
    """An array of 16-bit floats as one of float32; anything else unchanged."""
    if not backend.is_half(x):
        return x
    xp = namespace(x)
    return xp.astype(x, xp.float32)


def rounded(x: Any, dtype: Any) -> Any:
    """An array of float32 as one of a dtype of 16 bits; anything else unchanged."""
    if not backend.is_array(x):
        return x
    xp = namespace(x)
    return xp.astype(x, dtype) if x.dtype == xp.float32 else x


def in_float32(function: Callable[..., Any], *arrays: Any) -> tuple[Any, Callable[..., Any]]:
    """The value and the pullback of a function, on 16-bit floats computed in float32. The value is
    rounded once; the gradients stay float32, for the tape to round."""
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
    """The pullback, with cotangents of 16 bits as float32."""
    return lambda *dys: pullback(*map(widened, dys))


def always(*_: Any) -> bool:
    """Native, since the operation moves or selects entries: it rounds none."""
    return True


def alike(*arrays: Any) -> bool:
    """Native for arrays of one shape: the sum, difference or product of two entries is rounded
    once. A number beside an array would be rounded first, and broadcasting needs a sum."""
    shapes = [x.shape for x in arrays if backend.is_array(x)]
    return len(shapes) == len(arrays) and len(set(shapes)) == 1


def on_device(*arrays: Array) -> bool:
    """Native on a device: a GPU multiplies matrices of 16 bits several times faster than those of
    float32, and adds up their products in float32."""
    return not any(backend.is_array(x) and backend.on_host(x) for x in arrays)
