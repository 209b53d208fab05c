"""How a message shows what a student's function returned: with the same text in each run, at home
and when it is graded."""

from __future__ import annotations

import re
import reprlib
from typing import Any


class _Repr(reprlib.Repr):
    """Writes values as text that is the same in each run: sets are sorted, and a function is shown
    only by its name. In grading, a student's function runs in another process, so the rest of its
    repr would differ."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 100
        self.maxstring = self.maxlong = self.maxother = 1000

    def repr1(self, x: Any, level: int) -> str:
        if callable(x) and not isinstance(x, type):
            return f"<function {name_of(x)}>"
        return super().repr1(x, level)


def name_of(function: Any) -> str:
    """Return the name of a function; for another callable object without a name, the name of its
    type."""
    return str(getattr(function, "__name__", type(function).__name__))


def shown(x: Any) -> str:
    """Return the repr of a value for a message, cut if it is long, and without addresses in
    memory."""
    return without_addresses(_Repr().repr(x))


def without_addresses(text: str) -> str:
    """Return a text without addresses in memory, which differ from run to run."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)
