"""What compiles a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba

FAST = frozenset({"contract", "nsz", "afn", "arcp"})
"""What LLVM may do to floating-point numbers: nothing that touches NaN, infinities or rounding to
an integer by a large addend."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that names arrays and numbers alone, for the types of its first call."""
    if function is None:
        return functools.partial(kernel, **options)
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(FAST), **options}
    return numba.njit(cache=True, **options)(function)
