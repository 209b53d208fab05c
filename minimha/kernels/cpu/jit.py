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
    """Compile a module's function of arrays and numbers at the first call for each set of types.

    ``@kernel`` or ``@kernel(**options of numba.njit)``. It runs without the interpreter's lock.
    The next process finds it in `cache.folder()`, until a source in ``minimha.kernels``, the
    compiler, its settings or the CPU changes: anything else that it depends on must be an argument.
    Functions defined inside functions or outside ``minimha.kernels`` are not stored.
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
"""`kernel` with correctly rounded roots and quotients: 1/√∞ is 0, but its estimate would be NaN."""

reduction = functools.partial(kernel, fastmath={"contract", "nsz", "reassoc"}, forceinline=True)
"""`kernel` for sums in any fast order, which depends only on the length. Not for code that rounds
to an integer by adding a large number."""


@intrinsic
def widest_vectors(typing):
    """Called in a kernel: makes LLVM use 512-bit vectors if the CPU has them. LLVM avoids them by
    default, because they slowed down the first CPUs that had them."""

    def generate(context, builder, signature, arguments):
        # bypasses llvmlite's method, which does not know this attribute
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
