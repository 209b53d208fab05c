"""The forms of the projections side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..projections import FORMS
from .attention import multi_head
from .machine import Machine, calibrate
from .setting import Setting
from .steps import Cost, short

_POWERS = {"M": (4, 12), "H": (0, 8), "D": (0, 12), "T": (0, 12)}  # of two, from … to


def compare(
    *,
    implementation: str = "reference",
    backward: bool = True,
    machine: Machine | None = None,
    **letters: Any,
) -> Comparison:
    """`multi_head` in every form of the projections, as a table that says which wins from where.

        mh.cost.compare(M=512, H=8, T=128)
        mh.pictures.costs(mh.cost.compare(M=512, H=8, T=128), over="H")

    machine  for the times, this one by default
    letters  those of `Setting.of`; those left out follow M and H where these are varied

    Raises ValueError for sizes that do not go together.
    """
    dtype = Setting.of(**letters).dtype
    machine = calibrate(dtype) if machine is None else machine
    return Comparison(letters, implementation, backward, machine)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The forms of the projections side by side; it prints as a table."""

    letters: dict[str, Any]
    implementation: str
    backward: bool
    machine: Machine

    @property
    def setting(self) -> Setting:
        return Setting.of(**self.letters)

    def costs(self, **letters: int) -> dict[str, Cost]:
        """The cost of every form that these sizes can have, with other sizes: costs(T=1)."""
        settings = {**self.letters, **letters}
        cross = Setting.of(**settings).cross
        forms = [form for form in FORMS if form != "fused" or not cross]
        return {
            form: multi_head(form, self.implementation, backward=self.backward, **settings)
            for form in forms
        }

    def possible(self, axis: str, n: int) -> bool:
        """Whether the axis can have this size: H may not divide M, nor G divide H."""
        try:
            Setting.of(**{**self.letters, axis: n})
        except ValueError:
            return False
        return True

    def over(self, axis: str) -> dict[int, dict[str, Cost]]:
        """The costs at sizes of one axis, "M", "H", "D" or "T": powers of two, D up to 2·M, and the
        size of this setting."""
        low, high = _POWERS[axis]
        if axis == "D":
            high = (2 * self.setting.sizes.d_model).bit_length() - 1
        sizes = sorted({self.setting.size(axis), *(2**k for k in range(low, high + 1))})
        return {n: self.costs(**{axis: n}) for n in sizes if self.possible(axis, n)}

    def crossovers(self) -> dict[str, float]:
        """The D beyond which bilinear has fewer parameters, and fewer flops, than the other forms.

            parameters   M·Mk·H / (M·H + Mk·G), which is M·H/(H + G) for Mk = M, and M/2 for G = H
            flops        H·T·Mk·(M + S) / (T·M·H + S·Mk·G + H·T·S), with the scores, T·S for each
                         head, of width Mk in place of D

        With biases M and Mk are one more in the sum and in M·H of the first. The second grows from
        the first (T = S small) to Mk (T large).
        """
        s = self.setting
        z, b = s.sizes, int(s.bias)
        m, mk, h, g = z.d_model, z.kdim, z.num_heads, z.num_kv_heads
        return {
            "parameters": h * (m + b) * mk / (h * (m + b) + g * (mk + b)),
            "flops": h * s.T * mk * (m + s.S) / (s.T * m * h + s.S * mk * g + h * s.T * s.S),
        }

    def winners(self, axis: str) -> list[tuple[int, str]]:
        """Which form is expected to be the fastest from which size of an axis on.

        A form takes over where it is 20% faster: the expected times are not accurate to less.
        """
        found: list[tuple[int, str]] = []
        for n, costs in self.over(axis).items():
            seconds = {form: self.machine.seconds(cost) for form, cost in costs.items()}
            fastest = min(seconds, key=lambda form: seconds[form])
            if not found or seconds[found[-1][1]] > 1.2 * seconds[fastest]:
                found.append((n, fastest))
        return found

    def title(self) -> str:
        """What is compared, with its sizes."""
        what = "forward and backward" if self.backward else "forward"
        return f"multi-head attention, {what}, {self.setting.dtype}: {self.setting}"

    def __str__(self) -> str:
        rows = [("form", "parameters", "flop", "bytes moved", "calls", "saved", "time expected")]
        for form, c in self.costs().items():
            seconds = short(self.machine.seconds(c)) + "s"
            moved, saved = short(c.bytes) + "B", short(c.saved) + "B"
            flops = short(c.flops).strip()
            rows.append((form, f"{c.parameters:,}", flops, moved, f"{c.calls}", saved, seconds))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        lines.insert(1, "─" * len(lines[0]))
        return "\n".join([self.title(), "", *lines, "", *(f"· {x}" for x in self._answers())])

    __repr__ = __str__

    def _answers(self) -> list[str]:
        """The questions that the forms raise, answered for this setting."""
        z, costs = self.setting.sizes, self.costs()
        factors = (z.d_model * z.num_heads + z.kdim * z.num_kv_heads) * z.head_dim
        products = z.num_heads * z.d_model * z.kdim
        beyond = {k: f"D > {d:.1f}".removesuffix(".0") for k, d in self.crossovers().items()}
        equal = [form for form in ("per-head", "stacked", "fused") if form in costs]
        calls = ", ".join(f"{costs[form].calls} ({form})" for form in equal)
        lines = [
            f"W^Q and W^K have {factors:,} numbers, their products W_i {products:,}: bilinear has "
            f"fewer where {beyond['parameters']}.",
            f"Bilinear has fewer flop, scores included, where {beyond['flops']}.",
            f"{', '.join(equal)}: equal flop, in so many calls: {calls}.",
        ]
        for axis in "MHT":
            sizes = list(self.over(axis))
            (_, first), *later = self.winners(axis)
            then = "".join(f", {form} from {n} on" for n, form in later)
            lines.append(
                f"Fastest, by 20% at least, over {axis} = {sizes[0]} … {sizes[-1]}: {first}{then}."
            )
        return lines
