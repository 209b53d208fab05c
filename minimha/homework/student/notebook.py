"""Homework in a notebook: check a function, read a hint, show the progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checks.error_messages import file_of
from ..checks.verdicts import FAILED, PASSED, TO_DO, lines
from ..tasks.catalogue import course, task_named
from . import progress_file, student_files
from .progress import print_progress


def check(function: Callable[..., Any]) -> None:
    """Check a function named after a task, print which checks pass, and record the outcome in the
    student's progress.

    Stops at the first check that does not pass. A check fails, too, if it computes for more than 10
    seconds. If the function still raises NotImplementedError, nothing is recorded. Raises
    ValueError if no task has the name of the function, TypeError for anything that cannot be
    called.
    """
    if not callable(function):
        name = function if isinstance(function, str) and function in course() else "softmax"
        raise TypeError(f"pass the function itself, without quotes or a call: check({name})")
    name = getattr(function, "__name__", repr(function))
    task, outcome = task_named(name), PASSED
    for holds in task.checks:
        verdict = student_files.verdict(task, holds, function, file_of(function))
        print(*lines([verdict]), sep="\n")
        outcome = verdict.outcome
        if outcome != PASSED:
            break
    if outcome == TO_DO:
        _say_if_done(name)
        return
    if outcome == PASSED or progress_file.read(Path()).get(name, {}).get("notebook") != PASSED:
        progress_file.add(Path(), name, notebook=outcome)  # what once passed stays done
    if outcome == FAILED:
        _failed.append(name)
        print(f'\nfor a hint: mh.homework.hint("{name}")')


def _say_if_done(name: str) -> None:
    files = progress_file.files(Path())
    if progress_file.states(Path(), files)[name] == PASSED:
        in_notebook = progress_file.read(Path())[name].get("notebook") == PASSED
        where = "a notebook" if in_notebook else files[name]
        print(f"       you have already done this task, in {where}")


_failed: list[str] = []
"""The tasks whose checks have failed since Python started, the most recent last."""


def hint(task: str | Callable[..., Any] | None = None) -> None:
    """Print the next hint for a task, given its name or your function. Without an argument, print a
    hint for the task that last failed a check in this notebook.

    Raises ValueError if no task has that name, TypeError if none is given and none has failed.
    """
    if task is None and not _failed:
        raise TypeError('write the name of a task: hint("softmax")')
    task = task or _failed[-1]
    name = task if isinstance(task, str) else task.__name__
    print(student_files.next_hint(task_named(name), Path(), f'mh.homework.hint("{name}")'))


def progress() -> None:
    """Print the progress in each chapter, as `minimha homework progress` does."""
    print_progress(Path())
