"""What the forms of the projections cost over a size, and where another becomes the cheapest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..cost import Comparison, Cost
from ..projections import FORMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZES = {"M": "model width M", "H": "heads H", "D": "head width D", "T": "positions T"}
_LINES = (  # colours of Okabe and Ito, for the colour-blind
    ("#D55E00", (0, (1, 1))),
    ("#0072B2", "-"),
    ("#009E73", (0, (5, 2))),
    ("#CC79A7", (0, (4, 2, 1, 2))),
    ("#000000", (0, (8, 2, 1, 2, 1, 2))),
)
Values = dict[str, dict[int, float]]  # of each form, by size


def costs(compared: Comparison, over: str = "D") -> Figure:
    """Parameters, flop and expected time of each form of the projections, over one size.

    compared  from `mh.cost.compare`: the other sizes, what is computed, on which machine
    over      "M", "H", "D" or "T": powers of two, D up to 2·M, and the size in compared, which is
              dotted

    A ring is where the cheapest form changes; the title of the panel has the first size at which it
    is another. A change of times counts where the new form becomes 20% faster: they are not
    accurate to less. Forms of equal cost are one line.

        mh.pictures.costs(mh.cost.compare(M=64, H=4, T=32))

    Returns the figure; `save` writes it to a file. Raises ValueError for another size than these.
    """
    from matplotlib.figure import Figure

    if over not in _SIZES:
        raise ValueError(f"over is one of {', '.join(_SIZES)}, not {over!r}")
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    parameters, flop, seconds = figure.subplots(1, 3)
    _panel(parameters, compared, over, lambda cost: cost.parameters, "parameters")
    _panel(flop, compared, over, lambda cost: cost.flops, "flop")
    _panel(seconds, compared, over, compared.machine.seconds, "expected time", "s", margin=1.2)
    figure.suptitle(compared.title(), fontsize=10)
    return figure


def _panel(
    axes: Axes,
    compared: Comparison,
    over: str,
    value: Callable[[Cost], float],
    name: str,
    unit: str = "",
    margin: float = 1.0,
) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    def at(n: int) -> dict[str, float]:
        return {form: value(cost) for form, cost in compared.costs(**{over: n}).items()}

    values: Values = {}
    for n, found in compared.over(over).items():
        for form, cost in found.items():
            values.setdefault(form, {})[n] = value(cost)
    _curves(axes, values)
    lines = []
    for before, after, old, new in takeovers(values, margin):
        sizes = [n for n in range(before + 1, after + 1) if compared.possible(over, n)]
        n = sizes[bisect_left(sizes, True, key=lambda n: at(n)[new] < at(n)[old])]
        y = at(n)
        axes.plot(n, y[new], "o", markersize=9, markerfacecolor="none", markeredgecolor="black")
        cheapest = " = ".join(form for form in y if y[form] == y[new])
        lines.append(f"least: {cheapest} from {over} = {n}")
    axes.set_title("\n".join(lines), loc="left", fontsize=8)
    here = compared.setting.size(over)
    axes.axvline(here, color="0.6", linestyle=":", linewidth=1, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 1e3 * low else (1, 2, 5)))
    axes.yaxis.set_major_formatter(EngFormatter(unit))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel(_SIZES[over])
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.18), frameon=False, fontsize=8, handlelength=4
    )


def _curves(axes: Axes, values: Values) -> None:
    """A line for each form, or for all those that cost the same everywhere."""
    equal: dict[tuple[float, ...], list[str]] = {}
    for form, curve in values.items():
        equal.setdefault(tuple(curve.values()), []).append(form)
    looks = dict(zip(FORMS, _LINES, strict=True))
    for numbers, forms in equal.items():
        colour, dash = looks["stacked" if "stacked" in forms else forms[0]]
        label = " = ".join(forms)
        axes.plot(list(values[forms[0]]), numbers, color=colour, linestyle=dash, label=label)


def takeovers(values: Values, margin: float) -> list[tuple[int, int, str, str]]:
    """Where the cheapest form changes: the sizes before and after, the old form and the new.

    A change counts if the new form gets ahead by the margin, and is found where it gets ahead.
    """
    sizes = list(next(iter(values.values())))

    def cheapest(n: int) -> str:
        return min(values, key=lambda form: values[form][n])

    old = cheapest(sizes[0])
    found = []
    for k, n in enumerate(sizes):
        new = cheapest(n)
        if values[old][n] > margin * values[new][n]:
            last = max(i for i in range(k) if values[old][sizes[i]] <= values[new][sizes[i]])
            found.append((sizes[last], sizes[last + 1], old, new))
            old = new
    return found
