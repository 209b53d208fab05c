"""What a pullback must return: one gradient an argument, each of its shape and dtype."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from . import backend
from .backend import Array

Pullback = Callable[..., tuple[Array | None, ...]]
"""Takes a cotangent for each value, None where nothing flows back."""

PAIR = "an operation must return (value, pullback), and the pullback is a function"


def plain(pull: Any) -> Pullback:
    """A pullback as a function without defaults: all that it saved is then in its closure.

    Raises TypeError for what cannot be called.
    """
    if type(pull) is FunctionType and not pull.__defaults__ and not pull.__kwdefaults__:
        return pull
    if not callable(pull):
        raise TypeError(PAIR)

    def plain_pull(*cotangents: Array | None) -> tuple[Array | None, ...]:
        return pull(*cotangents)

    return plain_pull


def unbroadcast(dx: Array, shape: tuple[int, ...]) -> Array:
    """Sum dx over the axes along which broadcasting repeated an array of the given shape.

    Broadcasting copies an entry to many places; the gradient of a copy is the sum over the places.
    Raises ValueError for a dx that no broadcasting of such an array can have led to.
    """
    if dx.shape == shape:
        return dx
    extra, lengths = dx.ndim - len(shape), dx.shape
    axes = list(range(extra))
    for k, n in enumerate(shape, extra):
        if extra < 0 or n not in (1, lengths[k]):
            raise ValueError(
                f"a gradient of shape {tuple(lengths)} for an argument of {tuple(shape)}"
            )
        if n != lengths[k]:
            axes.append(k)
    xp = backend.namespace(dx)
    dx = xp.sum(dx, axis=tuple(axes), keepdims=True)
    return xp.reshape(dx, shape) if extra else dx


def fit(operation: Any, place: int, dx: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """A gradient with broadcasting undone.

    Raises TypeError for what is no array or of another dtype, ValueError for a shape that is not a
    matter of broadcasting.
    """
    try:
        dx = unbroadcast(dx if type(dx) in backend.known else backend.asarray(dx), shape)
        if dx.dtype != dtype:
            raise TypeError(f"a gradient of {dx.dtype} for an argument of {dtype}")
    except (TypeError, ValueError) as error:
        label = f"{operation.__name__}, {named(operation, place)}"
        raise type(error)(f"the pullback of {label}: {error}") from None
    return dx


def counted(operation: Any, gradients: Any, number: int) -> None:
    """Raise TypeError unless gradients is a tuple with one gradient an argument."""
    if type(gradients) is tuple and len(gradients) == number:
        return
    of = f" of {len(gradients)}" if isinstance(gradients, tuple) else ""
    raise TypeError(
        f"{operation.__name__}: the pullback must return a tuple of {number}, one gradient for "
        f"each of {', '.join(named(operation, k) for k in range(number))}, not a "
        f"{type(gradients).__name__}{of}"
    )


def named(operation: Any, place: int) -> str:
    """The name of an argument of an operation."""
    names = operation.parameters
    return names[place] if place < len(names) else f"array {place}"


class Fitted:
    """The pullback of an operation that was called on arrays, its gradients counted and fitted.

    likes   for each array given its shape and dtype, None where no gradient is wanted
    number  of the arguments, those included that were left out
    """

    __slots__ = ("likes", "number", "operation", "pull")

    def __init__(
        self, operation: Any, pull: Pullback, likes: list[tuple[Any, Any] | None], number: int
    ) -> None:
        self.operation, self.pull, self.likes, self.number = operation, pull, likes, number

    def __call__(self, *cotangents: Array | None) -> tuple[Array | None, ...]:
        gradients = self.pull(*cotangents)
        counted(self.operation, gradients, self.number)
        return tuple(
            None if like is None or dx is None else fit(self.operation, k, dx, *like)
            for k, (like, dx) in enumerate(zip(self.likes, gradients, strict=False))
        )
