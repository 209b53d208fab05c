"""The array libraries: the only file of the engine that names one.

Everything else asks `namespace(x)` for the functions of the array-API standard that belong to the
array x, and finds here what the standard lacks: moving between libraries and devices, checksums,
indexing by arrays and its scatter-add, padding, erf, einsum, random numbers.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from numpy.random import Generator

    Rng = Generator | int  # or the seed of one: nothing here touches global state
else:  # numpy.random takes a fifth of NumPy's own time to load
    Generator = Rng = Any

HostArray = np.ndarray
"""The type of arrays on the host."""

HostScalar = np.generic
"""NumPy's scalars, which count as plain numbers."""

known: dict[type, Any] = {}
"""The namespaces of the array types met so far."""

exact: dict[int, Any] = {}
"""The dtypes met so far that are not floating-point, by id: they mix with any."""


def namespace(x: Any, *others: Any) -> Any:
    """The array-API namespace of the first array among the arguments.

    Looked up once a type: asking array-api-compat each time costs as much as a small operation.
    """
    try:
        return known[type(x)]
    except KeyError:  # met for the first time, or no array
        pass
    if isinstance(x, np.generic):
        return namespace(np.asarray(x))
    if hasattr(x, "dtype"):
        from array_api_compat import array_namespace  # pulls in much of NumPy: not at import

        xp = array_namespace(x)
        known[type(x)] = xp = _lean(xp) if type(x) is np.ndarray else xp
        return xp
    if not others:
        raise TypeError(f"expected an array, not a {type(x).__name__}")
    return namespace(*others)


