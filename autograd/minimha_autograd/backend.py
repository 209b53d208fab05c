"""The array libraries: the only file of the engine that names one.

All other code calls `namespace(x)` for the array-API functions of the library of x. This file adds
what the standard lacks: moving arrays, indexing by arrays, scatter-add, einsum, random numbers.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import sys
from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from .extension import extension_point

Array = Any
"""An array of any library that follows the array-API standard."""

LIBRARIES = ("numpy", "array-api-strict", "torch", "cupy")

NEWEST_FOR_CUPY = (3, 14)
"""The newest Python that CuPy 14.2 has wheels for."""

if TYPE_CHECKING:
    from numpy.random import Generator

    Rng = Generator | int  # or a seed: nothing here uses global state
else:  # numpy.random takes a fifth of NumPy's own time to load: it is loaded for the first draw
    Generator = Rng = Any

HostArray = np.ndarray
"""The type of arrays on the host."""

namespaces: dict[type, Any] = {}
"""The namespaces of the array types seen so far: asking array-api-compat each time is slow."""


def namespace(*arrays: Any) -> Any:
    """The array-API namespace of the first array among the arguments: the module with the
    functions of its library, such as numpy. Raises TypeError if no argument is an array."""
    for y in arrays:
        if type(y) in namespaces:
            return namespaces[type(y)]
        if isinstance(y, np.generic):
            return namespace(np.asarray(y))
        if is_array(y):
            if isinstance(y, np.ndarray) and hasattr(np, "cumulative_sum"):
                xp = np  # since version 2.1 NumPy follows the standard itself
            else:
                from array_api_compat import array_namespace  # loads much of NumPy: not at import

                xp = array_namespace(y)
            namespaces[type(y)] = xp
            return xp
    raise TypeError(
        f"expected an array, got {', '.join(type(x).__name__ for x in arrays) or 'none'}"
    )


def library(name: str) -> Any:
    """Import the library of this name, one of `LIBRARIES`, and return its namespace.

    Raises ValueError for another name, RuntimeError for a library that cannot be used here.
    """
    if name not in LIBRARIES:
        raise ValueError(f"unknown array library {name!r}: choose one of {', '.join(LIBRARIES)}")
    install = f"pip install {name}"
    if name == "cupy":
        install = 'pip install "cupy-cuda12x[ctk]", or 13x for CUDA 13'

    # What is wrong if the next statement fails, and what to do.
    problem = "is not installed"
    fix = install
    if name == "cupy" and sys.version_info[:2] > NEWEST_FOR_CUPY:
        newest = ".".join(map(str, NEWEST_FOR_CUPY))
        fix = f"use Python {newest} or earlier, since CuPy has no wheels for later versions"
    try:
        module = importlib.import_module(name.replace("-", "_"))

        problem = "finds no GPU"  # CuPy can be imported without a driver
        fix = "install a driver until nvidia-smi lists one, or use numpy"
        zero = module.zeros(1)

        problem = "finds a GPU but cannot compile for it"
        fix = install
        return namespace(zero + zero)
    except Exception as error:
        why = ""
        if not isinstance(error, ModuleNotFoundError):
            first_line, _, _ = str(error).partition("\n")
            why = f" ({first_line})"
        raise RuntimeError(f"the array library {name} {problem}{why}: {fix}") from error


def is_array(x: object) -> bool:
    """Whether x is an array of NumPy, CuPy or another library that follows the array-API standard.
    False for a NumPy scalar, a list and a number.

    Raises TypeError for NumPy's masked arrays and matrices.
    """
    if type(x) in namespaces:
        return True
    if isinstance(x, np.generic) or not hasattr(x, "__dlpack__"):
        return False
    for name in [kind.__name__ for kind in type(x).__mro__]:
        if name in _INSTEAD:
            raise TypeError(f"a NumPy {name} {_INSTEAD[name]}")
    return True


_INSTEAD = {
    "MaskedArray": "would lose its mask: pass x.filled(0), or fill it with another value",
    "matrix": "is always two-dimensional: pass np.asarray(x)",
}
"""What to pass instead of a kind of array that does not compute as the standard says."""


def asarray(value: object) -> Array:
    """`value` as an array. An array is returned as it is, except that a NumPy array in the byte
    order of another machine is converted. A number or a list of numbers, which may be nested,
    becomes a NumPy array. Booleans count as numbers.

    Raises TypeError for anything that does not consist of numbers, such as a text or a list with a
    None; ValueError for nested lists of different lengths.
    """
    if is_array(value) and not isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError("the nested lists are ragged: every row needs the same length") from error
    if array.dtype.kind not in "biufc" and not is_floating(array):
        raise TypeError(f"expected numbers, got an array of dtype {array.dtype}")
    if not array.dtype.isnative:  # the byte order of another machine
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def is_floating(x: object) -> bool:
    """Whether x is an array of real floating-point numbers: the arrays that can have gradients."""
    # Fast path. Dtypes that NumPy does not know, such as bfloat16, have the kind "V".
    if type(x) is np.ndarray and x.dtype.kind != "V":
        return x.dtype.kind == "f"
    return has_kind(x, "real floating")


def is_half(x: object) -> bool:
    """Whether x is an array of 16-bit floats, on which operations compute in 32 bits."""
    return getattr(getattr(x, "dtype", None), "itemsize", 0) == 2 and is_floating(x)


def is_complex(x: object) -> bool:
    """Whether x is an array of complex numbers, for which this package computes no gradients. They
    come from the complex step of gradient checks, f(x + ih)."""
    if type(x) is np.ndarray:
        return x.dtype.kind == "c"
    return has_kind(x, "complex floating")


def is_integral(x: object) -> bool:
    """Whether x is an array of integers."""
    if type(x) is np.ndarray:
        return x.dtype.kind in "iu"
    return has_kind(x, "integral")


def is_boolean(x: object) -> bool:
    """Whether x is an array of booleans."""
    return has_kind(x, "bool")


def is_exact(x: object) -> bool:
    """Whether x is an array of integers or booleans."""
    return has_kind(x, ("bool", "integral"))


def has_kind(x: Any, kind: str | tuple[str, ...]) -> bool:
    """Whether x is an array whose dtype is of this kind, or of one in a tuple of kinds. Kinds have
    the names that `isdtype` of the array-API standard gives them, such as "integral". bfloat16
    counts as "real floating"."""
    if getattr(getattr(x, "dtype", None), "name", "") == "bfloat16":  # of ml_dtypes
        return kind == "real floating" or "numeric" in kind
    return is_array(x) and bool(namespace(x).isdtype(x.dtype, kind))


def require(test: Callable[[object], bool], x: object, name: str) -> None:
    """Raise TypeError unless x passes the test, `is_integral` or `is_boolean`. The message calls x
    by `name`."""
    if not test(x):
        what = f"of type {type(x).__name__}"
        if hasattr(x, "dtype"):
            what = f"of dtype {x.dtype}"
        kind = "a boolean array"
        if test is is_integral:
            kind = "an array of integers"
        raise TypeError(f"{name} must be {kind}, not {what}")


def place(x: Array) -> tuple[type, Any]:
    """Where x is stored: the type of x, and its device or what identifies the device.

    These pairs can be compared and used as keys of a dictionary. Devices themselves cannot: those
    of CuPy cannot be hashed, and those of different libraries cannot be compared.
    """
    if isinstance(x, np.ndarray):
        return type(x), "cpu"
    if on_cupy(x):
        return type(x), x.device.id
    return type(x), x.device


def kind(x: Array) -> tuple[Any, ...]:
    """What an array and its gradient must have in common: library, device, shape and dtype."""
    return *place(x), tuple(x.shape), x.dtype


def described(x: Any) -> str:
    """Describe an argument in a message: an array by its type, shape, dtype and device, a number or
    text by its value, anything else by its type."""
    if is_array(x):
        library, _, _ = type(x).__module__.partition(".")
        text = f"{library}.{type(x).__name__} {tuple(x.shape)} of {x.dtype}"
        if not on_host(x):
            text += f" on {x.device}"
        return text
    if isinstance(x, Number | str | None):
        return repr(x)
    return f"a {type(x).__name__}"


def number(x: Any) -> Any:
    """A NumPy scalar as a Python number, which imposes no dtype; anything else unchanged."""
    return x.item() if isinstance(x, np.generic) else x


def setting(x: Any) -> Any:
    """Convert a setting, an argument such as axis: NumPy's scalars and arrays without axes, of
    shape (), become Python numbers, also inside tuples, lists, dictionaries and slices. Anything
    else is returned as it is.

    Arrays without axes are common: where a reduction of NumPy returns a number, those of other
    libraries return such an array. If the array is on a device, the host waits for it. The number
    does not change if the array is modified later.
    """
    if type(x) in (float, int, bool):  # fast path
        return x
    if is_array(x) and not x.shape:
        x = to_numpy(x)[()]
        return float(x) if is_half(x) else x.item()  # the item of a bfloat16 is no Python number
    if type(x) in (tuple, list):
        return type(x)(map(setting, x))
    if type(x) is dict:
        return {name: setting(y) for name, y in x.items()}
    if type(x) is slice:
        return slice(setting(x.start), setting(x.stop), setting(x.step))
    return number(x)


def index(n: Any) -> int:
    """n as a Python integer, for an integer of any kind or an array of integers without axes.

    Arrays of some libraries, such as CuPy, have no __index__. If n is an array on a device, the
    host waits for it. Raises TypeError for anything else.
    """
    if type(n) is not int and is_array(n) and is_integral(n):
        n = setting(n)
    return operator.index(n)


def to_numpy(x: Array) -> np.ndarray:
    """The entries of x as a NumPy array on the host."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if on_cupy(x):
        return np.asarray(x.get())
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu()
        if "bfloat16" in str(x.dtype):  # which NumPy does not know
            x = x.float()
        return np.asarray(x.numpy())
    return np.from_dlpack(namespace(x).asarray(x, copy=True))  # NumPy 2.0 refuses read-only ones


