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
    """Lift a function on arrays, which returns its value and pullback, to Tensors; register it."""
    name = function.__name__
    signature = inspect.signature(function)
    settings_of = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    asks_wanted = any(p.name == "wanted" for p in settings_of)
    parameters = tuple(signature.parameters)[: len(signature.parameters) - len(settings_of)]

    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]:
        _refuse_mixtures(name, parameters, arrays)
        if wanted is None:
            wanted = tuple(backend.is_floating(x) for x in arrays)
        if asks_wanted:
            settings["wanted"] = wanted + (False,) * (len(parameters) - len(wanted))
        value, pull = function(*arrays, **settings)
        shapes = [x.shape if want else None for x, want in zip(arrays, wanted, strict=True)]

        def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
            return tuple(  # optional arguments that were left out have no place in the result
                None if shape is None or dx is None else unbroadcast(dx, shape)
                for dx, shape in zip(pull(*cotangents), shapes, strict=False)
            )

        if isinstance(value, tuple):
            return tuple(backend.asarray(v) for v in value), pullback
        return backend.asarray(value), pullback

    @functools.wraps(function)
    def lifted(*inputs: Any, **settings: Any) -> Any:
        edges = tuple(x._edge if isinstance(x, Tensor) else None for x in inputs)
        arrays = [x.data if isinstance(x, Tensor) else backend.plain_scalar(x) for x in inputs]
        wanted = tuple(edge is not None for edge in edges) if is_recording() else ()
        if not any(wanted):
            value, _ = with_pullback(*arrays, wanted=(False,) * len(arrays), **settings)
            if not any(isinstance(x, Tensor) for x in inputs):
                return value
            return tuple(map(Tensor, value)) if isinstance(value, tuple) else Tensor(value)
        value, pullback = with_pullback(*arrays, wanted=wanted, **settings)
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
    """
    if dx.shape == shape:
        return dx
    xp = backend.namespace(dx)
    extra = dx.ndim - len(shape)
    stretched = (extra + k for k, n in enumerate(shape) if n == 1 and dx.shape[extra + k] != 1)
    dx = xp.sum(dx, axis=(*range(extra), *stretched), keepdims=True)
    return xp.reshape(dx, shape)


def _refuse_mixtures(name: str, parameters: tuple[str, ...], arrays: tuple[Any, ...]) -> None:
    """Arrays of two libraries or of two float types are a mistake, not a promotion."""
    first = None
    for parameter, x in zip(parameters, arrays, strict=False):
        if not backend.is_floating(x):
            continue
        if first is None:
            first, earlier = x, parameter
        elif backend.namespace(x) is not backend.namespace(first) or x.dtype != first.dtype:
            raise TypeError(
                f"{name}: {earlier} is {type(first).__name__} of {first.dtype}, {parameter} is "
                f"{type(x).__name__} of {x.dtype}: convert one, nothing is converted silently"
            )
