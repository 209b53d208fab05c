"""A registry of implementations: functions that compute the same as an operation, often faster.

The registry itself names no implementation. Each implementation registers itself; kernels, which
belong to a higher room, do so at the first call that would benefit from one.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from minimha_autograd.backend import Array, HostArray
from minimha_autograd.extension import extension_point

requested: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "implementation", default=os.environ.get("MINIMHA_IMPLEMENTATION") or "auto"
)
"""The implementation that an enclosing `minimha.implementation` block requests or, without such a
block, the environment variable."""

batch_invariance = contextvars.ContextVar("batch_invariance", default=False)
"""Whether a `minimha.batch_invariant` block is open."""

PLAIN = frozenset({"loop", "reference"})
"""The implementations that use no kernels, not even for large arrays."""

ENOUGH = 2**9
"""Number of entries from which "auto" uses kernels. They are faster even for a few, but loading
them takes longer than many operations on small arrays."""


@extension_point
def register_kernels() -> None:
    """An extension point, which does nothing by itself: `minimha` replaces it by `register_all` of
    `minimha.kernels`, which imports the kernels; being imported, they register themselves."""


class Candidate(NamedTuple):
    """A function that can compute an operation, and what it supports.

    function  computes the operation
    obstacle  obstacle(arguments, auto) returns the reason why the function cannot compute these
              arguments or, if auto is true, why "auto" should not choose it; None if it can
    native    native(x) says whether the function accepts, for arrays like x, 16-bit floats and a
              `Draw` (a seed that stands for the mask of dropout) as they are
    """

    function: Callable[..., Any]
    obstacle: Callable[[Any, bool], str | None] = lambda x, auto: None
    native: Callable[[Array], bool] = lambda x: False


_registered: dict[str, dict[str, Candidate]] = {}


def register(
    operation: str, name: str = "kernel", *, library: str = "numpy", **properties: Any
) -> Callable[[Any], Any]:
    """A decorator that registers a function as an implementation of an operation.

    operation   the name of the operation, such as "softmax"
    name        "kernel" or, for "attention", the name by which users request the implementation
    library     the library whose arrays the function takes
    properties  the fields obstacle and native of the `Candidate` that is registered

    A "kernel" takes the same arguments as the function of the operation. It returns the same, in
    most cases (value, pullback), or None for arguments that it does not support.
    """

    def add(function: Any) -> Any:
        key = _of_library(name, library)
        _registered.setdefault(operation, {})[key] = Candidate(function, **properties)
        return function

    return add


def _of_library(name: str, library: str) -> str:
    """The name under which an implementation for arrays of this library is registered, such as
    "kernel" for NumPy and "kernel for cupy" for CuPy."""
    if library == "numpy":
        return name
    return f"{name} for {library}"


def library_of(x: Any) -> str:
    """The name of an array's library, found without importing the library."""
    return type(x).__module__.partition(".")[0]


def implementations(operation: str) -> dict[str, Candidate]:
    """All implementations of the operation with this name, as `Candidate`s by name. If the kernels
    are not loaded yet, they are loaded now, so that they are among them."""
    _load()
    return _registered.get(operation, {})


def named(operation: str, name: str) -> Candidate | None:
    """The implementation of an operation with this name, or None if there is none. If the name is
    not known, the kernels are loaded first."""
    return _registered.get(operation, {}).get(name) or implementations(operation).get(name)


_load = functools.cache(register_kernels)


def kernel(operation: str, size: int, library: str = "numpy") -> Callable[..., Any] | None:
    """The kernel of an operation, a faster function with the same result, for arrays of a library.
    None if there is no kernel; if the implementation that `minimha.implementation` requests uses
    none; or if no implementation is requested by name and `size`, the number of entries, is too
    small. Within `minimha.batch_invariant`, no size is too small."""
    name = requested.get()
    if batch_invariance.get():
        size = ENOUGH  # small arrays, too, are summed in the kernel's order

    # "auto", or a function in place of attention: the size decides. Otherwise the name does.
    if name == "auto" or callable(name):
        if size < ENOUGH:
            return None
    elif name in PLAIN:
        return None

    found = named(operation, _of_library("kernel", library))
    return found and found.function


def device_kernel(operation: str, x: Any) -> Callable[..., Any] | None:
    """The kernel of an operation for x, an array of CuPy of any size. None if x is no such array,
    if there is no kernel, or if `minimha.implementation` requests an implementation without
    kernels.

    Small arrays gain as well, since each function of the array library would launch at least one
    kernel itself. Within `minimha.batch_invariant`, which promises the same bits on the CPU only,
    the result is None.
    """
    if library_of(x) != "cupy" or batch_invariance.get():
        return None
    return kernel(operation, ENOUGH, "cupy")


def accelerated(
    function: Callable[..., Any] | None = None,
    *,
    size: Callable[..., int] | None = None,
    exact: bool = False,
    dtype: str = "float32",
) -> Any:
    """Decorate a function to use the kernel registered under its name, for arrays of NumPy or CuPy.

    The function itself, the reference, runs if there is no kernel, if the kernel returns None, and
    for small NumPy arrays unless an implementation with kernels was requested. It also raises the
    errors of the arguments.

    Within `minimha.batch_invariant`, a sequence must get the same bits alone and in a batch. There,
    only the kernel may compute the result, unless the function is exact; if it cannot, TypeError is
    raised.

    size   a function of the arguments that returns the number of entries of the value, by which a
           NumPy array counts as small; without it, the size of the first argument counts
    exact  whether the function rounds each entry at most once: then the result has the same bits
           in any order of computation
    dtype  the dtype that the first argument of a function that is not exact must have within
           `minimha.batch_invariant`
    """
    if function is None:
        return functools.partial(accelerated, size=size, exact=exact, dtype=dtype)

    @functools.wraps(function)
    def either(*arrays: Any, **settings: Any) -> Any:
        result = None
        if arrays:
            if type(arrays[0]) is HostArray:
                entries = size(*arrays) if size else arrays[0].size
                fast = kernel(function.__name__, entries)
            else:
                fast = device_kernel(function.__name__, arrays[0])
            if fast is not None:
                result = fast(*arrays, **settings)

        if exact or not batch_invariance.get():
            if result is None:
                return function(*arrays, **settings)
            return result

        # Within batch_invariant only the kernel keeps the promise, and only in this dtype.
        if result is None:
            function(*arrays, **settings)  # raises the errors of the arguments
            refuse("no kernel supports these arguments")
        if arrays[0].dtype != dtype:
            refuse(f"its arrays are of {arrays[0].dtype}, not of {dtype}")
        return result

    return either


def refuse(why: str, what: str = "the result") -> NoReturn:
    """Raise TypeError, because an operation cannot keep the promise of `batch_invariant`: the same
    bits for a sequence alone and in a batch.

    why   the reason
    what  the result that would have other bits, for the message
    """
    raise TypeError(
        f"{what} would not have the same bits alone and in a batch: {why}. Call it before or after "
        "the batch_invariant() block"
    )
