"""Floats of 16 bits: computed with in 32, so that sums neither overflow nor stop growing."""

from __future__ import annotations

from typing import Any

from .backend import Array, namespace
from .pullback import Pullback


def in_float32(operation: Any, *arrays: Array, **settings: Any) -> tuple[Array, Pullback]:
    """The value and the pullback of an operation on float16, both rounded once, at the end."""
    xp, dtype = namespace(*arrays), arrays[0].dtype
    y, pull = operation.with_pullback(*(xp.astype(x, xp.float32) for x in arrays), **settings)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        return tuple(
            None if dx is None else xp.astype(dx, dtype) for dx in pull(xp.astype(dy, xp.float32))
        )

    return xp.astype(y, dtype), pullback
