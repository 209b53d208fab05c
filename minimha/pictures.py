"""Pictures of what attention does. matplotlib is loaded when the first one is drawn."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minimha_autograd import array_of, backend

from .files import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from .masks import Mask

FORMATS = (".png", ".svg", ".pdf")
_SEEN, _EDGE = "#08306b", "#e69f00"  # apart in grey, and to the colour-blind
_BLOCKS: dict[str, str | None] = {"empty": "//", "full": "xx", "partial": None}
_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}


def attention_heads(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, *, title: str = ""
) -> Figure:
    """A heat map for each head: who attends to whom. White is 0, dark blue is 1.

    weights  (H, T, S) or, for several layers, (layers, H, T, S): arrays or Tensors
    queries  T labels, one a row; a string gives a label for each character
    keys     S labels, one a column; the queries if left out

    Returns the figure; `save` writes it to a file.
    Raises ValueError where the labels do not match the weights.
    """
    from matplotlib.figure import Figure

    data = backend.to_numpy(array_of(weights))
    data = data[None] if data.ndim == 3 else data
    keys = queries if keys is None else keys
    if data.ndim != 4 or data.shape[2:] != (len(queries), len(keys)):
        raise ValueError(
            f"weights has shape {data.shape}, the labels need (…, H, {len(queries)}, {len(keys)})"
        )
    layers, heads, t, s = data.shape
    side = max(2.0, 0.11 * max(t, s))
    figure = Figure(
        figsize=(heads * side + 1.4, layers * (side + 0.35) + 0.9), layout="constrained"
    )
    grid = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, row in enumerate(grid):
        for head, axes in enumerate(row):
            image = axes.imshow(data[layer, head], cmap="Blues", vmin=0, vmax=1)
            axes.set_title(
                f"head {head}" if layers == 1 else f"layer {layer}, head {head}", fontsize=9
            )
            as_written = {"fontsize": 6, "parse_math": False}
            axes.set_xticks(range(s), [_label(c) for c in keys], **as_written)
            axes.set_yticks(range(t), [_label(c) for c in queries], **as_written)
            axes.tick_params(length=0, pad=1)
            if any(len(label) > 1 for label in keys):
                axes.tick_params(axis="x", labelrotation=90)
    figure.supxlabel("key: attended to", fontsize=9)
    figure.supylabel("query: attends", fontsize=9)
    figure.colorbar(image, ax=grid, shrink=0.6, label="attention weight")
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def mask(
    rule: Mask,
    shape: Sequence[int],
    *,
    block: tuple[int, int] | None = None,
    offset: int | None = None,
    title: str = "",
) -> Figure:
    """A mask: rows are queries, columns are keys; dark blue = may attend, white = hidden.

    rule    one of `minimha.masks`
    shape   of the scores, (…, H, T, S) or (T, S). Where sequences or heads differ, each is a panel,
            the first four of them
    block   (rows, columns): draws the grid of blocks and marks what `Mask.blocks` says of each.
            Those neither empty nor full are partial, or of a combination that cannot tell
    offset  where the first query stands among the keys, for masks that were not told

    Returns the figure; `save` writes it to a file. Raises ValueError where the mask does not fit.
    """
    from matplotlib.figure import Figure

    *lead, t, s = shape
    arrays = [rule.array(shape, offset=offset)]
    if block is not None:
        arrays += rule.blocks(shape, block, offset=offset)
    names, (seen, *states) = _panels(arrays, len(lead))
    shown = min(len(names), 4)
    wide, high = (max(1.0, 2.4 * n / max(t, s, 1)) for n in (s, t))
    width = max(3.4, shown * (wide + 0.5) + 0.5)
    more = f" (the first {shown} of {len(names)})" if len(names) > shown else ""
    lines = textwrap.wrap(title + more, int(13 * width))  # 13 letters an inch
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


def _panels(arrays: Sequence[Any], lead: int) -> tuple[list[str], list[np.ndarray]]:
    """The names of the panels, and each array with one first axis over the panels.

    Axes along which nothing differs, such as that of the heads, make no panels.
    """
    arrays = [np.asarray(x)[(None,) * (lead + 2 - np.ndim(x))] for x in arrays]
    sizes = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    names = []
    for place in np.ndindex(sizes):
        differing = [str(n) if size > 1 else "" for n, size in zip(place, sizes, strict=True)]
        sequence = ", ".join(filter(None, differing[:-1]))
        head = "".join(differing[-1:])
        parts = [f"sequence {sequence}"] * bool(sequence) + [f"head {head}"] * bool(head)
        names.append(", ".join(parts))
    return names, [
        np.broadcast_to(x, (*sizes, *x.shape[-2:])).reshape(len(names), *x.shape[-2:])
        for x in arrays
    ]


def _cells(axes: Axes, seen: np.ndarray) -> None:
    """One cell a pair: rows of queries from top to bottom, columns of keys."""
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

    inside = _SEEN if label == "full" else "none"  # in the legend, on what it is found
    return Rectangle(
        corner, wide, high, facecolor=inside, edgecolor=_EDGE, hatch=_BLOCKS[kind], label=label
    )


def svg(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


def _label(token: str) -> str:
    """A token as one can see it: signs for blanks, and for what cannot be printed."""
    return _VISIBLE.get(token, "".join(c if c.isprintable() else "�" for c in token))


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a file: whole, or not at all. Returns the file's absolute path.

    Raises ValueError for an ending other than .png, .svg, .pdf, OSError where it can't be written.
    """
    check_path(path)
    with written_whole(path) as unfinished, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # drawn as an empty box
        figure.savefig(unfinished, dpi=150)
    return Path(path).resolve()


def check_path(path: str | Path) -> None:
    """Raise, before any work is done, what `save` would raise for this path."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"{path}: a picture's name ends in one of {', '.join(FORMATS)}")
    check_writable(path)
