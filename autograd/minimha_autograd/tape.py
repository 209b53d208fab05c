"""The tape: the graph of the operations that made a Tensor, and backward() through it.

A Tensor points to a node, and a node to the nodes that made its arguments. Nodes hold no values,
only gradients and what their pullbacks close over. So an array that no pullback saved is freed at
once, there are no reference cycles, and a graph is freed with its last Tensor.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
from _thread import allocate_lock  # `threading` is slow to import
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from types import CellType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

from . import backend, debug
from .backend import Array
from .half import rounded_like, widened
from .modes import modes

Pullback = Callable[..., tuple[Array | None, ...]]
"""Takes one cotangent for each value, None where nothing flows back; returns one gradient for each
argument, None for those that have none."""

Edge = tuple["Node", int]
"""A node, and the number of one of its values."""

Hooks = dict[object, tuple[int, Callable[[Array], Any]]]
"""A dictionary from a key to a hook: the number of a value, and a function of its gradient."""

_order = itertools.count(0, -1)  # 0, −1, −2, … for nodes as they are made

_accumulating = allocate_lock()  # threads may share a leaf


def _renew() -> None:
    global _accumulating  # noqa: PLW0603
    _accumulating = allocate_lock()


# A forked process lacks the thread that may hold the lock, and would wait forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Variable:
    """The base class of Tensor, with what the engine uses of it: its array and, if it requires a
    gradient, its node on the tape."""

    __slots__ = ("__weakref__", "_data", "_edge")
    _data: Array
    _edge: Edge | None  # None if no gradient flows to it
    _made: Callable[[Array, Node | None, int], Any]  # value number k of a node, as a Tensor


def array_of(x: Any) -> Any:
    """The data of a Tensor; anything else unchanged."""
    if isinstance(x, Variable):
        return x._data
    return x


class Node:
    """One step of the tape: a call of an operation, or a leaf, which no operation made.

    signature  has the names of the operation and of its arguments; None for a leaf
    function   the pullback as the operation returned it; None for a leaf
    edges      for each argument the node that made it and the number of that node's value; None
               where no gradient is wanted
    shapes     the shapes of the arguments; None where no gradient is wanted
    dtype      the dtype of the gradients that the pullback returns; if it has 16 bits, they may
               also be float32
    halves     for each argument its dtype, if that has 16 bits, else None; () if none has. The sum
               of the gradients that an argument gets from all its uses is rounded to this dtype
    values     how many values the operation returns
    order      decreases from node to node, so that a heap returns the newest node first
    saved      the arrays that the pullback saved
    checksum   the checksum of these arrays, to notice a change
    lines      the lines that called the operation, recorded inside detect_anomaly, else ""
    grads      for each value the gradient accumulated by backward(), which sets it in leaves, and
               in all nodes of a retained graph; None before the first backward()
    hooks      a dictionary whose values are pairs: the number of one of the operation's values,
               and the hook, a function of its gradient; None without hooks
    """

    __slots__ = (
        "__weakref__", "checksum", "dtype", "edges", "function", "grads", "halves", "hooks",
        "lines", "order", "saved", "shapes", "signature", "values",
    )  # fmt: skip

    def __init__(
        self,
        signature: Any = None,
        function: Pullback | None = None,
        edges: Sequence[Edge | None] = (),
        shapes: Sequence[tuple[int, ...] | None] = (),
        dtype: Any = None,
        values: int = 1,
        halves: Sequence[Any] = (),
    ) -> None:
        self.signature = signature
        self.function = function
        self.edges = edges
        self.shapes = shapes
        self.dtype = dtype
        self.halves = halves
        self.values = values
        self.order = next(_order)
        self.lines = ""
        if modes.get().detect_anomaly:
            self.lines = debug.calling_lines()

        # Compared before the pullback runs: changed arrays would give wrong gradients silently.
        self.saved = saved_arrays(function)
        self.checksum = checksum(self.saved, self.lines != "")

        # None until needed, since most nodes have neither.
        self.grads: list[Array | None] | None = None
        self.hooks: Hooks | None = None

    def pullback(self, *dys: Array | None) -> tuple[Array | None, ...]:
        """The gradients of the arguments, None for those whose gradient is not wanted. They are
        computed from dys, the gradients of the values, None for a value to which nothing flows
        back. Broadcasting is undone: each gradient has the shape of its argument."""
        gradients = self.gradients(*dys)
        if not self.halves:
            return gradients  # none has 16 bits
        return tuple(map(_as_dtype, gradients, self.halves))

    def gradients(self, *dys: Array | None) -> tuple[Array | None, ...]:
        """The gradients of the arguments from dys, those of the values, as `pullback` returns them,
        except that the gradients of 16-bit arguments may still be float32. The caller rounds them,
        after adding the gradients from all uses of an argument.

        Raises RuntimeError if the graph was freed, or if an array that the pullback saved has
        changed; TypeError unless the pullback returns a tuple with one gradient for each argument,
        and for a gradient of another dtype than the argument; ValueError for a gradient whose shape
        is neither that of the argument nor one to which the argument could be broadcast. Errors of
        the pullback itself get a note with the name of the operation.
        """
        signature = self.signature
        function = self.function or gone
        if checksum(self.saved, self.lines != "") != self.checksum:
            raise RuntimeError(
                f"{signature.name} saved an array for the backward pass, and it was changed in "
                "place after the forward pass: call backward() before the change, or change a copy"
            )
        try:
            gradients = function(*dys)
        except Exception as error:
            backend.explain_memory(error)
            error.add_note(f"in the pullback of {signature.name if signature else 'a leaf'}")
            raise

        # A forgotten comma, (dx) for (dx,), is common: without this check, the tape would take the
        # rows of dx for gradients.
        number = max(signature.arity, len(self.shapes))
        if type(gradients) is not tuple or len(gradients) != number:
            length = ""
            if isinstance(gradients, tuple):
                length = f" of {len(gradients)}"
            arguments = ", ".join(map(signature.label, range(number)))
            raise TypeError(
                f"{signature.name}: the pullback must return a tuple of {number}, one gradient for "
                f"each of {arguments}, not a {type(gradients).__name__}{length}"
            )

        fitting: list[Array | None] = []
        for k, shape in enumerate(self.shapes):
            dx = None if shape is None else gradients[k]  # it may return more than is wanted

            # Fast path: most gradients have the right type, shape and dtype already.
            if dx is not None and (
                type(dx) not in backend.namespaces or dx.shape != shape or dx.dtype != self.dtype
            ):
                try:
                    dx = self._fitted(dx, shape)
                except (TypeError, ValueError) as error:
                    what = f"the pullback of {signature.name}, {signature.label(k)}"
                    raise type(error)(f"{what}: {error}") from None
            fitting.append(dx)

        if modes.get().detect_anomaly:
            self._check(fitting)
        return tuple(fitting)

    def _check(self, gradients: list[Array | None]) -> None:
        """Raise FloatingPointError if a gradient that this node's pullback returned has a NaN or an
        infinity."""
        for k, dx in enumerate(gradients):
            if self.halves:
                dx = _as_dtype(dx, self.halves[k])  # noqa: PLW2901  it may overflow only now
            label = self.signature.label(k)
            part = f"the backward of {self.signature.name}, in the gradient of {label}"
            debug.check_gradient(dx, f"first appeared in {part}", self.lines)

    def _fitted(self, dx: Any, shape: Any) -> Array:
        """The gradient dx of an argument as an array of `shape`, the shape of the argument: summed
        over the axes along which broadcasting repeated the argument. For an argument of 16 bits
        the result is float32.

        Raises ValueError if the shapes do not fit, TypeError for another dtype than the
        argument's."""
        dx = backend.asarray(dx)  # NumPy's sum over all axes is a scalar
        dtype = self.dtype

        # Wide until all parts have been added: sums of 16-bit numbers stop growing.
        if getattr(dtype, "itemsize", 0) == 2:
            dx = widened(dx)
            dtype = backend.namespace(dx).float32

        dx = backend.unbroadcast(dx, shape)
        if dx.dtype != dtype:
            raise TypeError(f"a gradient of {dx.dtype} for an argument of {self.dtype}")
        return dx


