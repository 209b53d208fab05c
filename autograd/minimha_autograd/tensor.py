"""Tensor: an array that knows how it was computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from . import backend, ops, tape
from .backend import Array
from .half import rounded_like
from .tape import Node, Variable, array_of

Axis = int | tuple[int, ...] | None
_Binary = Callable[[Any, Any], "Tensor"]


def _comparison(compare: Callable[[Any, Any], Any]) -> Any:
    """A comparison method of Tensor, such as __lt__, from a function such as operator.lt. The
    method returns compare(a, b), an array: a is the array of the Tensor, and b is the other
    operand, an array or a number, or the array of the other operand if that is a Tensor."""
    return lambda self, other: compare(self._data, array_of(other))


def _swapped(operation: ops.Operation) -> _Binary:
    """A method such as __radd__, made from an operation such as `ops.add`. Python calls it for
    other + Tensor if `other` itself cannot add a Tensor. It returns operation(other, self)."""
    return lambda self, other: operation(other, self)


class Tensor(Variable):
    """An array that knows how it was computed, so that backward() can compute its gradient.

    data           the array, of any array-API library; lists and numbers become NumPy arrays
    requires_grad  if True, the Tensor is a leaf, an input of the computation that gets a gradient:
                   backward() adds it to .grad. The data must then be real floating-point numbers

    Operators such as +, and most methods, are operations of `ops`. If an argument requires a
    gradient, the operation is recorded for backward(). Comparisons give arrays, without gradients.
    Raises TypeError for data that is not numbers and, with requires_grad=True, for numbers that are
    not real floats; ValueError for nested lists of different lengths.
    """

    __slots__ = ()  # those of Variable
    __array_ufunc__ = None  # array * Tensor calls our __rmul__, not NumPy's ufunc

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self._data = backend.asarray(array_of(data))
        self._edge = None  # no gradient flows here

        # A leaf is a node that no operation made, with one value: number 0.
        if requires_grad:
            _require_floating(self._data)
            self._edge = Node(), 0

    @staticmethod
    def _made(data: Array, node: Node | None, k: int) -> Tensor:
        """A Tensor for `data`, value number k of the call of an operation that `node` records; node
        is None if the call was not recorded. Integers and booleans get no node, since no gradient
        flows through them."""
        tensor = object.__new__(Tensor)  # without the checks of __init__
        tensor._data = data
        tensor._edge = None

        # Fast path: most values have the dtype of the gradients, which is a float.
        if node is not None and (data.dtype == node.dtype or backend.is_floating(data)):
            tensor._edge = node, k
        return tensor

    @property
    def data(self) -> Array:
        """The array. A Tensor that requires no gradient can be assigned a new one, and so can a
        leaf, a Tensor that was made with requires_grad=True; others raise RuntimeError. If the
        new array of a leaf differs from the old one in shape, dtype, library or device, the leaf
        drops its .grad, and backward() from results of the old array raises RuntimeError."""
        return self._data

    @data.setter
    def data(self, data: Array) -> None:
        data = array_of(data)
        old = self._data
        if type(data) is not type(old):
            data = backend.asarray(data)

        # Any other node holds a pullback, which belongs to the old data.
        if self._edge is not None and self._edge[0].function is not None:
            raise RuntimeError("only a leaf can be given new data: detach() returns one")

        # An optimiser comes here with every step, so the common case is checked first.
        same = (
            type(data) is type(old)  # the library
            and data.dtype == old.dtype
            and data.shape == old.shape
        )
        if same and type(data) is not backend.HostArray:
            same = backend.place(data) == backend.place(old)  # the device

        if not same:
            data = backend.asarray(data)
            if self._edge is not None:
                self._begin_again(data)  # old gradients do not fit
        self._data = data

    def _begin_again(self, data: Array) -> None:
        """Give this leaf a new node of the tape, since the gradients of its old array do not fit
        `data`, the new one. The new node takes over the hooks, functions that backward() calls
        with the gradient; backward() to the old node raises RuntimeError."""
        _require_floating(data)
        old, _ = self._required_edge("this is")
        leaf = Node()
        leaf.hooks = old.hooks  # by reference, so that Hook.remove() still finds them
        self._edge = leaf, 0

        # Graphs made from the old leaf must not reach its gradients any more.
        old.hooks = None
        old.function = tape.gone

    @property
    def requires_grad(self) -> bool:
        """Whether backward() computes a gradient for this Tensor: True if it was made with
        requires_grad=True, and for the floating-point result of an operation with an argument that
        requires a gradient, unless the operation was called inside no_grad."""
        return self._edge is not None

    @property
    def grad(self) -> Array | None:
        """The gradient accumulated by backward(): an array of the library and dtype of data.

        None before the first backward(), and for a Tensor that requires no gradient. backward()
        sets it in leaves, the Tensors that were made with requires_grad=True. With
        retain_graph=True it also sets it in the other Tensors through which the gradient flows.
        """
        if self._edge is None:
            return None
        node, k = self._edge
        if node.grads is None:
            return None  # before the first backward()
        return node.grads[k]

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        node, k = self._required_edge("this is")
        if gradient is not None:
            gradient = self._as_gradient(gradient)
        if node.grads is None:
            node.grads = [None] * node.values  # a place for each value of the node
        node.grads[k] = gradient

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(self._data.shape)  # torch has a class of its own

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._data.shape)

    @property
    def dtype(self) -> Any:
        """The type of the entries."""
        return self._data.dtype

    @property
    def device(self) -> Any:
        """The device of the data."""
        return self._data.device

    def detach(self) -> Tensor:
        """A new Tensor with the same data, which requires no gradient: backward() stops there."""
        return Tensor(self._data)

    def item(self) -> float:
        """The only entry as a Python number. Raises ValueError unless there is exactly one."""
        return backend.to_numpy(self._data).item()

    def backward(self, gradient: Any = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of this Tensor to the .grad of every leaf that it depends on. Leaves
        are the Tensors that were made with requires_grad=True.

        gradient      dL/dself, an array or Tensor of this shape; if there is only one entry, it may
                      be left out and is 1
        retain_graph  if True, keep the graph, the record of the operations that led here, so that
                      backward() can be called again, and add to the .grad of every Tensor in it

        Raises RuntimeError if a needed gradient is missing, if this Tensor requires none, if the
        graph was freed, or if an array that the graph saved was changed. To notice a change,
        backward() compares every entry of a small array, but only some of a large one and none of
        an array on a GPU; inside `detect_anomaly` it compares all. Raises ValueError for a gradient
        of another shape, TypeError for one of another library or dtype. After an error, the .grad
        of all leaves is unchanged.
        """
        node, k = self._required_edge("backward() on")
        if gradient is None:
            if math.prod(self.shape) != 1:
                raise RuntimeError(
                    f"backward() of a Tensor of shape {self.shape} needs its gradient: pass an "
                    "array of that shape, or make a scalar first, for instance with .sum()"
                )
            xp = backend.namespace(self._data)
            gradient = xp.ones_like(self._data)  # dL/dL = 1
        seed = self._as_gradient(gradient)  # of the shape of this Tensor
        tape.backward(node, k, seed, retain_graph)

    def register_hook(self, hook: Callable[[Array], Any]) -> Hook:
        """Call hook(gradient) whenever backward() has added up the gradient of this Tensor.

        If the hook returns an array or Tensor, of the same shape and dtype, this replaces the
        gradient. For a 16-bit gradient it may also return float32, which is rounded. The hook must
        not change the gradient in place, since other Tensors may share the array. Returns a `Hook`,
        whose method remove() ends the calls.
        """
        if not callable(hook):
            raise TypeError(f"a hook is a function of the gradient, not a {type(hook).__name__}")
        node, k = self._required_edge("register_hook() on")
        return Hook(node, k, hook)

    def _required_edge(self, what: str) -> tape.Edge:
        # `what` begins the message: "backward() on a Tensor that …".
        if self._edge is None:
            raise RuntimeError(f"{what} a Tensor that does not require a gradient")
        return self._edge

    def _as_gradient(self, gradient: Any) -> Array:
        """`gradient` as an array of the shape, dtype, library and device of this Tensor. If this
        Tensor has 16 bits, the gradient may also be float32, which is rounded. Numbers and lists
        are converted.

        Raises ValueError for another shape, TypeError for another dtype, library or device.
        """
        array = array_of(gradient)

        # A number or a list imposes no dtype and no library.
        if not backend.is_array(array):
            backend.asarray(array)  # raises unless it holds numbers
            xp = backend.namespace(self._data)
            array = xp.asarray(
                array,
                dtype=self.dtype,
                device=self.device,
            )

        # The one conversion of an array: gradients of 16-bit data may be computed in float32.
        if array.dtype != self._data.dtype:
            array = rounded_like(array, self._data)

        # Shape, dtype, library and device: any other difference is a mistake.
        if backend.kind(array) != backend.kind(self._data):
            given = backend.described(array)
            needed = backend.described(self._data)
            message = f"gradient is {given}, the Tensor {needed}"
            if tuple(array.shape) != self.shape:
                raise ValueError(message)
            raise TypeError(message)
        return array

    def __bool__(self) -> bool:
        return bool(self._data)  # the library raises unless there is one entry

    def __float__(self) -> float:
        return float(self._data)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Tensor without axes")
        return self.shape[0]  # B of (B, T, M)

    def __iter__(self) -> Iterator[Tensor]:
        rows = range(len(self))
        return (self[k] for k in rows)  # each with a gradient, unlike rows of .data

    def __repr__(self) -> str:
        shown = repr(self._data)
        if self.requires_grad:
            shown += ", requires_grad=True"
        return f"Tensor({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Describe a Tensor and its .grad for copies and pickles. Raises TypeError if it is the
        result of a recorded operation, since a copy would lose this record."""
        if self._edge is not None and self._edge[0].function is not None:
            raise TypeError("a Tensor with a recorded graph cannot be copied: detach() it first")

        # Pickle calls Tensor(*arguments). Then it sets the attributes in the second part of the
        # state; the first part is for a __dict__, which a Tensor lacks.
        arguments = (self._data, self.requires_grad)
        state = None
        if self.grad is not None:
            state = (None, {"grad": self.grad})
        return Tensor, arguments, state

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self.__reduce__()  # raises if there is a graph
        data = backend.copy(self._data)  # not every library's arrays have a __deepcopy__
        copied = Tensor(data, self.requires_grad)
        if self.grad is not None:
            copied.grad = backend.copy(self.grad)
        return copied

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Tensor is not a NumPy array: use its .data, or ops.stack for a list")

    # Comparisons give arrays, since they have no gradient.
    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __hash__ = object.__hash__  # by identity; a class that defines __eq__ alone has none

    # An operation is a function of its arrays, so it can be a method of the first one.
    __add__: _Binary = ops.add
    __radd__ = _swapped(ops.add)
    __sub__: _Binary = ops.subtract
    __rsub__ = _swapped(ops.subtract)
    __mul__: _Binary = ops.multiply
    __rmul__ = _swapped(ops.multiply)
    __truediv__: _Binary = ops.divide
    __rtruediv__ = _swapped(ops.divide)
    __pow__: _Binary = ops.pow
    __rpow__ = _swapped(ops.pow)
    __matmul__: _Binary = ops.matmul
    __rmatmul__ = _swapped(ops.matmul)

    def __neg__(self) -> Tensor:
        return ops.negative(self)

    def __abs__(self) -> Tensor:
        return ops.abs(self)

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key)

    @property
    def T(self) -> Tensor:  # noqa: N802  the standard's name
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"T is for matrices: for shape {self.shape} use mT or permute")
        return ops.matrix_transpose(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """This Tensor with its last two axes swapped."""
        return ops.matrix_transpose(self)

    # The methods that follow are operations, and have their docstrings.

    def abs(self) -> Tensor:
        return ops.abs(self)

    def exp(self) -> Tensor:
        return ops.exp(self)

    def log(self) -> Tensor:
        return ops.log(self)

    def sqrt(self) -> Tensor:
        return ops.sqrt(self)

    def tanh(self) -> Tensor:
        return ops.tanh(self)

    def sin(self) -> Tensor:
        return ops.sin(self)

    def cos(self) -> Tensor:
        return ops.cos(self)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
        return ops.clip(self, min, max)

    def astype(self, dtype: Any) -> Tensor:
        return ops.astype(self, dtype)

    def to(self, device: Any) -> Tensor:
        return ops.to_device(self, device)

    # Those that drop axes: (B, T, M) to (B, T), with keepdims to (B, T, 1), for axis −1.

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return ops.sum(self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return ops.mean(self, axis, keepdims)

    def var(
        self,
        axis: Axis = None,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Tensor:
        return ops.var(self, axis, correction, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return ops.max(self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return ops.min(self, axis, keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return ops.logsumexp(self, axis, keepdims)

    def cumsum(self, axis: int) -> Tensor:
        return ops.cumsum(self, axis)

    def matmul(self, other: Any) -> Tensor:
        return ops.matmul(self, other)

    # Those that move entries. Numbers may be given one by one, or as a tuple.

    def reshape(self, *shape: Any) -> Tensor:
        return ops.reshape(self, _one_tuple(shape))

    def permute(self, *axes: Any) -> Tensor:
        return ops.permute_dims(self, _one_tuple(axes))

    def transpose(self, axis1: int = -2, axis2: int = -1) -> Tensor:
        return ops.transpose(self, axis1, axis2)

    def expand(self, *shape: Any) -> Tensor:
        return ops.broadcast_to(self, _one_tuple(shape))

    def squeeze(self, axis: Axis = None) -> Tensor:
        return ops.squeeze(self, axis)

    def flip(self, axis: Axis = None) -> Tensor:
        return ops.flip(self, axis)

    def repeat(self, repeats: int, axis: int | None = None) -> Tensor:
        return ops.repeat(self, repeats, axis)

    def split(
        self,
        sections: int | tuple[int, ...],
        axis: int = 0,
    ) -> tuple[Tensor, ...]:
        return ops.split(self, sections, axis)

    # Those that select entries by an array of integers.

    def gather(self, indices: Any, axis: int = 0) -> Tensor:
        return ops.gather(self, indices, axis=axis)

    def take_along_axis(self, indices: Any, axis: int = -1) -> Tensor:
        return ops.take_along_axis(self, indices, axis=axis)


# The methods whose names differ from those of the operations.
_OPERATIONS = {
    "permute": "permute_dims",
    "expand": "broadcast_to",
    "to": "to_device",
}

# A loop, so that no docstring is written twice and the two cannot differ.
for _name, _method in vars(Tensor).items():
    _operation = _OPERATIONS.get(_name, _name)
    if _operation in ops.__all__:
        _method.__doc__ = getattr(ops, _operation).__doc__


class Hook:
    """A function, `hook`, that backward() calls with the gradient of one Tensor, value number k of
    `node`, until remove() is called. `Tensor.register_hook` returns it."""

    def __init__(self, node: Node, k: int, hook: Callable[[Array], Any]) -> None:
        if node.hooks is None:
            node.hooks = {}  # made only here, since most nodes have no hook
        self._hooks = node.hooks
        self._key = object()  # equal to no other, even if the same function is registered twice

        # A hook may return a Tensor, too.
        self._hooks[self._key] = k, lambda gradient: array_of(hook(gradient))

    def remove(self) -> None:
        """Remove the hook."""
        self._hooks.pop(self._key, None)  # a second call does nothing


def _one_tuple(numbers: tuple[Any, ...]) -> Any:
    """Return the tuple (2, 3) whether a method was called as reshape((2, 3)) or reshape(2, 3).
    `numbers` are the arguments of the call; a single number is returned as it is."""
    if len(numbers) == 1:
        return numbers[0]
    return numbers


def _require_floating(data: Array) -> None:
    if not backend.is_floating(data):
        raise TypeError(
            f"only real floating-point Tensors can require a gradient, got dtype {data.dtype}: "
            "convert the data first, for instance to float64, or take the real part"
        )
