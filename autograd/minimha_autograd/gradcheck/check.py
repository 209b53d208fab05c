"""The checker: a gradient against numeric derivatives of the same function.

If one of several outputs is a trillion times smaller than another, its share of a gradient is lost
in rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..extension import extension_point
from .compare import METHODS, UNREACHED, Comparison, Target
from .error import GradcheckError
from .failure import FailedCheck
from .function import CheckedFunction
from .gradients import Gradients
from .kinks import Kinks
from .report import Report, Row

__tracebackhide__ = True  # pytest shows the user's lines


def check(
    f: Any, inputs: tuple[Any, ...], names: Any, axes: Any, rng: Any, method: str, parameters: Any
) -> Report:
    """Check the gradient of f at the inputs, log the result, and return the report. The arguments
    and errors are those of `gradcheck`."""
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    function = CheckedFunction(f, inputs, names, parameters)
    labels = _labels(axes, function)
    if not isinstance(rng, np.random.Generator):
        # Cotangents must not be the numbers that the caller draws from the same seed as inputs:
        # where they equal the inputs, the gradients of norms vanish.
        rng = np.random.default_rng([0x6D68, rng])
    rows: list[Row] = []
    start = time.perf_counter()
    try:
        report = _compare_all(Gradients(function, rng), method, labels, rows, rng)
    except GradcheckError as error:
        _log(function.name, str(error).partition("\n")[0], False, start, rows)
        raise
    _log(function.name, f"{function.name}: the gradients are right", True, start, rows)
    return report


def _compare_all(
    gradients: Gradients,
    method: str,
    labels: Mapping[str, Sequence[str]],
    rows: list[Row],
    rng: np.random.Generator,
) -> Report:
    """Compare all gradients with numeric derivatives and return the report. Its rows are appended
    to `rows` one by one, so that `rows` holds those of the earlier comparisons if one raises an
    error. `labels` are the names of the axes of each input or intermediate, by its name. `rng`
    draws further cotangents if there are kinks. Raises GradcheckError if a gradient is wrong or
    cannot be checked."""
    function, targets = gradients.function, {}
    for k in function.checked:
        name, numbers = function.names[k], (gradients.rounding, gradients.noise[k])
        values = function.hosts[k], gradients.gradients[k]
        targets[name] = Target(name, *values, gradients.loss(k), *numbers)
    drawn = {n: target for n, target in targets.items() if target.gradient.shape == target.x.shape}
    kinks = Kinks(gradients, drawn)
    drawn = {n: replace(t, at_kinks=partial(kinks.verdict, n)) for n, t in drawn.items()}
    targets |= drawn
    few = _few_enough(targets)
    wrong: dict[str, Comparison | None] = {}
    for name, target in targets.items():
        shape = target.x.shape
        if target.gradient.shape != shape:
            wrong[name] = None
            note = f"has shape {target.gradient.shape}"
            rows.append(Row(name, shape, "shape", math.inf, 0.0, note, passed=False))
            continue
        reached = False
        with np.errstate(all="ignore"):  # numbers at the ends of the range
            for found in target.compare(method, entrywise=name in few):
                numbers = found.error, found.allowed
                rows.append(Row(name, shape, found.method, *numbers, found.note, found.passed))
                reached = reached or UNREACHED not in found.note
                if not found.passed:
                    wrong[name] = found
                    break
        if not (reached or name in wrong):
            raise function.error(
                f"close to {name} the value is NaN or infinite for every step "
                f"({rows[-1].note}): move it away from the edge of the domain"
            )
    if not wrong and kinks.found:
        for name, (target, found) in _with_other_cotangents(gradients, drawn, rng).items():
            targets[name], wrong[name] = target, found
            numbers = found.error, found.allowed
            rows.append(Row(name, target.x.shape, found.method, *numbers, found.note, False))
    report = Report(function.name, tuple(rows), tuple(drawn.values()))
    if wrong:
        raise _error(FailedCheck(report, function, gradients, targets, wrong, labels))
    for name, how in gradients.not_linear.items():
        raise GradcheckError(f"{function.name}: the gradient of {name} {how}", report)
    return report


def _with_other_cotangents(
    gradients: Gradients, targets: Mapping[str, Target], rng: np.random.Generator
) -> dict[str, tuple[Target, Comparison]]:
    """Check the gradients at kinks once more, for other cotangents: with a single cotangent, a
    wrong gradient may fit by chance. The targets are the inputs whose gradients are checked, by
    name. Returns a dictionary from the names of those whose gradients are then wrong to a pair: the
    `Target` with the new gradient, and the comparison that failed. It is empty if none is wrong."""
    for positive in (True, False):
        drawn = [rng.standard_normal(c.shape).astype(c.dtype) for c in gradients.cotangents]
        other = gradients.for_cotangents([abs(c) if positive else c for c in drawn])
        numbers = {name: k for k, name in enumerate(gradients.function.names)}
        pulled = {
            n: replace(t, gradient=other.gradients[numbers[n]], loss=other.loss(numbers[n]))
            for n, t in targets.items()
        }
        kinks = Kinks(other, pulled)
        pulled = {n: replace(t, at_kinks=partial(kinks.verdict, n)) for n, t in pulled.items()}
        compared = {n: (target, target.only_kinks()) for n, target in pulled.items()}
        wrong = {n: (t, found) for n, (t, found) in compared.items() if found and not found.passed}
        if wrong:
            return wrong
    return {}


@extension_point
def explain(failed: FailedCheck) -> tuple[str, Any]:
    """The message of a check that failed, and a diagnosis, an object that holds the wrong step and
    its likely cause. This default searches for no cause: its message states the facts, and the
    diagnosis is None. It is an extension point: a package may provide a function that searches."""
    return failed.message(), None


def _error(failed: FailedCheck) -> GradcheckError:
    """The error that says what is wrong and, if it is known, where and why."""
    with np.errstate(all="ignore"):  # moved values may leave the domain
        message, diagnosis = explain(failed)
    return GradcheckError(message, failed.report, diagnosis)


def _log(name: str, message: str, passed: bool, start: float, rows: list[Row]) -> None:
    """Log how a check that began at the time `start` ended, at the level DEBUG, for the summary of
    the pytest plugin.

    The log record has an attribute `check`, a dictionary: the name, whether it passed, the seconds
    that it took, and the input, error, allowed error and note of the worst row. These four are None
    if there are no rows.
    """
    import logging  # which few have loaded before their first check

    worst = max(rows, key=_badness, default=None)
    facts = {key: getattr(worst, key, None) for key in ("input", "error", "allowed", "note")}
    facts |= {"name": name, "passed": passed, "seconds": time.perf_counter() - start}
    logging.getLogger("minimha.gradcheck").debug(message, extra={"check": facts})


def _badness(row: Row) -> float:
    return math.inf if math.isnan(row.error) else row.error / (row.allowed or 1.0)


def _few_enough(targets: Mapping[str, Target]) -> set[str]:
    """The names of the arrays that are checked entry by entry: the smallest, with up to Target.MANY
    entries in total. If all arrays together have more than twice as many entries, the limit is
    lower: each entry takes several evaluations of f, which take longer for large arrays.
    """
    total, few = 0, set()
    everything = sum(target.x.size for target in targets.values())
    for target in sorted(targets.values(), key=lambda target: target.x.size):
        total += target.x.size
        if total <= Target.MANY and total * everything <= 2 * Target.MANY**2:
            few.add(target.name)
    return few


def _labels(axes: Any, function: CheckedFunction) -> dict[str, Sequence[str]]:
    """The names of the axes of inputs and intermediates by name, from the argument `axes` of
    `gradcheck`. Inputs whose axes it does not name are left out."""
    if not isinstance(axes, Mapping):
        each = [axes] if isinstance(axes, str) else axes or [None] * function.arity
        if len(each) != function.arity:
            raise ValueError(f"axes: {len(each)} entries for {function.arity} inputs")
        axes = dict(zip(function.names, each, strict=False))  # names of parameters come after
    labels: dict[str, Sequence[str]] = {
        n: x.split() if isinstance(x, str) else list(x) for n, x in axes.items() if x is not None
    }
    for k in function.checked:
        name, shape = function.names[k], tuple(function.arrays[k].shape)
        if name in labels and len(labels[name]) != len(shape):
            raise ValueError(f"axes: {len(labels[name])} names for {name}, which has shape {shape}")
    return labels
