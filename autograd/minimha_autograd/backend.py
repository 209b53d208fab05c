"""The array libraries: the only file of the engine that names one.

Everything else asks `namespace(x)` for the functions of the array-API standard that belong to the
array x, and finds here what the standard lacks: moving between libraries, scatter-add.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

Array = Any
"""An array of any library that follows the array-API standard."""

_MODULES = {
    "numpy": "numpy",
    "array-api-strict": "array_api_strict",
    "torch": "torch",
    "cupy": "cupy",
}
LIBRARIES = tuple(_MODULES)
Rng = np.random.Generator | int
"""A generator of random numbers, or the seed of one. Nothing here touches global state."""

_namespaces: dict[type, Any] = {}


def namespace(*arrays: Array) -> Any:
    """The array-API namespace of the first array among the arguments.

    Looked up once a type: asking array-api-compat each time costs as much as a small operation.
    """
    for x in arrays:
        xp = _namespaces.get(type(x))
        if xp is not None:
            return xp
    from array_api_compat import array_namespace  # pulls in much of NumPy: not at import

    for x in arrays:
        if hasattr(x, "dtype"):
            xp = _namespaces[type(x)] = array_namespace(x)
            return xp
    raise TypeError(f"no array among the arguments: {', '.join(type(x).__name__ for x in arrays)}")


def library(name: str) -> Any:
    """The namespace of a library by its name, one of `LIBRARIES`.

    Raises ValueError for another name, and RuntimeError, in one line, for a library that is not
    installed or, with CuPy, has no GPU to run on.
    """
    if name not in _MODULES:
        raise ValueError(f"unknown array library {name!r}: choose one of {', '.join(LIBRARIES)}")
    try:
        module = importlib.import_module(_MODULES[name])
        if name == "cupy" and not _device_count(module):
            raise RuntimeError("cupy is installed, but this machine has no GPU that it can use")
    except ImportError as error:
        raise RuntimeError(f"the array library {name} is not installed") from error
    return namespace(module.asarray(0.0))


def _device_count(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def is_array(x: object) -> bool:
    """Whether x is an array of a library of the standard (not a NumPy scalar, list or number)."""
    return hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, np.generic)


def asarray(value: object) -> Array:
    """value as an array: as it is if it is one, through NumPy if it is a number or a list.

    Raises TypeError for what holds anything but numbers, ValueError for ragged lists.
    """
    if is_array(value) and not isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError("the nested lists are ragged: every row needs the same length") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"expected numbers, got an array of dtype {array.dtype}")
    return array


def plain_scalar(x: object) -> object:
    """A NumPy scalar as a Python number, so that it is weak: it never decides a result's dtype."""
    return x.item() if isinstance(x, np.generic) else x


def is_floating(x: object) -> bool:
    """Whether x is an array of real floating-point numbers: the arrays that can have gradients."""
    return is_array(x) and _kind(x, "real floating")


def is_complex(x: object) -> bool:
    """Whether x is an array of complex numbers: they pass forward only, for the complex step."""
    return is_array(x) and _kind(x, "complex floating")


_REQUIRED = {"integral": "an array of integers", "bool": "a boolean array"}


def require(kind: str, x: object, name: str) -> None:
    """Raise TypeError, with the name, unless x is an array of a kind: "integral" or "bool"."""
    if not (is_array(x) and _kind(x, kind)):
        what = f"of dtype {x.dtype}" if hasattr(x, "dtype") else f"of type {type(x).__name__}"
        raise TypeError(f"{name} must be {_REQUIRED[kind]}, not {what}")


_kinds: dict[tuple[type, Any, str], bool] = {}


def _kind(x: Array, kind: str) -> bool:
    known = _kinds.get((type(x), x.dtype, kind))
    if known is None:
        known = _kinds[type(x), x.dtype, kind] = bool(namespace(x).isdtype(x.dtype, kind))
    return known


def to_numpy(x: Array) -> np.ndarray:
    """The entries of x as a NumPy array on the host."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "get"):  # CuPy
        return np.asarray(x.get())
    if hasattr(x, "detach"):  # torch
        return np.asarray(x.detach().cpu().numpy())
    return np.from_dlpack(namespace(x).asarray(x, copy=True))  # NumPy 2.0 refuses read-only ones


def like(host: np.ndarray, x: Array) -> Array:
    """A copy of the host's array in the library and on the device of x, with its own dtype."""
    return move(host, namespace(x), device=x.device)


def move(x: Array, xp: Any, device: Any = None) -> Array:
    """A copy of x in the library with namespace xp."""
    return xp.asarray(to_numpy(x).copy(), device=device)


def scatter_add(shape: tuple[int, ...], rows: Array, updates: Array) -> Array:
    """Zeros of the given shape (N, …) with updates (*rows.shape, …) added at the indices rows.

    Repeated indices add up:  out[n] = Σ updates[k] over all k with rows[k] = n.
    """
    xp = namespace(updates)
    rows = xp.reshape(rows, (-1,))
    updates = xp.reshape(updates, (rows.shape[0], *shape[1:]))
    out = xp.zeros(shape, dtype=updates.dtype, device=updates.device)
    if hasattr(xp, "add") and hasattr(xp.add, "at"):  # NumPy and CuPy
        xp.add.at(out, rows, updates)
        return out
    if hasattr(out, "index_add_"):  # torch
        return out.index_add_(0, rows, updates)
    numbers = xp.arange(shape[0], dtype=rows.dtype, device=updates.device)
    one_hot = xp.astype(numbers[:, None] == rows[None, :], updates.dtype)
    flat = xp.reshape(updates, (rows.shape[0], -1))
    return xp.reshape(xp.matmul(one_hot, flat), shape)


def generator(rng: Rng) -> np.random.Generator:
    """The generator itself, or one started from a seed."""
    return np.random.default_rng(rng)


def normal(rng: Rng, shape: tuple[int, ...], *, std: float, dtype: str) -> Array:
    """Normal draws of mean 0, made on the host: a seed gives the same numbers for every library."""
    return (std * generator(rng).standard_normal(shape)).astype(dtype)


def full(shape: tuple[int, ...], value: float, *, dtype: str) -> Array:
    """An array on the host, filled with one value."""
    return np.full(shape, value, dtype=dtype)
