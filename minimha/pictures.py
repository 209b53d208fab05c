"""Pictures of what attention does. matplotlib is loaded when the first one is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimha_autograd import array_of, backend

from .files import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
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
