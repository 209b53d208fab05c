"""What the error of a failed check says: the facts, then where the fault stands, then the guess."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .compare import LOST, ZERO, Compared
from .locate import Trace
from .report import Report, listed
from .signatures import UNEXPLAINED, Diagnosis

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
        facts = _facts(trace, name, labels)
        if after and trace.located:
            right = f"what is computed from {name} has the right gradient: {listed(after)}"
            if between := trace.untold(name):
                right += f"; what is between is not told: {listed(between)}"
            facts.append(("located", right))
        facts.append(("looks like", finding.text))
        if finding.chapter:
            facts.append(("read", f"chapter {finding.chapter}"))
        lines += [_aligned(label, fact) for label, fact in facts]
    if trace.strays:
        tapped = [n for n in trace.targets if n not in trace.inputs]
        lines.append(
            f"The pullback tells a gradient of {listed(trace.strays)}, which no tap is called "
            f"with; tapped: {listed(tapped) or 'nothing'}"
        )
    if not trace.located and diagnosis.cause == UNEXPLAINED:
        lines.append(
            "Only the gradients of the inputs were seen. To have the step located, pass what is\n"
            "between through `tap`: help(mh.gradcheck) tells how."
        )
    return "\n".join(lines)


def _aligned(label: str, fact: str) -> str:
    """A fact beside its label, in lines of at most 80 letters."""
    return textwrap.fill(fact, 80, initial_indent=f"  {label:<13}", subsequent_indent=" " * 15)


def _facts(trace: Trace, name: str, labels: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
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
        ("worst entry", _place(outcome.worst, axes)),
        ("yours", f"{a:.9g}"),
        ("numeric", f"{b:.9g}   ({compared.method})"),
        ("ratio", _ratio(compared) if b and not only_noise else "—"),
        ("error", f"{outcome.error:.1e} {unit}; allowed {outcome.allowed:.1e}"),
    ]
    if compared.method != "adjoint" and (spread := _where(yours, numeric, outcome, axes)):
        facts.insert(1, ("wrong", spread))
    return facts


def _ratio(compared: Compared) -> str:
    """Yours over numeric at the worst entry, and whether it is the same in all: the most telling
    fact about a wrong gradient."""
    yours, numeric, worst = compared.analytic, compared.numeric, compared.outcome.worst
    large = abs(numeric) > 1e-3 * abs(numeric).max()
    ratios = yours[large] / numeric[large]
    same = ratios.size > 1 and np.ptp(ratios) <= 1e-3 * abs(ratios.mean() - 1)
    ratio = float(yours[worst] / numeric[worst]) or 0.0  # not −0
    return f"{ratio:.10g}{', the same in every entry' if same else ''}"


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


def _place(index: tuple[int, ...], axes: Any) -> str:
    """An entry by the names of its axes: "head 2, query 5"."""
    if not index:
        return "the only one"
    labels = axes if axes is not None else [f"axis {k}:" for k in range(len(index))]
    return ", ".join(f"{label} {k}" for label, k in zip(labels, index, strict=True))
