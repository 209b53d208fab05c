"""Homework: functions to write, checked in a notebook, by `minimha homework`, by pytest.

mh.homework.check(softmax)    in a notebook or a script: prints what holds and what does not
mh.homework.task(…)           makes a task of one's own
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .expect import recorded, same, same_gradients, same_steps, tap_is_used, value_of
from .show import lines
from .task import TASKS, Check, Task, Verdict, task
from .told import with_line

__all__ = [
    "TASKS",
    "Check",
    "Task",
    "Verdict",
    "check",
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
    """All tasks by name, in order: those of the course, and what else has been made."""
    from . import tasks  # noqa: F401  which are made when they are imported

    return TASKS


def load_tasks(path: Path) -> None:
    """Make the tasks of a file of a teacher's own, after those of the course.

    Raises OSError for a file that cannot be read, and ValueError for one that cannot be used.
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
        raise ValueError(f"{path} cannot be used\n{with_line(error, str(path))}") from None
    if len(TASKS) == before:
        raise ValueError(f"{path} makes no task: @mh.homework.task(…) makes one of a function")


def check(function: Callable[..., Any]) -> None:
    """Check a function that goes by the name of a task, and print what holds and what does not.

    Stops at the first check that fails. Raises KeyError for a name that is no task.
    """
    tasks = course()
    name = getattr(function, "__name__", repr(function))
    if name not in tasks:
        raise KeyError(f"no task is called {name}: there are {', '.join(tasks)}")
    for line in lines(tasks[name].verdicts(function)):
        print(line)
