"""What compiles a kernel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic, overload

_told: tuple[Callable[[Any, dict[str, Any]], None], ...] = ()
with contextlib.suppress(ImportError, AttributeError):  # a Numba changed inside: nothing is kept
    from minimha.kernels.cpu import cache, progress

    _told = cache.keep, progress.watch

FAST = frozenset({"contract", "nsz", "afn", "arcp"})
"""What LLVM may do to floating-point numbers: nothing that touches NaN, infinities or rounding to
an integer by a large addend."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a module's function of arrays and numbers, for the types of each first call.

    ``@kernel`` or ``@kernel(**options of numba.njit)``. It runs without the interpreter's lock.

    The next process finds it in ``kernels-…`` in the folder ``MINIMHA_CACHE_DIR``, or else in
    ``minimha`` in ``NUMBA_CACHE_DIR``, or else in ``minimha`` where the user's caches are
    (``XDG_CACHE_HOME``, ``LOCALAPPDATA``, ``~/.cache``). What is kept there is run: nobody else
    should be able to write there. A kernel is compiled anew when a source in ``minimha.kernels``
    changed, or the compiler, its settings or the CPU. What else it depends on, such as a global
    taken from the environment, must be an option or an argument. A kernel defined in a function, or
    outside ``minimha.kernels``, is not kept.

    The logger ``minimha`` says when kernels take more than a second to compile, and when they
    cannot be kept; ``logging.getLogger("minimha").setLevel("ERROR")`` silences it.
    Under ``NUMBA_DISABLE_JIT=1`` the function stays as it is.
    """
    if function is None:
        return functools.partial(kernel, **options)
    options = settings(options)
    compiled = numba.njit(**options)(function)
    if compiled is not function:
        for tell in _told:
            tell(compiled, options)
    return compiled


def settings(options: dict[str, Any]) -> dict[str, Any]:
    """What Numba is told of every kernel, changed by these."""
    return {"nogil": True, "error_model": "numpy", "fastmath": set(FAST), **options}


def widest_vectors() -> None:
    """Called in a kernel: LLVM is to use vectors of 512 bits where the CPU has them. By itself it
    does not, because of the first CPUs of the kind, which then became slower."""


@overload(widest_vectors, inline="always")
def _compiled() -> Any:
    return lambda: _prefer_512_bits()  # noqa: PLW0108


@intrinsic
def _prefer_512_bits(typing):
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # no name llvmlite has
        return context.get_dummy_value()

    return types.void(), generate
