"""Kernels: other implementations of an operation, used where they are faster.

This module knows no particular kernel. A provider, a module named in `PROVIDERS`, registers its
kernels when it is imported, which happens at the first call that would benefit from one.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from minimha_autograd.backend import HostArray

in_force = contextvars.ContextVar(
    "implementation", default=os.environ.get("MINIMHA_IMPLEMENTATION") or "auto"
)
"""The name set by the enclosing `minimha.implementation`, or else by the environment."""

COMPILED = frozenset({"fused", "tiled", "microkernel"})
"""The implementations that use kernels for arrays of every size."""

ENOUGH = 2**14
"""Number of entries above which a kernel is faster; below it "auto" uses the reference."""

PROVIDERS: list[str] = []
"""Names of the modules that register kernels."""

_kernels: dict[str, Callable[..., Any]] = {}


def register(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function the kernel of the function with this name.

    A kernel takes the arguments of that function and returns what it returns, in most cases (value,
    pullback), or None for arguments that it does not support.
    """
    return lambda kernel: _kernels.setdefault(name, kernel)


def accelerated(
    function: Callable[..., Any] | None = None, *, size: Callable[..., int] | None = None
) -> Any:
    """Use the kernel registered under the function's name for NumPy arrays.

    The function itself, the reference, runs if there is no kernel, if the kernel returns None, and
    for small arrays unless a compiled implementation was requested. It raises all errors.

    size  number of entries of the value, computed from the arguments; by default the size of the
          first argument
    """
    if function is None:
        return functools.partial(accelerated, size=size)

    @functools.wraps(function)
    def either(*arrays: Any, **settings: Any) -> Any:
        result = None
        if arrays and type(arrays[0]) is HostArray:
            fast = kernel(function.__name__, size(*arrays) if size else arrays[0].size)
            result = fast(*arrays, **settings) if fast else None
        return function(*arrays, **settings) if result is None else result

    return either


def kernel(name: str, size: int) -> Callable[..., Any] | None:
    """The kernel registered under this name; None if there is none or the array is too small."""
    wanted = in_force.get()
    if size >= ENOUGH if wanted == "auto" else wanted in COMPILED:
        _load()
        return _kernels.get(name)
    return None


@functools.cache
def _load() -> None:
    for name in PROVIDERS:
        importlib.import_module(name)
