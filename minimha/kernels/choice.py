"""Whether a kernel computes an operation: which implementation is in force, and what pays."""

from __future__ import annotations

import contextvars
import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from minimha_autograd.backend import HostArray

in_force = contextvars.ContextVar(
    "implementation", default=os.environ.get("MINIMHA_IMPLEMENTATION") or "auto"
)
"""The name that an enclosing `minimha.implementation` gave, or else the environment."""

COMPILED = frozenset({"fused", "tiled", "microkernel"})
"""The implementations that ask for kernels whatever the size."""

ENOUGH = 2**14
"""Entries from which on a kernel pays; with fewer, nothing is compiled and Numba not loaded."""


def accelerated(
    function: Callable[..., Any] | None = None, *, size: Callable[..., int] | None = None
) -> Any:
    """Let the kernel of the same name in `cpu.operations` answer where it can.

    A kernel takes the same arguments and returns (value, pullback) under the same contract, or None
    for what it was not made for. Then, and for small arrays unless an implementation asks for
    kernels, the function itself answers: it is the reference, and raises all errors.

    size  the entries of the value, from the arguments; those of the first argument unless given
    """
    if function is None:
        return functools.partial(accelerated, size=size)
    name = function.__name__

    @functools.wraps(function)
    def either(*arrays: Any, **settings: Any) -> Any:
        if arrays and type(arrays[0]) is HostArray:
            fast = kernel(name, size(*arrays) if size else arrays[0].size)
            made = fast(*arrays, **settings) if fast else None
            if made is not None:
                return made
        return function(*arrays, **settings)

    return either


def kernel(name: str, size: int) -> Callable[..., Any] | None:
    """The kernel of this name, None where it is not asked for or Numba is missing."""
    wish = in_force.get()
    if size >= ENOUGH if wish == "auto" else wish in COMPILED:
        return _loaded(name)
    return None


@functools.cache
def _loaded(name: str) -> Callable[..., Any] | None:
    if unavailable():
        return None
    from .cpu import operations

    return getattr(operations, name)


@functools.cache
def unavailable(*others: str) -> str | None:
    """Why compiled kernels, with other packages that they need, cannot be used here; None if they
    can. Imports them and Numba at its first call, unless it can tell before."""
    if "numba" not in sys.modules and os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        return "NUMBA_DISABLE_JIT is set"
    for name in ("numba", *others):
        try:
            importlib.import_module(name)
        except Exception as error:  # ImportError and more: Numba refuses a NumPy newer than itself
            return f"{name} cannot be imported: {error}"
    numba = sys.modules["numba"]
    if numba.version_info.short < (0, 60):
        return f"Numba is {numba.__version__}, and 0.60 is the oldest that will do"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    return None
