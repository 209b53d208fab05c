"""What a gradient check found: a table when it passes, an error that says what is wrong."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .compare import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        Returns a matplotlib figure. Raises ValueError where no gradient has the shape of its input.
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


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
