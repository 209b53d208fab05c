"""The cost of the forms of the projections, as a function of one size."""

from __future__ import annotations

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


def costs(compared: Comparison, over: str = "D") -> Figure:
    """Parameters, flops and expected time of multi-head attention as curves over one size: a curve
    for each form of the projections, which is a way to compute Q, K and V, such as "fused".

    compared  from `mh.cost.compare`, which sets the other sizes, the implementation and the machine
    over      the size on the horizontal axis: "M", "H", "D" or "T". The curves are computed at
              powers of two, for "D" up to 2·M, and at the size in `compared`, which a dotted line
              marks

    Forms with equal cost share a curve.

        mh.pictures.costs(mh.cost.compare(M=64, H=4, T=32))

    Returns the figure; `save` writes it to a file. Raises ValueError for any other `over`.
    """
    from matplotlib.figure import Figure

    if over not in _SIZES:
        raise ValueError(f"over must be one of {', '.join(_SIZES)}, not {over!r}")
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    parameters, flop, seconds = figure.subplots(1, 3, subplot_kw={"xlabel": _SIZES[over]})
    found = compared.over(over)
    _panel(parameters, found, lambda cost: cost.parameters, "parameters")
    _panel(flop, found, lambda cost: cost.flops, "flop")
    _panel(seconds, found, compared.machine.seconds, "expected time", "s")
    for axes in figure.axes:
        here = compared.setting.letters[over]
        axes.axvline(here, color="0.6", linestyle=":", linewidth=1, zorder=0)
    figure.suptitle(compared.title(), fontsize=10)
    return figure


def _panel(
    axes: Axes,
    found: dict[int, dict[str, Cost]],
    value: Callable[[Cost], float],
    name: str,
    unit: str = "",
) -> None:
    """Draw one panel: a line for each form of the projections, or one line for all forms that cost
    the same at every size.

    found  the cost of each form by name, for each size on the horizontal axis
    value  the function that takes from a cost the number to draw, such as its flops
    name   what this number is, as the label of the vertical axis
    unit   its unit, such as "s", or "" for a number without one
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    forms_of: dict[tuple[float, ...], list[str]] = {}
    for form in next(iter(found.values())):
        forms_of.setdefault(tuple(value(costs[form]) for costs in found.values()), []).append(form)
    looks = dict(zip(FORMS, _LINES, strict=True))
    for values, forms in forms_of.items():
        colour, dash = looks["stacked" if "stacked" in forms else forms[0]]
        axes.plot(list(found), values, color=colour, linestyle=dash, label=" = ".join(forms))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 1e3 * low else (1, 2, 5)))
    axes.yaxis.set_major_formatter(EngFormatter(unit))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.18), frameon=False, fontsize=8, handlelength=4
    )
