"""Checks a student's files for `minimha homework check`, one task after another."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..checks.verdicts import FAILED, PASSED, Verdict
from ..tasks.catalogue import course
from . import student_files


def check_files(
    files: Mapping[str, Path], report: Callable[[Verdict, str], None]
) -> dict[str, str]:
    """Check tasks in turn, up to the first one that fails, given the student's file for each task
    by name. Returns the outcome of each task that was checked, by name: PASSED, FAILED or TO_DO.

    For each check of a task, up to the first that does not pass, report(verdict, printed) is called
    with the text that the student's code printed during the check.
    """
    outcomes: dict[str, str] = {}
    load = functools.cache(student_files.load)
    for name, path in files.items():
        for check in course()[name].checks:
            printed = io.StringIO()
            with _away_from_the_terminal(printed):
                verdict = student_files.file_verdict(course()[name], check, path, load)
            report(verdict, printed.getvalue())
            outcomes[name] = verdict.outcome
            if verdict.outcome != PASSED:
                break
        if outcomes[name] == FAILED:
            break
    return outcomes


@contextlib.contextmanager
def _away_from_the_terminal(printed: io.StringIO) -> Iterator[None]:
    """Write what a student's code prints inside the block to `printed`, and discard what it writes
    to standard error. The code can neither read input nor open a debugger, and a call of os._exit
    raises SystemExit, so that the command does not end without a verdict."""
    before = sys.stdin, sys.breakpointhook, os._exit
    sys.stdin, sys.breakpointhook = io.StringIO(), _no_debugger
    os._exit = sys.exit  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.stdin, sys.breakpointhook, os._exit = before


def _no_debugger(*_: object, **__: object) -> None:
    raise RuntimeError("to use a debugger, run: pytest --pyargs minimha.homework -k NAME")
