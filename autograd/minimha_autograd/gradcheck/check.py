"""The checker: a gradient against central differences and, where it holds, the complex step.

For a random cotangent c the function becomes a number, L = Σ c · f(inputs), and its gradient
a vector that both sides must agree on. Random, because a cotangent of ones makes the true gradient
of softmax and of layer norm vanish, so that a backward of zeros would pass.

The yardstick is the largest entry of the numeric gradient, plus a floor for rounding that scales
with the output: a gradient that lies below it is a structural zero, where noise stands against
noise. There is no absolute tolerance, so the scale of a function does not matter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import backend
from ..operation import Pullback
from ..tensor import Tensor
from .numeric import central_difference, complex_step
from .report import Bound, GradcheckError, Report, Row, explain

CENTRAL = {"float64": (1e-5, 1e-6), "float32": (5e-3, 1e-2)}
"""By the precision of the numeric side: the step, relative to the largest input, and the error
allowed, relative to the largest entry of the gradient."""

COMPLEX = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2}
"""By the dtype of the gradient: the error allowed against the complex step."""


def gradcheck(
    f: Callable[..., Any],
    *inputs: Any,
    names: Sequence[str] | None = None,
    axes: Sequence[str | Sequence[str] | None] | None = None,
    rng: np.random.Generator | int = 0,
) -> Report:
    """Check the gradient of f at the inputs: print the report, or read the error.

    f       of Tensors, if any input is one: returns a Tensor or several. The Tensors of real
            floating-point numbers are checked, other inputs are passed on as they are;
            of arrays, if none is: one of our operations, or a function that returns
            (value, pullback), where the pullback takes one cotangent a value and returns a tuple
            with one gradient an array. All arrays of real floating-point numbers are checked
    names   of the inputs, for the report; by default the names of the parameters of f
    axes    of each input, letters or words: "B H T D", or "batch head query width"
    rng     a generator or a seed for the random cotangents

    f must be a function: the same inputs give the same value. Where f allows it, gradients in
    float32 are compared with numeric ones in float64.

    Returns a Report, which prints as a table: the error by input and method.
    Raises GradcheckError, an AssertionError, when a gradient is wrong: it names the input, the
    worst entry by axis, both values and their ratio. TypeError when there is nothing to check.
    """
    subject = _Subject(f, inputs)
    names = subject.names() if names is None else names
    labels = [x.split() if isinstance(x, str) else x for x in axes or [None] * len(inputs)]
    if len(names) != len(inputs) or len(labels) != len(inputs):
        raise ValueError(f"{len(inputs)} inputs, {len(names)} names and {len(labels)} axes")
    gradients = subject.gradients(np.random.default_rng(rng))
    rows = []
    for k, dx in zip(subject.checked, gradients, strict=True):
        analytic = _on_host(dx, subject.arrays[k], f"{subject.name}: the gradient of {names[k]}")
        for method, numeric, bound, note in _numeric_gradients(subject, k, analytic.dtype):
            error, allowed, zero = bound.compare(analytic, numeric)
            remark = note or ("structural zero" if zero else "")
            row = Row(names[k], analytic.shape, method, error, allowed, remark)
            if not row.passed:
                raise GradcheckError(explain(subject.name, analytic, numeric, row, labels[k]))
            rows.append(row)
    return Report(subject.name, tuple(rows))


def _numeric_gradients(
    subject: _Subject, k: int, dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray, Bound, str]]:
    """Method, gradient, bound and note for the input k, the sharpest method first.

    The complex step counts only where central differences confirm it: it is silently wrong where
    a function drops imaginary parts.
    """
    precision = subject.widest()
    hosts = subject.hosts(precision)
    x = hosts[k]

    def loss(moved: np.ndarray) -> Any:
        return subject.loss({j: y.astype(moved.dtype) for j, y in hosts.items()} | {k: moved})

    step, relative = CENTRAL[precision]
    h = step * max(float(abs(x).max(initial=0.0)) or 1.0, 1e-2)  # small inputs curve sooner
    floor = 100 * _eps(dtype) * subject.size / max(_norm([x]), 1.0)
    bound = Bound(relative, max(floor, _eps(precision) * subject.size / h))
    central, note = central_difference(loss, x, h), ""
    try:
        sharp = complex_step(loss, x)
    except Exception as error:  # whatever f raises, it does not take complex numbers
        note = f"no complex step: {type(error).__name__}"
    else:
        apart, allowed, _ = bound.compare(sharp, central)
        if apart <= allowed:
            yield "complex step", sharp, Bound(COMPLEX[dtype.name], floor), note
        else:
            note = "no complex step: not analytic"
    yield "central", central, bound, note


class _Subject:
    """The function under check, of Tensors or of arrays, as one of host arrays."""

    def __init__(self, f: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.f, self.inputs = f, inputs
        self.name = getattr(
            getattr(f, "func", f), "__name__", type(f).__name__
        )  # func: a partial's
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

    def record(self) -> tuple[list[Any], Pullback]:
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
        values, pullback = self.record()
        hosts = [backend.to_numpy(y) for y in values]
        self.cotangents = [rng.standard_normal(y.shape).astype(y.dtype) for y in hosts]
        self.size = _norm(self.cotangents) * _norm(hosts)
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

    def evaluate(self, hosts: dict[int, np.ndarray]) -> list[np.ndarray]:
        """The values of f, on the host, with the checked inputs replaced."""
        inputs = list(self.inputs)
        for k, host in hosts.items():
            x = backend.like(host, self.arrays[k])
            inputs[k] = Tensor(x) if self.on_tensors else x
        if self.on_tensors:
            return [backend.to_numpy(y.data) for y in _tuple(self.f(*inputs))]
        value, _ = getattr(self.f, "with_pullback", self.f)(*inputs)
        return [backend.to_numpy(y) for y in _tuple(value)]

    def loss(self, hosts: dict[int, np.ndarray]) -> Any:
        """L = Σ c · f, summed in double precision."""
        values = self.evaluate(hosts)
        return sum(
            np.sum(np.multiply(c, y, dtype=np.result_type(y.dtype, np.float64)))
            for c, y in zip(self.cotangents, values, strict=True)
        )

    def hosts(self, dtype: Any) -> dict[int, np.ndarray]:
        """The checked inputs on the host."""
        return {k: backend.to_numpy(self.arrays[k]).astype(dtype) for k in self.checked}

    def widest(self) -> str:
        """float64 if f can be evaluated in it, else float32."""
        try:
            outputs = self.evaluate(self.hosts("float64"))
        except Exception:
            return "float32"
        return "float64" if all(y.dtype == np.float64 for y in outputs) else "float32"


def _on_host(dx: Any, x: Any, what: str) -> np.ndarray:
    """The gradient dx of x on the host. Raises GradcheckError if it is not an array like x."""
    if dx is None:
        return np.zeros_like(backend.to_numpy(x))
    if isinstance(dx, Tensor):
        raise GradcheckError(f"{what} is a Tensor: a pullback returns arrays")
    host = backend.to_numpy(dx)
    if host.shape != tuple(x.shape):
        raise GradcheckError(f"{what} has shape {host.shape}, the input {tuple(x.shape)}")
    if dx.dtype != x.dtype:
        raise GradcheckError(f"{what} has dtype {dx.dtype}, the input {x.dtype}")
    return host


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def _eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in arrays)))
