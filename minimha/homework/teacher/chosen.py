"""The tasks that a teacher chooses with --only, for a release or for grading."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from ...course import CHAPTERS, notebooks
from .. import tasks as course_tasks
from ..checks.task import Task
from ..student.answers import answers
from ..tasks.catalogue import course


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add the argument --only to the parser; `chosen` reads its value."""
    text = "tasks, or numbers of chapters (default: all)"
    parser.add_argument("--only", nargs="+", metavar="TASK", help=text)


def chosen(only: Sequence[str] | None) -> list[Task]:
    """Return the tasks that --only names, in the order of the course; all tasks if `only` is None
    or empty. The number of a chapter stands for the exercises in the notebook of that chapter, and
    for the teacher's own tasks with that number.

    Raises ValueError for a name that is neither a task nor a chapter.
    """
    tasks = list(course().values())
    names = {task.name: {task.name, *_numbers(task)} for task in tasks}
    unknown = set(only or ()) - set().union(*names.values())
    if unknown:
        raise ValueError(f"no task or chapter is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or names[task.name] & set(only)]


def _numbers(task: Task) -> set[str]:
    """Return the chapter numbers by which --only may choose a task, such as "5" and "05"; none for
    a task of the course that the notebook of its chapter leaves out."""
    ours = task.solution.__module__.startswith(f"{course_tasks.__name__}.ch")
    if ours and task.name not in (exercises(task.chapter) or {task.name}):
        return set()
    return {str(task.chapter), f"{task.chapter:02}"}


@functools.cache
def exercises(number: int) -> frozenset[str]:
    """Return the names of the tasks that the notebook of a chapter contains; none if there is no
    notebook."""
    stem = CHAPTERS[number].stem if number in CHAPTERS else None
    ours = (path for path in notebooks() if path.stem == stem)
    return frozenset(name for path in ours for name in answers(path, course()))