def dtype(xp: Any, name: Any) -> Any:
    """The dtype of the library xp that corresponds to `name`, which is the name of a dtype, a dtype
    of NumPy, or one of the library's own.

    Raises TypeError if the library has no such dtype.
    """
    if not isinstance(name, str | type | np.dtype):
        return name
    try:
        found = np.dtype(name)
        if found.name == "bfloat16" and indexes_as_numpy(xp):  # of ml_dtypes
            return found
        return getattr(xp, found.name)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"no dtype {name!r}") from error


def finfo(x: Array) -> Any:
    """The limits of the dtype of x, such as eps and min."""
    xp = namespace(x)
    if getattr(x.dtype, "name", "") == "bfloat16":
        xp = importlib.import_module("ml_dtypes")
    return xp.finfo(x.dtype)


def copy(x: Array) -> Array:
    """A copy of x."""
    return namespace(x).asarray(x, copy=True)


def clip(x: Array, low: Any = None, high: Any = None) -> Array:
    """x with entries below low replaced by low, and entries above high replaced by high. A bound of
    None replaces nothing."""
    if on_cupy(x):
        return x.clip(low, high)  # array-api-compat's clip would make the host wait for the GPU
    return namespace(x).clip(x, low, high)


def explain_memory(error: Exception) -> None:
    """Add a note to the error if it is a MemoryError: what to change and, if CuPy raised it, how
    much memory of the GPU is free."""
    if not isinstance(error, MemoryError) or hasattr(error, "__notes__"):
        return
    free = ""
    cupy = sys.modules.get("cupy")
    if cupy and type(error).__module__.startswith("cupy"):
        rest, total = cupy.cuda.runtime.memGetInfo()
        rest += cupy.get_default_memory_pool().free_bytes()  # which CuPy keeps for later arrays
        free = f"{rest / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB are free: "
    error.add_note(f"{free}use a smaller batch or shorter sequences")


