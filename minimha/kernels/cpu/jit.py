"""The compiler of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

try:
    from .cache import KernelCache
except ImportError:  # this version of Numba has another cache: each process compiles again
    KernelCache = None  # type: ignore[assignment, misc]

FAST = frozenset({"contract", "nsz", "afn", "arcp"})
"""The optimisations of floating-point code that LLVM may make: none that changes NaN, infinities,
or rounding to an integer by adding a large number."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a function of arrays and numbers, so that Numba compiles it at its first call with
    each combination of argument types: ``@kernel``, or ``@kernel(**options of numba.njit)``.

    The compiled function releases Python's global lock (GIL) while it runs. It is stored in
    `cache.folder()`, where later processes find it as long as the sources in ``minimha.kernels``,
    the compiler, its settings and the CPU stay the same. So whatever else it depends on must be an
    argument, not a global variable. Functions that are defined inside functions or outside
    ``minimha.kernels`` are not stored.
    """
    if function is None:
        return functools.partial(kernel, **options)
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(FAST), **options}
    compiled = numba.njit(**options)(function)
    ours = function.__module__.startswith("minimha.kernels.")
    if KernelCache is not None and ours and "<locals>" not in function.__qualname__:
        compiled._cache = KernelCache(function)
    return compiled


strict_kernel = functools.partial(kernel, fastmath={"contract", "nsz"})
"""Like `kernel`, but roots and quotients are rounded correctly: LLVM may not estimate them. So 1/√∞
is 0; the estimate would be NaN."""

reduction = functools.partial(kernel, fastmath={"contract", "nsz", "reassoc"}, forceinline=True)
"""Like `kernel`, for functions that sum: LLVM may add the terms in an order that is fast, which
depends only on their number. Not for code that rounds to an integer by adding a large number."""


@intrinsic
def widest_vectors(typing):
    """Make LLVM use 512-bit vectors, if the CPU has them, in the kernel that calls this. LLVM
    avoids them by default, because they slowed down the first CPUs that had them. Numba passes
    `typing`."""

    def generate(context, builder, signature, arguments):
        # bypasses llvmlite's method, which does not know this attribute
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