def _lean(numpy: Any) -> ModuleType:
    """NumPy's namespace, less the time that its functions and wrappers spend in Python.

    On 8x8 float32: sum 0.8 µs for 2.0, max 0.9 for 2.1, clip 0.9 for 9.6, zeros_like 0.2 for 1.3.
    """

    def reduction(ufunc: Any, adds: bool) -> Callable[..., Array]:
        def reduce(
            x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False
        ) -> Array:
            if adds and dtype is None and x.dtype.char == "e":  # in 16 bits it would stop growing
                return np.asarray(ufunc.reduce(x, axis, np.float32, None, keepdims)).astype("e")
            return ufunc.reduce(x, axis, dtype, None, keepdims)

        return reduce

    def reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
        return x.reshape(shape) if copy is None else numpy.reshape(x, shape, copy=copy)

    def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
        return x.transpose(axes)

    def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002
        if x.dtype.kind != "f" or min is max is None:
            return np.clip(x, min, max)
        return x.clip(beside(min, x), beside(max, x))

    def cumulative_sum(x: Array, /, *, axis: int | None = None, **settings: Any) -> Array:
        if settings or axis is None or x.dtype.kind != "f":
            return numpy.cumulative_sum(x, axis=axis, **settings)
        if x.dtype.char == "e":
            return np.add.accumulate(x, axis, np.float32).astype("e")
        return np.add.accumulate(x, axis)

    def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
        return np.zeros(shape, dtype)

    def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
        return np.zeros(x.shape, dtype or x.dtype)

    def full_like(x: Array, /, value: Any, *, dtype: Any = None, device: Any = None) -> Array:
        y = np.empty(x.shape, dtype or x.dtype)
        y.fill(value)
        return y

    def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
        if math.prod(shape) > _SMALL or x.ndim > len(shape):
            return np.broadcast_to(x, shape)
        y = np.empty(shape, x.dtype)
        y[...] = x
        return y

    def flip(x: Array, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
        if axis == 0 and x.ndim:
            return x[::-1]
        if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
            return np.flip(x, axis)
        return x[(slice(None),) * (axis % x.ndim) + (slice(None, None, -1),)]

    lean = ModuleType(numpy.__name__)
    lean.__dict__.update(vars(numpy))
    for function in (
        reshape, permute_dims, clip, cumulative_sum, zeros, zeros_like, full_like, broadcast_to,
        flip,
    ):  # fmt: skip
        setattr(lean, function.__name__, function)
    for name, ufunc in {"sum": np.add, "max": np.maximum, "min": np.minimum}.items():
        setattr(lean, name, reduction(ufunc, name == "sum"))
    lean.__dict__["matmul"] = np.matmul
    return lean


_SMALL = 16_384
"""Entries up to which a copy is faster than a view made by NumPy's broadcast_to."""


_numbers: dict[str, dict[float, np.ndarray]] = {}
"""Numbers as arrays without axes, by the letter of the dtype and the number."""


def beside(number: float, x: Array) -> Any:
    """A number to compute with x: as an array without axes, which NumPy takes 0.25 µs less over."""
    if type(x) is not np.ndarray:
        return number
    try:
        return _numbers[x.dtype.char][number]
    except (KeyError, TypeError):  # new, or no number
        return _without_axes(number, x.dtype)


def _without_axes(number: Any, dtype: Any) -> Any:
    if type(number) not in (float, int) or not number or dtype.kind != "f":
        return number  # among them 0, which could be -0
    with np.errstate(over="ignore"):
        array = np.asarray(number, dtype)
    if not np.isfinite(array):
        return number
    array.flags.writeable = False
    there = _numbers.setdefault(dtype.char, {})
    if len(there) < 1024:
        there[number] = array
    return array


def some(mask: Array) -> Array | None:
    """A mask, or None if it is seen to hold nowhere; on a device nobody looks."""
    return None if type(mask) is np.ndarray and 1 not in mask.tobytes() else mask


def put(into: Array, mask: Array, values: Array) -> Array:
    """The values where the mask holds, and into elsewhere, which may be overwritten.

    Values and into have one shape and dtype; the mask broadcasts to it.
    """
    if type(into) is not np.ndarray or mask.size != into.size:
        return namespace(into).where(mask, values, into)
    np.putmask(into, mask, values)
    return into


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
    return hasattr(x, "__dlpack__") and not isinstance(x, np.generic)


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
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_floating(x: object) -> bool:
    """Whether x is an array of real floating-point numbers: the arrays that can have gradients."""
    return x.dtype.kind == "f" if type(x) is HostArray else _is(x, "real floating")


def is_half(x: object) -> bool:
    """Whether x is an array of floats of 16 bits, which are computed with in 32."""
    return getattr(getattr(x, "dtype", None), "itemsize", 0) == 2 and is_floating(x)


def is_complex(x: object) -> bool:
    """Whether x is an array of complex numbers: they pass forward only, for the complex step."""
    return x.dtype.kind == "c" if type(x) is HostArray else _is(x, "complex floating")


def is_integral(x: object) -> bool:
    """Whether x is an array of integers."""
    return x.dtype.kind in "iu" if type(x) is HostArray else _is(x, "integral")


def is_boolean(x: object) -> bool:
    """Whether x is an array of booleans."""
    return x.dtype.kind == "b" if type(x) is HostArray else _is(x, "bool")


def is_exact(x: object) -> bool:
    """Whether x is an array of integers or booleans."""
    return is_integral(x) or is_boolean(x)


def _is(x: Any, kind: str) -> bool:
    """By the standard's word for a kind of dtype, which NumPy has a letter for."""
    return is_array(x) and bool(namespace(x).isdtype(x.dtype, kind))


def require(test: Callable[[object], bool], x: object, name: str) -> None:
    """Raise TypeError, with the name, unless x passes `is_integral` or `is_boolean`."""
    if not test(x):
        what = f"of dtype {x.dtype}" if hasattr(x, "dtype") else f"of type {type(x).__name__}"
        kind = "an array of integers" if test is is_integral else "a boolean array"
        raise TypeError(f"{name} must be {kind}, not {what}")


def to_numpy(x: Array) -> np.ndarray:
    """The entries of x as a NumPy array on the host."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "get"):  # CuPy
        return np.asarray(x.get())
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu()
        return np.asarray((x.float() if "bfloat16" in str(x.dtype) else x).numpy())
    return np.from_dlpack(namespace(x).asarray(x, copy=True))  # NumPy 2.0 refuses read-only ones


def dtype(xp: Any, name: Any) -> Any:
    """The dtype of a library by its name, or by NumPy's dtype; its own as it is.

    Raises TypeError where there is none.
    """
    if not isinstance(name, str | type | np.dtype):
        return name
    try:
        return getattr(xp, np.dtype(name).name)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"no dtype {name!r}") from error


def copy(x: Array) -> Array:
    """A copy of x, which nobody else holds."""
    return x.copy() if type(x) is np.ndarray else namespace(x).asarray(x, copy=True)


def owned(x: Array) -> Array:
    """x itself if nobody but the caller holds it, by one name, as PyTorch asks; or else a copy.

    CPython counts references. A view that nobody else holds, of all of an array that nobody holds
    besides, will do.
    """
    if type(x) is np.ndarray and x.flags.carray:
        count, of_base = _references(x)
        whole = type(x.base) is np.ndarray and x.base.base is None and x.base.nbytes == x.nbytes
        if count == _ALONE[0] and (x.base is None or (whole and of_base == _ALONE[1])):
            return x
    return copy(x)


def _references(x: np.ndarray) -> tuple[float, float]:
    """How many there are to x and to what it is a view of; NaN, which equals nothing, where they
    are not counted."""
    count = getattr(sys, "getrefcount", lambda _: math.nan)
    return count(x), count(x.base)


def _alone() -> tuple[float, float]:
    """What `owned` sees of an array that nobody else holds, and of a view of it."""
    through = lambda x: _references(x)  # noqa: E731, PLW0108  as `owned` calls it
    array, view = np.zeros(1), np.zeros(1).reshape(1, 1)
    return through(array)[0], through(view)[1]


_ALONE = _alone()


SMALL = 1024
"""Bytes up to which `checksum` reads all of an array."""


def checksum(x: Array, whole: bool = False) -> int:
    """A number that changes when x does: from every byte of small arrays, or if whole of all.

    Of larger ones from 64 entries spread over the array. Arrays on a device give 0 unless whole: to
    read them would make the device wait.
    """
    if not whole and not _on_host(x):
        return 0
    x = to_numpy(x)
    if not whole and x.nbytes > SMALL:
        x = x.flat[_spread(x.size)]
    return hash(x.tobytes())


@functools.lru_cache(maxsize=1024)
def _spread(size: int) -> np.ndarray:
    """64 places, one at random in each 64th part: a regular step could miss whole columns."""
    places = (np.arange(64) + np.random.default_rng(size).random(64)) * size / 64
    return places.astype(np.intp)


def _on_host(x: Array) -> bool:
    return isinstance(x, np.ndarray) or "cpu" in str(x.device).lower()


def like(host: np.ndarray, x: Array) -> Array:
    """A copy of the host's array in the library and on the device of x, with its own dtype."""
    return move(host, namespace(x), device=x.device)


def move(x: Array, xp: Any, device: Any = None) -> Array:
    """A copy of x in the library with namespace xp."""
    return xp.asarray(to_numpy(x).copy(), device=device)


def to_device(x: Array, device: Any) -> Array:
    """x on a device of its library, given as such or by name: "cpu", "cuda", "cuda:1", "device1".

    NumPy's arrays go to a GPU as CuPy's, and come back as NumPy's.
    Raises ValueError for a device that the library does not have, or that needs CuPy.
    """
    name, _, number = str(device).partition(":")
    if isinstance(x, np.ndarray) and name == "cuda":
        try:
            return to_device(library("cupy").asarray(x), device)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
    if hasattr(x, "get"):  # CuPy
        if name == "cpu":
            return to_numpy(x)
        from array_api_compat import to_device as moved

        there = namespace(x).cuda.Device(int(number or 0)) if name == "cuda" else device
        return moved(x, there)
    xp = namespace(x)
    devices = xp.__array_namespace_info__().devices()
    for there in devices:
        if device == there or str(device) in _names(there):
            return x if x.device == there else xp.asarray(x, device=there)
    raise ValueError(f"no device {str(device)!r}: there are {', '.join(map(str, devices))}")


def _names(device: Any) -> set[str]:
    """What a device may be called: torch's cuda:0 also cuda, array-api-strict's CPU_DEVICE cpu."""
    name = getattr(device, "_device", str(device))
    return {str(device), name, name.partition(":")[0], name.removesuffix("_DEVICE").lower()}


def mover(x: Array) -> Callable[[Array], Array]:
    """What brings an array to the library and device of x."""
    xp, device = namespace(x), x.device
    return lambda y: y if (namespace(y), y.device) == (xp, device) else move(y, xp, device)


def pick(x: Array, key: tuple[Any, ...]) -> Array:
    """x[key] as NumPy means it, whatever the library has of it."""
    xp = namespace(x)
    if indexes_as_numpy(xp):
        return x[key]
    places = _places(x.shape, key)
    flat = xp.take(xp.reshape(x, (-1,)), like(places.reshape(-1), x), axis=0)
    return xp.reshape(flat, places.shape)


def add_at(shape: tuple[int, ...], key: tuple[Any, ...], updates: Array) -> Array:
    """Zeros of a shape with updates added at key: where it names an entry again, they add up."""
    xp = namespace(updates)
    if is_half(updates):  # in 16 bits a sum would stop growing
        return xp.astype(add_at(shape, key, xp.astype(updates, xp.float32)), updates.dtype)
    out = xp.zeros(shape, dtype=updates.dtype, device=updates.device)
    if indexes_as_numpy(xp):
        xp.add.at(out, key, updates)
        return out
    places = _places(shape, key)
    updates = xp.reshape(xp.broadcast_to(updates, places.shape), (-1,))
    places, size = like(places.reshape(-1), updates), math.prod(shape)
    if not size:
        return out
    out = xp.reshape(out, (-1,))
    if hasattr(out, "index_add_"):  # torch
        return xp.reshape(out.index_add_(0, places, updates), shape)
    numbers = xp.arange(size, dtype=places.dtype, device=updates.device)
    hit = numbers[:, None] == places[None, :]  # no product with 0 and 1: 0 · ∞ is NaN
    return xp.reshape(xp.sum(xp.where(hit, updates[None, :], out[:1, None]), axis=1), shape)


def indexes_as_numpy(xp: Any) -> bool:
    """Whether keys mean what they mean to NumPy: so for CuPy, and not for torch or the standard."""
    return hasattr(xp, "add") and hasattr(xp.add, "at")


def _places(shape: tuple[int, ...], key: tuple[Any, ...]) -> np.ndarray:
    """The places of the entries x[key] in row-major order, on the host."""
    on_host = tuple(to_numpy(k) if is_array(k) else k for k in key)
    return np.arange(math.prod(shape)).reshape(shape)[on_host]


def pad(x: Array, pad_width: Any, value: float) -> tuple[Array, tuple[slice, ...]]:
    """x with a margin, and the index of x in it."""
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    if any(not isinstance(n, int) or n < 0 for pair in widths for n in pair):
        raise ValueError(f"pad_width must be integers of at least 0, not {pad_width!r}")
    shape = tuple(n + before + after for n, (before, after) in zip(x.shape, widths, strict=True))
    inner = tuple(slice(w, w + n) for n, (w, _) in zip(x.shape, widths, strict=True))
    y = namespace(x).full(shape, value, dtype=x.dtype, device=x.device)
    y[inner] = x
    return y, inner


_ERF_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
     3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_ERF_FAR = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function, to 2e-16, also of complex numbers close to the real line.

    Near zero x R(x²), farther out ±(1 − e^(−x²) R(|x|)), with rational functions R.
    Source: Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969).
    """
    xp = namespace(x)
    if is_half(x):  # its largest number, 65504, is too small for the sums below
        return xp.astype(erf(xp.astype(x, xp.float32)), x.dtype)
    if is_exact(x):
        x = xp.astype(x, xp.float64)
    real = xp.real(x) if is_complex(x) else x
    sign = xp.astype(xp.sign(real), x.dtype)
    size = x * sign
    near, far = abs(real) <= 0.46875, abs(real) >= 6  # from 6 on it is ±1
    one = xp.ones_like(x)
    inner, outer = xp.where(near, x, 0 * one), xp.where(near | far, one, size)
    by_series = inner * _ratio(_ERF_NEAR, inner * inner)
    by_tail = sign * (1 - xp.exp(-outer * outer) * _ratio(_ERF_FAR, outer))
    return xp.where(near, by_series, xp.where(far, sign, by_tail))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    """A rational function, by Horner's rule."""
    above, below = (
        functools.reduce(lambda total, c: total * x + c, rest, first + 0 * x)
        for first, *rest in coefficients
    )
    return above / below


