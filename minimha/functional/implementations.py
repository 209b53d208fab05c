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
    native    native(x) says whether the function accepts 16-bit floats and a `Draw` of dropout
              directly, for arrays like x
    """

    function: Callable[..., Any]
    obstacle: Callable[[Any, bool], str | None] = lambda x, auto: None
    native: Callable[[Array], bool] = lambda x: False


_registered: dict[str, dict[str, Candidate]] = {}


def register(
    operation: str, name: str = "kernel", *, library: str = "numpy", **properties: Any
) -> Callable[[Any], Any]:
    """Register the decorated function under a name, as an implementation of an operation.

    A "kernel" takes the same arguments as the operation's function, as arrays of this library. It
    returns the same, in most cases (value, pullback), or None for arguments that it does not
    support.

    properties  the fields obstacle and native of the `Candidate` that is registered
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
    """All implementations of an operation, as `Candidate`s by name, including kernels."""
    _load()
    return _registered.get(operation, {})


def named(operation: str, name: str) -> Candidate | None:
    """The implementation of an operation with this name, or None if there is none. If the name is
    not known, the kernels are loaded first."""
    return _registered.get(operation, {}).get(name) or implementations(operation).get(name)


_load = functools.cache(register_kernels)


def kernel(operation: str, size: int, library: str = "numpy") -> Callable[..., Any] | None:
    """The kernel of an operation for arrays of a library, or None: if there is no kernel, if an
    implementation without kernels is requested, or if "auto" chooses and `size`, the number of
    entries, is too small."""
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
    """The kernel of an operation for an array on a GPU, or None if there is none.

    The array may have any size, since each function of the array library would launch at least one
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
    for small NumPy arrays unless an implementation with kernels was requested. It raises all
    errors.

    Within `minimha.batch_invariant`, only the kernel may compute the result, unless the function is
    exact: a sequence must get the same bits alone and in a batch.

    size   number of entries of the value, computed from the arguments; by default the size of the
           first argument
    exact  whether the function rounds each entry at most once: then the result has the same bits
           in any order of computation
    dtype  the dtype that the first argument must have for the kernel to give the same bits in a
           batch
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