def owned(arrays: list[Any], k: int) -> Array:
    """arrays[k] for a caller that may change it in place: the array itself if it is one of NumPy or
    CuPy and nothing but the list refers to it or to its memory, else a copy."""
    x = arrays[k]
    owns_memory = getattr(x, "base", x) is None  # a view's base is the array that owns its memory
    references = sys.getrefcount(arrays[k])
    if owns_memory and references == 3:  # x, the list, and the argument of getrefcount
        return x
    return copy(x)


@extension_point
def large_sum(a: Array, b: Array) -> Array:
    """a + b for large arrays on the host. It is an extension point: a package may provide a faster
    function in its place."""
    return a + b


@extension_point
def device_sum(x: Array, axis: Any, keepdims: bool) -> Array | None:
    """The sum over axis that `total` returns for an array that is not NumPy's, or None to leave the
    sum to the array's own library, as this default does. It is an extension point: a package may
    provide a faster sum in its place."""
    return None


def add(a: Array, b: Array) -> Array:
    """a + b, for large arrays on the host by `large_sum`."""
    if type(a) is np.ndarray and a.size >= 2**16:
        return large_sum.function(a, b)
    return a + b


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum of x over an axis, a tuple of axes, or all of them if axis is None."""
    if type(x) is not np.ndarray:
        y = device_sum(x, axis, keepdims)
        if y is not None:
            return y
    return namespace(x).sum(x, axis=axis, keepdims=keepdims)


def on_cupy(x: Any) -> bool:
    """Whether x is an array of CuPy."""
    from array_api_compat import is_cupy_array

    return bool(is_cupy_array(x))


def on_host(x: Array) -> bool:
    """Whether x lies in the memory of the host, so that reading its entries does not make the host
    wait for a device."""
    return isinstance(x, np.ndarray) or "cpu" in str(x.device).lower()


def sample(x: Array, whole: bool) -> bytes:
    """Bytes of x by which to notice later that x has changed: those of all entries if x has up to
    1 KiB or if `whole` is true, else those of 16 entries. For an array on a device they are empty,
    unless `whole` is true, so that the host need not wait for the device."""
    if not isinstance(x, np.ndarray):
        if not (whole or on_host(x)):
            return b""
        x = to_numpy(x)
    if whole or x.nbytes <= 1024:
        return x.tobytes()
    return x.flat[_sample_places(x.size)].tobytes()


@functools.lru_cache(maxsize=1024)
def _sample_places(size: int) -> np.ndarray:
    """16 random indices, one in each sixteenth of an array of this size: indices at regular
    distances could miss whole columns."""
    within = np.random.default_rng(size).random(16)  # the same for every array of this size
    places = (np.arange(16) + within) * size / 16
    return places.astype(np.intp)


def like(host: np.ndarray, x: Array) -> Array:
    """A copy of the NumPy array `host` in the library and on the device of x. It keeps the dtype of
    `host`."""
    return move(host, namespace(x), x.device)


def move(x: Array, xp: Any, device: Any = None) -> Array:
    """A copy of x in the library with namespace xp, on the given device of this library or, if
    None, on its default device."""
    return xp.asarray(to_numpy(x).copy(), device=device)


def to_device(x: Array, device: Any) -> Array:
    """x on another device of its library. The device is given as an object of the library, or by
    its name, such as "cpu", "cuda:1" or "device1".

    On "cuda" a NumPy array becomes a CuPy array; on "cpu" a CuPy array becomes a NumPy array.
    Raises ValueError for a device that the library does not have, RuntimeError as `library` does.
    """
    named = isinstance(device, str)
    if isinstance(x, np.ndarray) and named and device.startswith("cuda"):
        return to_device(library("cupy").asarray(x), device)
    if on_cupy(x) and named and device == "cpu":
        return to_numpy(x)
    xp = namespace(x)
    devices = xp.__array_namespace_info__().devices()
    for there in devices:
        found = device in _names(there) if named else device == there
        if found and x.device == there:
            return x
        if found:
            return xp.asarray(x, device=there)
    raise ValueError(f"no device {str(device)!r}: there are {', '.join(map(str, devices))}")


def _names(device: Any) -> set[str]:
    """The names by which a device may be called: cuda:0 is also cuda, array-api-strict's CPU_DEVICE
    is cpu."""
    cupy = f"cuda:{device.id}" if hasattr(device, "id") else str(device)
    name = getattr(device, "_device", cupy)
    return {str(device), name, name.partition(":")[0], name.removesuffix("_DEVICE").lower()}


def mover(x: Array) -> Callable[[Array], Array]:
    """A function that moves an array to the library and the device of x. It returns the array
    itself if that is there already, else a copy."""
    there = place(x)
    xp = namespace(x)
    device = x.device
    return lambda y: y if place(y) == there else move(y, xp, device)


def pick(x: Array, key: tuple[Any, ...]) -> Array:
    """The entries x[key], for an array of any library, where key has the meaning it has in
    NumPy."""
    xp = namespace(x)
    if indexes_as_numpy(xp):
        return x[key]
    places = _places(x.shape, key)
    flat = xp.take(xp.reshape(x, (-1,)), like(places.reshape(-1), x), axis=0)
    return xp.reshape(flat, places.shape)


def add_at(shape: tuple[int, ...], key: tuple[Any, ...], updates: Array) -> Array:
    """An array of zeros of this shape, with the updates added to its entries [key]. If key selects
    an entry several times, all its updates are added. Updates of 16-bit floats give float32."""
    xp = namespace(updates)
    if is_half(updates):  # in 16 bits a sum would stop growing
        updates = xp.astype(updates, xp.float32)
    out = xp.zeros(shape, dtype=updates.dtype, device=updates.device)
    if indexes_as_numpy(xp):
        xp.add.at(out, key, updates)
        return out
    places = _places(shape, key)
    updates = xp.reshape(xp.broadcast_to(updates, places.shape), (-1,))  # (number of updates,)
    places = like(places.reshape(-1), updates)  # (number of updates,)
    out = xp.reshape(out, (-1,))  # (number of entries,)
    if hasattr(out, "index_add_"):  # torch
        return xp.reshape(out.index_add_(0, places, updates), shape)

    # Without a scatter-add, each entry is the sum of a row. No product with 0 and 1: 0 · ∞ is NaN.
    numbers = xp.arange(math.prod(shape), dtype=places.dtype, device=updates.device)
    hit = numbers[:, None] == places[None, :]  # (number of entries, number of updates)
    terms = xp.where(hit, updates, xp.zeros_like(updates))
    return xp.reshape(xp.sum(terms, axis=1), shape)


def indexes_as_numpy(xp: Any) -> bool:
    """Whether x[key] has the same meaning in this library as in NumPy. True for CuPy, but not for
    torch or the array-API standard."""
    return hasattr(xp, "add") and hasattr(xp.add, "at")


def indexes_on_device(x: Array) -> bool:
    """Whether x[k] accepts an array k of integers without axes on the device of x, so that the host
    need not wait for it."""
    return not on_host(x) and indexes_as_numpy(namespace(x))


def _places(shape: tuple[int, ...], key: tuple[Any, ...]) -> np.ndarray:
    """The indices of the entries x[key] in the flattened array, in row-major order, on the host,
    for an array x of this shape."""
    on_host = tuple(to_numpy(k) if is_array(k) else k for k in key)
    return np.arange(math.prod(shape)).reshape(shape)[on_host]


def unbroadcast(dx: Array, shape: tuple[int, ...]) -> Array:
    """Sum the gradient dx to `shape`, over the axes along which broadcasting repeated an array of
    this shape.

    Broadcasting copies an entry to many places. The gradient of the entry is the sum over these
    places.
    Raises ValueError if an array of this shape cannot be broadcast to the shape of dx.
    """
    if dx.shape == shape:
        return dx
    xp = namespace(dx)
    extra = dx.ndim - len(shape)  # axes that broadcasting added in front
    thin = (1,) * extra + tuple(shape)  # for (M,) beside (B, T, M): (1, 1, M)
    axes = tuple([k for k, m in enumerate(dx.shape) if extra >= 0 and thin[k] != m])  # (0, 1)
    if extra < 0 or any(thin[k] != 1 for k in axes):
        raise ValueError(f"a gradient of shape {tuple(dx.shape)} for an argument of {tuple(shape)}")

    # A sum in 16 bits stops growing.
    if is_half(dx):
        wide = unbroadcast(xp.astype(dx, xp.float32), shape)
        return xp.astype(wide, dx.dtype)

    if shape and axes == tuple(range(extra)):
        return total(dx, axes)
    y = total(dx, axes, keepdims=True)
    if extra:
        y = xp.reshape(y, shape)
    return y


def erf(x: Array) -> Array:
    """The error function, which the array-API standard lacks: the library's own, or SciPy's on the
    host or, where SciPy is missing, as in a browser, Python's."""
    special = namespace(x)
    if on_cupy(x):
        special = importlib.import_module("cupyx.scipy.special")
    if is_floating(x) and hasattr(special, "erf"):
        return special.erf(x)
    try:
        from scipy.special import erf as on_host  # also of complex numbers
    except ImportError:
        on_host = _erf
    host = to_numpy(x)
    if is_exact(host):
        host = host.astype(float)
    y = np.asarray(on_host(host))
    if isinstance(x, np.ndarray):
        return y
    return like(y, x)


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function by Python's math.erf, one entry at a time. Complex numbers x + ih come
    from a complex step, whose h is so small that erf x + ih · 2/√π · exp(−x²) is exact."""
    y = np.vectorize(math.erf, otypes=[x.real.dtype])(x.real)
    if not is_complex(x):
        return y
    slope = 2 / math.sqrt(math.pi) * np.exp(-x.real * x.real)
    return y + 1j * x.imag * slope


def einsum(subscripts: str, *operands: Array) -> Array:
    """Einstein summation, which the array-API standard lacks, by the einsum of the library of the
    arrays, or by NumPy on the host if the library has none."""
    xp = namespace(*operands)
    if hasattr(xp, "einsum"):
        settings = {}
        if indexes_as_numpy(xp):
            settings = {"optimize": True}  # as matrix products, by BLAS
        return xp.einsum(subscripts, *operands, **settings)
    y = np.einsum(subscripts, *map(to_numpy, operands))
    return like(np.asarray(y), operands[0])


def generator(rng: Rng) -> np.random.Generator:
    """rng itself if it is a generator or `EMPTY`, which draws nothing; else a new generator with
    the seed rng."""
    if rng is EMPTY:
        return rng
    return np.random.default_rng(setting(rng))


def is_generator(rng: object) -> bool:
    """Whether rng is a generator, which gives new numbers at each draw, and not a seed."""
    return isinstance(rng, np.random.Generator)


EMPTY: Any = object()
"""Given in place of a generator for weights that are set later: `normal` then draws nothing and
leaves the memory uninitialised."""


def normal(rng: Rng, shape: tuple[int, ...], *, std: float, dtype: str) -> Array:
    """An array of normal numbers with mean 0 and standard deviation std, drawn on the host, so that
    a seed gives the same numbers for every library. If rng is `EMPTY`, nothing is drawn, and the
    entries are whatever lay in memory."""
    shape = tuple(map(index, shape))
    if rng is EMPTY:
        return np.empty(shape, dtype)
    normal = generator(rng).standard_normal(shape)
    return (setting(std) * normal).astype(dtype)


def bernoulli(rng: Rng, shape: tuple[int, ...], p: float, *, like: Array) -> Array:
    """A boolean array, True with probability p, in the library and on the device of the array
    `like`.

    It is drawn on the host, so that a seed gives the same array for every library.
    """
    return move(generator(rng).random(shape) < p, namespace(like), like.device)


def full(shape: tuple[int, ...], value: float, *, dtype: str) -> Array:
    """An array on the host, filled with one value."""
    return np.full(tuple(map(index, shape)), value, dtype=dtype)
