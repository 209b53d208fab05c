"""Tensor: an array that knows how it was made.

The tape is bookkeeping only. A Tensor points to a Node, a Node to its parents and to the pullback
of the operation that made it. Nodes hold no values: an array that no pullback saved is freed as
soon as nobody names it. Gradients of leaves live on their node, so nothing points in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from . import backend
from .backend import Array

_order = count()
_recording: ContextVar[bool] = ContextVar("recording", default=True)


@contextmanager
def no_grad() -> Iterator[None]:
    """Within the block, operations on Tensors are not recorded."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


def is_recording() -> bool:
    """Whether operations on Tensors are recorded here, that is, outside every `no_grad`."""
    return _recording.get()


class Node:
    """One step of the tape: the pullback of an operation and where its gradients go.

    parents holds an edge for each array argument of the operation, None where no gradient is
    wanted; an edge (node, k) means the k-th value of that node. A leaf has no pullback.
    """

    __slots__ = ("gradient", "order", "parents", "pullback", "values")

    def __init__(
        self,
        pullback: Callable[..., tuple[Array | None, ...]] | None = None,
        parents: tuple[Edge | None, ...] = (),
        values: int = 1,
    ) -> None:
        self.order = next(_order)
        self.pullback = pullback
        self.parents = parents
        self.values = values
        self.gradient: Array | None = None

    def free(self) -> None:
        """Let go of the saved arrays and of the graph behind this node."""
        self.pullback, self.parents = _freed, ()


Edge = tuple[Node, int]


def _freed(*_: Array) -> tuple[Array | None, ...]:
    raise RuntimeError("this part of the graph was freed by an earlier backward()")


