"""What a gradient check does with the tape itself, all in one place."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ..modes import watch
from ..tape import ancestors
from ..tensor import Tensor
from .error import GradcheckError

__tracebackhide__ = True


def call(
    f: Callable[[], Any],
    tap: Callable[[str, Any], Any] | None,
    parameters: Sequence[Tensor],
    replaced_by: Sequence[Tensor],
) -> Any:
    """f(), with these Tensors in place of its parameters; tap receives all Tensors on the way."""
    before = [(p._data, p._edge) for p in parameters]
    for p, x in zip(parameters, replaced_by, strict=True):
        p._data, p._edge = x._data, x._edge
    try:
        with watch(tap) if tap else nullcontext():
            return f()
    finally:
        for p, (data, edge) in zip(parameters, before, strict=True):
            p._data, p._edge = data, edge


def backward(
    name: str, outputs: Sequence[Tensor], cotangents: Sequence[Any], before: Tensor
) -> None:
    """Run the backward pass of each output of the function of that name. An error that the tape
    raises about a pullback becomes an error of the check. Tensors older than `before`, such as
    parameters that f closes over, keep their gradients.
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
    first = before._edge[0].order if before._edge is not None else 0
    roots = [y._edge[0] for y in outputs if y._edge is not None]
    older = {n: n.grads for root in roots for n in ancestors(root) if n.order > first}
    for node in older:
        node.grads = None
    try:
        yield
    finally:
        for node, grads in older.items():
            node.grads = grads
