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
except ImportError:  # this version of Numba has another cache: each process compiles anew
    KernelCache = None  # type: ignore[assignment, misc]

FAST = frozenset({"contract", "nsz", "afn", "arcp"})
"""What LLVM may do to floating-point numbers: nothing that changes NaN, infinities, or rounding to
an integer by adding a large number."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a module's function of arrays and numbers at the first call for each set of types.

    ``@kernel`` or ``@kernel(**options of numba.njit)``. It runs without the interpreter's lock.
    The next process finds it in `cache.folder()`, until a source in ``minimha.kernels``, the
    compiler, its settings or the CPU changes: whatever else it depends on must be an argument.
    Functions defined inside functions or outside ``minimha.kernels`` are not kept.
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
"""`kernel` for a sum in any order that is fast, always the same for a length. Not for code that
splits off an integer by adding a large number."""


@intrinsic
def widest_vectors(typing):
    """Called in a kernel: LLVM uses vectors of 512 bits if the CPU has them. By itself it does not,
    because they slowed down the first CPUs that had them."""

    def generate(context, builder, signature, arguments):
        # past the method of llvmlite, which does not know this attribute
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