def backward(root: Node, k: int, seed: Array, retain: bool) -> None:
    """The backward pass from value k of root: call the pullbacks of all nodes that it depends on,
    the newest node first, and add the gradients of leaves to the `grads` of these.

    The newest first is a topological order: when a node is visited, all parts of its gradients have
    arrived. The `grads` change only after every pullback has run.

    seed    the gradient of value k of root
    retain  if True, keep the graph for another backward(), and add to the `grads` of all its nodes
    """
    results = []  # nodes whose gradients are to be kept
    halves: dict[int, Any] = {}  # 16-bit dtypes, by the order of nodes whose sums are wider

    # The gradients of a node's values are None until something flows back to them.
    dys: list[Array | None] = [None] * root.values
    dys[k] = seed
    arrived = {root.order: (root, dys)}  # nodes by order, with the gradients of their values
    waiting = [root.order]  # a heap of the same orders
    while waiting:
        node, dys = arrived.pop(heappop(waiting))

        # All parts have been added, so this is the only rounding.
        if halves and node.order in halves:
            dys = [_as_dtype(dy, halves[node.order]) for dy in dys]
        if node.hooks:
            _call_hooks(node, dys)
        if node.function is None or retain:
            results.append((node, dys))
        if node.function is None:
            continue  # a leaf, where the graph ends

        gradients = node.gradients(*dys)
        dtypes = node.halves or itertools.repeat(None)
        for edge, dx, half in zip(node.edges, gradients, dtypes):  # noqa: B905  strict takes longer
            if edge is None or dx is None:
                continue
            parent, j = edge
            if parent.order not in arrived:
                arrived[parent.order] = parent, [None] * parent.values
                heappush(waiting, parent.order)
            if half is not None:
                halves[parent.order] = half

            # The gradient of a value that is used several times is a sum.
            sums = arrived[parent.order][1]
            if sums[j] is None:
                sums[j] = dx
            else:
                sums[j] = _sum(sums[j], dx, half is not None)

        # Free what the pullback saved while the rest still runs.
        if not retain:
            node.function = gone
            node.edges = ()
            node.saved = []
            node.checksum = 0

    # Drop the last references, so that a leaf can keep its gradient without a copy.
    gradients = ()
    dx = None
    _accumulate(results)


