"""Operations that select entries. Their pullbacks add dy to the gradients of these entries."""

from __future__ import annotations

from typing import Any

from .. import backend
from ..backend import Array, namespace
from ..half import always
from ..operation import operation
from ..tape import Pullback, array_of
from .requirements import one_axis

_BASIC = frozenset({int, type(None), type(...)})  # with them a key selects no entry twice


@operation(native=always, selecting=("key",))
def getitem(
    x: Array,
    *,
    key: Any,
) -> tuple[Array, Pullback]:
    """y = x[key] for integers, slices, None, an ellipsis, and arrays of integers or booleans.

    dx = dy at key, 0 elsewhere; where an array of integers repeats an entry, its gradients add up.
    A key means the same in every library as in NumPy.
    Raises TypeError for an invalid index, IndexError for one out of range. In an array of indices,
    CuPy takes one that is out of range modulo the length instead.
    """
    xp = namespace(x)
    shape = x.shape  # the pullbacks do not save x
    if not isinstance(key, tuple):
        key = (key,)  # x[3] means x[3,]

    # Fast path: numbers and slices need no conversion, and select no entry twice.
    has_arrays = False
    if not all(map(_is_basic, key)):
        key = tuple(_part(k, x) for k in key)
        has_arrays = any(map(backend.is_array, key))

    # An array may select an entry several times, and not every library indexes as NumPy does.
    if has_arrays or not (type(x) is backend.HostArray or backend.indexes_as_numpy(xp)):
        y = backend.pick(x, key)
        return y, lambda dy: (backend.add_at(shape, key, dy),)

    y = x[key]

    # Each entry was selected once at most, so dy can be assigned instead of added.
    def pullback(dy: Array) -> tuple[Array]:
        dx = xp.zeros(
            shape,
            dtype=dy.dtype,  # float32 for 16-bit x
            device=dy.device,
        )
        dx[key] = dy
        return (dx,)

    return y, pullback


def _is_basic(k: Any) -> bool:
    """Whether k, a part of a key, is a Python integer, None, an ellipsis, or a slice whose start,
    stop and step are Python integers or None."""
    if type(k) is slice:
        # No generator, which would take longer, since every index passes here.
        return type(k.start) in _BASIC and type(k.stop) in _BASIC and type(k.step) in _BASIC
    return type(k) in _BASIC


def _part(k: Any, x: Array) -> Any:
    """Convert k, one part of a key such as x[k, k2]: an integer of any kind becomes Python's, but
    one on the device of x may stay there; a list or an array becomes an array in the library of x;
    the numbers of a slice become Python's; None and ... stay as they are. Raises TypeError for
    anything that is not an index."""
    k = array_of(k)
    if isinstance(k, slice):
        # Of Python's numbers: arrays without axes could be changed later.
        start = _end(k.start)
        stop = _end(k.stop)
        step = _end(k.step)
        return slice(start, stop, step)
    if k is None or k is ...:
        return k

    if isinstance(k, list):
        k = _from_list(k)
    if getattr(k, "ndim", 0):  # an array that is no number
        if not backend.is_exact(k):
            raise TypeError(f"an index must be integers or booleans, not {k.dtype}")
        if type(k) is not type(x):
            on_host = backend.to_numpy(k)
            k = backend.like(on_host, x)
        return k

    # A number on the device need not be read by the host, which would wait for it.
    if backend.is_integral(k) and type(k) is type(x) and backend.indexes_on_device(x):
        return k

    # True is a mask in NumPy, not the number 1, and would be taken for it by __index__.
    is_boolean = isinstance(k, bool) or backend.is_boolean(k)
    if is_boolean or not (backend.is_integral(k) or hasattr(k, "__index__")):
        raise TypeError(f"an index must be integers, slices, None, ... or arrays, got {k!r}")
    return backend.index(k)


def _end(n: Any) -> int | None:
    """n, the start, stop or step of a slice, as a Python integer; None if it was left out."""
    if n is None:  # as in x[2:]
        return None
    return backend.index(array_of(n))


def _from_list(k: list[Any]) -> Array:
    # An empty list would become an array of floats; this one is of integers.
    if not k:
        return backend.asarray([0])[:0]
    return backend.asarray(k)


@operation(requirement=one_axis, native=always)
def gather(
    x: Array,
    indices: Array,
    *,
    axis: int = 0,
) -> tuple[Array, Pullback]:
    """y = the slices of x at indices along axis, as in embedding: y[i, j] = x[indices[i, j]].

    dx = zeros, to which the slices of dy are added at indices. The array of indices has any shape,
    which takes the place of the axis in the shape of y. Along an axis of length n, indices run from
    −n to n − 1. NumPy calls this "take", ONNX "Gather".
    Raises TypeError for indices that are not integers, IndexError for an index out of range. CuPy
    takes such an index modulo the length instead.
    """
    backend.require(backend.is_integral, indices, "indices")
    axis = range(x.ndim)[axis]  # counted from the left

    # For axis 2: x[:, :, indices].
    before = (slice(None),) * axis
    key = (*before, indices)
    y, pull = getitem.function(x, key=key)
    return y, lambda dy: (*pull(dy), None)  # indices have no gradient


@operation(requirement=one_axis, native=always)
def take_along_axis(
    x: Array,
    indices: Array,
    *,
    axis: int = -1,
) -> tuple[Array, Pullback]:
    """y = an entry of x for each of indices along axis: y[i, j] = x[i, indices[i, j]] for axis 1.

    dx = zeros, to which dy is added at the selected entries. The array of indices has as many axes
    as x; along all axes but `axis`, the two broadcast. PyTorch calls this "gather", ONNX
    "GatherElements".
    Raises TypeError for indices that are not integers, IndexError for an index out of range. CuPy
    takes such an index modulo the length instead.
    """
    backend.require(backend.is_integral, indices, "indices")
    if indices.ndim != x.ndim:
        raise ValueError("x and indices must have the same number of axes")
    xp = namespace(x)
    indices = xp.astype(indices, xp.int64)  # a narrow type may not hold the lengths

    # 0, 1, 2, … along each other axis, which broadcast to a grid: for axis 1 of a matrix
    # x[[[0], [1], …], indices].
    key = []
    for k, n in enumerate(x.shape):
        places = xp.arange(
            n,
            dtype=indices.dtype,
            device=x.device,
        )  # (n,)
        later_axes = x.ndim - k - 1
        column = (n,) + (1,) * later_axes
        key.append(xp.reshape(places, column))  # (n, 1, …, 1)
    key[axis] = indices  # which choose along their own axis
    y, pull = getitem.function(x, key=tuple(key))
    return y, lambda dy: (*pull(dy), None)  # indices have no gradient
