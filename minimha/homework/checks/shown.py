"""How a message shows what a student's function returned: with the same text in each run, at home
and when it is graded."""

from __future__ import annotations

import re
import reprlib
from typing import Any


class _Repr(reprlib.Repr):
    """Writes values as text that does not change from run to run: it sorts sets, and shows a
    function only by its name, because in grading the function is in another process."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 100
        self.maxstring = self.maxlong = self.maxother = 1000

    def repr1(self, x: Any, level: int) -> str:
        if callable(x) and not isinstance(x, type):
            return f"<function {name_of(x)}>"
        return super().repr1(x, level)


def name_of(function: Any) -> str:
    """Return the name of a function, or of the type of another value that can be called."""
    return str(getattr(function, "__name__", type(function).__name__))


def shown(x: Any) -> str:
    """Write a value on one line."""
    return without_addresses(_Repr().repr(x))


def without_addresses(text: str) -> str:
    """Return a text without addresses in memory, which differ from run to run."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)
