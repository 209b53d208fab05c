"""A student's own functions, to build on: `mh.homework.mine("softmax")`."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import replay
from ..checks.task import Task
from ..checks.verdicts import PASSED, TO_DO
from ..tasks.catalogue import course, task_named
from . import progress_file, student_files
from .answers import answers, is_stub, source
from .interrupts import in_time


class Own(NamedTuple):
    """A student's own answer to a task: the file or notebook that contains it, and its source."""

    path: Path
    source: bytes

    def function(self, name: str) -> Callable[..., Any]:
        """Run the answer and return the function of this name. Raises LoadError or
        NotImplementedError for a .py file, as `student_files.load` does. For a notebook, raises any
        error that running the source raises, and KeyError if it defines no such function."""
        if self.path.suffix == ".py":
            return student_files.load(self.path, name)
        module, file = types.ModuleType(name), f"{self.path}: {name}"
        del module.__spec__  # it has no loader: Python 3.15 would warn in every traceback
        text = self.source.decode()
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        code = compile(text, file, "exec", dont_inherit=True)
        in_time(exec, code, vars(module))
        function: Callable[..., Any] = vars(module)[name]
        return function


def answered(place: Path) -> dict[str, Own]:
    """Return the student's answer to each task, by name, in the order of the course: from a file
    or, if there is none or it is not filled in, from a notebook. `place` is a file, or a folder,
    which is searched with the folders directly inside it. Notebooks are also searched for in the
    folder with the record of the student's progress, and in the folders beside that one that are
    called "homework" or "minimha-notebooks"."""
    found: dict[str, Own] = {}
    files = ((name, Own(path, source(path))) for name, path in student_files.find(place).items())
    for name, own in itertools.chain(_in_notebooks(place), files):
        if name not in found or not is_stub(own.source):
            found[name] = own
    return {name: found[name] for name in course() if name in found}


def _in_notebooks(place: Path) -> Iterator[tuple[str, Own]]:
    home = progress_file.path(place).parent
    neighbours = (home.parent / name for name in progress_file.NEIGHBOURS)
    folders = {path.resolve() for path in (place, home, *neighbours) if path.is_dir()}
    for folder in sorted(folders):
        for path in sorted([*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")]):
            with suppress(OSError, ValueError):  # it is being saved, or it is no notebook
                yield from [(name, Own(path, x)) for name, x in answers(path, course()).items()]


def mine(name: str) -> Callable[..., Any]:
    """Return your own function for a task, from your files or from a notebook that you have saved.

    If it is missing or does not pass its checks, this prints why and returns the course's function,
    so that you can continue.

    Raises ValueError if no task has that name; in a release, which has no solutions, also if your
    function is missing or does not pass.
    """
    task = task_named(name)
    own = answered(Path()).get(name)
    problem = _problem(task, own) if own else "you have not written it yet"
    if own and not problem:
        return own.function(name)
    where = f"{name} ({student_files.chapter(task.chapter)})"
    if replay.results():
        raise ValueError(f"{where}: {problem}; this cell needs it")
    sys.stdout.write(f"{where}: {problem}, so this is the course's function\n")
    return task.solution


def _problem(task: Task, own: Own) -> str:
    """Return the reason why a student's function cannot be used; "" if it passes its checks."""
    where = os.path.relpath(own.path)
    try:
        function = own.function(task.name)
    except (Exception, SystemExit):  # a student's code may raise anything
        return f"{where} cannot be loaded"
    for check in task.checks:
        outcome = student_files.verdict(task, check, function, str(own.path)).outcome
        if outcome == TO_DO:
            return f"you have not finished it in {where}"
        if outcome != PASSED:
            return f"yours, in {where}, does not pass the check “{check.name}”"
    return ""
