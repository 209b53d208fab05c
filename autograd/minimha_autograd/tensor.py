"""Tensor: an array that knows how it was made."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import backend, tape
from .backend import Array
from .tape import Node, noted

if TYPE_CHECKING:
    from .graph import Graph
    from .operation import Operation


def _comparison(compare: Callable[[Any, Any], Any]) -> Any:
    return lambda tensor, other: compare(tensor._data, array_of(other))


class Tensor:
    """An array with, if requires_grad, a gradient.

    data           the array, of any array-API library; lists and numbers become NumPy arrays
    requires_grad  True makes a leaf, whose .grad backward() fills; needs real floating-point data

    Arithmetic and methods are operations of `ops` and record themselves on the tape; comparisons
    give arrays.
    Raises TypeError for data that is not numbers, or cannot have a gradient.
    """

    __slots__ = ("__weakref__", "_data", "_node")
    __array_ufunc__ = None  # array * Tensor is ours to answer, not NumPy's

    # Operators and methods are the operations of `ops`, which put themselves here.
    mT: Tensor  # noqa: N815  the standard's name
    if TYPE_CHECKING:

        def __getattr__(self, method: str) -> Operation: ...
        def _operator(self, *others: Any) -> Any: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operator
        __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _operator
        __neg__ = __abs__ = __getitem__ = _operator

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self._data: Array = backend.asarray(array_of(data))
        self._node: Node | None = None
        if requires_grad:
            _require_floating(self._data)
            self._node = noted(None, None, None, self._data)

    @classmethod
    def _made(cls, data: Array, node: Node | None = None) -> Tensor:
        """The value of an operation, which needs no checks."""
        tensor = _new(Tensor)
        tensor._data = data
        tensor._node = node
        return tensor

    @property
    def data(self) -> Array:
        """The array. A leaf may be given another, of any shape, floating-point dtype and device:
        where one of these differs, backward() through what was made before is refused."""
        return self._data

    @data.setter
    def data(self, data: Array) -> None:
        data = backend.asarray(array_of(data))
        if self._node is not None:
            if self._node.pull is not None:
                raise RuntimeError("only a leaf can be given other data: detach() makes one")
            _require_floating(data)
            if _kind(data) != _kind(self._data):  # then neither its gradient nor its graphs fit
                self._node = tape.replaced(self._node, data)
        self._data = data

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to this Tensor."""
        return self._node is not None

    @property
    def grad(self) -> Array | None:
        """The gradient that backward() accumulated here: an array of data's library.

        Leaves have one, and after backward(retain_graph=True) every Tensor of the graph.
        """
        return None if self._node is None else self._node.gradient

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if self._node is None:
            raise RuntimeError("this Tensor does not require a gradient")
        if gradient is not None:
            gradient = self._like(gradient)
        self._node.gradient = gradient

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(self._data.shape)

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
        """Where the data lives."""
        return self._data.device

    def detach(self) -> Tensor:
        """The same data, cut off from the tape."""
        return Tensor(self._data)

    def item(self) -> float:
        """The one entry as a Python number. Raises ValueError unless there is exactly one."""
        return backend.to_numpy(self._data).item()

    def backward(self, gradient: Any = None, *, retain_graph: bool = False) -> None:
        """Add the gradient of this Tensor to the .grad of every leaf that it was made from.

        gradient      dL/dself, an array or Tensor of this shape; needed unless there is one entry
        retain_graph  keep the graph, for another backward through it, and the .grad of every Tensor
                      in it

        Raises RuntimeError where there is no graph, it was freed, or an array that it saved was
        changed; ValueError for a gradient of another shape, TypeError for one of another library or
        dtype. The .grad of all leaves is then what it was.
        """
        if self._node is None:
            raise RuntimeError("backward() on a Tensor that does not require a gradient")
        tape.backward(self._node, self._seed(gradient), retain_graph)

    def register_hook(self, hook: Callable[[Array], Any]) -> Hook:
        """Call hook(gradient) whenever backward() has the whole gradient of this Tensor.

        What it returns, an array or Tensor of the same shape and dtype, takes the place of the
        gradient; None leaves it. It must not change the gradient in place, which others may share.
        Returns a Hook, whose remove() ends that.
        """
        if not callable(hook):
            raise TypeError(f"a hook is a function of the gradient, not a {type(hook).__name__}")
        if self._node is None:
            raise RuntimeError("register_hook() on a Tensor that does not require a gradient")
        return Hook(self._node, hook)

    def graph(self, /, **names: Tensor) -> Graph:
        """A picture of how this Tensor was made, an SVG that shows itself in a notebook.

        names  Tensors by the name to show: y.graph(x=x, w=w). `.save(path)` writes it to a file
        """
        from .graph import Graph

        return Graph(self, names)

    def _seed(self, gradient: Any) -> Array:
        if gradient is not None:
            return self._like(gradient)
        if math.prod(self.shape) != 1:
            raise RuntimeError(
                f"backward() of a Tensor of shape {self.shape} needs its gradient: pass an "
                "array of that shape, or make a scalar first, for instance with .sum()"
            )
        return backend.namespace(self._data).ones_like(self._data)

    def _like(self, gradient: Any) -> Array:
        """A gradient as an array of this shape, dtype and library."""
        seed = array_of(gradient)
        if not backend.is_array(seed):
            backend.asarray(seed)  # which refuses what is no number
            xp = backend.namespace(self._data)
            seed = xp.asarray(seed, dtype=self.dtype, device=self.device)
        if tuple(seed.shape) != self.shape:
            raise ValueError(f"gradient has shape {tuple(seed.shape)}, the Tensor {self.shape}")
        if _kind(seed) != _kind(self._data):
            raise TypeError(
                f"gradient is {type(seed).__name__} of {seed.dtype} on {seed.device}, "
                f"the Tensor {type(self._data).__name__} of {self.dtype} on {self.device}"
            )
        return seed

    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __repr__(self) -> str:
        return f"Tensor({self._data!r}{', requires_grad=True' if self.requires_grad else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Leaves can be copied and pickled; what was made from them would lose its graph."""
        if self._node is not None and self._node.pull is not None:
            raise TypeError("a Tensor with a graph behind it cannot be copied: detach() it first")
        gradient = None if self.grad is None else (None, {"grad": self.grad})
        return Tensor, (self._data, self.requires_grad), gradient

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """By the library's own way to copy, which array-api-strict and others need."""
        self.__reduce__()  # refuses what has a graph
        copied = Tensor(backend.copy(self._data), self.requires_grad)
        if self.grad is not None:
            copied.grad = backend.copy(self.grad)
        return copied

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Tensor without axes")
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Tensor is not a NumPy array: use its .data, or ops.stack for a list")


_new = Tensor.__new__


def _kind(data: Array) -> tuple[Any, ...]:
    """What a gradient shares with the data."""
    return type(data), tuple(data.shape), data.dtype, data.device


def _require_floating(data: Array) -> None:
    if not backend.is_floating(data):
        raise TypeError(
            f"only real floating-point Tensors can require a gradient, got dtype {data.dtype}: "
            "convert the data first, for instance to float64, or take the real part"
        )


def array_of(x: Any) -> Any:
    """The data of a Tensor, and anything else as it is."""
    return x._data if isinstance(x, Tensor) else x


class Hook:
    """A function that backward() calls with a gradient, until remove()."""

    def __init__(self, node: Node, hook: Callable[[Array], Any]) -> None:
        if node.hooks is None:
            node.hooks = {}
        self._key, self._hooks = object(), node.hooks
        self._hooks[self._key] = lambda gradient: array_of(hook(gradient))

    def remove(self) -> None:
        """Take the hook away."""
        self._hooks.pop(self._key, None)
