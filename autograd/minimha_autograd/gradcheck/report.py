"""What a gradient check found: a table when it passes, an error that shows the worst entry."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

ZERO = "structural zero"
LOST = "lost in rounding"


class GradcheckError(AssertionError):
    """A gradient is wrong. The message says which, where, by how much, and against what."""


@dataclass(frozen=True)
class Bound:
    """How far a gradient may be from a numeric one: relative · (largest entry) + theirs + ours.

    theirs is the noise of the numeric gradient, of each entry or of all, and ours that of the other
    side. A numeric gradient that lies below its own noise altogether is a structural zero.
    """

    relative: float
    theirs: np.ndarray | float
    ours: float = 0.0

    def compare(self, analytic: np.ndarray, numeric: np.ndarray) -> Comparison:
        """Compare entry by entry; the outcome is that of the worst entry."""
        if not numeric.size:
            return Comparison(0.0, 0.0, (), "")
        size, floor = abs(numeric), np.broadcast_to(self.theirs + self.ours, numeric.shape)
        unit, note = float(size.max()), ""
        if (size <= floor).all():
            zero = (size <= self.theirs).all()
            unit, note = float(floor.max()) or 1.0, ZERO if zero else LOST
        limit = self.relative * float(size.max()) + floor
        deviation = abs(analytic - numeric)
        excess = np.where(np.isnan(deviation), np.inf, deviation - limit)
        worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
        error, allowed = float(deviation[worst] / unit), float(limit[worst] / unit)
        if not note and allowed > max(1e-3, 3 * self.relative):
            note = f"noise leaves {allowed:.0e} open"
        return Comparison(error, allowed, worst, note)


class Comparison(NamedTuple):
    """The worst entry's error and the error allowed there, in units of the largest entry or, where
    that is below the noise, of the noise."""

    error: float
    allowed: float
    worst: tuple[Any, ...]
    note: str

    @property
    def passed(self) -> bool:
        """Whether the error is allowed; a NaN is not."""
        return self.error <= self.allowed


@dataclass(frozen=True)
class Row:
    """One comparison: the gradient of one input against one numeric method.

    error    the largest deviation, in units of the largest entry of the numeric gradient
    allowed  the largest error that passes, in the same units
    note     "structural zero" where the numeric gradient is nothing but its own noise, "lost in
             rounding" where it is less than that of the other side (the units are then the noise),
             how much noise leaves open; and why the sharper method was not used
    """

    input: str
    shape: tuple[int, ...]
    method: str
    error: float
    allowed: float
    note: str


@dataclass(frozen=True)
class Report:
    """The comparisons of a gradient check that passed. Prints as a table."""

    name: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells = [
            (
                row.input,
                str(row.shape),
                row.method,
                f"{row.error:.1e}",
                f"{row.allowed:.1e}",
                row.note,
            )
            for row in self.rows
        ]
        return f"{self.name}\n" + text_table(
            ("input", "shape", "method", "error", "allowed", "note"), cells
        )


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


def explain(
    name: str,
    analytic: np.ndarray,
    numeric: np.ndarray,
    row: Row,
    outcome: Comparison,
    axes: Sequence[str] | None,
) -> str:
    """The message of a failed comparison: facts only, the worst entry first."""
    yours, theirs = float(analytic[outcome.worst]), float(numeric[outcome.worst])
    only_noise = outcome.note in (ZERO, LOST)
    unit = "times the noise, which is all there should be" if only_noise else "of the largest entry"
    facts = [
        ("worst entry", _place(outcome.worst, axes)),
        ("yours", f"{yours:.9g}"),
        ("numeric", f"{theirs:.9g}   ({row.method})"),
        ("ratio", _ratio(yours, theirs) + _constancy(analytic, numeric)),
        ("error", f"{row.error:.1e} {unit}; allowed {row.allowed:.1e}"),
    ]
    lines = [f"  {label:<12} {fact}" for label, fact in facts]
    return "\n".join([f"{name}: the gradient of {row.input} is wrong", *lines])


def _place(index: tuple[Any, ...], axes: Sequence[str] | None) -> str:
    if not index:
        return "the only one"
    labels = axes if axes is not None else [f"axis {k}:" for k in range(len(index))]
    return ", ".join(f"{label} {int(k)}" for label, k in zip(labels, index, strict=True))


def _ratio(yours: float, theirs: float) -> str:
    return f"{yours / theirs:.10g}" if theirs else "—"


def _constancy(analytic: np.ndarray, numeric: np.ndarray) -> str:
    """Whether one ratio holds in all entries: the most telling fact about a wrong gradient."""
    large = abs(numeric) > 1e-3 * abs(numeric).max()
    ratios = analytic[large] / numeric[large]
    same = ratios.size > 1 and np.ptp(ratios) <= 1e-3 * abs(ratios.mean() - 1)
    return ", the same in every entry" if same else ""
