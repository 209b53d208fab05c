"""What a gradient check does with the tape itself, all in one place."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..tape import ancestors
from ..tensor import Tensor
from .error import GradcheckError

__tracebackhide__ = True


@contextmanager
def replaced(parameters: Sequence[Tensor], by: Sequence[Tensor]) -> Iterator[None]:
    """Within the `with` block, the parameters have the data of the Tensors `by`, and the tape
    treats them as these Tensors."""
    before = [(p._data, p._edge) for p in parameters]
    try:
        for p, x in zip(parameters, by, strict=True):
            p._data = x._data
            p._edge = x._edge
        yield
    finally:
        for p, (data, edge) in zip(parameters, before, strict=True):
            p._data = data
            p._edge = edge


def backward(
    name: str, outputs: Sequence[Tensor], cotangents: Sequence[Any], before: Tensor
) -> None:
    """Run the backward pass of each output of f, the function called `name`, with the cotangent at
    the same place in `cotangents`. A TypeError or ValueError that the tape raises about what a
    pullback returned becomes a GradcheckError. Tensors made earlier than the Tensor `before`, such
    as parameters that f closes over, keep their old gradients."""
    first = 0
    if before._edge is not None:
        first = before._edge[0].order
    roots = [y._edge[0] for y in outputs if y._edge is not None]
    older = {n: n.grads for root in roots for n in ancestors(root) if n.order > first}
    for node in older:
        node.grads = None
    try:
        for y, dy in zip(outputs, cotangents, strict=True):
            if y.requires_grad:
                y.backward(dy, retain_graph=True)
    except (TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__package__") != Tensor.__module__.rpartition(".")[0]:
            raise  # raised within the pullback
        raise GradcheckError(f"{name}: {error}") from None
    finally:
        for node, grads in older.items():
            node.grads = grads
