"""The checker: a gradient against numeric derivatives of the same function.

For a random cotangent c the function becomes a number, L = Σ c · f(inputs), and its gradient
a vector that both sides must agree on. Random, because a cotangent of ones makes the true gradient
of softmax vanish, so that a backward of zeros would pass.

The yardstick is the largest entry of the numeric gradient, plus a floor for noise, which is
measured: how far each side moves when its inputs move in their last place and all is rounded anew,
and how the gradient is rounded where it is larger. There is no absolute tolerance, so the units of
input and output do not matter. Of several outputs the largest rules: what another adds to a
gradient is lost where it is a trillionth of it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import SIGNATURES
from .compare import LARGE, METHODS, OUT, Compared, Target
from .error import GradcheckError
from .explain import explain
from .locate import Trace
from .report import Report, Row
from .signatures import diagnose
from .subject import Subject


def check(
    f: Callable[..., Any],
    inputs: tuple[Any, ...],
    names: Sequence[str] | None,
    axes: Any,
    rng: np.random.Generator | int,
    method: str,
    parameters: Any,
) -> Report:
    """What `gradcheck` does."""
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    subject = Subject(f, inputs, names, parameters)
    subject.require_floats()
    labels = _labels(axes, subject)
    rows: list[Row] = []
    with _told(subject.name, rows):
        return _checked(subject, method, labels, _generator(rng), rows)


def _generator(rng: np.random.Generator | int) -> np.random.Generator:
    """Cotangents that are none of the numbers that the caller draws from the same seed: where they
    equal the inputs, the gradients of norms vanish."""
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng([0x6D68, rng])


def _checked(
    subject: Subject,
    method: str,
    labels: Mapping[str, Sequence[str]],
    rng: np.random.Generator,
    rows: list[Row],
) -> Report:
    """The report, its rows put in the list as they come; raises GradcheckError."""
    subject.differentiate(rng)
    targets = {
        k: Target(
            subject.names[k],
            subject.hosts[k],
            subject.gradients[k],
            subject.loss(k),
            subject.rounding,
            subject.noise[k],
        )
        for k in subject.checked
    }
    few = _few(targets)
    wrong: dict[int, Compared | None] = {}
    for k, target in targets.items():
        if k in subject.misshapen:
            wrong[k] = None
            shape = f"has shape {subject.misshapen[k].shape}"
            rows.append(Row(target.name, target.x.shape, "shape", math.inf, 0.0, shape, False))
            continue
        reached = False
        with np.errstate(all="ignore"):  # numbers at the ends of the range
            for compared in target.compare(method, entrywise=k in few):
                rows.append(_row(target, compared))
                reached = reached or OUT not in compared.outcome.note
                if not compared.outcome.passed:
                    wrong[k] = compared
                    break
        if not (reached or wrong):
            raise GradcheckError(
                f"{subject.name}: next to {target.name} the value is NaN or infinite, whatever the "
                f"step ({rows[-1].note}): move it away from the edge of the domain"
            )
    drawn = tuple(target for k, target in targets.items() if k not in subject.misshapen)
    report = Report(subject.name, tuple(rows), drawn)
    if wrong:
        raise _failure(subject, report, targets, wrong, labels)
    if subject.bent:
        name, how = next(iter(subject.bent.items()))
        raise GradcheckError(f"{subject.name}: the gradient of {name} {how}", report)
    return report


@contextmanager
def _told(name: str, rows: list[Row]) -> Iterator[None]:
    """Log how the check of a function ends, at DEBUG: the pytest plugin sums it up.

    The record's `check` holds plain values: name, passed, seconds, and input, error, allowed and
    note of the worst row, None where there is none.
    """
    import logging  # which few have loaded before their first check

    def tell(message: str, passed: bool) -> None:
        worst = max(rows, key=_badness, default=None)
        check = {
            "name": name,
            "passed": passed,
            "seconds": time.perf_counter() - start,
            "input": worst.input if worst else None,
            "error": worst.error if worst else None,
            "allowed": worst.allowed if worst else None,
            "note": worst.note if worst else "",
        }
        logging.getLogger("minimha.gradcheck").debug(message, extra={"check": check})

    start = time.perf_counter()
    try:
        yield
    except GradcheckError as error:
        tell(str(error).partition("\n")[0], passed=False)
        raise
    tell(f"{name}: the gradients are right", passed=True)


def _badness(row: Row) -> float:
    return math.inf if math.isnan(row.error) else row.error / (row.allowed or 1.0)


def _few(targets: Mapping[int, Target]) -> set[int]:
    """The smallest arrays, of up to LARGE entries together; fewer where all are many.

    An entry takes some evaluations of f, which take the longer the larger its arrays are.
    """
    total, few = 0, set()
    everything = sum(target.x.size for target in targets.values())
    for k in sorted(targets, key=lambda k: targets[k].x.size):
        total += targets[k].x.size
        if total <= LARGE and total * everything <= 2 * LARGE**2:
            few.add(k)
    return few


def _row(target: Target, compared: Compared) -> Row:
    outcome, shape = compared.outcome, target.gradient.shape
    return Row(
        target.name, shape, compared.method, outcome.error, outcome.allowed, outcome.note,
        outcome.passed,
    )  # fmt: skip


def _failure(
    subject: Subject,
    report: Report,
    targets: dict[int, Target],
    wrong: dict[int, Compared | None],
    labels: Mapping[str, Sequence[str]],
) -> GradcheckError:
    """The error that says what is wrong, where, and what it looks like."""
    for module in SIGNATURES:
        importlib.import_module(module)
    with np.errstate(all="ignore"):  # moved values may leave the domain
        trace = Trace(subject, targets, wrong)
        diagnosis = diagnose(trace)
        return GradcheckError(explain(report, trace, diagnosis, labels), report, diagnosis)


def _labels(axes: Any, subject: Subject) -> dict[str, Sequence[str]]:
    """The names of the axes of inputs and intermediates, as far as they are known."""
    count = len(subject.names)
    if len(subject.names) != len(subject.inputs):
        raise ValueError(f"{len(subject.inputs)} inputs, {count} names")
    if isinstance(axes, Mapping):
        given = dict(axes)
    else:
        each = [axes] if isinstance(axes, str) else axes or [None] * subject.given
        if len(each) != subject.given:
            raise ValueError(f"{subject.given} inputs and {len(each)} axes")
        pairs = zip(subject.names[: subject.given], each, strict=True)
        given = {name: x for name, x in pairs if x is not None}
    labels: dict[str, Sequence[str]] = {
        name: x.split() if isinstance(x, str) else list(x) for name, x in given.items()
    }
    for k in subject.checked:
        name, shape = subject.names[k], tuple(subject.arrays[k].shape)
        if name in labels and len(labels[name]) != len(shape):
            raise ValueError(f"axes: {len(labels[name])} names for {name}, which has shape {shape}")
    return labels