def _as_dtype(dx: Array | None, dtype: Any) -> Array | None:
    """dx rounded to `dtype`, which has 16 bits; dx itself if dx or dtype is None."""
    if dx is None or dtype is None or dx.dtype == dtype:
        return dx
    return backend.namespace(dx).astype(dx, dtype)


def _sum(a: Array, b: Array, half: bool = False) -> Array:
    """a + b, the sum of two parts of a gradient. If `half` is true, parts of 16 bits become float32
    before they are added, and the sum is float32."""
    if half:
        a = widened(a)
        b = widened(b)
    y = backend.add(a, b)
    if type(y) not in backend.namespaces:
        y = backend.asarray(y)  # NumPy adds two arrays without axes to a scalar
    return y


def _accumulate(results: list[tuple[Node, list[Array | None]]]) -> None:
    """Add new gradients to the `grads` of nodes, the sums over earlier backward() calls. `results`
    are pairs of a node and a list with the gradient of each of its values, None if none came."""
    # Under a lock, since two threads that read the same old sum would lose one of their parts.
    with _accumulating:
        for node, dys in results:
            if node.grads is None:
                node.grads = [None] * len(dys)
            for k, old in enumerate(node.grads):
                if dys[k] is None:
                    continue
                if old is None:
                    node.grads[k] = backend.owned(dys, k)  # others may share the array
                else:
                    node.grads[k] = _sum(old, dys[k])


