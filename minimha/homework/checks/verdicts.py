"""The outcome of a check, and how it is printed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

PASSED, FAILED, TO_DO, MISSING = "ok", "wrong", "to do", "missing"


@dataclass(frozen=True)
class Check:
    """A condition that a student's function must satisfy.

    name    what students read: "rows sum to one"
    holds   holds(yours, rng) raises AssertionError if the function `yours` is wrong
    weight  of the check in the task's score, relative to the other checks
    hidden  whether the check is meant for grading: a release with --hidden leaves it out of what
            students get
    """

    name: str
    holds: Callable[[Any, np.random.Generator], None]
    weight: float
    hidden: bool = False


@dataclass(frozen=True)
class Verdict:
    """The result of one check of one function. `task` is the name of the task, and `message` says
    what is wrong or still to do. The outcome is PASSED, FAILED, TO_DO if the function raises
    NotImplementedError, or, in grading, MISSING if no answer was handed in."""

    task: str
    check: Check
    outcome: str
    message: str = ""


def lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Yield the lines to print: one for each check up to the first that does not pass, then the
    message of that check."""
    for verdict in verdicts:
        yield f"{verdict.outcome:<6} {verdict.task}: {verdict.check.name}"
        if verdict.outcome == FAILED:
            yield from _wrapped(verdict.message)
        elif verdict.message:
            yield from _wrapped(f"       {verdict.message}")
        if verdict.outcome != PASSED:
            return


def _wrapped(message: str) -> Iterator[str]:
    """Wrap a message to 80 columns, and cut it after 40 lines: a student's own error may be of any
    length."""
    for line in message.splitlines()[:40]:
        indent = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(line[:320], 80, subsequent_indent=f"{indent}  ")
