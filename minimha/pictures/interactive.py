"""Interactive heat maps, in HTML and CSS alone, without scripts or other files.

The numbers are text, which CSS turns into heat maps: so they are readable with a screen reader, and
in an untrusted notebook, which has no styles. A picture has no ids, and all pictures share the same
style rules, so a page can hold any number of them.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..interchange.files import written_whole
from .heat import head_names, layers_of, visible

TOKENS, CELLS = 64, 16_384  # a side of a heat map, and all of them: about 350 kB
WIDEST = 16  # letters of a label; its title has the whole token
_OWN_KEYS = "data-lm-suppress-shortcuts"  # otherwise JupyterLab's arrow keys leave the cell


def attention_html(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, *, title: str = ""
) -> Attention:
    """Heat maps of attention for a notebook: point at a query to see which keys it attends to.

    The arguments are those of `attention_heads`. The picture shows one head at a time; choose it by
    its number, with the mouse or the arrow keys. White is 0, dark blue is 1. Point at a row, or
    reach it with Tab, to see its numbers and to colour each key orange by its weight. A weight of
    exactly 0 shows as 0, one below 0.005 as .00.

    Raises ValueError if the numbers of labels are not T and S, for negative weights, and for more
    than 64 queries, 64 keys or 16,384 weights.
    """
    data, keys = layers_of(weights, queries, keys)
    if not 0 < data.size <= CELLS or max(data.shape[2:]) > TOKENS:
        raise ValueError(
            f"weights has shape {data.shape}: at most {TOKENS} queries and keys can be read, "
            f"and from 1 to {CELLS:,} weights, not {data.size:,}: choose some heads or fewer tokens"
        )
    if (data < 0).any():
        raise ValueError(
            f"weights has entries down to {data.min():.2g}: attention weights are not negative; "
            "heat_map draws scores and gradients"
        )
    return Attention(_page(data, queries, keys, title))


class Attention:
    """The heat maps that `attention_html` returns: a notebook shows them, and the attribute `html`
    is their HTML."""

    def __init__(self, text: str) -> None:
        self.html = text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "<heat maps of attention: a notebook shows them, save('….html') writes them>"

    def save(self, path: str | Path) -> Path:
        """Write a self-contained page. Returns the absolute path of the file.

        Raises ValueError for an ending other than .html, OSError if the file cannot be written.
        """
        if Path(path).suffix != ".html":
            raise ValueError(f"{path}: the name of a page ends in .html")
        page = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Attention</title>\n'
        with written_whole(path) as unfinished:
            unfinished.write_text(page + self.html, encoding="utf-8")
        return Path(path).resolve()


def _page(data: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str) -> str:
    """The HTML of the heat maps of data (layers, H, T, S), with a label for each query and each
    key. It is a <form>, so that the choice of a head in one picture does not change what other
    pictures show. Enter does not submit the form."""
    maps = data.reshape(-1, *data.shape[-2:])
    widest = max(_width(visible(token)) for token in keys)
    upright = widest > 2
    head = "".join(f"<th scope=col>{_token(token)}" for token in keys)
    size = min(widest, WIDEST) if upright else 2
    parts = []
    for name, weights in zip(head_names(data), maps, strict=True):
        rows = "\n".join(
            f"<tr tabindex=0><th scope=row>{_token(token)}{''.join(map(_cell, row))}"
            for token, row in zip(queries, weights, strict=True)
        )
        parts.append(
            f"<section><p>{name}</p><table{' class=upright' * upright} style=--h:{size}>"
            f"<thead><tr><td>{head}<tbody>\n{rows}</table></section>"
        )
    heading = f"<strong>{html.escape(title)}</strong>" if title else ""
    return (
        f"<form class=minimha-attention method=dialog autocomplete=off><style>{_style(len(maps))}"
        f"</style>{heading}{_choice(data.shape[:2])}{''.join(parts)}<p class=how>Rows are queries, "
        "columns keys. Point at a row, or go there with Tab, to see its weights.</p></form>"
    )


def _choice(shape: Sequence[int]) -> str:
    """The HTML of the buttons that choose a head: a line for each layer, with one button per head.
    It is empty if there is only one head in all. `shape` is the number of layers and of heads."""
    layers, heads = shape
    lines = [f"layer {layer}, head " for layer in range(layers)] if layers > 1 else ["head "]
    for n in range(layers * heads):
        lines[n // heads] += (
            f"<label><input type=radio name=head {_OWN_KEYS} value={n}"
            f"{' checked' * (n == 0)}>{n % heads}</label> "
        )
    return "".join(f"<div>{line}</div>" for line in lines) if layers * heads > 1 else ""


def _cell(weight: float) -> str:
    if not np.isfinite(weight):
        return f"<td class=bad style=--w:0>{'∞' if weight == np.inf else 'NaN'}"
    text = f"{weight:.2f}".removeprefix("0") if weight else "0"
    return f"<td style=--w:{min(round(100 * weight), 100)}>{text}"


def _token(token: str) -> str:
    label = visible(token)
    short = label
    while _width(short) > WIDEST:
        short = short[:-2] + "…"
    title = f' title="{html.escape(label)}"' if short != label else ""
    return f"<span{title}>{html.escape(short)}</span>"


def _width(label: str) -> int:
    """The width of a label in columns of a fixed-width font: East Asian characters take two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in label)


