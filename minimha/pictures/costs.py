"""What the forms of the projections cost over a size, and from where on which is the cheapest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..cost import LINES, Comparison, Cost, Setting
from ..projections import FORMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZES = {  # what they are, and from which power of two to which
    "M": ("model width M", 4, 12),
    "H": ("heads H", 0, 8),
    "D": ("head width D", 0, 12),
    "T": ("positions T", 0, 12),
}
Values = dict[str, dict[int, float]]  # of each form, by size


def costs(compared: Comparison, over: str = "D") -> Figure:
    """Parameters, flop and expected time of each form of the projections, over one size.

    compared  from `mh.cost.compare`: the other sizes, what is computed, on which machine
    over      "M", "H", "D" or "T". Powers of two, and where compared stands, which is dotted.
              D goes up to 2·M

    A ring is where the cheapest form changes; above the panel stands the first size at which it is
    another. Of times it counts where that one becomes 20% faster: less is not told reliably. Forms
    of equal cost are one line.

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
    expected = lambda cost: cost.seconds(compared.machine)  # noqa: E731
    _panel(seconds, compared, over, expected, "expected time", unit="s", margin=1.2)
    figure.suptitle(compared.title(), fontsize=10)
    return figure


def _panel(
    axes: Axes,
    compared: Comparison,
    over: str,
    of: Callable[[Cost], float],
    name: str,
    unit: str = "",
    margin: float = 1.0,
) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    def at(n: int) -> dict[str, float]:
        return {form: of(cost) for form, cost in compared.costs(**{over: n}).items()}

    found = {n: at(n) for n in _drawn(compared, over)}
    values = {form: {n: y[form] for n, y in found.items()} for form in at(_here(compared, over))}
    _curves(axes, values)
    lines = []
    for before, after, old, new in takeovers(values, margin):
        between = [n for n in range(before + 1, after + 1) if _possible(compared, over, n)]
        n = _first(between, lambda n: at(n)[new] < at(n)[old])  # noqa: B023
        y = at(n)
        axes.plot(n, y[new], "o", markersize=9, markerfacecolor="none", markeredgecolor="black")
        lines.append(
            f"least: {' = '.join(form for form in y if y[form] == y[new])} from {over} = {n}"
        )
    axes.set_title("\n".join(lines), loc="left", fontsize=8)
    axes.axvline(_here(compared, over), color="0.6", linestyle=":", linewidth=1, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 1e3 * low else (1, 2, 5)))
    axes.yaxis.set_major_formatter(EngFormatter(unit))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel(_SIZES[over][0])
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.18), frameon=False, fontsize=8, handlelength=4
    )


def _here(compared: Comparison, over: str) -> int:
    s = Setting.of(**compared.letters)
    z = s.sizes
    return {"M": z.d_model, "H": z.num_heads, "D": z.head_dim, "T": s.T}[over]


def _drawn(compared: Comparison, over: str) -> list[int]:
    _, low, high = _SIZES[over]
    if over == "D":
        high = (2 * Setting.of(**compared.letters).sizes.d_model).bit_length() - 1
    sizes = {_here(compared, over), *(2**k for k in range(low, high + 1))}
    return [n for n in sorted(sizes) if _possible(compared, over, n)]


def _possible(compared: Comparison, over: str, n: int) -> bool:
    try:
        Setting.of(**{**compared.letters, over: n})
    except ValueError:  # H does not divide M, or G does not divide H
        return False
    return True


def _curves(axes: Axes, values: Values) -> None:
    """A line for each form, or for all those that cost the same everywhere."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for form, curve in values.items():
        alike.setdefault(tuple(curve.values()), []).append(form)
    looks = dict(zip(FORMS, LINES, strict=True))
    for numbers, forms in alike.items():
        colour, dash = looks["stacked" if "stacked" in forms else forms[0]]
        label = " = ".join(forms)
        axes.plot(list(values[forms[0]]), numbers, color=colour, linestyle=dash, label=label)


def takeovers(values: Values, margin: float) -> list[tuple[int, int, str, str]]:
    """Where the cheapest form changes: the sizes before and after, who loses and who wins.

    It counts where the winner gets as far ahead as the margin, and is found where it passes.
    """
    sizes = list(next(iter(values.values())))

    def cheapest(n: int) -> str:
        return min(values, key=lambda form: values[form][n])

    now = cheapest(sizes[0])
    found = []
    for k, n in enumerate(sizes):
        old, new = now, cheapest(n)
        if values[old][n] > margin * values[new][n]:
            while values[old][sizes[k - 1]] > values[new][sizes[k - 1]]:
                k -= 1  # noqa: PLW2901
            found.append((sizes[k - 1], sizes[k], old, new))
            now = new
    return found


def _first(sizes: list[int], less: Callable[[int], bool]) -> int:
    """The first of these sizes where it is less, the last one being so."""
    while len(sizes) > 1:
        half = len(sizes) // 2
        sizes = sizes[:half] if less(sizes[half - 1]) else sizes[half:]
    return sizes[0]
