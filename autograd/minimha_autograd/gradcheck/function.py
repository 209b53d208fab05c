"""The function under check, of Tensors or of arrays, as one of NumPy arrays on the host."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from .. import backend
from ..modes import no_grad, watch
from ..tape import Pullback
from ..tensor import Tensor, array_of
from . import on_tape
from .error import GradcheckError
from .text import type_name

__tracebackhide__ = True  # pytest shows the user's lines

Arrays = dict[int, np.ndarray]  # by the number of the input


class CheckedFunction:
    """The function f under check, as a function of host arrays, which are NumPy arrays.

    f receives only copies of the caller's arrays, so that these do not change. Parameters come
    after the inputs and are treated like inputs. The argument `hosts` of the methods is a
    dictionary from the number of each checked input to a host array that takes its place.

    inputs, names  all inputs, then the parameters; and the name of each of these
    arity          the number of inputs, parameters not counted
    arrays         the array of each input; any other input, such as a number, unchanged
    checked        the numbers of the inputs whose gradients are checked: their places in `inputs`
    on_tensors     whether f is a function of Tensors
    takes_tap      whether f has a parameter `tap`, to which it passes its intermediate values
    """

    def __init__(
        self,
        f: Callable[..., Any],
        inputs: tuple[Any, ...],
        names: Sequence[str] | None = None,
        parameters: Any = None,
    ) -> None:
        if isinstance(f, type) or not callable(f):
            what = f"the class {f.__name__}" if isinstance(f, type) else f"a {type(f).__name__}"
            raise TypeError(
                f"f is {what}: pass a function, an operation or a module, and its inputs after it"
            )
        named, signature = _named_parameters(f, parameters), _signature(f)
        self.f, self.inputs, self.arity = f, (*inputs, *named.values()), len(inputs)
        made_of = getattr(f, "func", f)  # what a partial was made of
        self.name = getattr(made_of, "__name__", type(made_of).__name__)
        own = _input_names(signature, len(inputs)) if names is None else list(names)
        self.names = [*own, *(f"parameter {n}" if n in own else n for n in named)]
        if len(own) != len(inputs):
            raise ValueError(f"{len(self.inputs)} inputs, {len(self.names)} names")
        if len(set(own)) < len(own):
            raise ValueError(f"names: {', '.join(own)}: each name can occur only once")
        self.on_tensors = any(isinstance(x, Tensor) for x in self.inputs)
        self.arrays = [array_of(x) for x in self.inputs]
        self.checked = [
            k
            for k, x in enumerate(self.inputs)
            if isinstance(x, Tensor) == self.on_tensors and backend.is_floating(self.arrays[k])
        ]
        self.takes_tap = "tap" in signature
        self._needs_tap = self.takes_tap and signature["tap"].default is inspect.Parameter.empty
        self._require_floats()

    def _require_floats(self) -> None:
        """Raise TypeError if there is no input to check, or one is not of float64 or float32."""
        for k in self.checked:
            if str(self.arrays[k].dtype).rpartition(".")[2] not in ("float64", "float32"):
                raise TypeError(
                    f"gradcheck of {self.name}: {self.names[k]} is {self.arrays[k].dtype}; only "
                    "float64 and float32 can be checked"
                )
        if not self.checked:
            kinds = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in self.arrays)
            raise TypeError(
                f"gradcheck of {self.name}: none of the inputs is a Tensor or array of real "
                f"floating-point numbers, such as np.array([1.0, 2.0]), but {kinds}"
            )

    def error(self, message: str) -> GradcheckError:
        """A GradcheckError whose message begins with the name of the function."""
        return GradcheckError(f"{self.name}: {message}")

    @cached_property
    def originals(self) -> Arrays:
        """The checked inputs on the host."""
        return {k: backend.to_numpy(self.arrays[k]) for k in self.checked}

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The arrays among the inputs whose gradients are not checked, by name, on the host."""
        named = enumerate(zip(self.names, self.arrays, strict=True))
        others = {name: x for k, (name, x) in named if k not in self.checked}
        return {name: backend.to_numpy(x) for name, x in others.items() if backend.is_array(x)}

    @cached_property
    def precision(self) -> str:
        """The dtype in which the numeric derivatives are computed: float64 if f takes and returns
        float64, else float32."""
        try:
            outputs = self.evaluate(self.as_dtype("float64"))
        except Exception:  # whatever f raises, it does not take float64
            return "float32"
        return "float64" if all(y.dtype == np.float64 for y in outputs) else "float32"

    @cached_property
    def hosts(self) -> Arrays:
        """The checked inputs on the host, in the dtype of the numeric derivatives."""
        return self.as_dtype(self.precision)

    def as_dtype(self, dtype: str) -> Arrays:
        """The checked inputs on the host, of this dtype."""
        return {k: x.astype(dtype) for k, x in self.originals.items()}

    def cotangent_names(self, count: int) -> list[str]:
        """The names of `count` cotangents for messages. For a function of arrays, they are the
        names of the arguments of its pullback if these begin with d, such as dy; otherwise dout,
        dout2 and so on."""
        pullback = None if self.on_tensors else self.call(self.copies(self.originals))[1]
        names = dict(enumerate(n for n in _signature(pullback) if n[:1] == "d" != n))
        return [names.get(k, f"dout{k + 1}" if k else "dout") for k in range(count)]

    def evaluate(self, hosts: Arrays, tap: Tap | None = None) -> list[np.ndarray]:
        """The values of f, on the host, for `hosts` in place of the checked inputs. A tap, if
        given, receives the intermediates of f."""
        with no_grad():  # complex values have no place on the tape
            return [backend.to_numpy(y) for y in self.call(self.copies(hosts), tap)[0]]

    def intermediates(
        self, hosts: Arrays, replaced: Mapping[str, np.ndarray] | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The values of f for `hosts` in place of the checked inputs, and its floating-point
        intermediates by name.

        replaced  by name, arrays that replace intermediates: f goes on with them
        """
        tap = Tap(replaced)
        values = self.evaluate(hosts, tap)
        return values, {name: x for name, x in tap.hosts.items() if x.dtype.kind == "f"}

    def copies(self, hosts: Arrays, requires_grad: bool = False) -> list[Any]:
        """The list of all inputs, with copies of `hosts` in place of the checked inputs: arrays of
        the library and device of the input that they replace, or Tensors of such arrays if f takes
        Tensors. These Tensors have gradients if requires_grad is True."""
        inputs = list(self.inputs)
        for k, host in hosts.items():
            x = backend.like(host, self.arrays[k])
            inputs[k] = Tensor(x, requires_grad=requires_grad) if self.on_tensors else x
        return inputs

    def call(self, inputs: list[Any], tap: Tap | None = None) -> tuple[list[Any], Pullback]:
        """Call f with these inputs. Returns its values as arrays, and the pullback. A tap, if
        given, receives the intermediates of f. Raises GradcheckError unless f returns Tensors or,
        as a function of arrays, (value, pullback)."""
        settings = {"tap": tap or Tap()} if self.takes_tap and (tap or self._needs_tap) else {}
        if self.on_tensors:
            return self._call_on_tensors(inputs, tap, settings)
        result = getattr(self.f, "with_pullback", self.f)(*inputs, **settings)
        if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
            tensors = "; to check a function of Tensors, pass Tensors"
            raise self.error(
                f"a function of arrays must return (value, pullback), not {kind_of(result)}"
                f"{'' if result is None or isinstance(result, tuple) else tensors}"
            )
        if isinstance(result[0], list):
            raise self.error("return several values as a tuple, not a list")
        return [backend.asarray(y) for y in _tuple(result[0])], result[1]

    def _call_on_tensors(
        self, inputs: list[Any], tap: Tap | None, settings: dict[str, Any]
    ) -> tuple[list[Any], Pullback]:
        own, parameters = inputs[: self.arity], inputs[self.arity :]
        seen_by = nullcontext() if tap is None or self.takes_tap else watch(tap)
        with on_tape.replaced(self.inputs[self.arity :], parameters), seen_by:
            outputs = _tuple(self.f(*own, **settings))
        if not all(isinstance(y, Tensor) for y in outputs):
            kinds = ", ".join(type(y).__name__ for y in outputs)
            raise self.error(f"a function of Tensors must return Tensors, not {kinds}")
        if tap is not None:
            tap.leave_out(outputs)

        def pullback(*cotangents: Any) -> tuple[Any, ...]:
            checked = [inputs[k] for k in self.checked]
            for x in checked:
                x.grad = None
            on_tape.backward(self.name, outputs, cotangents, before=checked[0])
            return tuple(x.grad for x in checked)

        return [y.data for y in outputs], pullback


class Tap:
    """The function that f calls with the name and the value of each intermediate. It records them,
    and returns the value with which f continues.

    replaced  host arrays, by name, that take the place of intermediates. If f uses a name twice,
              the second intermediate is called "name 2"
    arrived   the recorded intermediates, by name: the objects that f passed
    hosts     copies of these on the host, by name, made at once, since f may change an array later
    """

    def __init__(self, replaced: Mapping[str, np.ndarray] | None = None) -> None:
        self.replaced, self.arrived = replaced or {}, dict[str, Any]()
        self.hosts, self._count = dict[str, np.ndarray](), Counter[str]()

    def __call__(self, name: str, x: Any) -> Any:
        name = str(name)
        self._count[name] += 1
        name = name if self._count[name] == 1 else f"{name} {self._count[name]}"
        self.arrived[name], array = x, array_of(x)
        if hasattr(array, "dtype"):
            self.hosts[name] = np.array(backend.to_numpy(array))  # f may go on in the same memory
        if name not in self.replaced:
            return x
        other = backend.like(self.replaced[name], array)
        return Tensor(other) if isinstance(x, Tensor) else other

    def leave_out(self, outputs: tuple[Any, ...]) -> None:
        """Forget the intermediates that are themselves outputs of f."""
        known = {id(y) for y in outputs}
        for name in [name for name, x in self.arrived.items() if id(x) in known]:
            del self.arrived[name]
            self.hosts.pop(name, None)


def _named_parameters(f: Callable[..., Any], parameters: Any) -> dict[str, Tensor]:
    """The Tensors to check, by name: those of `parameters`, a module or a dictionary of Tensors,
    and if it is None those of f, if f is a module; otherwise none. Raises TypeError if `parameters`
    is anything else."""
    named = getattr(f if parameters is None else parameters, "named_parameters", None)
    if named is not None:
        return dict(named())
    if parameters is None:
        return {}
    tensors = isinstance(parameters, Mapping) and parameters.values()
    if tensors is False or not all(isinstance(p, Tensor) for p in tensors):
        kind = type(parameters).__name__
        raise TypeError(f"parameters must be Tensors by name, or a module, not this {kind}")
    return dict(parameters)


def _signature(f: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(f).parameters
    except (TypeError, ValueError):
        return {}


def _input_names(signature: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    """Names for `count` inputs: those of the positional parameters in the signature, in order, and
    "input k" for the input k where there are no more."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature.values() if p.kind in positional]
    return [names[k] if k < len(names) else f"input {k}" for k in range(count)]


def kind_of(x: Any) -> str:
    """What f or its pullback returned, in words, for a message that says what it should have
    returned: "a tuple of array, function"."""
    if x is None:
        return "None: is a return missing?"
    kind = f"a {type_name(x)}"
    if isinstance(x, tuple):
        kind += f" of {', '.join(map(type_name, x))}"
    return kind.replace("a array", "an array")


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)