def _style(heads: int) -> str:
    """The style rules, in CSS, of a picture with this many heads in all layers together. In the
    text `_CSS`, & stands for the picture's <form>. Here the class of the form replaces it, three
    times in a row, so that these rules override those of the page for tables."""
    chosen = "".join(
        f'&:has([value="{n}"]:checked)>section:nth-of-type({n + 1})' + "{display:block}"
        for n in range(heads)
    )
    return " ".join((_CSS + chosen).split()).replace("&", ".minimha-attention" * 3)


# The active row colours the keys' labels: each of its cells places an orange box at the top of the
# table, which stays in the cell's column because `left` is not set.
# --w: the weight in percent; from 66 on, white numbers are easier to read than black ones.
# --h: the size of the keys' labels in columns of letters.
_CSS = """
& { display: block; width: fit-content; max-width: 100%; box-sizing: border-box; overflow-x: auto;
    padding: 8px 12px; border-radius: 6px; background: #fff; color: #222; color-scheme: light;
    font: 13px/1.4 sans-serif; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
& label { display: inline-block; margin: 0 4px; font: inherit; color: inherit; cursor: pointer; }
& input { margin: 0 3px 0 0; vertical-align: -1px; }
&:has(input) > section { display: none; }
& p { margin: 4px 0; font: inherit; color: inherit; }
& .how { color: #555; font-size: 12px; }
& table { position: relative; isolation: isolate; display: table; width: auto; margin: 4px 0;
    border: 0; border-collapse: separate; border-spacing: 1px; background: #fff; color: #222;
    font: 12px/1 monospace; box-shadow: none; overflow: visible; }
& :is(thead, tbody, tr, tr:hover) { border: 0; background: none; color: inherit; }
& :is(th, td) { box-sizing: border-box; height: 20px; min-width: 24px; max-width: none; padding: 0;
    border: 0; background: none; color: inherit; text-align: center; vertical-align: middle;
    font: inherit; }
& tbody th { padding: 0 6px; text-align: right; white-space: pre; cursor: default; }
& thead :is(th, td) { height: calc(var(--h) * 1ch + 8px); vertical-align: bottom; white-space: pre;
    padding-bottom: 4px; }
& .upright thead span { writing-mode: vertical-rl; transform: rotate(180deg); }
& tbody td { width: 24px; background: rgb(8 48 107 / calc(var(--w) * 1%)); color: transparent;
    font-size: 11px; box-shadow: 0 0 0 1px #eee; }
& tbody .bad { background: repeating-linear-gradient(45deg, #bbb 0 2px, #fff 2px 5px); }
& :is(tbody tr:hover, table:not(:hover) tr:focus) :is(td, th) {
    color: hsl(0 0% calc((var(--w, 0) - 65.5) * 1000%)); }
& :is(tbody tr:hover, table:not(:hover) tr:focus) th { font-weight: bold; }
& :is(tbody tr:hover, table:not(:hover) tr:focus) { outline: 2px solid #e69f00; }
& :is(tbody tr:hover, table:not(:hover) tr:focus) td::before { content: ""; display: block;
    position: absolute; z-index: -1; top: 1px; width: 24px; height: calc(var(--h) * 1ch + 8px);
    font-size: 12px; background: rgb(230 159 0 / calc(var(--w) * 1%)); }
"""