def _call_hooks(node: Node, dys: list[Array | None]) -> None:
    """Call the hooks of a node, each with the gradient of the value for which it was registered. If
    a hook returns a gradient and not None, this replaces the old one in `dys`, the gradients of the
    node's values. Where `dys` has None, no hook is called.

    Raises ValueError for a new gradient of another shape, dtype, library or device."""
    hooks = tuple((node.hooks or {}).values())  # a hook may remove itself
    for k, hook in hooks:
        dy = dys[k]
        if dy is None:
            continue
        new = hook(dy)
        if new is None:
            continue
        new = rounded_like(backend.asarray(new), dy)
        if backend.kind(new) != backend.kind(dy):
            given = backend.described(new)
            needed = backend.described(dy)
            raise ValueError(f"a hook returned {given} for a gradient that is {needed}")
        dys[k] = new


def gone(*_: Array | None) -> tuple[Array | None, ...]:
    """Raise RuntimeError. This function takes the place of the pullback in nodes that backward()
    freed, and in old leaf nodes, after an array of another shape, dtype, library or device has
    replaced the data of the leaf."""
    raise RuntimeError(
        "backward() through a graph that no longer exists: an earlier backward() freed it, even "
        "if that failed (pass it retain_graph=True), or a leaf was given data of another shape, "
        "dtype, library or device (compute the value again)"
    )


# No array can be inside these, so the search below need not look there.
_WITHOUT_ARRAYS = frozenset(
    {bool, int, float, complex, str, slice, type, type(None), EllipsisType, ModuleType}
)
_content = operator.attrgetter("cell_contents")


def saved_arrays(pullback: Any) -> list[Array]:
    """The arrays that a pullback saved.

    Looks into closures and defaults of functions, tuples, lists, values of dictionaries, partials,
    the attributes of callable objects, and those of the objects to which methods are bound.
    """
    found: list[Array] = []
    seen = set()  # by id, since a function may close over itself
    holders = [pullback]
    while holders:
        holder = holders.pop()
        kind = type(holder)
        parts: Any = ()  # what the holder refers to
        if kind is FunctionType:
            cells = holder.__closure__ or ()
            try:
                parts = [*map(_content, cells)]
            except ValueError:
                # The cell of a name that was never assigned is empty; the others are not.
                parts = [_content(cell) for cell in cells if cell != CellType()]
            if holder.__defaults__ or holder.__kwdefaults__:
                parts += [holder.__defaults__, holder.__kwdefaults__]
        elif kind is tuple or kind is list:
            parts = holder
        elif kind is dict:
            parts = holder.values()
        elif kind is functools.partial:
            parts = (holder.func, holder.args, holder.keywords)
        elif backend.is_array(holder):
            found.append(holder)
        elif callable(holder):
            # A method refers to a function and an object, a callable object to its attributes.
            owner = getattr(holder, "__self__", None)
            has_attributes = owner if kind is MethodType else holder
            attributes = getattr(has_attributes, "__dict__", None)
            parts = (getattr(holder, "__func__", None), owner, attributes)
        for part in parts:
            kind = type(part)
            if kind in backend.namespaces:
                found.append(part)
            elif kind not in _WITHOUT_ARRAYS and id(part) not in seen:
                seen.add(id(part))
                holders.append(part)
    return found


def checksum(arrays: Sequence[Array], whole: bool = False) -> int:
    """A number that changes when one of the arrays changes.

    Covers every byte of arrays up to 1 KiB and 16 entries of larger ones, so a change of a few
    entries can go unseen. The content of arrays on a GPU is left out, since reading it would
    wait for the GPU. With whole=True the number covers every byte of every array.
    """
    total = 0
    for x in arrays:
        of_entries = hash(backend.sample(x, whole))
        total = 31 * total + of_entries  # so the order counts, too
    return total


def ancestors(root: Node) -> list[Node]:
    """The node root and all nodes of the tape that it depends on, the newest first."""
    found = {root}
    unvisited = [root]

    # A loop, since a recursion through a long chain of nodes would exceed Python's limit.
    while unvisited:
        node = unvisited.pop()
        parents = {edge[0] for edge in node.edges if edge is not None}
        unvisited += parents - found
        found |= parents
    return sorted(found, key=lambda node: node.order)
