"""What compiles a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba

try:
    from minimha.kernels.cpu.cache import keep
except (ImportError, AttributeError):  # a Numba that is private in another way: nothing is kept

    def keep(kernel: Any, options: dict[str, Any]) -> None: ...


FAST = frozenset({"contract", "nsz", "afn", "arcp"})
"""What LLVM may do to floating-point numbers: nothing that touches NaN, infinities or rounding to
an integer by a large addend."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a module's function of arrays and numbers, for the types of each first call.

    ``@kernel`` or ``@kernel(**options of numba.njit)``. It runs without the interpreter's lock.

    The next process finds it in a folder ``kernels-…`` in ``MINIMHA_CACHE_DIR``, or else in ``minimha``
    in ``NUMBA_CACHE_DIR``, or else in ``minimha`` in the user's caches (``~/.cache``,
    ``XDG_CACHE_HOME``, ``LOCALAPPDATA``). Its files are run, so nobody else should be able to write
    there. It is compiled anew when any source in ``minimha.kernels`` has changed, or the compiler, its
    settings or the CPU; what else it depends on, like a global that is taken from the environment,
    must be among the options or arguments. A kernel that was defined in a function, or outside
    ``minimha.kernels``, is not kept.

    The logger ``minimha`` says when kernels take more than a second to compile, and when they
    cannot be kept; ``logging.getLogger("minimha").setLevel("ERROR")`` silences it.
    Under ``NUMBA_DISABLE_JIT=1`` the function stays as it is.
    """
    if function is None:
        return functools.partial(kernel, **options)
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(FAST), **options}
    compiled = numba.njit(**options)(function)
    if compiled is not function:
        keep(compiled, options)
    return compiled