class Tensor:
    """An array with, if requires_grad, a gradient.

    data           the array, of any array-API library; lists and numbers become NumPy arrays
    requires_grad  True makes a leaf, whose .grad backward() fills; needs real floating-point data

    Arithmetic and methods are operations of `ops` and record themselves on the tape; comparisons
    give arrays.
    Raises TypeError for data that is not numbers, or cannot have a gradient.
    """

    __slots__ = ("__weakref__", "_edge", "data")
    __array_ufunc__ = None  # array * Tensor is ours to answer, not NumPy's

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data: Array = backend.asarray(array_of(data))
        self._edge: Edge | None = None
        if requires_grad:
            if not backend.is_floating(self.data):
                raise TypeError(
                    f"only real floating-point Tensors can require a gradient, got dtype "
                    f"{self.data.dtype}: convert the data first, for instance to float64"
                )
            self._edge = (Node(), 0)

    @classmethod
    def _made(cls, data: Array, edge: Edge | None) -> Tensor:
        """The value of an operation, which needs no checks."""
        tensor = cls.__new__(cls)
        tensor.data = data
        tensor._edge = edge
        return tensor

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to this Tensor."""
        return self._edge is not None

    @property
    def grad(self) -> Array | None:
        """The gradient that backward() accumulated in this leaf: an array of data's library."""
        return None if self._edge is None else self._edge[0].gradient

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if self._edge is None:
            raise RuntimeError("this Tensor does not require a gradient")
        self._edge[0].gradient = gradient

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.data.shape)

    @property
    def dtype(self) -> Any:
        """The type of the entries."""
        return self.data.dtype

    @property
    def device(self) -> Any:
        """Where the data lives."""
        return self.data.device

    def detach(self) -> Tensor:
        """The same data, cut off from the tape."""
        return Tensor(self.data)

    def item(self) -> float:
        """The one entry as a Python number. Raises ValueError unless there is exactly one."""
        return backend.to_numpy(self.data).item()

    def backward(self, gradient: Any = None, *, retain_graph: bool = False) -> None:
        """Add the gradient of this Tensor to the .grad of every leaf that it was made from.

        gradient      dL/dself, an array or Tensor of this shape; needed unless there is one entry
        retain_graph  keep the graph, for another backward through it

        Calls the pullbacks in reverse order of creation, which is a topological order because
        an operation is always made after its arguments.
        Raises RuntimeError where there is no graph or it was freed, ValueError for a gradient of
        another shape, TypeError for one of another library or dtype.
        """
        if self._edge is None:
            raise RuntimeError("backward() on a Tensor that does not require a gradient")
        seed = self._seed(gradient)
        tape = _tape(self._edge[0])
        root, k = self._edge
        arriving: dict[Node, list[Array | None]] = {root: [None] * root.values}
        arriving[root][k] = seed
        for node in tape:
            cotangents = arriving.pop(node, None)
            if node.pullback is None:
                _deposit(node, cotangents)
                continue
            if cotangents is not None:
                for edge, dx in zip(node.parents, node.pullback(*cotangents), strict=True):
                    if edge is None or dx is None:
                        continue
                    parent, k = edge
                    slots = arriving.setdefault(parent, [None] * parent.values)
                    slots[k] = dx if slots[k] is None else slots[k] + dx
            if not retain_graph:
                node.free()

    def _seed(self, gradient: Any) -> Array:
        xp = backend.namespace(self.data)
        if gradient is None:
            if math.prod(self.shape) != 1:
                raise RuntimeError(
                    f"backward() of a Tensor of shape {self.shape} needs its gradient: pass an "
                    "array of that shape, or make a scalar first, for instance with .sum()"
                )
            return xp.ones_like(self.data)
        seed = array_of(gradient)
        if not backend.is_array(seed):
            seed = xp.asarray(seed, dtype=self.dtype, device=self.device)
        if tuple(seed.shape) != self.shape:
            raise ValueError(f"gradient has shape {tuple(seed.shape)}, the Tensor {self.shape}")
        if type(seed) is not type(self.data) or seed.dtype != self.dtype:
            raise TypeError(
                f"gradient is {type(seed).__name__} of {seed.dtype}, "
                f"the Tensor {type(self.data).__name__} of {self.dtype}"
            )
        return seed

    def __eq__(self, other: object) -> Any:
        return self.data == array_of(other)

    def __ne__(self, other: object) -> Any:
        return self.data != array_of(other)

    def __lt__(self, other: Any) -> Any:
        return self.data < array_of(other)

    def __le__(self, other: Any) -> Any:
        return self.data <= array_of(other)

    def __gt__(self, other: Any) -> Any:
        return self.data > array_of(other)

    def __ge__(self, other: Any) -> Any:
        return self.data >= array_of(other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __repr__(self) -> str:
        return f"Tensor({self.data!r}{', requires_grad=True' if self.requires_grad else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Leaves can be copied and pickled; what was made from them would lose its graph."""
        if self._edge is not None and self._edge[0].pullback is not None:
            raise TypeError("a Tensor with a graph behind it cannot be copied: detach() it first")
        return _restored, (self.data, self.requires_grad, self.grad)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Tensor without axes")
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Tensor is not a NumPy array: use its .data")

    def __add__(self, other: Any) -> Tensor:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return ops.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return ops.subtract(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return ops.multiply(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return ops.multiply(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return ops.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return ops.divide(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return ops.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return ops.pow(other, self)

    def __neg__(self) -> Tensor:
        return ops.negative(self)

    def __matmul__(self, other: Any) -> Tensor:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return ops.matmul(other, self)

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key=key)

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The sum over axis, over all axes by default."""
        return ops.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The mean over axis, over all axes by default."""
        return ops.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """The largest entry over axis, over all axes by default."""
        return ops.max(self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        """The same entries in another shape, given as one tuple or as several lengths."""
        whole = len(shape) == 1 and isinstance(shape[0], tuple | list)
        return ops.reshape(self, shape=tuple(shape[0]) if whole else shape)

    @property
    def mT(self) -> Tensor:  # noqa: N802  the standard's name
        """The last two axes swapped."""
        return ops.matrix_transpose(self)


def _restored(data: Array, requires_grad: bool, gradient: Array | None) -> Tensor:
    tensor = Tensor(data, requires_grad=requires_grad)
    if gradient is not None:
        tensor.grad = gradient
    return tensor


def array_of(x: Any) -> Any:
    """The data of a Tensor, and anything else as it is."""
    return x.data if isinstance(x, Tensor) else x


def _tape(root: Node) -> list[Node]:
    """All nodes that root was made from, itself included, the newest first.

    Raises RuntimeError, before anything is changed, where part of the graph was freed.
    """
    found, stack = {root}, [root]
    while stack:
        node = stack.pop()
        if node.pullback is _freed:
            raise RuntimeError(
                "backward() a second time through a graph that was freed by the first: "
                "pass retain_graph=True to the first, or compute the value anew"
            )
        for edge in node.parents:
            if edge is not None and edge[0] not in found:
                found.add(edge[0])
                stack.append(edge[0])
    return sorted(found, key=lambda node: node.order, reverse=True)


def _deposit(leaf: Node, cotangents: list[Array | None] | None) -> None:
    dx = None if cotangents is None else cotangents[0]
    if dx is None:
        return
    if leaf.gradient is None:  # a copy: a pullback may hand the same array to several leaves
        leaf.gradient = backend.namespace(dx).asarray(dx, copy=True)
    else:
        leaf.gradient = leaf.gradient + dx


from . import ops  # noqa: E402  last, because operations are lifted to the Tensor defined above
