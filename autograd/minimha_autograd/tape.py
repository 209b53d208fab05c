"""The tape: what was done to make a Tensor, and backward() through it.

A Tensor points to a Node, a Node to its parents and to the pullback of the operation that made it.
Nodes hold no values: an array that no pullback saved is freed as soon as nobody names it. Gradients
live on nodes, so nothing points in a circle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from . import anomaly, backend
from .backend import Array
from .modes import detect_anomaly, in_force
from .pullback import Pullback, counted, fit
from .saved import checksums, refuse_changed

order = count(1)
_landing = threading.Lock()  # threads may share a leaf


class Node:
    """One step of the tape.

    operation  what was called: it has a name and parameters; None for a leaf
    pull       its pullback; None for a leaf, the number k for the k-th of several values
    parents    one for each array argument, None where no gradient is wanted
    shape      of the value, and so of its gradient; of several values a list of theirs
    dtype      of the value and its gradient
    order      a number that grows: an operation is always made after its arguments
    saved      checksums of the arrays that the pullback closes over
    hooks      functions that are called with the gradient and may replace it
    gradient   of a leaf, and of every node of a graph that was retained
    where      the lines that called the operation, noted within detect_anomaly
    """

    __slots__ = (
        "__weakref__", "dtype", "gradient", "hooks", "operation", "order", "parents", "pull",
        "saved", "shape", "where",
    )  # fmt: skip

    def __init__(
        self,
        operation: Any,
        pull: Pullback | int | None,
        parents: Sequence[Node | None],
        value: Any,
    ) -> None:
        self.operation = operation
        self.pull = pull
        self.parents = parents
        self.order = next(order)
        self.hooks: dict[object, Callable[[Array], Any]] | None = None
        self.gradient: Array | None = None
        self.saved: int | None = None
        self.where: str | None = None
        self.shape: Any = [x.shape for x in value] if type(value) is tuple else value.shape
        self.dtype: Any = None if type(value) is tuple else value.dtype


def backward(root: Node, seed: Array, retain: bool) -> None:  # noqa: PLR0912  one loop, in view
    """Call the pullbacks of everything that root was made from, the newest first.

    That is a topological order: when the turn of a node comes, all its gradients have arrived.
    The gradient of no leaf changes until every pullback has run.
    """
    kind, careful, landed = type(seed), in_force(detect_anomaly), []
    waiting, arrived = [-root.order], {-root.order: (root, seed)}  # a heap; what has come so far
    while waiting:
        node, dy = arrived.pop(heappop(waiting))
        pull: Any = node.pull
        parents: Any = node.parents
        if node.hooks:
            dy = _hooked(node, dy)
        if careful and type(dy) is not list:
            anomaly.in_sum(node, dy)
        if pull is None:
            landed.append((node, dy))
            continue
        if retain and type(dy) is not list:
            landed.append((node, dy))
        if type(pull) is int:  # it takes its place among the gradients of several values
            parent: Any = parents[0]
            if -parent.order not in arrived:
                arrived[-parent.order] = parent, [None] * len(parent.shape)
                heappush(waiting, -parent.order)
            arrived[-parent.order][1][pull] = dy
        else:
            if node.saved and checksums(pull, node.where is not None) != node.saved:
                refuse_changed(node)
            gradients = pull(*dy) if type(dy) is list else pull(dy)
            if type(gradients) is not tuple or len(gradients) != len(parents):
                counted(node.operation, gradients, len(parents))
            for place, parent in enumerate(parents):
                if parent is None:
                    continue
                dx = gradients[place]
                if dx is None:
                    continue
                if type(dx) is not kind or dx.shape != parent.shape or dx.dtype is not parent.dtype:
                    dx = fit(node.operation, place, dx, parent.shape, parent.dtype)
                if careful:
                    anomaly.in_gradient(node, place, dx)
                turn = -parent.order
                if turn in arrived:
                    arrived[turn] = parent, _sum(arrived[turn][1], dx)
                else:
                    arrived[turn] = parent, dx
                    heappush(waiting, turn)
        if not retain:
            node.pull, node.parents, node.saved = _freed, (), None
    with _landing:
        totals = [  # a copy: a pullback may hand the same array to several leaves
            backend.copy(dy) if node.gradient is None else _sum(node.gradient, dy)
            for node, dy in landed
        ]
        for (node, _), total in zip(landed, totals, strict=True):
            if careful:
                anomaly.in_sum(node, total)
        for (node, _), total in zip(landed, totals, strict=True):
            node.gradient = total


def _sum(a: Array, b: Array) -> Array:
    """a + b as an array, which NumPy makes a scalar of where there are no axes."""
    total = a + b
    return total if type(total) is type(a) else backend.asarray(total)


def _hooked(node: Node, dy: Array) -> Array:
    """The gradient after the hooks of a node, each of which may return another in its place."""
    for hook in tuple((node.hooks or {}).values()):
        replaced = hook(dy)
        if isinstance(replaced, backend.HostScalar):  # NumPy's arithmetic without axes
            replaced = backend.asarray(replaced)
        if replaced is not None:
            if type(replaced) is not type(dy):
                raise TypeError(
                    f"a hook returned a {type(replaced).__name__}, not a {type(dy).__name__}"
                )
            if (replaced.shape, replaced.dtype) != (dy.shape, dy.dtype):
                raise ValueError(
                    f"a hook returned a gradient of shape {tuple(replaced.shape)} and dtype "
                    f"{replaced.dtype} for one of {tuple(dy.shape)} and {dy.dtype}"
                )
            dy = replaced
    return dy


def _freed(*_: Array) -> tuple[Array | None, ...]:
    raise RuntimeError(
        "backward() a second time through a graph that was freed by the first, failed or not: "
        "pass retain_graph=True to the first, or compute the value anew"
    )


def is_freed(node: Node) -> bool:
    """Whether an earlier backward() freed the graph behind this node."""
    return node.pull is _freed
