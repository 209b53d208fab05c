"""Heat maps: a matrix with the tokens that its rows and columns belong to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minimha_autograd import array_of, backend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_SMALL = 12  # rows and columns whose numbers can be read
_NOWHERE = "0.8"  # grey: infinite or NaN
_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}


def heat_map(
    array: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    axes: tuple[str, str] = ("query", "key"),
    signed: bool | None = None,
    label: str = "",
    title: str = "",
) -> Figure:
    """A matrix of scores, weights or gradients as a heat map.

    array    (T, S): an array, a Tensor or a list of lists
    rows     T labels; a string gives one label per character; by default rows are numbered
    columns  S labels; by default those of the rows if T = S, otherwise numbers
    axes     what the rows and columns are, as labels of the axes
    signed   False: white is 0, dark blue is 1. True: white is 0, positive entries are blue and
             negative ones orange, darkest at the largest absolute value. By default False if all
             entries lie in 0 … 1, otherwise True
    label    what the numbers are, for the colour scale

    In matrices of up to 12 rows and columns, each cell shows its number. In larger ones, cells
    below −10% of the number with the darkest blue have a minus sign, so that the sign is readable
    in grey print. Entries that are infinite or NaN are grey, with a cross where no number is shown.

    Returns the figure; `save` writes it to a file.
    Raises ValueError for an array that is not a matrix of real numbers, and if the number of labels
    is not that of its rows or columns.
    """
    data = _on_host(array)
    real = backend.is_floating(data) or backend.is_exact(data)
    if data.ndim != 2 or not data.size or not real:
        raise ValueError(
            f"array has shape {data.shape} and dtype {data.dtype}: a heat map shows one matrix "
            "(T, S) of real numbers, such as weights[0, 0]; attention_heads draws several"
        )
    data = data.astype(np.float64)
    t, s = data.shape
    columns = rows if columns is None and t == s else columns
    for name, labels, n, letter in (("rows", rows, t, "T"), ("columns", columns, s, "S")):
        if labels is not None and len(labels) != n:
            raise ValueError(
                f"array has shape {data.shape}, {name} has {len(labels)} labels: "
                f"it needs {letter} = {n}"
            )
    finite = data[np.isfinite(data)]
    if signed is None:
        signed = bool(finite.size and (finite.min() < 0 or finite.max() > 1))
    limit = float(np.abs(finite).max(initial=0)) or 1.0 if signed else 1.0
    cell = 0.42 if max(t, s) <= _SMALL else max(0.11, 2.4 / max(t, s))
    side = max(s * cell, 1.2), max(t * cell, 1.2)
    figure = _grid(data[None, None], rows, columns, axes, side, label, title, limit, signed)
    (_write if max(t, s) <= _SMALL else _sign)(figure.axes[0], data, limit)
    return figure


def attention_heads(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, *, title: str = ""
) -> Figure:
    """A heat map for each head: which query attends to which key. White is 0, dark blue is 1.

    weights  (H, T, S) or, for several layers, (layers, H, T, S): an array or a Tensor
    queries  T labels, one per row; a string gives one label per character
    keys     S labels, one per column; by default the queries

    Returns the figure; `save` writes it to a file.
    Raises ValueError if the numbers of labels are not T and S.
    """
    data, keys = layers_of(weights, queries, keys)
    side = max(2.0, 0.11 * max(data.shape[2:]))
    axes = "query: attends", "key: attended to"
    figure = _grid(data, queries, keys, axes, (side, side), "attention weight", title)
    for panel, name in zip(figure.axes, head_names(data), strict=False):
        panel.set_title(name, fontsize=9)
    return figure


def _grid(
    data: np.ndarray,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    axes: tuple[str, str],
    side: tuple[float, float],
    label: str,
    title: str,
    limit: float = 1.0,
    signed: bool = False,
) -> Figure:
    """A figure with the heat maps of data (layers, H, T, S) in a grid: a row of maps for each
    layer, a map for each head.

    side    the width and height of each map in inches
    limit   the number with the darkest blue
    signed  whether −limit has the darkest orange and 0 is white; otherwise the numbers from 0 to
            limit are shown

    The other arguments are those of `heat_map`; the labels are the same for all maps.
    """
    from matplotlib.figure import Figure

    layers, heads, t, s = data.shape
    row_labels, column_labels = _labels(rows, t), _labels(columns, s)
    literal: dict[str, Any] = {"fontsize": 6 if max(t, s) > _SMALL else 8, "parse_math": False}
    crowded = max(map(len, column_labels)) > max(1, 24 // s)  # letters that fit side by side
    size = heads * side[0] + 1.9, layers * (side[1] + 0.35) + 0.9
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for index, panel in np.ndenumerate(grid):
        least = -limit if signed else 0
        image = panel.imshow(data[index], cmap=_colours(signed), vmin=least, vmax=limit)
        panel.set_xticks(range(s), column_labels, **literal)
        panel.set_yticks(range(t), row_labels, **literal)
        panel.tick_params(length=0, pad=1)
        panel.tick_params(axis="x", labelrotation=90 if crowded else 0)
    figure.supylabel(axes[0], fontsize=9)
    figure.supxlabel(axes[1], fontsize=9)
    shrink = 0.8 if grid.size == 1 else 0.6
    figure.colorbar(image, ax=grid, shrink=shrink, label=label).ax.tick_params(labelsize=8)
    if title:
        figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def head_names(data: np.ndarray) -> list[str]:
    """The labels of all heads in data (layers, H, T, S), layer by layer: "layer 0, head 3", or
    "head 3" if there is a single layer."""
    layers, heads = data.shape[:2]
    return [
        f"head {head}" if layers == 1 else f"layer {layer}, head {head}"
        for layer, head in np.ndindex(layers, heads)
    ]


def layers_of(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None
) -> tuple[np.ndarray, Sequence[str]]:
    """The weights, (H, T, S) or (layers, H, T, S), as a NumPy array (layers, H, T, S), and the
    labels of the keys, which are those of the queries if `keys` is None.

    Raises ValueError for another number of axes, or if the numbers of labels are not T and S.
    """
    data = _on_host(weights)
    data = data[None] if data.ndim == 3 else data
    keys = queries if keys is None else keys
    if data.ndim != 4 or data.shape[2:] != (len(queries), len(keys)):
        raise ValueError(
            f"weights has shape {data.shape}, the labels need (…, H, {len(queries)}, {len(keys)})"
        )
    return data, keys


def _on_host(array: Any) -> np.ndarray:
    array = array_of(array)
    return backend.to_numpy(array) if hasattr(array, "dtype") else np.asarray(array)


def visible(token: str) -> str:
    """A token as a picture shows it: "␣", "↵" or "⇥" for a token that is a single space, line break
    or tab, and "�" for each unprintable character of other tokens."""
    return _VISIBLE.get(token, "".join(c if c.isprintable() else "�" for c in token))


def _labels(tokens: Sequence[str] | None, n: int) -> list[str]:
    """A label for each of n rows or columns: the token or, without tokens, the position. Only up to
    a dozen positions are shown; the labels of the others are empty."""
    if tokens is not None:
        return [visible(token) for token in tokens]
    step = -(-n // _SMALL)
    return [str(k) if k % step == 0 else "" for k in range(n)]


def _colours(signed: bool) -> Colormap:
    """A scale of colours from white to dark blue or, if signed, from dark orange through white to
    dark blue. Numbers that are infinite or NaN are grey."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    blue = colormaps["Blues"]
    if not signed:
        return blue.with_extremes(bad=_NOWHERE)
    half = np.linspace(0, 1, 128)
    both = np.concatenate([colormaps["Oranges"](half[::-1]), blue(half)])
    return ListedColormap(both, name="orange and blue").with_extremes(bad=_NOWHERE)


