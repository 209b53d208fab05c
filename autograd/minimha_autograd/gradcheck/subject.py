"""The function under check, of Tensors or of arrays, as one of NumPy arrays on the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import backend
from ..modes import no_grad
from ..pullback import Pullback
from ..tensor import Tensor, array_of
from .numeric import jiggled
from .report import GradcheckError


class Subject:
    """The function under check, of Tensors or of arrays, as one of host arrays.

    It is only ever called with copies, so that the caller's arrays stay as they are.
    """

    def __init__(
        self, f: Callable[..., Any], inputs: tuple[Any, ...], names: Sequence[str] | None
    ) -> None:
        self.f, self.inputs = f, inputs
        named = getattr(f, "func", f)  # what a partial was made of
        self.name = getattr(named, "__name__", type(named).__name__)
        self.names = _parameters(f, len(inputs)) if names is None else names
        self.on_tensors = any(isinstance(x, Tensor) for x in inputs)
        self.arrays = [array_of(x) for x in inputs]
        self.checked = [
            k
            for k, x in enumerate(inputs)
            if isinstance(x, Tensor) == self.on_tensors and backend.is_floating(self.arrays[k])
        ]
        for k in self.checked:
            if str(self.arrays[k].dtype).rpartition(".")[2] not in ("float64", "float32"):
                raise TypeError(
                    f"gradcheck of {self.name}: {self.names[k]} is {self.arrays[k].dtype}; only "
                    "float64 and float32 can be checked"
                )
        if not self.checked:
            raise TypeError(
                f"gradcheck of {self.name}: none of the inputs is a Tensor or array of real "
                f"floating-point numbers ({', '.join(type(x).__name__ for x in inputs)})"
            )

    def differentiate(self, rng: np.random.Generator) -> None:
        """Draw random cotangents; find the gradients by the pullback, and how noisy they are.

        Raises GradcheckError where that is not a question of numbers: values that are not arrays or
        not finite, differ from call to call, arrays changed in place, gradients of the wrong kind.
        """
        originals = {k: backend.to_numpy(self.arrays[k]) for k in self.checked}
        values = self._evaluate(originals)
        self._refuse_unusable(values)
        self.cotangents = [rng.standard_normal(y.shape).astype(y.dtype) for y in values]
        self.size = _norm([c * y for c, y in zip(self.cotangents, values, strict=True)])
        self.gradients = self._pull(originals, self.cotangents, values)
        self.noise = dict.fromkeys(self.checked, 0.0)
        for _ in range(4):
            moved = {k: jiggled(x, rng) for k, x in originals.items()}
            for k, dx in self._pull(moved, [jiggled(c, rng) for c in self.cotangents]).items():
                change = float(abs(dx - self.gradients[k]).max(initial=0.0))
                self.noise[k] = max(self.noise[k], change)

    def _pull(
        self,
        hosts: dict[int, np.ndarray],
        cotangents: list[np.ndarray],
        expected: list[np.ndarray] | None = None,
    ) -> dict[int, np.ndarray]:
        """The gradients of the checked inputs on the host, at these inputs."""
        inputs = self._copies(hosts)
        if self.on_tensors:
            for k in self.checked:
                inputs[k] = Tensor(inputs[k].data, requires_grad=True)
        values, pullback = self._call(inputs)
        if expected and not all(map(np.array_equal, map(backend.to_numpy, values), expected)):
            raise self._error("two calls with the same inputs gave different values")
        given = [backend.like(c, y) for c, y in zip(cotangents, values, strict=True)]
        gradients = pullback(*given)
        for k, host in hosts.items():
            if not np.array_equal(backend.to_numpy(array_of(inputs[k])), host):
                raise self._error(f"{self.names[k]} was changed in place")
        if not all(map(np.array_equal, map(backend.to_numpy, given), cotangents)):
            raise self._error("the pullback changed its cotangent in place")
        if not isinstance(gradients, tuple):
            raise self._error(
                "the pullback must return a tuple, one gradient an input, "
                f"not {type(gradients).__name__}"
            )
        if len(gradients) == len(self.inputs):
            gradients = tuple(gradients[k] for k in self.checked)
        if len(gradients) != len(self.checked):
            raise self._error(
                f"the pullback returned {len(gradients)} gradients for {len(self.checked)} inputs "
                "that can have one"
            )
        return {
            k: self._as_gradient(dx, hosts[k], self.names[k])
            for k, dx in zip(self.checked, gradients, strict=True)
        }

    def _as_gradient(self, dx: Any, x: np.ndarray, name: str) -> np.ndarray:
        """The gradient dx of x on the host; None, where nothing arrived, is zero."""
        if dx is None:
            return np.zeros_like(x)
        if not (backend.is_array(dx) or np.isscalar(dx)) or isinstance(dx, Tensor):
            kind = type(dx).__name__
            raise self._error(f"the gradient of {name} is a {kind}: a pullback returns arrays")
        host = backend.to_numpy(backend.asarray(dx))
        if host.shape != x.shape:
            raise self._error(f"the gradient of {name} has shape {host.shape}, the input {x.shape}")
        if host.dtype != x.dtype:
            raise self._error(f"the gradient of {name} has dtype {host.dtype}, the input {x.dtype}")
        return host

    def _copies(self, hosts: dict[int, np.ndarray]) -> list[Any]:
        """The inputs, the checked ones made anew from host arrays."""
        inputs = list(self.inputs)
        for k, host in hosts.items():
            x = backend.like(host, self.arrays[k])
            inputs[k] = Tensor(x) if self.on_tensors else x
        return inputs

    def _call(self, inputs: list[Any]) -> tuple[list[Any], Pullback]:
        """The values of f as arrays, and the pullback to its inputs."""
        if self.on_tensors:
            outputs = _tuple(self.f(*inputs))
            if not all(isinstance(y, Tensor) for y in outputs):
                kinds = ", ".join(type(y).__name__ for y in outputs)
                raise self._error(f"a function of Tensors must return Tensors, not {kinds}")

            def pullback(*cotangents: Any) -> tuple[Any, ...]:
                for y, dy in zip(outputs, cotangents, strict=True):
                    if y.requires_grad:
                        y.backward(dy, retain_graph=True)
                return tuple(inputs[k].grad for k in self.checked)

            return [y.data for y in outputs], pullback
        result = getattr(self.f, "with_pullback", self.f)(*inputs)
        if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
            raise self._error(
                "a function of arrays must return (value, pullback); "
                "to check a function of Tensors, pass Tensors"
            )
        if isinstance(result[0], list):
            raise self._error("several values are returned as a tuple, not a list")
        return [backend.asarray(y) for y in _tuple(result[0])], result[1]

    def _refuse_unusable(self, hosts: list[np.ndarray]) -> None:
        if not all(y.dtype.kind == "f" for y in hosts):
            raise self._error(f"the values have dtype {', '.join(str(y.dtype) for y in hosts)}")
        if not all(np.isfinite(y).all() for y in hosts):
            raise self._error(
                "the value is NaN or infinite at these inputs: nothing can be checked"
            )

    def _error(self, message: str) -> GradcheckError:
        return GradcheckError(f"{self.name}: {message}")

    def loss(self, k: int, x: np.ndarray) -> Any:
        """L = Σ c · f with the input k replaced by x, the others in its dtype."""
        hosts = {j: y.astype(x.dtype) for j, y in self.hosts.items()} | {k: x}
        return sum(
            np.sum(np.multiply(c, y, dtype=np.result_type(y.dtype, np.float64)))
            for c, y in zip(self.cotangents, self._evaluate(hosts), strict=True)
        )

    @cached_property
    def precision(self) -> str:
        """That of the numeric side: float64 if f can be evaluated in it, else float32."""
        try:
            outputs = self._evaluate(self._hosts("float64"))
        except Exception:  # whatever f raises, it does not take float64
            return "float32"
        return "float64" if all(y.dtype == np.float64 for y in outputs) else "float32"

    @cached_property
    def hosts(self) -> dict[int, np.ndarray]:
        """The checked inputs on the host, in the precision of the numeric side."""
        return self._hosts(self.precision)

    def _hosts(self, dtype: str) -> dict[int, np.ndarray]:
        return {k: backend.to_numpy(self.arrays[k]).astype(dtype) for k in self.checked}

    def _evaluate(self, hosts: dict[int, np.ndarray]) -> list[np.ndarray]:
        """The values of f, on the host, with the checked inputs replaced."""
        with no_grad():  # complex values have no place on the tape
            return [backend.to_numpy(y) for y in self._call(self._copies(hosts))[0]]


def _parameters(f: Callable[..., Any], count: int) -> list[str]:
    """The names of the first parameters of f, as far as it tells them."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [names[k] if k < len(names) else f"input {k}" for k in range(count)]


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def _norm(arrays: list[np.ndarray]) -> float:
    """The Euclidean norm of all entries together."""
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in arrays)))
