"""The result of a gradient check. Prints as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .compare import Target
from .text import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Row:
    """One comparison: the gradient of one input against one numeric method.

    error    the largest deviation, in units of the largest entry of the numeric gradient or, if
             that is below the noise, of the noise; infinite for a gradient of the wrong shape
    allowed  the largest error that passes, in the same units
    note     facts for reading the row: "structural zero" if the numeric gradient is only noise,
             which is what rounding may change; "lost in rounding" if it is smaller than the noise
             of the gradient under check; how large an error the noise could hide; the number of
             entries at a kink, and how many of these were not decided; the number of entries that
             could not be compared; why a more precise method was not used
    passed   whether the error is allowed
    """

    input: str
    shape: tuple[int, ...]
    method: str
    error: float
    allowed: float
    note: str
    passed: bool


@dataclass(frozen=True)
class Report:
    """The comparisons of a gradient check, shown as a table."""

    name: str
    rows: tuple[Row, ...]
    _targets: tuple[Target, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        cells = [
            (
                *(row.input, str(row.shape), row.method, f"{row.error:.1e}", f"{row.allowed:.1e}"),
                row.note if row.passed else "; ".join(filter(None, ("WRONG", row.note))),
            )
            for row in self.rows
        ]
        headers = "input", "shape", "method", "error", "allowed", "note"
        return f"{self.name}\n{text_table(headers, cells)}"

    def plot(self) -> Figure:
        """Draw the V-curve: for each input and method, the error as a function of the step.

        The error is measured along one random direction, relative to the numeric derivative with
        that step. A large step misses the curvature of the function, a small one is lost in
        rounding; the complex step has no cancellation. For a wrong gradient, all methods end at the
        same error.
        Returns a matplotlib figure. Raises ValueError if no gradient has the shape of its input.
        """
        from .plot import curves

        return curves(self.name, self._targets)
