"""Data flow: a box for each array, an arrow for each operation, and dashed arrows for gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMN, _ROW = 2.4, 1.05  # inches from the centre of one box to the next
_WIDTH, _HEIGHT = 1.35, 0.5  # of a box
_GRADIENT = "#B34700"

Place = tuple[float, float, float]  # left and right end without margins, and middle, in inches


def data_flow(
    rows: Sequence[Sequence[str]], arrows: Sequence[tuple[str, ...]], *, title: str = ""
) -> Figure:
    """Draw how data flows through a layer: arrays are boxes, operations are arrows.

    rows    rows of boxes from top to bottom, each centred. A box is "name (axes)", such as
            "x (B, T, M)". A box that is alone in its row is made wide enough for vertical arrows
    arrows  (from, to, operation), where from and to are names of boxes in different rows; or
            (from, to, operation, gradient), which adds a dashed arrow back with its own label
    title   above the picture

    Text between dollar signs is a formula.

        mh.pictures.data_flow(
            [["x (T, M)"], ["q (T, H·D)"], ["Q (H, T, D)"]],
            [("x", "q", "@ $W^Q$", "dx"), ("q", "Q", "reshape, swap T and H", "dq")],
        )

    Returns the figure; `save` writes it to a file. Raises ValueError if two boxes have the same
    name or an arrow names a box that does not exist.
    """
    from matplotlib.figure import Figure

    places, labels = _boxes(rows)
    for name in (end for arrow in arrows for end in arrow[:2]):
        if name not in places:
            raise ValueError(f"no box has the name {name!r}; there are {', '.join(places)}")
    alone = [row[0].partition(" (")[0] for row in rows if len(row) == 1]
    places |= {name: _stretched(name, places, arrows) for name in alone}

    half, height = max(2, *map(len, rows)) * _COLUMN / 2, len(rows) * _ROW
    above = 0.3 if title else 0
    figure = Figure(figsize=(2 * half, height + above))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-half, half), ylim=(-height, above))
    axes.set_axis_off()
    axes.text(0, above / 3, title, ha="center", va="center", fontsize=11)
    for name, place in places.items():
        _draw_box(axes, place, labels[name])
    for start, end, *texts in arrows:
        _draw_arrows(axes, places[start], places[end], *texts)
    return figure


def _boxes(rows: Sequence[Sequence[str]]) -> tuple[dict[str, Place], dict[str, str]]:
    """Two dictionaries whose keys are the names of the boxes: the place (left, right, y) of each
    box, and its label. `rows` has the texts of the boxes, such as "x (B, T, M)", row by row. Raises
    ValueError if two boxes have the same name."""
    places: dict[str, Place] = {}
    labels = {}
    for r, row in enumerate(rows):
        for c, text in enumerate(row):
            name = text.partition(" (")[0]
            if name in places:
                raise ValueError(f"two boxes have the name {name!r}")
            x = (c - (len(row) - 1) / 2) * _COLUMN
            places[name], labels[name] = (x, x, -(r + 0.5) * _ROW), text.replace(" (", "\n(", 1)
    return places, labels


def _stretched(name: str, places: dict[str, Place], arrows: Sequence[tuple[str, ...]]) -> Place:
    """The place of the box with this name, made wide enough to lie above or below every box that an
    arrow connects it with. `places` has the places of all boxes by name; each of the arrows begins
    with the names of the boxes at its ends."""
    reached = [places[end][0] for arrow in arrows if name in arrow[:2] for end in arrow[:2]]
    left, right, y = places[name]
    return min(reached, default=left), max(reached, default=right), y


def _draw_box(axes: Axes, place: Place, label: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, right, y = place
    corner, width = (left - _WIDTH / 2, y - _HEIGHT / 2), right - left + _WIDTH
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, width, _HEIGHT, style, fc="#EAF2FA", ec="#1F3B57"))
    axes.text((left + right) / 2, y, label, ha="center", va="center", fontsize=10, linespacing=1.3)


def _draw_arrows(axes: Axes, start: Place, end: Place, forward: str, gradient: str = "") -> None:
    """Draw an arrow with the label `forward` from the box at the place `start` to the box at `end`
    and, if `gradient` is not empty, a dashed arrow back, which has `gradient` as its label. The
    arrows are vertical if the boxes overlap horizontally."""
    low, high = max(start[0], end[0]), min(start[1], end[1])
    x0, x1 = ((low + high) / 2,) * 2 if low <= high else (sum(start[:2]) / 2, sum(end[:2]) / 2)
    down = _HEIGHT / 2 if start[2] > end[2] else -_HEIGHT / 2
    top, bottom = (x0, start[2] - down), (x1, end[2] + down)
    apart = 0.08 if gradient else 0.0  # from the middle line
    lines = [(forward, top, bottom, -apart, "right" if gradient else "left", "black", "solid")]
    if gradient:
        lines.append((gradient, bottom, top, apart, "left", _GRADIENT, "dashed"))
    for label, tail, tip, shift, align, colour, dash in lines:
        look = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "lw": 1.3, "color": colour}
        to, start_at = (tip[0] + shift, tip[1]), (tail[0] + shift, tail[1])
        axes.annotate("", to, start_at, arrowprops={**look, "linestyle": dash})
        x = (x0 + x1) / 2 + shift + (0.09 if align == "left" else -0.09)
        axes.text(x, (tip[1] + tail[1]) / 2, label, ha=align, va="center", color=colour, size=9)