def _write(axes: Axes, data: np.ndarray, limit: float) -> None:
    """Write the number of each cell of data (T, S) into it. All numbers have the same count of
    decimals: none if all are integers, otherwise enough to show two digits of `limit`, the number
    with the darkest blue. If these were more than four, they have the form 3e-05 instead."""
    finite = data[np.isfinite(data)]
    decimals = 0 if (finite == np.round(finite)).all() else max(2 - math.ceil(math.log10(limit)), 0)
    form = f".{decimals}f" if decimals <= 4 else ".0e"
    others = {math.inf: "∞", -math.inf: "-∞"}
    for (i, j), x in np.ndenumerate(data):
        text = format(x, form) if np.isfinite(x) else others.get(x, "NaN")
        text = text.replace("-", "−")
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=_ink(axes, x))


def _sign(axes: Axes, data: np.ndarray, limit: float) -> None:
    """Draw a minus sign on each cell of data (T, S) that is below −10% of `limit`, the number with
    the darkest blue, and a cross on each cell that is infinite or NaN."""
    cell = 72 * max(0.11, 2.4 / max(data.shape))  # in points
    finite = np.isfinite(data)
    for where, marker in ((finite & (data < -0.1 * limit), "_"), (~finite, "x")):
        i, j = np.nonzero(where)
        inks = [_ink(axes, x) for x in data[i, j]]
        if inks:
            axes.scatter(j, i, s=min(cell / 2, 5) ** 2, c=inks, marker=marker, linewidths=0.7)


def _ink(axes: Axes, x: float) -> str:
    """Black or white, whichever has more contrast with the colour of x.

    Source: WCAG 2's contrast, a ratio of luminances plus 0.05. A colour of the luminance 0.179 has
    the same contrast with black and with white.
    """
    r, g, b, _ = axes.images[0].to_rgba(np.asarray(x if np.isfinite(x) else np.nan))
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (r, g, b)]
    return "black" if np.dot(parts, (0.2126, 0.7152, 0.0722)) > 0.179 else "white"
