"""Operations that pick entries."""

from __future__ import annotations

from typing import Any

from ..backend import Array, namespace
from ..operation import Pullback, operation


@operation
def getitem(x: Array, *, key: Any) -> tuple[Array, Pullback]:
    """y = x[key] for integers, slices, None and an ellipsis.   dx = dy at key, 0 elsewhere.

    Raises TypeError for a key that is an array or a list.
    """
    keys = key if isinstance(key, tuple) else (key,)
    for k in keys:
        if not (k is None or k is ... or isinstance(k, int | slice)) or isinstance(k, bool):
            raise TypeError(f"a Tensor's index must be integers, slices, None or ..., got {k!r}")
    xp = namespace(x)

    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.zeros_like(x)
        dx[key] = dy
        return (dx,)

    return x[key], pullback
