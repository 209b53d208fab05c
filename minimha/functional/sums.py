"""Sums of large arrays, computed by kernels. They take the place of the engine's own sums,
`large_sum` and `device_sum` of its backend, which are extension points.

`add` is the sum of two arrays, for `ops.add` and for the tape, which adds up gradients.
`device_sum` is the sum over axes of one array on a device, for `ops.sum` and for the gradients of
arrays that were broadcast.
"""

from __future__ import annotations

from typing import Any

from minimha_autograd.backend import Array

from .implementations import accelerated, device_kernel


@accelerated(exact=True)
def add(a: Array, b: Array) -> Array:
    """The sum a + b of two arrays, by a kernel if there is one."""
    return a + b


def device_sum(x: Array, axis: Any, keepdims: bool) -> Array | None:
    """The sum of x, an array on a device, over `axis`: one axis, a tuple of axes, or None for all.
    Returns None if no kernel computes it."""
    fast = device_kernel("sum", x)
    if fast is None:
        return None
    return fast(x, axis, keepdims)
