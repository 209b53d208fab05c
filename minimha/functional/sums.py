"""The sum of two large arrays, for `ops.add` and for the tape, which adds up gradients."""

from __future__ import annotations

from minimha_autograd import backend
from minimha_autograd.backend import Array

from .implementations import accelerated


@accelerated(exact=True)
def add(a: Array, b: Array) -> Array:
    """a + b."""
    return a + b


backend.large_sum = add
