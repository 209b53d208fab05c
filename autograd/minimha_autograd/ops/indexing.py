"""Operations that pick entries."""

from __future__ import annotations

import operator
from typing import Any

from ..backend import Array, namespace
from ..operation import Pullback, operation


@operation
def getitem(x: Array, *, key: Any) -> tuple[Array, Pullback]:
    """y = x[key] for integers, slices, None and an ellipsis.   dx = dy at key, 0 elsewhere.

    Raises TypeError for a key that is an array or a list.
    """
    xp, key = namespace(x), tuple(_plain(k) for k in (key if isinstance(key, tuple) else (key,)))

    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.zeros_like(x)
        dx[key] = dy
        return (dx,)

    return x[key], pullback


def _plain(k: Any) -> Any:
    """One part of a key, integers of any kind as Python's."""
    if k is None or k is ... or isinstance(k, slice):
        return k
    if isinstance(k, bool) or getattr(k, "ndim", False) or not hasattr(k, "__index__"):
        raise TypeError(f"an index must be integers, slices, None or ..., got {k!r}")
    return operator.index(k)
