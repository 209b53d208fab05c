"""GELU and SiLU, also with a second factor, and dropout on a GPU: one pass over the entries."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array

from ...functional.implementations import register
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")


@register("gelu", library="cupy")
def gelu(x: Array, times: Array | None = None) -> Any:
    """The value and the pullback of `functional.gelu`: gelu(x), or gelu(x) · times if `times` is
    given. Returns None for arrays that the kernel does not support."""
    c = 2 * math.sqrt(2 / math.pi)
    return _gate(x, times, c, c * 0.044715, bound=10.0)


@register("silu", library="cupy")
def silu(x: Array, times: Array | None = None) -> Any:
    """The value and the pullback of `functional.silu`: silu(x), or silu(x) · times if `times` is
    given. Returns None for arrays that the kernel does not support."""
    return _gate(x, times, 1.0, 0.0, bound=80.0)


def _gate(x: Array, times: Array | None, c1: float, c3: float, bound: float) -> Any:
    """The value y = x · g and its pullback, or None for arrays that the kernel does not support.
    The gate is g = 1 / (1 + exp(−u)) with u = c1 · x + c3 · x³. For |x| > `bound`, where g is 0 or
    1 up to rounding, u is computed from ±bound in place of x. If `times` is given, y is multiplied
    by it. The pullback keeps only x and `times`."""
    given = () if times is None else (times,)
    if not cuda.are_reals(x, *given) or any(a.shape != x.shape for a in given):
        return None
    x = cuda.contiguous(x)
    factor = None if times is None else cuda.contiguous(times)
    settings = c1, c3, bound, x.size
    y = cuda.empty(x.shape, like=x)
    cuda.launch_for_entries(SOURCE, "gate", x, x, factor, y, *settings)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = cuda.contiguous(dy)
        dx = cuda.empty(x.shape, like=x)
        dfactor = None if factor is None else cuda.empty(x.shape, like=x)
        cuda.launch_for_entries(SOURCE, "gate_backward", x, x, factor, dy, dx, dfactor, *settings)
        return dx, dfactor

    return y, pullback


@register("dropout", library="cupy")
def dropout(x: Array, keep: Array, *, p: float) -> Any:
    """The value and the pullback of `functional.dropout`: x / (1 − p) where the boolean array
    `keep` is True, and 0 elsewhere. Returns None for arguments that the kernel does not support,
    such as a `keep` whose shape is not that of x."""
    if not cuda.are_reals(x) or type(p) is not float or not 0 <= p < 1:
        return None
    if type(keep) is not type(x) or not backend.is_boolean(keep) or keep.shape != x.shape:
        return None
    keep = cuda.contiguous(keep)

    def dropped(a: Array) -> Array:
        a = cuda.contiguous(a)
        y = cuda.empty(a.shape, like=a)
        cuda.launch_for_entries(SOURCE, "dropout", a, a, keep, y, 1 - p, a.size)
        return y

    return dropped(x), lambda dy: (dropped(dy), None)
