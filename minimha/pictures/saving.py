"""Pictures as text and as files."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..interchange.files import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def svg(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a file, completely or not at all. Returns the absolute path of the file.

    Raises ValueError unless the path ends in .png, .svg or .pdf, and OSError if the file cannot be
    written.
    """
    check_path(path)
    with written_whole(path) as unfinished, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # drawn as an empty box
        figure.savefig(unfinished, dpi=150)
    return Path(path).resolve()


def check_path(path: str | Path) -> None:
    """Raise the error that `save` would raise for this path, if any. A long computation calls it
    first, so as not to fail when it saves its picture at the end."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"{path}: a picture's name ends in one of {', '.join(FORMATS)}")
    check_writable(path)
