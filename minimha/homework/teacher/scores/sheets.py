"""Reads and writes CSV files in the forms that spreadsheet programs and course systems use."""

from __future__ import annotations

import csv
import io
from pathlib import Path


def read(path: Path) -> tuple[list[list[str]], str]:
    """Return the rows of a CSV file, and the character that separates its cells: a comma, a
    semicolon or a tab.

    Raises OSError if the file cannot be read, ValueError if it is empty, not in UTF-8, or if a
    quotation mark is not closed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it as “CSV UTF-8”") from None
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty")
    return rows, delimiter


def text(rows: list[list[str]], delimiter: str) -> str:
    """Return the rows as the text of a CSV file."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return written.getvalue()


def number(cell: str) -> float:
    """Return the number in a cell, 0 if the cell is empty; the decimal separator may be a comma.

    Raises ValueError for any other text.
    """
    return float(cell.strip().replace(",", ".") or 0)
