"""Homework: functions to write, checked in a notebook, by `minimha homework`, by pytest.

mh.homework.check(softmax)    in a notebook or a script: prints which checks pass
mh.homework.task(…)           defines a task of your own
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .comparisons import recorded, same, same_gradients, same_steps, tap_is_used, value_of
from .error_messages import error_with_line
from .task import TASKS, Task, task
from .verdicts import Check, Verdict, lines

__all__ = [
    "TASKS",
    "Check",
    "Task",
    "Verdict",
    "check",
    "commands",
    "course",
    "load_tasks",
    "recorded",
    "same",
    "same_gradients",
    "same_steps",
    "tap_is_used",
    "task",
    "value_of",
]


def course() -> dict[str, Task]:
    """All tasks by name, in order: those of the course, then a teacher's own."""
    from . import tasks  # noqa: F401  importing them registers them

    return TASKS


def load_tasks(path: Path) -> None:
    """Add the tasks of a teacher's own file to those of the course.

    Raises OSError for a file that cannot be read, ValueError for one that does not run or
    defines no task.
    """
    before = len(course())
    module = types.ModuleType(f"_minimha_homework_tasks_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be used\n{error_with_line(error, str(path))}") from None
    if len(TASKS) == before:
        raise ValueError(f"{path} defines no task: decorate a function with @mh.homework.task(…)")


def check(function: Callable[..., Any]) -> None:
    """Check a function named after a task, and print which checks pass.

    Stops at the first check that fails. Raises KeyError if no task has that name.
    """
    tasks = course()
    name = getattr(function, "__name__", repr(function))
    if name not in tasks:
        raise KeyError(f"no task is called {name}: there are {', '.join(tasks)}")
    for line in lines(tasks[name].verdicts(function)):
        print(line)
