"""Dropout, as a draw that can be replayed."""

from __future__ import annotations

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array

from .pairs import hide


@operation
def dropout(x: Array, keep: Array, *, p: float) -> tuple[Array, Pullback]:
    """y = keep · x / (1 − p).   dx = keep · dy / (1 − p)."""
    factor = 1 / (1 - p) if p < 1 else 0.0

    def pullback(dy: Array) -> tuple[Array, None]:
        return hide(dy * factor, keep), None

    return hide(x * factor, keep), pullback





def draw(rng, shape, p, *, like):
    return backend.like(backend.generator(rng).random(shape) >= p, like)
