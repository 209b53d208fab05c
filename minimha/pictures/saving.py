"""Pictures as text and as files."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..interchange import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def svg(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


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
