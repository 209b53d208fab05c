"""The checker: a gradient against central differences and, where it holds, the complex step.

For a random cotangent c the function becomes a number, L = Σ c · f(inputs), and its gradient
a vector that both sides must agree on. Random, because a cotangent of ones makes the true gradient
of softmax vanish, so that a backward of zeros would pass.

The yardstick is the largest entry of the numeric gradient, plus a floor for noise, which is
measured: how far each side moves when its inputs move in their last place. There is no absolute
tolerance, so the scale of the output does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .numeric import central_difference, complex_step, jiggled
from .report import Bound, GradcheckError, Report, Row, explain
from .subject import Subject

CENTRAL = {"float64": 1e-6, "float32": 1e-2}
"""The error allowed against differences in this precision, relative to the largest entry."""

COMPLEX = {"float64": 1e-12, "float32": 1e-5}
"""The same against the complex step, by the coarser of its precision and the gradient's."""


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
    axes    of each input, letters or words: ["B H T D", None, "batch key"]
    rng     a generator or a seed for the random cotangents

    f must be a function: the same inputs give the same value. Where f allows it, gradients in
    float32 are compared with numeric ones in float64.

    Returns a Report, which prints as a table: the error by input and method.
    Raises GradcheckError, an AssertionError, when a gradient is wrong: it names the input, the
    worst entry by axis, both values and their ratio; or when values or gradients are not what they
    should be. TypeError when there is nothing to check, and for floats but float64 and float32.
    """
    subject = Subject(f, inputs, names)
    labels = _labels(axes, subject)
    rows: list[Row] = []
    with _told(subject.name, rows):
        subject.differentiate(np.random.default_rng(rng))
        for k in subject.checked:
            analytic = subject.gradients[k]
            for method, numeric, bound, reason in _numeric_gradients(subject, k):
                outcome = bound.compare(analytic, numeric)
                note = "; ".join(filter(None, (outcome.note, reason)))
                row = Row(
                    subject.names[k], analytic.shape, method, outcome.error, outcome.allowed, note
                )
                rows.append(row)
                if not outcome.passed:
                    message = explain(subject.name, analytic, numeric, row, outcome, labels[k])
                    raise GradcheckError(message)
    return Report(subject.name, tuple(rows))


@contextmanager
def _told(name: str, rows: list[Row]) -> Iterator[None]:
    """Log how the check of a function ends, at DEBUG: the pytest plugin sums it up.

    The record's `check` holds plain values: name, passed, seconds, the cause of a failure (its
    first line), and input, error and allowed of the worst row, None where there is none.
    """
    import logging  # which few have loaded before their first check

    def tell(cause: str | None) -> None:
        seconds = time.perf_counter() - start
        worst = max(rows, key=lambda row: row.error / (row.allowed or 1.0), default=None)
        if cause and rows:
            worst = rows[-1]  # where it ended, be its error a NaN
        check = {
            "name": str(name),
            "passed": cause is None,
            "seconds": seconds,
            "cause": cause,
            "input": str(worst.input) if worst else None,
            "error": worst.error if worst else None,
            "allowed": worst.allowed if worst else None,
        }
        log = logging.getLogger("minimha.gradcheck")
        log.debug(cause or f"{name}: the gradients are right", extra={"check": check})

    start = time.perf_counter()
    try:
        yield
    except GradcheckError as error:
        tell(str(error).partition("\n")[0])
        raise
    tell(None)


def _labels(axes: Any, subject: Subject) -> list[Sequence[str] | None]:
    """The names of the axes of each input, None where there are none."""
    count = len(subject.inputs)
    given = [axes] if isinstance(axes, str) else axes or [None] * count
    labels = [x.split() if isinstance(x, str) else x for x in given]
    if len(subject.names) != count or len(labels) != count:
        raise ValueError(f"{count} inputs, {len(subject.names)} names and {len(labels)} axes")
    for k in subject.checked:
        names, shape = labels[k], tuple(subject.arrays[k].shape)
        if names is not None and len(names) != len(shape):
            raise ValueError(
                f"axes: {len(names)} names for {subject.names[k]}, which has shape {shape}"
            )
    return labels


def _numeric_gradients(subject: Subject, k: int) -> Iterator[tuple[str, np.ndarray, Bound, str]]:
    """Method, gradient, bound and note for the input k, the sharpest method first.

    The complex step counts only where central differences confirm it: it is silently wrong where
    a function drops imaginary parts.
    """
    precision, x, dtype = subject.precision, subject.hosts[k], subject.gradients[k].dtype
    rounding = float(np.finfo(precision).eps) * subject.size
    scale = max(1.0, float(abs(x[np.isfinite(x)]).max(initial=0.0)))
    ours = 30 * subject.noise[k] + 4 * float(np.finfo(dtype).eps) * subject.size / scale

    def loss(moved: np.ndarray) -> Any:
        with np.errstate(all="ignore"):  # a step may leave the domain
            return subject.loss(k, moved)

    central, doubt = central_difference(loss, x, rounding, 0.1 * CENTRAL[precision])
    doubt, note = 3 * doubt, ""
    try:
        sharp = complex_step(loss, x)
        again = complex_step(loss, jiggled(x, np.random.default_rng(0)))
    except Exception as error:  # whatever f raises, it does not take complex numbers
        note = f"no complex step: {type(error).__name__}"
    else:
        theirs = rounding + 30 * float(abs(again - sharp).max(initial=0.0)) + 1e-38  # its own h²
        if Bound(CENTRAL[precision], doubt + theirs).compare(sharp, central).passed:
            coarser = min(precision, dtype.name)
            yield "complex step", sharp, Bound(COMPLEX[coarser], theirs, ours), ""
        else:
            note = "no complex step: not analytic"
    yield "central", central, Bound(CENTRAL[precision], doubt, ours), note
