"""Facts about numbers in plain text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in plain text, one line per row."""
    from rich.console import Console  # not at import: most programs print no table
    from rich.table import Table

    table = Table(*headers, box=None, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*row)
    page = io.StringIO()
    Console(file=page, width=200, color_system=None, force_jupyter=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def listed(names: Sequence[str]) -> str:
    """The names as a list in a sentence: "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    *others, last = names
    return f"{', '.join(others)} and {last}"


def type_name(x: object) -> str:
    """The name of the type of x in a message. Whatever can be called is a "function", since a
    built-in function, a method, and a function in another process are functions, too."""
    if isinstance(x, np.ndarray):
        return "array"
    if callable(x) and not isinstance(x, type):
        return "function"
    return type(x).__name__


def labelled(label: str, fact: str) -> str:
    """A label and a fact, wrapped at 80 characters; line breaks in the fact are kept."""
    indents = [f"  {label:<13}", *(" " * 15 for _ in fact.splitlines()[1:])]
    lines = zip(fact.splitlines(), indents, strict=True)
    return "\n".join(
        textwrap.fill(line, 80, initial_indent=indent, subsequent_indent=" " * 15)
        for line, indent in lines
    )


def place(index: tuple[int, ...], axes: Sequence[str] | None) -> str:
    """The index of an entry as in code, followed by the names of its axes unless these are None:
    "[2, 5]  (head, query)". For an array without axes, "the only one"."""
    if not index:
        return "the only one"
    entry = str(list(index))
    if not axes:
        return entry
    return f"{entry}  ({', '.join(axes)})"


def first_largest(x: np.ndarray) -> tuple[int, ...]:
    """The index of the largest entry of x, which must not be empty; NaN is larger than any number.

    Of entries that differ by rounding alone it is the first: then every CPU names the same one.
    """
    tied = np.isclose(x, x.max(), rtol=1e-6, atol=0, equal_nan=True)
    k = np.unravel_index(np.argmax(tied), x.shape)
    return tuple(map(int, k))


def ratio(yours: np.ndarray, right: np.ndarray, worst: tuple[int, ...]) -> str:
    """The ratio of `yours` to `right` at the index `worst`, and whether it is the same in every
    entry where `right` is not tiny, such as "2, the same in every entry". It is the most
    informative fact about wrong numbers."""
    large = abs(right) > 1e-3 * abs(right).max()
    ratios = yours[large] / right[large]
    same = ratios.size > 1 and np.ptp(ratios) <= 1e-3 * abs(ratios.mean() - 1)
    at_worst = float(yours[worst] / right[worst]) or 0.0  # not −0
    text = f"{at_worst:.10g}"
    if same:
        text += ", the same in every entry"
    return text
