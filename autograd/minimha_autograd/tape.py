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

order = count(-1, -1)
_landing = threading.Lock()  # threads may share a leaf


class Node:
    """One step of the tape.

    operation  what was called: it has a name and parameters; None for a leaf
    pull       its pullback; None for a leaf, the number k for the k-th of several values
    parents    one for each argument, None where no gradient is wanted; where one alone is wanted,
               it alone, which spares the garbage collector a tuple
    place      of that one among the arguments; or None
    number     of the arguments, and so of the gradients that the pullback returns
    shape      of the value, and so of its gradient; of several values a list of theirs
    dtype      of the value and its gradient
    order      a number that falls: an operation is always made after its arguments
    saved      checksums of the arrays that the pullback closes over
    hooks      functions that are called with the gradient and may replace it
    gradient   of a leaf, and of every node of a graph that was retained
    where      the lines that called the operation, noted within detect_anomaly
    """

    __slots__ = (
        "__weakref__", "dtype", "gradient", "hooks", "number", "operation", "order",
        "parents", "place", "pull", "saved", "shape", "where",
    )  # fmt: skip

    operation: Any
    pull: Pullback | int | None
    parents: Node | Sequence[Node | None]
    place: int | None
    number: int
    shape: Any
    dtype: Any
    order: int
    saved: int
    hooks: dict[object, Callable[[Array], Any]] | None
    gradient: Array | None
    where: str | None

    @property
    def arguments(self) -> list[Node]:
        """The parents, one or several."""
        parents = (self.parents,) if isinstance(self.parents, Node) else self.parents
        return [parent for parent in parents if parent is not None]


def noted(operation: Any, pull: int | None, parent: Any, value: Any) -> Node:
    """A leaf, whose operation, pull and parent are None; or the k-th of several values."""
    node = Node()
    node.operation, node.pull, node.parents = operation, pull, () if parent is None else parent
    node.order, node.shape, node.dtype = next(order), value.shape, value.dtype
    node.place = node.number = node.saved = 0
    node.hooks = node.gradient = None
    node.where = None if parent is None else parent.where
    return node


def replaced(leaf: Node, data: Any) -> Node:
    """A leaf for data of another kind, in the place of one that graphs may still lead to."""
    node = noted(None, None, None, data)
    node.hooks, leaf.hooks, leaf.pull = leaf.hooks, None, _misfit
    return node


def backward(  # noqa: PLR0912, PLR0915  one loop, in view
    root: Node, seed: Array, retain: bool
) -> None:
    """Call the pullbacks of everything that root was made from, the newest first.

    That is a topological order: when the turn of a node comes, all its gradients have arrived.
    The gradient of no leaf changes until every pullback has run.
    """
    kind, careful, landed = type(seed), in_force(detect_anomaly), []
    arrived: dict[int, tuple[Node, Any]] = {}  # nodes by their order, and what has come so far
    waiting: list[int] = []  # the same orders, as a heap
    node: Any = root
    dy: Any = seed  # of an operation with several values a list
    while node is not None:
        pull: Any = node.pull
        parents: Any = node.parents
        if node.hooks:
            dy = _hooked(node, dy)
        if careful and type(dy) is not list:
            anomaly.in_sum(node, dy)
        if pull is None or (retain and type(dy) is not list):
            landed.append((node, dy))
        if type(pull) is int:  # it takes its place among the gradients of several values
            if parents.order not in arrived:
                arrived[parents.order] = parents, [None] * len(parents.shape)
                heappush(waiting, parents.order)
            arrived[parents.order][1][pull] = dy
        elif pull is not None:
            if node.saved and checksums(pull, node.where is not None) != node.saved:
                refuse_changed(node)
            gradients = pull(*dy) if type(dy) is list else pull(dy)
            if type(gradients) is not tuple or len(gradients) != node.number:
                counted(node.operation, gradients, node.number)
            place: Any = node.place
            if place is not None:
                dx = gradients[place]
                if (
                    type(dx) is kind
                    and dx.shape == parents.shape
                    and dx.dtype is parents.dtype
                    and not careful
                    and (not waiting or parents.order < waiting[0])
                ):  # the usual, soon done: it fits, and its turn is next
                    if not retain:
                        node.pull, node.parents, node.saved = _freed, (), 0
                    node, dy = parents, dx
                    continue
                parents = (*(None,) * place, parents)
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
                turn = parent.order
                if turn in arrived:
                    arrived[turn] = parent, _sum(arrived[turn][1], dx)
                else:
                    arrived[turn] = parent, dx
                    heappush(waiting, turn)
        if not retain and pull is not None:
            node.pull, node.parents, node.saved = _freed, (), 0
        node, dy = arrived.pop(heappop(waiting)) if waiting else (None, None)
    gradients = dx = None  # so that nothing but `landed` holds what arrived
    with _landing:
        totals = []
        while landed:
            node, dy = landed.pop()
            # a pullback may hand the same array to several leaves, or keep it
            total = backend.owned(dy) if node.gradient is None else _sum(node.gradient, dy)
            totals.append((node, total))
            dy = None
        for node, total in totals:
            if careful:
                anomaly.in_sum(node, total)
        for node, total in totals:
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


def _misfit(*_: Array) -> tuple[Array | None, ...]:
    raise RuntimeError(
        "the data of a leaf was replaced by data of another shape, dtype, library or device after "
        "it was used: compute the value anew"
    )


def _freed(*_: Array) -> tuple[Array | None, ...]:
    raise RuntimeError(
        "backward() a second time through a graph that was freed by the first, failed or not: "
        "pass retain_graph=True to the first, or compute the value anew"
    )


def is_freed(node: Node) -> bool:
    """Whether an earlier backward() freed the graph behind this node."""
    return node.pull is _freed
