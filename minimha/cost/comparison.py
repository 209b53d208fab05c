"""The costs of the forms of the projections side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..projections import FORMS
from .attention import multi_head
from .machine import Machine, calibrate
from .primitives import Cost, short
from .setting import Setting

_POWERS = {"M": (4, 12), "H": (0, 8), "D": (0, 12), "T": (0, 12)}  # of two, from … to


def compare(
    *,
    implementation: str = "reference",
    backward: bool = True,
    machine: Machine | None = None,
    **letters: Any,
) -> Comparison:
    """The costs of multi-head attention as a table, with a row for each way to compute its
    projections, such as "stacked" or "fused", that is possible with these sizes.

        mh.cost.compare(M=512, H=8, T=128)
        mh.pictures.costs(mh.cost.compare(M=512, H=8, T=128), over="H")

    implementation  that of attention, "reference" or "loop"
    backward        whether to include the backward pass
    machine         the machine for which the table predicts times; by default this computer, as
                    measured by `calibrate`
    letters         the sizes, as for `Setting.of`. The methods `costs` and `over` of the result
                    replace some of them. Sizes that are not given here are then computed again:
                    after compare(T=1, H=8, D=64), where M is 512, H=4 makes M 256

    Raises ValueError for sizes that do not match.
    """
    setting = Setting.of(**letters)
    machine = calibrate(setting.dtype) if machine is None else machine
    return Comparison(letters, setting, implementation, backward, machine)


@dataclass(frozen=True)
class Comparison:
    """The costs of multi-head attention with each form of the projections, such as "stacked" or
    "fused", side by side. It shows as a table; `compare` makes it.

    letters         the sizes that were given to `compare`
    setting         all sizes
    implementation  that of attention
    backward        whether the backward pass is included
    machine         the machine for which times are predicted
    """

    letters: dict[str, Any]
    setting: Setting
    implementation: str
    backward: bool
    machine: Machine

    def costs(self, **letters: Any) -> dict[str, Cost]:
        """The cost of multi-head attention with each form of the projections, by the form's name.
        The letters replace some of the sizes: `costs(T=1)`. The fused form is left out if query,
        key and value are three inputs."""
        letters = {**self.letters, **letters}
        cross = Setting.of(**letters).cross
        return {
            form: multi_head(form, self.implementation, backward=self.backward, **letters)
            for form in FORMS
            if form != "fused" or not cross
        }

    def over(self, axis: str) -> dict[int, dict[str, Cost]]:
        """The costs for a range of sizes of one axis, "M", "H", "D" or "T": a dictionary from each
        size to the result of `costs`. The sizes are powers of two, D up to 2·M, and the size in
        `setting`. Impossible sizes are left out, such as an H that does not divide M."""
        low, high = _POWERS[axis]
        if axis == "D":
            high = (2 * self.setting.sizes.d_model).bit_length() - 1
        found = {}
        for n in sorted({self.setting.letters[axis], *(2**k for k in range(low, high + 1))}):
            try:
                found[n] = self.costs(**{axis: n})
            except ValueError:
                continue
        return found

    def title(self) -> str:
        """A line that says what is compared, and its sizes."""
        what = "forward and backward" if self.backward else "forward"
        return f"multi-head attention, {what}, {self.setting.dtype}: {self.setting}"

    def __repr__(self) -> str:
        rows = [("form", "parameters", "flop", "bytes moved", "calls", "saved", "time expected")]
        for form, c in self.costs().items():
            seconds = short(self.machine.seconds(c)) + "s"
            moved, saved = short(c.bytes) + "B", short(c.saved) + "B"
            flops = short(c.flops).strip()
            rows.append((form, f"{c.parameters:,}", flops, moved, f"{c.calls}", saved, seconds))
        return table(self.title(), rows)


def table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """The text of a table: a title, the first row as a heading, and the other rows below a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join([title, "", lines[0], "─" * len(lines[0]), *lines[1:]])