def einsum_terms(subscripts: str, operands: list[Array]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, the ellipsis spelt out in letters too.

    Raises ValueError for subscripts that do not fit the operands.
    """
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"{subscripts!r} is about {len(terms)} arrays, {len(operands)} were given")
    spare = [x.ndim - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True)]
    letters = filter(str.isalpha, map(chr, range(ord("α"), sys.maxunicode)))
    free = (c for c in letters if c not in subscripts)
    greek = "".join(itertools.islice(free, max(0, *spare)))
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        out = "..." * ("..." in left) + "".join(once)
    terms = [t.replace("...", greek[len(greek) - n :]) for t, n in zip(terms, spare, strict=True)]
    out = out.replace("...", greek)
    lengths: dict[str, set[int]] = {}
    for term, x in zip(terms, operands, strict=True):
        if len(term) != x.ndim or (term and not term.isalpha()):
            raise ValueError(f"{subscripts!r} has {len(term)} letters for shape {tuple(x.shape)}")
        for c, n in zip(term, x.shape, strict=True):
            lengths.setdefault(c, set()).add(n)
    if len(set(out)) < len(out) or not set(out) <= lengths.keys():
        raise ValueError(f"{subscripts!r}: a letter of the result must be that of an array, once")
    for c, found in lengths.items():
        if len(found - {1}) > 1:
            raise ValueError(f"{subscripts!r}: axis {c} has the lengths {sorted(found)}")
    return terms, out


def einsum(terms: list[str], out: str, operands: list[Array]) -> Array:
    """The sum of products of one or two operands, as a product of matrices."""
    xp, reduced = namespace(*operands), []
    for k, (letters, operand) in enumerate(zip(terms, operands, strict=True)):
        term, x = _diagonal(letters, operand)
        rest = out + "".join(terms[:k] + terms[k + 1 :])
        alone = tuple(j for j, c in enumerate(term) if c not in rest)  # summed at once
        x = xp.sum(x, axis=alone) if alone else x
        reduced.append(("".join(c for c in term if c in rest), x))
    if len(reduced) == 1:
        ((term, x),) = reduced
        return _ordered(x, term, out)
    (first, x), (second, y) = reduced
    both = [c for c in first if c in second]
    batch, inner = [c for c in both if c in out], [c for c in both if c not in out]
    rows, columns = [c for c in first if c not in both], [c for c in second if c not in both]
    x, y = _ordered(x, first, batch + rows + inner), _ordered(y, second, batch + inner + columns)
    b, r, i = len(batch), len(batch + rows), len(batch + inner)
    common = [m if n == 1 else n for n, m in zip(x.shape[r:], y.shape[b:i], strict=True)]
    x = xp.broadcast_to(x, (*x.shape[:r], *common))
    y = xp.broadcast_to(y, (*y.shape[:b], *common, *y.shape[i:]))
    k = math.prod(common)
    x_rows = xp.reshape(x, (*x.shape[:b], math.prod(x.shape[b:r]), k))
    y_columns = xp.reshape(y, (*y.shape[:b], k, math.prod(y.shape[i:])))
    z = xp.matmul(x_rows, y_columns)
    z = xp.reshape(z, (*z.shape[:-2], *x.shape[b:r], *y.shape[i:]))
    return _ordered(z, batch + rows + columns, out)


def spread(x: Array, letters: str, term: str, shape: tuple[int, ...]) -> Array:
    """What `einsum` took together, apart: x, with an axis a letter, repeated along the axes of term
    that are not among its letters, and put on the diagonal where term repeats a letter."""
    xp = namespace(x)
    lengths = dict(zip(letters, x.shape, strict=True))
    first = [term.index(c) == k for k, c in enumerate(term)]
    thin = [lengths.get(c, 1) if here else 1 for c, here in zip(term, first, strict=True)]
    full = [n if lengths.get(c, 1) == 1 else lengths[c] for c, n in zip(term, shape, strict=True)]
    x = xp.broadcast_to(xp.reshape(x, tuple(thin)), tuple(full))
    for k, c in enumerate(term):
        if not first[k]:
            x = xp.where(_equal(x, term.index(c), k), x, xp.zeros_like(x))
    return x


def _ordered(x: Array, term: Any, wanted: Any) -> Array:
    return namespace(x).permute_dims(x, tuple(term.index(c) for c in wanted))


def _diagonal(term: str, x: Array) -> tuple[str, Array]:
    """The entries at which axes of the same letter have the same index."""
    xp = namespace(x)
    for k in reversed(range(len(term))):
        if term.index(term[k]) < k:
            if x.shape[term.index(term[k])] != x.shape[k]:
                raise ValueError(f"axes of letter {term[k]} differ in length: {tuple(x.shape)}")
            on_it = _equal(x, term.index(term[k]), k)
            x = xp.sum(xp.where(on_it, x, xp.zeros_like(x)), axis=k)
            term = term[:k] + term[k + 1 :]
    return term, x


def _equal(x: Array, first: int, second: int) -> Array:
    """Whether the indices along two axes are equal, an array that broadcasts to x."""
    xp = namespace(x)
    numbers = xp.arange(x.shape[first], device=x.device)
    along = [tuple(-1 if k == axis else 1 for k in range(x.ndim)) for axis in (first, second)]
    return xp.reshape(numbers, along[0]) == xp.reshape(numbers, along[1])


def generator(rng: Rng) -> np.random.Generator:
    """The generator itself, or one started from a seed."""
    return np.random.default_rng(rng)


def is_generator(rng: object) -> bool:
    """Whether this is a generator, from which each draw is another, and no seed."""
    return isinstance(rng, np.random.Generator)


def normal(rng: Rng, shape: tuple[int, ...], *, std: float, dtype: str) -> Array:
    """Normal draws of mean 0, made on the host: a seed gives the same numbers for every library."""
    return (std * generator(rng).standard_normal(shape)).astype(dtype)


def bernoulli(rng: Rng, shape: tuple[int, ...], p: float, *, like: Array) -> Array:
    """A boolean array, True with probability p, in the library and on the device of like.

    Drawn on the host: a seed gives the same for every library.
    """
    return move(generator(rng).random(shape) < p, namespace(like), like.device)


def host() -> Any:
    """The namespace of arrays on the host."""
    return namespace(np.zeros(()))


def full(shape: tuple[int, ...], value: float, *, dtype: str) -> Array:
    """An array on the host, filled with one value."""
    return np.full(shape, value, dtype=dtype)
