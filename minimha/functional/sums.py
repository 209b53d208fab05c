"""The sum of two arrays, for `ops.add` and for the tape, which adds up gradients."""

from __future__ import annotations

from minimha_autograd import backend
from minimha_autograd.backend import Array

from .acceleration import accelerated


def _entries(a: Array, b: Array) -> int:
    """The number of entries; 0 if there are too few to be worth sharing between threads."""
    return a.size if a.size >= 2**16 else 0


@accelerated(size=_entries)
def add(a: Array, b: Array) -> Array:
    """a + b."""
    return a + b


backend.add = add
