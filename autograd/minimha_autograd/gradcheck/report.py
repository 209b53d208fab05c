"""What a gradient check found: a table when it passes, an error that says what is wrong."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare import LOST, ZERO, Target, place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .locate import Trace
    from .signatures import Diagnosis


class GradcheckError(AssertionError):
    """A gradient is wrong. The message says which, where, by how much, and what it looks like.

    report     the Report, wrong rows included; None where nothing could be compared
    diagnosis  the step at fault and the likely cause; None likewise
    """

    def __init__(
        self, message: str, report: Report | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        super().__init__(message)
        self.report, self.diagnosis = report, diagnosis


@dataclass(frozen=True)
class Row:
    """One comparison: the gradient of one input against one numeric method.

    error    the largest deviation, in units of the largest entry of the numeric gradient
    allowed  the largest error that passes, in the same units
    note     "structural zero" where the numeric gradient is nothing but its own noise, "lost in
             rounding" where it is less than that of the other side (the units are then the noise),
             how much noise leaves open, at how many entries there is a kink; and why the sharper
             method was not used
    passed   whether the error is allowed
    """

    input: str
    shape: tuple[int, ...]
    method: str
    error: float
    allowed: float
    note: str
    passed: bool = True


@dataclass(frozen=True)
class Report:
    """The comparisons of a gradient check. Prints as a table."""

    name: str
    rows: tuple[Row, ...]
    _targets: tuple[Target, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        cells = [
            (
                row.input,
                str(row.shape),
                row.method,
                f"{row.error:.1e}",
                f"{row.allowed:.1e}",
                row.note if row.passed else "; ".join(filter(None, ("WRONG", row.note))),
            )
            for row in self.rows
        ]
        return f"{self.name}\n" + text_table(
            ("input", "shape", "method", "error", "allowed", "note"), cells
        )

    def plot(self) -> Figure:
        """The V-curve: for each input the error over the step, by every method.

        Along one random direction, relative to the numeric derivative of that step. Too large a
        step cuts the curve of the function short, too small a one drowns in rounding; the complex
        step does not cancel. A wrong gradient is the line at which all methods stop.
        Returns a matplotlib figure. Raises ImportError where matplotlib is not installed.
        """
        from .plot import curves

        return curves(self.name, self._targets)


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in plain text, one line a row."""
    from rich.console import Console  # not at import: most who import the engine print no table
    from rich.table import Table

    table = Table(*headers, box=None, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*row)
    console = Console(
        file=io.StringIO(), width=200, color_system=None, force_jupyter=False, markup=False
    )
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


AXES: dict[tuple[str, int], tuple[str, ...]] = {}
"""The names of the axes of arrays that go by a usual name, by that name and how many there are."""


def explain(
    report: Report, trace: Trace, diagnosis: Diagnosis, labels: Mapping[str, Sequence[str]]
) -> str:
    """The message of a failed check: the facts, then where the fault stands, then the guess."""
    wrong = [name for name in trace.inputs if name in trace.wrong]
    fine = [name for name in trace.inputs if name not in trace.wrong]
    one = len(wrong) == 1
    lines = [
        f"{report.name}: the gradient{'' if one else 's'} of {listed(wrong)} "
        f"{'is' if one else 'are'} wrong"
    ]
    if fine:
        lines[0] += f"; {listed(fine)}: right"
    for finding in diagnosis.findings:
        name, after = finding.node, finding.after
        if name not in wrong or len(wrong) > 1:
            lines.append(f"The gradient of {name} is wrong:")
        lines += [f"  {label:<12} {fact}" for label, fact in _facts(report, trace, name, labels)]
        if after and trace.located:
            lines.append(
                f"  {'located':<12} the gradient of what is computed from {name} is right: "
                f"{listed(after)}"
            )
            if between := trace.untold(name):
                lines.append(f"  {'':<12} what is between is not told: {listed(between)}")
        lines.append(f"  {'looks like':<12} {finding.text}")
        if finding.chapter:
            lines.append(f"  {'read':<12} chapter {finding.chapter}")
    if trace.strays:
        tapped = [n for n in trace.targets if n not in trace.inputs]
        lines.append(
            f"The pullback tells a gradient of {listed(trace.strays)}, which no tap is called "
            f"with; tapped: {listed(tapped) or 'nothing'}"
        )
    if not trace.located:
        lines.append(
            "Only the gradients of the inputs were seen. To have the step located, pass what is "
            "between through `tap`, as mh.gradcheck tells."
        )
    return "\n".join(lines)


def _facts(
    report: Report, trace: Trace, name: str, labels: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    target = trace.targets[name]
    yours = target.gradient
    if yours.shape != target.x.shape:
        return [("shape", f"has shape {yours.shape}, the input {target.x.shape}")]
    compared = trace.compared(name)
    outcome, numeric = compared.outcome, compared.numeric
    axes = labels.get(name) or AXES.get((name, yours.ndim))
    if compared.method == "adjoint":
        axes = ("direction",)
    a, b = float(compared.analytic[outcome.worst]), float(numeric[outcome.worst])
    only_noise = any(note in outcome.note for note in (ZERO, LOST))
    unit = "times the noise, which is all there should be" if only_noise else "of the largest entry"
    facts = [
        ("worst entry", place(outcome.worst, axes)),
        ("yours", f"{a:.9g}"),
        ("numeric", f"{b:.9g}   ({compared.method})"),
        ("ratio", f"{a / b:.10g}" + constancy(compared.analytic, numeric) if b else "—"),
        ("error", f"{outcome.error:.1e} {unit}; allowed {outcome.allowed:.1e}"),
    ]
    if compared.method != "adjoint" and (spread := _where(yours, numeric, outcome, axes)):
        facts.insert(1, ("wrong", spread))
    return facts


def constancy(analytic: np.ndarray, numeric: np.ndarray) -> str:
    """Whether one ratio holds in all entries: the most telling fact about a wrong gradient."""
    large = abs(numeric) > 1e-3 * abs(numeric).max()
    ratios = analytic[large] / numeric[large]
    same = ratios.size > 1 and np.ptp(ratios) <= 1e-3 * abs(ratios.mean() - 1)
    return ", the same in every entry" if same else ""


def _where(yours: np.ndarray, numeric: np.ndarray, outcome: Any, axes: Any) -> str:
    """Which entries are wrong, where it is not most of them: all at one place of some axis?"""
    off = ~(abs(yours - numeric) <= outcome.allowed * abs(numeric).max())
    if off.mean() > 0.5 or off.size == 1:
        return ""
    where = [sorted(set(map(int, k))) for k in off.nonzero()]
    told = [
        f"{axes[k] if axes is not None else f'axis {k}:'} {', '.join(map(str, at))}"
        for k, at in enumerate(where)
        if len(at) <= 3 and len(at) < off.shape[k]
    ]
    at = f", all at {'; '.join(told)}" if told else ""
    return f"{int(off.sum())} of {off.size} entries{at}"


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
