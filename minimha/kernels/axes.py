"""Arrays of attention with four axes, for kernels on the CPU and on a GPU."""

from __future__ import annotations

import math

from minimha_autograd.backend import Array, namespace


def batch_and_heads(shape: tuple[int, ...]) -> tuple[int, int]:
    """B and H of (…, H, T, S); both are 1 for (T, S)."""
    return math.prod(shape[:-3]), shape[-3] if len(shape) > 2 else 1


def four_axes(x: Array) -> Array:
    """(…, H, T, N) as (B, H, T, N)."""
    if x.ndim == 4:
        return x
    return namespace(x).reshape(x, (*batch_and_heads(x.shape), *x.shape[-2:]))


def like_scores(x: Array, shape: tuple[int, ...]) -> Array:
    """What broadcasts to (…, H, T, S) as (B, H, T, S). Shared axes have stride 0, and are copied
    only if several axes become B."""
    return four_axes(namespace(x).broadcast_to(x, shape))
