"""The one concept: an operation is a function on arrays that returns its value and its pullback.

    @operation
    def exp(x):
        y = xp.exp(x)
        def pullback(dy):
            return (dy * y,)
        return y, pullback

Positional arguments are arrays (or numbers, or None), keywords are settings. The pullback takes a
cotangent for each value, None where nothing flows back, and returns a tuple with one gradient for
each positional argument, None for those that have none.

An operation with a keyword `wanted` is told which of these gradients are wanted, as a tuple of
booleans, and may leave out the work for the others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Number
from typing import Any, Protocol

from . import backend
from .backend import Array
from .tensor import Node, Tensor, is_recording

Pullback = Callable[..., tuple[Array | None, ...]]


class Operation(Protocol):
    """What `operation` makes of a function: called with arrays it gives arrays, with a Tensor among
    them Tensors; `with_pullback` takes arrays and gives the value and the pullback."""

    __name__: str
    __doc__: str | None

    def __call__(self, *inputs: Any, **settings: Any) -> Any: ...

    def with_pullback(
        self, *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]: ...


registry: dict[str, Operation] = {}
"""Every operation by its module and name. The tests ask for a record of each of ours."""


def operation(function: Callable[..., tuple[Any, Pullback]]) -> Operation:
    """Lift a function on arrays, which returns its value and its pullback, to Tensors.

    function  takes arrays (or numbers, or None) as positional and settings as keyword arguments;
              returns (value, pullback), or (several values as a tuple, pullback). The pullback
              takes one cotangent a value, None where nothing flows back, and returns a tuple with
              one gradient for each positional argument, None for those that have none

    The operation gives arrays for arrays, Tensors if any argument is one. Its `with_pullback` takes
    arrays and gives the value and the pullback, in which broadcasting is undone.

    The operation raises TypeError for arrays of two libraries or float types and for what is no
    array, its pullback for a result that is not one gradient an argument.
    """
    name = function.__name__
    signature = inspect.signature(function)
    keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    asks_wanted = any(p.name == "wanted" for p in keywords)
    parameters = tuple(signature.parameters)[: len(signature.parameters) - len(keywords)]

    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]:
        if not settings.keys().isdisjoint(parameters):
            arrays = _placed(parameters, arrays, settings)
        settings = {k: backend.plain_scalar(v) for k, v in settings.items()}
        dtype = _common_dtype(name, parameters, arrays)
        if wanted is None:
            wanted = tuple(backend.is_floating(x) for x in arrays)
        if asks_wanted:
            settings["wanted"] = wanted + (False,) * (len(parameters) - len(wanted))
        value, pull = function(*arrays, **settings)
        shapes = [x.shape if want else None for x, want in zip(arrays, wanted, strict=True)]

        def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
            gradients = pull(*cotangents)
            if not isinstance(gradients, tuple) or len(gradients) not in counts:
                raise TypeError(
                    f"{name}: the pullback must return a tuple of {len(parameters)}, one gradient "
                    f"for each of {', '.join(parameters)}, not {_described(gradients)}"
                )
            return tuple(  # optional arguments that were left out have no place in the result
                None if shape is None or dx is None else unbroadcast(dx, shape)
                for dx, shape in zip(gradients, shapes, strict=False)
            )

        counts = (len(arrays), len(parameters))
        if isinstance(value, tuple):
            return tuple(_checked(name, v, dtype) for v in value), pullback
        return _checked(name, value, dtype), pullback

    @functools.wraps(function)
    def lifted(*inputs: Any, **settings: Any) -> Any:
        if not settings.keys().isdisjoint(parameters):
            inputs = _placed(parameters, inputs, settings)
        edges = tuple(x._edge if isinstance(x, Tensor) else None for x in inputs)
        arrays = [x.data if isinstance(x, Tensor) else backend.plain_scalar(x) for x in inputs]
        wanted = tuple(edge is not None for edge in edges) if is_recording() else ()
        if not any(wanted):
            value, _ = with_pullback(*arrays, wanted=(False,) * len(arrays), **settings)
            if not any(isinstance(x, Tensor) for x in inputs):
                return value
            return tuple(map(Tensor, value)) if isinstance(value, tuple) else Tensor(value)
        value, pullback = with_pullback(*arrays, wanted=wanted, **settings)
        if any(map(backend.is_complex, value if isinstance(value, tuple) else (value,))):
            raise TypeError(f"{name}: complex values have no gradient: use no_grad()")
        if not isinstance(value, tuple):
            return Tensor._made(value, (Node(pullback, edges), 0))
        node = Node(pullback, edges, values=len(value))
        return tuple(Tensor._made(v, (node, k)) for k, v in enumerate(value))

    with_pullback.__name__ = name
    shown = [p for p in signature.parameters.values() if p.name != "wanted"]
    lifted.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # for help()
    lifted.with_pullback = with_pullback  # type: ignore[attr-defined]
    registry[f"{function.__module__}.{name}"] = lifted  # type: ignore[assignment]
    return lifted  # type: ignore[return-value]


def unbroadcast(dx: Array, shape: tuple[int, ...]) -> Array:
    """Sum dx over the axes along which broadcasting repeated an array of the given shape.

    Broadcasting copies an entry to many places; the gradient of a copy is the sum over the places.
    Raises ValueError for a dx that no broadcasting of such an array can have led to.
    """
    if dx.shape == shape:
        return dx
    xp = backend.namespace(dx)
    extra = dx.ndim - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, dx.shape[extra:], strict=True)):
        raise ValueError(f"a gradient of shape {tuple(dx.shape)} for an argument of {tuple(shape)}")
    stretched = (extra + k for k, n in enumerate(shape) if n == 1 and dx.shape[extra + k] != 1)
    dx = xp.sum(dx, axis=(*range(extra), *stretched), keepdims=True)
    return xp.reshape(dx, shape)


def _placed(
    parameters: tuple[str, ...], inputs: tuple[Any, ...], settings: dict[str, Any]
) -> tuple[Any, ...]:
    """The inputs with those that were given by keyword put in their places."""
    names = parameters[len(inputs) :]
    last = max((k for k, name in enumerate(names, 1) if name in settings), default=0)
    return (*inputs, *(settings.pop(name, None) for name in names[:last]))


def _common_dtype(name: str, parameters: tuple[str, ...], arrays: tuple[Any, ...]) -> Any:
    """The float type of all arrays that have one.

    Arrays of two libraries or of two float types are a mistake, not a promotion.
    """
    first = None
    for parameter, x in zip(parameters, arrays, strict=False):
        if not (backend.is_array(x) or isinstance(x, Number) or x is None):
            raise TypeError(f"{name}: {parameter} must be an array, not {_described(x)}")
        if not backend.is_floating(x):
            continue
        if first is None:
            first, earlier = x, parameter
        elif backend.namespace(x) is not backend.namespace(first) or x.dtype != first.dtype:
            raise TypeError(
                f"{name}: {earlier} is {type(first).__name__} of {first.dtype}, {parameter} is "
                f"{type(x).__name__} of {x.dtype}: convert one, nothing is converted silently"
            )
    return None if first is None else first.dtype


def _checked(name: str, value: Any, dtype: Any) -> Array:
    """A value as an array, of the float type that went in."""
    value = backend.asarray(value)
    if dtype is not None and value.dtype != dtype and backend.is_floating(value):
        raise TypeError(
            f"{name}: {dtype} went in and {value.dtype} came out: an integer array among the "
            f"arguments promotes it; convert that to {dtype}"
        )
    return value


def _described(x: object) -> str:
    return f"a {type(x).__name__}" + (f" of {len(x)}" if isinstance(x, tuple) else "")
