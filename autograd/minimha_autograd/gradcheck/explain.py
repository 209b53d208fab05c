"""What the error of a failed check says: the facts, then where the fault stands, then the guess."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .compare import LOST, ZERO
from .locate import Trace
from .report import Report, listed
from .signatures import UNEXPLAINED, Diagnosis, Finding

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
    lines[0] = textwrap.fill(lines[0], 80)
    guesses = [f for f in diagnosis.findings if f.cause != UNEXPLAINED]
    shown = guesses or list(diagnosis.findings[:1])
    for finding in shown:
        if finding.node not in wrong or len(wrong) > 1:
            lines.append(f"The gradient of {finding.node} is wrong:")
        facts = _facts(trace, finding.node, labels)
        if finding.after and trace.located:
            facts.append(("located", _between(trace, finding)))
        facts.append(("looks like", finding.text))
        if finding.chapter:
            facts.append(("read", f"chapter {finding.chapter}"))
        lines += [aligned(label, fact) for label, fact in facts]
    if rest := [f.node for f in diagnosis.findings if f not in shown]:
        verb = "is" if len(rest) == 1 else "are"
        lines.append(f"Wrong as well, and not explained, {verb} {listed(rest)}.")
    lines += _advice(trace, diagnosis)
    return "\n".join(lines)


def _between(trace: Trace, finding: Finding) -> str:
    """Where the fault stands, in words."""
    name, after = finding.node, listed(finding.after)
    told = "gradient of {} is" if len(finding.after) == 1 else "gradients of {} are"
    text = f"between {name} and {after}: the {told.format(after)} right, that of {name} not"
    between = trace.untold(name)
    return text + (f"; what is between is not told: {listed(between)}" if between else "")


def _advice(trace: Trace, diagnosis: Diagnosis) -> list[str]:
    """What would let the check say more."""
    lines = []
    if trace.strays:
        tapped = [n for n in trace.targets if n not in trace.inputs]
        lines.append(
            f"The pullback tells a gradient of {listed(trace.strays)}, which no tap is called "
            f"with; tapped: {listed(tapped) or 'nothing'}"
        )
    if trace.unused:
        name = trace.unused[0]
        lines.append(
            f"Nothing depends on what tap returned for {listed(trace.unused)}: go on with it, "
            f'{name} = tap("{name}", {name})'
        )
    if trace.silent:
        name = next(n for n in trace.targets if n not in trace.inputs)
        lines.append(
            "The pullback tells no gradients of intermediates: let it return, after those of the "
            f'inputs, a dictionary, {{"{name}": d{name}, …}}'
        )
    if not trace.located and diagnosis.cause == UNEXPLAINED:
        lines.append(
            "Only the gradients of the inputs were seen. To have the step located, pass what is "
            'between through a keyword tap, scores = tap("scores", scores), and return its '
            'gradient, {"scores": dscores}, after those of the inputs: see help(mh.gradcheck)'
        )
    return [textwrap.fill(line, 80, break_on_hyphens=False) for line in lines]


def aligned(label: str, fact: str) -> str:
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
    told = "—" if only_noise or not b else ratio(compared.analytic, numeric, outcome.worst)
    facts = [
        ("worst entry", place(outcome.worst, axes)),
        ("yours", f"{a + 0.0:.9g}"),
        ("numeric", f"{b:.9g}   ({compared.method})"),
        ("ratio", told),
        ("error", f"{outcome.error:.1e} {unit}; allowed {outcome.allowed:.1e}"),
    ]
    if compared.method != "adjoint" and (spread := _where(yours, numeric, outcome, axes)):
        facts.insert(1, ("wrong", spread))
    return facts


def ratio(yours: np.ndarray, right: np.ndarray, worst: tuple[int, ...]) -> str:
    """Yours over what is right at the worst entry, and whether it is the same in all: the most
    telling fact about wrong numbers."""
    large = abs(right) > 1e-3 * abs(right).max()
    ratios = yours[large] / right[large]
    same = ratios.size > 1 and np.ptp(ratios) <= 1e-3 * abs(ratios.mean() - 1)
    at_worst = float(yours[worst] / right[worst]) or 0.0  # not −0
    return f"{at_worst:.10g}{', the same in every entry' if same else ''}"


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


def place(index: tuple[int, ...], axes: Any) -> str:
    """An entry by the names of its axes, "head 2, query 5", or as it is written in code, [2, 5]."""
    if not index:
        return "the only one"
    if axes is None:
        return str(list(index))
    return ", ".join(f"{label} {k}" for label, k in zip(axes, index, strict=True))
