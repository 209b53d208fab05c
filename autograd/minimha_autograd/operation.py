"""The one concept: an operation is a function on arrays that returns its value and its pullback.

    @operation
    def exp(x):
        y = xp.exp(x)
        def pullback(dy):
            return (dy * y,)
        return y, pullback

Positional arguments are arrays (or numbers, or None), keywords are settings. The pullback takes one
cotangent for each value, None where nothing flows back, and returns a tuple with one gradient for
each positional argument, None for those that have none. It must not change a cotangent in place,
since others may share it. The arrays that it closes over are kept until backward(), so it should
refer to no more than it needs.

An operation with a keyword `wanted` receives a tuple of booleans, which of these gradients are
wanted, and may skip the work for the others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from . import backend, debug
from .modes import modes
from .signature import Signature
from .tape import Node, Pullback, Variable


class Operation(Protocol):
    """The result of `operation`: for arrays it returns arrays; if any argument is a Tensor, it
    returns Tensors. `with_pullback` takes arrays and returns the value and the pullback."""

    __name__: str
    __signature__: inspect.Signature

    def __call__(self, *inputs: Any, **settings: Any) -> Any: ...

    def with_pullback(
        self, *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]: ...


registry: dict[str, Operation] = {}
"""Every operation by its module and name. The tests require a record of each of ours."""


def operation(
    function: Callable[..., tuple[Any, Pullback]] | None = None,
    *,
    requirement: Callable[..., str | None] | None = None,
    converts: bool = False,
) -> Any:
    """Lift a function on arrays, which returns its value and its pullback, to Tensors.

    function     as described at the top of this file; returns several values as a tuple
    requirement  called with the arguments after an error: returns the requirement that they violate
                 and the likely fix, or None
    converts     the value may have another dtype or library than the arguments

    Settings may follow the arrays by position, and arrays may be named. `with_pullback` takes
    arrays and returns the value and the pullback, in which broadcasting is undone.

    The operation raises TypeError for arrays of two libraries or float types and for arguments that
    are not arrays. It raises errors of the library again with its own name, the requirement and
    the arguments. The pullback raises TypeError unless it returns one gradient for each argument.
    """
    if function is None:
        return functools.partial(operation, requirement=requirement, converts=converts)
    signature = Signature(function)
    arity = signature.arity

    def call(
        arrays: list[Any], wanted: Any, settings: dict[str, Any], recorded: bool
    ) -> tuple[Any, list[Any], Pullback, Any]:
        """The value, the value as a list of arrays, the pullback, and the dtype of its
        gradients."""
        if signature.wanted:
            settings["wanted"] = tuple(map(bool, wanted)) + (False,) * (arity - len(wanted))
        dtype = signature.float_dtype(arrays)
        try:
            result = function(*arrays, **settings)
            value, values, pullback = signature.checked(result, dtype, recorded, converts)
        except Exception as error:
            raise signature.explained(error, requirement, arrays, settings) from error
        if modes.get().detect_anomaly:
            debug.check_values(signature.name, signature.named(arrays) | settings, values)
        return value, values, pullback, dtype

    @functools.wraps(function)
    def lifted(*inputs: Any, **settings: Any) -> Any:
        if settings or len(inputs) != arity:
            inputs, settings = signature.bind(inputs, settings)
        open_blocks, variable, recorded = modes.get(), None, False
        arrays, edges, shapes = [], [], []
        for x in inputs:
            edge = shape = None
            if isinstance(x, Variable):
                variable, array = x, x._data
                if x._edge is not None and not open_blocks.no_grad:
                    edge, shape, recorded = x._edge, array.shape, True
            else:
                array = backend.number(x)
            arrays.append(array)
            edges.append(edge)
            shapes.append(shape)
        value, values, pullback, dtype = call(arrays, edges, settings, recorded)
        if variable is not None:
            node = None
            if recorded:
                node = Node(signature, pullback, edges, shapes, dtype, len(values))
            for k, y in enumerate(values):
                values[k] = variable._made(y, node, k)
                for see in open_blocks.watchers:
                    values[k] = see(signature.name, values[k])
        return tuple(values) if type(value) is tuple else values[0]

    @functools.wraps(function)
    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]:
        inputs, settings = signature.bind(arrays, settings)
        bound = [backend.number(x) for x in inputs]
        if wanted is None:
            wanted = tuple(map(backend.is_floating, bound))
        value, values, pullback, dtype = call(bound, wanted, settings, recorded=False)
        result = tuple(values) if type(value) is tuple else values[0]
        if not any(wanted):  # within no_grad, or of integers: nothing to guard
            return result, lambda *_: (None,) * len(bound)
        shapes = [x.shape if want else None for x, want in zip(bound, wanted)]  # noqa: B905
        return result, Node(signature, pullback, (), shapes, dtype, len(values)).pullback

    lifted.with_pullback, lifted.__signature__ = with_pullback, signature.shown  # type: ignore[attr-defined]
    registry[f"{function.__module__}.{function.__name__}"] = lifted  # type: ignore[assignment]
    return lifted
