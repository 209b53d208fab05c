"""The tasks of the course, and those of a teacher's own file."""

from __future__ import annotations

import argparse
import difflib
import functools
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..course import CHAPTERS, notebooks
from .answers import answers
from .error_messages import line_of
from .task import TASKS, Task


def course() -> dict[str, Task]:
    """All tasks by name: those of the course in order, then a teacher's own."""
    from . import tasks  # noqa: F401  importing them registers them

    return TASKS


def run_file(path: Path, name: str) -> dict[str, Any]:
    """The names that a file defines, run as a module of its own with this name."""
    module = types.ModuleType(name)
    del module.__spec__  # it has no loader: Python 3.15 would warn in every traceback
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    return vars(module)


def load_tasks(path: Path) -> list[Task]:
    """Add the tasks of a teacher's own file to those of the course, and return them.

    Raises OSError for a file that cannot be read, ValueError for one that does not run or
    defines no task.
    """
    before = set(course())
    path.read_bytes()  # raises OSError
    try:
        run_file(path, f"_minimha_homework_tasks_{path.stem}")
    except (Exception, SystemExit) as error:
        place = line_of(error, str(path))
        said = f"{type(error).__name__}: {error}{', in ' if place else ''}{place}"
        raise ValueError(f"{path} cannot be used: {said}") from None
    new = [task for name, task in TASKS.items() if name not in before]
    if not new:
        raise ValueError(f"{path} defines no task: decorate a function with @mh.homework.task(…)")
    return new


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add the argument --only, for `chosen`."""
    text = "tasks, or numbers of chapters (default: all)"
    parser.add_argument("--only", nargs="+", metavar="TASK", help=text)


def chosen(only: Sequence[str] | None) -> list[Task]:
    """The tasks with these names or chapters, in the order of the course. A chapter stands for the
    exercises of its notebook and for the teacher's own tasks of that number.

    Raises ValueError for a name that is neither.
    """
    tasks = list(course().values())
    names = {task.name: {task.name, *_numbers(task)} for task in tasks}
    unknown = set(only or ()) - set().union(*names.values())
    if unknown:
        raise ValueError(f"no task or chapter is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or names[task.name] & set(only)]


def _numbers(task: Task) -> set[str]:
    """The numbers that stand for a task: none if its chapter's notebook lacks it."""
    ours = task.solution.__module__.startswith(f"{__package__}.tasks.ch")
    if ours and task.name not in (exercises(task.chapter) or {task.name}):
        return set()
    return {str(task.chapter), f"{task.chapter:02}"}


@functools.cache
def exercises(number: int) -> frozenset[str]:
    """The tasks that the notebook of a chapter contains; none if there is no notebook."""
    stem = CHAPTERS[number].stem if number in CHAPTERS else None
    ours = (path for path in notebooks() if path.stem == stem)
    return frozenset(name for path in ours for name in answers(path, course()))


def task_named(name: str) -> Task:
    """The task of this name. Raises ValueError, with the nearest name, if there is none."""
    tasks = course()
    if name in tasks:
        return tasks[name]
    stem = name.replace("\\", "/").split("/")[-1]  # the name may be a path
    near = difflib.get_close_matches(stem.lower().replace("-", "_"), tasks, 1)
    advice = f"did you mean {near[0]}?" if near else "minimha homework list shows them all"
    raise ValueError(f"no task is called {name!r}: {advice}")
