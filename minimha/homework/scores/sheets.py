"""CSV files as spreadsheet programs and course systems write them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple


class Sheet(NamedTuple):
    """The rows of a file, the first of which is the header, and what separates the cells."""

    rows: list[list[str]]
    delimiter: str

    def text(self) -> str:
        """The rows as CSV."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerows(self.rows)
        return text.getvalue()


def read(path: Path) -> Sheet:
    """The contents of a CSV file; commas, semicolons or tabs separate its cells.

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
    return Sheet(rows, delimiter)


def number(text: str) -> float:
    """The number in a cell, 0 if it is empty; the decimal separator may be a comma.

    Raises ValueError for any other text.
    """
    return float(text.strip().replace(",", ".") or 0)
