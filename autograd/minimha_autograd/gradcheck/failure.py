"""A failed check, and the facts that its error states."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .compare import LOST, ZERO, Comparison, Target
from .function import CheckedFunction
from .gradients import Gradients
from .kinks import Claim
from .report import Report
from .text import labelled, listed, place, ratio

Axes = Sequence[str] | None


@dataclass(frozen=True)
class FailedCheck:
    """A failed check, with everything that its message and its diagnosis are made of.

    targets  the checked inputs and parameters by name
    wrong    for each wrong gradient, by name, the comparison that failed; None where the gradient
             has the wrong shape
    axes     the names of the axes of inputs and intermediates, as far as they are known
    """

    report: Report
    function: CheckedFunction
    gradients: Gradients
    targets: Mapping[str, Target]
    wrong: Mapping[str, Comparison | None]
    axes: Mapping[str, Sequence[str]]

    def message(self) -> str:
        """The message of the error: which gradients are wrong, and the facts about each of them."""
        lines = [self.headline()]
        for name, comparison in self.wrong.items():
            lines += self.facts(self.targets[name], comparison, self.axes.get(name))
        lines += self.kink() if self.only_at_kinks else []
        return "\n".join(lines)

    @property
    def only_at_kinks(self) -> bool:
        """Whether all wrong entries are at kinks."""
        return all(
            found is not None and _only_at_kinks(self.targets[name], found)
            for name, found in self.wrong.items()
        )

    def claims(self) -> list[Claim]:
        """The wrong claims that the gradients under check make at kinks, each listed once. A claim
        is the slope of L along a direction that a gradient implies: the dot product of the two."""
        verdicts = (target.kinks for target in self.targets.values())
        claims = (claim for verdict in verdicts if verdict for claim in verdict.claims)
        return list({claim.entries: claim for claim in claims}.values())

    def kink(self) -> list[str]:
        """Lines of the message that say what is wrong at kinks."""
        claims = self.claims()
        lines = [
            "The function, or a step of it, has a kink here (a tie, or a zero). There, a gradient "
            "must be a weighted mean of the gradients at points nearby.",
            *(f"{claim.text()}." for claim in claims[:3]),
        ]
        if len(claims) > 3:
            lines.append(f"The same holds in {len(claims) - 3} more places.")
        return [labelled("at a kink", "\n".join(lines))]

    def headline(self) -> str:
        """The first line of the message: which gradients are wrong, and which are right."""
        wrong = listed([*self.wrong])
        line = f"{self.report.name}: the gradients of {wrong} are wrong"
        if len(self.wrong) == 1:
            line = f"{self.report.name}: the gradient of {wrong} is wrong"

        fine = [name for name in self.targets if name not in self.wrong]
        if len(fine) == 1:
            line += f"; that of {listed(fine)} is right"
        elif fine:
            line += f"; those of {listed(fine)} are right"
        return textwrap.fill(line, 80)

    def facts(self, target: Target, comparison: Comparison | None, axes: Axes) -> list[str]:
        """Lines about the worst entry of a wrong gradient: its value in the gradient under check,
        its numeric value, their ratio, and so on. If `comparison` is None, one that says which
        wrong shape the gradient has. The first line names the input, unless the headline does.
        `axes` are the names of its axes, if known."""
        is_named = list(self.wrong) == [target.name]
        heading = [] if is_named else [f"The gradient of {target.name} is wrong:"]
        if comparison is None:
            shapes = f"{target.gradient.shape}, but the input has {target.x.shape}"
            return [*heading, labelled("shape", shapes)]
        analytic = comparison.analytic
        numeric = comparison.numeric
        at = comparison.at
        if comparison.method == "adjoint":
            axes = ("direction",)
        yours = float(analytic[at])
        right = float(numeric[at])
        kinks = target.kinks
        at_kink = kinks and comparison.method != "adjoint" and kinks.at[at]
        source = "nearest that fits" if at_kink else comparison.method
        unit = "of the largest entry"
        if only_noise := any(note in comparison.note for note in (ZERO, LOST)):
            unit = "times the noise, which is all there should be"
        lines = [
            ("worst entry", place(at, axes)),
            ("yours", f"{yours + 0.0:.9g}"),  # 0 for −0
            ("numeric", f"{right:.9g}   ({source})"),
            ("ratio", "—" if only_noise or not right else ratio(analytic, numeric, at)),
            ("error", f"{comparison.error:.1e} {unit}; allowed {comparison.allowed:.1e}"),
        ]
        if comparison.method != "adjoint" and (where := _where(comparison, axes)):
            lines.insert(1, ("wrong", where))
        return [*heading, *(labelled(*line) for line in lines)]


def _only_at_kinks(target: Target, comparison: Comparison) -> bool:
    kinks = target.kinks
    if kinks is None or not kinks.claims:
        return False
    off = abs(comparison.analytic - comparison.numeric)
    if comparison.method == "adjoint":  # the last one is of the entries at kinks
        return comparison.at == (off.size - 1,)
    unit = off[comparison.at] / comparison.error
    elsewhere = off[~kinks.at]
    return bool(kinks.at[comparison.at] and (elsewhere <= comparison.allowed * unit).all())


def _where(comparison: Comparison, axes: Axes) -> str:
    """How many entries are wrong and, if they share at most three indices of an axis, these: "3 of
    12 entries, all at head 1". An empty text if more than half of the entries are wrong or there is
    only one entry."""
    analytic, numeric = comparison.analytic, comparison.numeric
    off = ~(abs(analytic - numeric) <= comparison.allowed * abs(numeric).max())
    if off.mean() > 0.5 or off.size == 1:
        return ""
    places = [
        f"{axes[k] if axes is not None else f'axis {k}:'} {', '.join(map(str, at))}"
        for k, at in enumerate(map(np.unique, off.nonzero()))
        if len(at) <= 3 and len(at) < off.shape[k]
    ]
    where = f", all at {'; '.join(places)}" if places else ""
    return f"{int(off.sum())} of {off.size} entries{where}"
