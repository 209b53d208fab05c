"""16-bit floats: operations compute in 32 bits, so that sums neither overflow nor stop growing."""

from __future__ import annotations

from typing import Any

from .. import backend
from ..backend import Array, namespace, unbroadcast
from ..tape import Pullback


def in_float32(operation: Any, *arrays: Any, **settings: Any) -> tuple[Any, Pullback]:
    """The value and the pullback of an operation, or of a function like one, on float16: both
    rounded once, at the end."""
    function = getattr(operation, "function", operation)
    value, pull = function(*map(widened, arrays), **settings)
    dtype = next(x.dtype for x in arrays if backend.is_half(x))
    shapes = [getattr(x, "shape", ()) for x in arrays]

    def narrowed(x: Any) -> Any:
        x = x if x is None else backend.asarray(x)
        return namespace(x).astype(x, dtype) if backend.is_floating(x) else x

    def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
        gradients = zip(pull(*map(widened, cotangents)), shapes, strict=True)
        return tuple(narrowed(None if dx is None else unbroadcast(dx, n)) for dx, n in gradients)

    return tuple(map(narrowed, value)) if type(value) is tuple else narrowed(value), pullback


def widened(x: Any) -> Any:
    """An array of float16 as one of float32; anything else unchanged."""
    return namespace(x).astype(x, namespace(x).float32) if backend.is_half(x) else x
