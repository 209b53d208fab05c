"""What a gradient check does with the tape itself, all in one place."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..modes import watch
from ..tensor import Tensor
from .error import GradcheckError

__tracebackhide__ = True


def call(
    f: Callable[[], Any],
    tap: Callable[[str, Any], Any] | None,
    parameters: Sequence[Tensor],
    replaced_by: Sequence[Tensor],
) -> Any:
    """f(), with these Tensors in place of its parameters; tap sees all Tensors on the way."""
    before = [(p._data, p._node) for p in parameters]
    for p, x in zip(parameters, replaced_by, strict=True):
        p._data, p._node = x._data, x._node
    try:
        if tap is None:
            return f()
        with watch(tap):
            return f()
    finally:
        for p, (data, node) in zip(parameters, before, strict=True):
            p._data, p._node = data, node


def backward(
    name: str, outputs: Sequence[Tensor], cotangents: Sequence[Any], before: Tensor
) -> None:
    """Run the backward pass of each output of the function of that name. What the tape objects to
    in a pullback is an error of the check. Tensors older than `before`, such as parameters that f
    closes over, keep their gradients.
    """
    with _gradients_kept(outputs, before):
        for y, dy in zip(outputs, cotangents, strict=True):
            try:
                if y.requires_grad:
                    y.backward(dy, retain_graph=True)
            except (TypeError, ValueError) as error:
                *_, (frame, _) = traceback.walk_tb(error.__traceback__)
                if frame.f_globals.get("__package__") != Tensor.__module__.rpartition(".")[0]:
                    raise  # raised within the pullback
                raise GradcheckError(f"{name}: {error}") from None


@contextmanager
def _gradients_kept(outputs: Sequence[Tensor], before: Tensor) -> Iterator[None]:
    found: dict[int, Any] = {}
    todo = [y._node for y in outputs if y._node is not None]
    while todo:
        node = todo.pop()
        if node.order not in found:
            found[node.order] = node
            todo += node.arguments
    first = before._node.order if before._node is not None else 0
    older = [(node, node.gradient) for node in found.values() if node.order > first]
    for node, _ in older:
        node.gradient = None
    try:
        yield
    finally:
        for node, gradient in older:
            node.gradient = gradient
