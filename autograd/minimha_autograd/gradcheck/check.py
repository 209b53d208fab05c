"""The checker: a gradient against central differences and, where it holds, the complex step.

For a random cotangent c the function becomes a number, L = Σ c · f(inputs), and its gradient
a vector that both sides must agree on. Random, because a cotangent of ones makes the true gradient
of softmax and of layer norm vanish, so that a backward of zeros would pass.

The yardstick is the largest entry of the numeric gradient, plus a floor for rounding that scales
with the output: a gradient that lies below it is a structural zero, where noise stands against
noise. There is no absolute tolerance, so the scale of a function does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import backend
from ..tensor import Tensor
from .numeric import central_difference, complex_step
from .report import Bound, GradcheckError, Report, Row, explain
from .subject import Subject, norm

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
    subject = Subject(f, inputs)
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
    subject: Subject, k: int, dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray, Bound, str]]:
    """Method, gradient, bound and note for the input k, the sharpest method first.

    The complex step counts only where central differences confirm it: it is silently wrong where
    a function drops imaginary parts.
    """
    precision, x = subject.precision, subject.hosts[k]

    def loss(moved: np.ndarray) -> Any:
        return subject.loss(k, moved)

    step, relative = CENTRAL[precision]
    h = step * max(float(abs(x).max(initial=0.0)) or 1.0, 1e-2)  # small inputs curve sooner
    floor = 100 * _eps(dtype) * subject.size / max(norm([x]), 1.0)
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


def _eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)
