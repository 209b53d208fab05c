"""How verdicts read: one line a check, and below the first that fails what it says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from .task import FAILED, PASSED, Verdict


def lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """The lines to print, up to the first check that does not pass."""
    for verdict in verdicts:
        yield f"{verdict.outcome:<6} {verdict.task}: {verdict.check.name}"
        if verdict.outcome == FAILED:
            yield from _fitted(verdict.message)
        elif verdict.message:
            yield from _fitted(f"       {verdict.message}")
        if verdict.outcome != PASSED:
            return


def _fitted(message: str) -> Iterator[str]:
    """Its lines, 80 columns wide: an error of a student's own may be of any size."""
    for line in message.splitlines()[:40]:
        indent = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(line[:320], 80, subsequent_indent=f"{indent}  ")
