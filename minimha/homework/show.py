"""How verdicts read: one line a check, and below the first that fails what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .task import FAILED, PASSED, Verdict


def lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """The lines to print, up to the first check that does not pass."""
    for verdict in verdicts:
        yield f"{verdict.outcome:<6} {verdict.task}: {verdict.check.name}"
        if verdict.outcome == FAILED:
            yield verdict.message
        if verdict.outcome != PASSED:
            return
