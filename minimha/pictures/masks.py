"""Masks: which query may attend to which key, and which blocks of them are empty or full."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..masks import Mask
from .saving import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

LARGEST = 4096  # pairs of a query and a key in a sequence, of a mask that a notebook draws

_SEEN, _EDGE = "#08306b", "#e69f00"  # different in grey, and to the colour-blind
_BLOCKS: dict[str, str | None] = {"empty": "//", "full": "xx", "partial": None}


def mask(
    rule: Mask,
    shape: Sequence[int] | None = None,
    *,
    block: tuple[int, int] | None = None,
    title: str | None = None,
) -> Figure:
    """A picture of a mask: rows are queries, columns are keys; dark blue = may attend, white =
    hidden.

    rule    a mask from `minimha.masks`, such as masks.causal()
    shape   of the scores, (…, H, T, S) or (T, S); by default a small one that fits the mask. If the
            mask differs between sequences or heads, each gets a panel, up to four of them
    block   (queries, keys), the size of blocks: draws the grid of blocks, and marks which are
            empty, full or partial
    title   by default the expression that makes the mask

    Returns the figure; `save` writes it to a file. Raises ValueError if the mask does not fit the
    shape.
    """
    from matplotlib.figure import Figure

    shape = small_shape(rule) if shape is None else shape
    title = repr(rule) if title is None else title
    *lead, t, s = shape
    arrays = [rule.array(shape)]
    if block is not None:
        arrays += rule.blocks(shape, block)
    names, (seen, *states) = _panels(arrays, len(lead))
    shown = min(len(names), 4)
    wide, high = (max(1.0, 2.4 * n / max(t, s, 1)) for n in (s, t))
    width = max(3.4, shown * (wide + 0.5) + 0.5)
    more = f" (the first {shown} of {len(names)})" if len(names) > shown else ""
    lines = textwrap.wrap(title + more, int(13 * width))  # 13 letters per inch
    above_and_below = 0.75 + 0.15 * len(lines) + 0.3 * bool(states)
    figure = Figure(figsize=(width, high + above_and_below), layout="constrained")
    for n, axes in enumerate(figure.subplots(1, max(shown, 1), squeeze=False)[0][:shown]):
        axes.set_title(names[n], fontsize=8)
        _cells(axes, np.broadcast_to(seen[n], (t, s)))
        if block is not None:
            _grid_of_blocks(axes, [x[n] for x in states], block, (t, s))
    if states:
        marks = [_mark(kind, (0, 0), 1, 1, label=kind) for kind in _BLOCKS]
        look = {"ncols": len(marks), "fontsize": 7, "frameon": False, "handleheight": 1.4}
        figure.legend(handles=marks, loc="outside lower center", **look)
    figure.suptitle("\n".join(lines), fontsize=9, parse_math=False)
    return figure


def mask_svg(rule: Mask) -> str | None:
    """The SVG that a notebook shows for the mask `rule`. None if the mask does not fit the shape of
    scores that `small_shape` gives for it, or if this shape has T·S above LARGEST, 4096."""
    try:
        *_, t, s = shape = small_shape(rule)
        return svg(mask(rule, shape)) if t * s <= LARGEST else None
    except ValueError:
        return None


def small_shape(rule: Mask) -> tuple[int, ...]:
    """A small shape of scores, (T, S) or (…, H, T, S), to draw the mask `rule` with. A mask that is
    made from arrays fixes some of these sizes. If it fixes one of T and S, the other is the same;
    if it fixes neither, both are 8. Each axis before T is 1, unless the mask fixes it."""
    *lead, t, s = (0, 0, *rule.sizes)[-max(2, len(rule.sizes)) :]
    return (*(n or 1 for n in lead), t or s or 8, s or t or 8)


def _panels(arrays: Sequence[Any], lead: int) -> tuple[list[str], list[np.ndarray]]:
    """Divide arrays into panels, one for each sequence and head. Returns the names of the panels,
    such as "head 2", and the arrays with a single first axis, the panel, in place of all axes
    before the last two.

    arrays  their last two axes are queries and keys, or blocks of queries and of keys
    lead    the number of axes of the scores before T and S

    If an axis has size 1 in all arrays, often that of the heads, it adds no panels.
    """
    arrays = [np.asarray(x)[(None,) * (lead + 2 - np.ndim(x))] for x in arrays]
    sizes = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    axes = [*["sequence"] * (lead - 1), "head"][:lead]
    names = [
        ", ".join(
            f"{axis} {n}" for axis, n, size in zip(axes, place, sizes, strict=True) if size > 1
        )
        for place in np.ndindex(sizes)
    ]
    return names, [
        np.broadcast_to(x, (*sizes, *x.shape[-2:])).reshape(len(names), *x.shape[-2:])
        for x in arrays
    ]


def _cells(axes: Axes, seen: np.ndarray) -> None:
    """Draw a cell for each query and key, dark where the array `seen` (T, S) is true, and otherwise
    white: queries from top to bottom, keys from left to right."""
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import FixedLocator, MaxNLocator

    t, s = seen.shape
    if seen.size:
        colours = ListedColormap(["white", _SEEN])
        axes.imshow(seen, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlim=(-0.5, max(s, 1) - 0.5), ylim=(max(t, 1) - 0.5, -0.5), aspect="equal")
    axes.set_xlabel("key", fontsize=8)
    axes.set_ylabel("query", fontsize=8)
    for axis, n in ((axes.xaxis, s), (axes.yaxis, t)):
        axis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        if max(t, s) <= 32:  # lines between more cells would hide them
            axis.set_minor_locator(FixedLocator(list(np.arange(n - 1) + 0.5)))
    axes.tick_params(which="both", length=0, pad=2, labelsize=7)
    axes.grid(which="minor", color="0.75", linewidth=0.5)


def _grid_of_blocks(
    axes: Axes, states: Sequence[np.ndarray], block: tuple[int, int], last: tuple[int, int]
) -> None:
    (rows, columns), (t, s) = block, last
    grid = -(-t // rows), -(-s // columns)
    empty, full = (np.broadcast_to(x, grid) for x in states)
    for r, c in np.ndindex(grid):
        kind = "empty" if empty[r, c] else "full" if full[r, c] else "partial"
        corner = c * columns - 0.5, r * rows - 0.5
        axes.add_patch(_mark(kind, corner, min(columns, s - c * columns), min(rows, t - r * rows)))


def _mark(
    kind: str, corner: tuple[float, float], wide: float, high: float, label: str = ""
) -> Rectangle:
    from matplotlib.patches import Rectangle

    inside = _SEEN if label == "full" else "none"  # the legend shows it on its usual background
    return Rectangle(
        corner, wide, high, facecolor=inside, edgecolor=_EDGE, hatch=_BLOCKS[kind], label=label
    )
