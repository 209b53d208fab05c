"""16-bit floats: operations compute in 32 bits, so that sums neither overflow nor stop growing."""

from __future__ import annotations

from typing import Any

from .. import backend
from ..backend import Array, namespace
from ..tape import Pullback


def in_float32(operation: Any, *arrays: Any, **settings: Any) -> tuple[Any, Pullback]:
    """The value and the pullback of an operation on float16, both rounded once, at the end."""
    value, pull = operation.with_pullback(*map(widened, arrays), **settings)
    dtype = next(x.dtype for x in arrays if backend.is_half(x))

    def narrowed(results: Any) -> Any:
        if isinstance(results, tuple):
            return tuple(map(narrowed, results))
        exact = not backend.is_floating(results)
        return results if exact else namespace(results).astype(results, dtype)

    def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
        return tuple(narrowed(dx) for dx in pull(*map(widened, cotangents)))

    return narrowed(value), pullback


def widened(x: Any) -> Any:
    """An array of float16 as one of float32; anything else unchanged."""
    return namespace(x).astype(x, namespace(x).float32) if backend.is_half(x) else x
