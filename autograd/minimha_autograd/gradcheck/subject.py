"""The function under check, of Tensors or of arrays, as one of NumPy arrays on the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from .. import backend
from ..operation import Pullback
from ..tensor import Tensor
from .report import GradcheckError


class Subject:
    """The function under check, of Tensors or of arrays, as one of host arrays."""

    def __init__(self, f: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.f, self.inputs = f, inputs
        named = getattr(f, "func", f)  # what a partial was made of
        self.name = getattr(named, "__name__", type(named).__name__)
        self.on_tensors = any(isinstance(x, Tensor) for x in inputs)
        self.arrays = [x.data if isinstance(x, Tensor) else x for x in inputs]
        self.checked = [
            k
            for k, x in enumerate(inputs)
            if isinstance(x, Tensor) == self.on_tensors and backend.is_floating(self.arrays[k])
        ]
        if not self.checked:
            raise TypeError(
                f"gradcheck of {self.name}: none of the inputs is a Tensor or array of real "
                f"floating-point numbers ({', '.join(type(x).__name__ for x in inputs)})"
            )

    def names(self) -> list[str]:
        try:
            parameters = list(inspect.signature(self.f).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return [
            positional[k] if k < len(positional) else f"input {k}" for k in range(len(self.inputs))
        ]

    def _record(self) -> tuple[list[Any], Pullback]:
        """The values of f, and the pullback to its inputs."""
        if not self.on_tensors:
            result = getattr(self.f, "with_pullback", self.f)(*self.inputs)
            if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
                raise GradcheckError(
                    f"{self.name}: a function of arrays must return (value, pullback); "
                    "to check a function of Tensors, pass Tensors"
                )
            return list(_tuple(result[0])), result[1]
        leaves = list(self.inputs)
        for k in self.checked:
            leaves[k] = Tensor(self.arrays[k], requires_grad=True)
        outputs = _tuple(self.f(*leaves))

        def pullback(*cotangents: Any) -> tuple[Any, ...]:
            for y, dy in zip(outputs, cotangents, strict=True):
                if y.requires_grad:
                    y.backward(dy, retain_graph=True)
            return tuple(leaves[k].grad for k in self.checked)

        return [y.data for y in outputs], pullback

    def gradients(self, rng: np.random.Generator) -> list[Any]:
        """The gradient of each checked input, by the pullback, for random cotangents."""
        values, pullback = self._record()
        hosts = [backend.to_numpy(y) for y in values]
        self.cotangents = [rng.standard_normal(y.shape).astype(y.dtype) for y in hosts]
        self.size = norm(self.cotangents) * norm(hosts)
        gradients = pullback(
            *(backend.like(c, y) for c, y in zip(self.cotangents, values, strict=True))
        )
        if not isinstance(gradients, tuple):
            raise GradcheckError(
                f"{self.name}: the pullback must return a tuple, one gradient an input, "
                f"not {type(gradients).__name__}"
            )
        if len(gradients) == len(self.inputs):
            return [gradients[k] for k in self.checked]
        if len(gradients) == len(self.checked):
            return list(gradients)
        raise GradcheckError(
            f"{self.name}: the pullback returned {len(gradients)} gradients for "
            f"{len(self.checked)} inputs that can have one"
        )

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
        inputs = list(self.inputs)
        for k, host in hosts.items():
            x = backend.like(host, self.arrays[k])
            inputs[k] = Tensor(x) if self.on_tensors else x
        if self.on_tensors:
            return [backend.to_numpy(y.data) for y in _tuple(self.f(*inputs))]
        value, _ = getattr(self.f, "with_pullback", self.f)(*inputs)
        return [backend.to_numpy(y) for y in _tuple(value)]


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def norm(arrays: list[np.ndarray]) -> float:
    """The Euclidean norm of all entries together."""
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in arrays)))
