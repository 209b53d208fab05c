"""The tasks of the course, and those of a teacher's own file."""

from __future__ import annotations

import difflib
import functools
import sys
import types
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from ..checks.error_messages import line_of
from ..checks.task import TASKS, Task


def course() -> dict[str, Task]:
    """All tasks by name: those of the course in order, then a teacher's own."""
    _register()
    return TASKS


@functools.cache
def _register() -> None:
    """Import the tasks of all chapters, which registers them. They wait until somebody asks for
    them, because importing them takes a third of a second."""
    package = Path(__file__).parent
    for name in sorted(module.name for module in iter_modules([str(package)])):
        import_module(f"{__package__}.{name}")


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


def task_named(name: str) -> Task:
    """The task of this name. Raises ValueError, with the nearest name, if there is none."""
    tasks = course()
    if name in tasks:
        return tasks[name]
    stem = name.replace("\\", "/").split("/")[-1]  # the name may be a path
    near = difflib.get_close_matches(stem.lower().replace("-", "_"), tasks, 1)
    advice = f"did you mean {near[0]}?" if near else "minimha homework list shows them all"
    raise ValueError(f"no task is called {name!r}: {advice}")
