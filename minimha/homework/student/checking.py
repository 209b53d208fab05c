"""What `minimha homework check` runs: the checks of a student's files, one task after another."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ..checks.verdicts import FAILED, PASSED, Verdict
from ..tasks.catalogue import course
from . import student_files
from .answers import imports, modules, packages, source


def check_files(
    files: Mapping[str, Path], report: Callable[[Verdict, str], None]
) -> dict[str, str]:
    """Check the tasks in these files, up to the first task that fails.

    report(verdict, printed) is called for each check of a task up to the first that does not pass,
    with what the student's code printed. Returns the outcomes by task.
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


def refused(path: Path) -> str:
    """Why a file cannot be graded although it runs here; "" if no reason is found. Only its length,
    its imports and those of the student's own modules are looked at."""
    try:
        data = source(path)
        own = modules(data, path.parent)
    except (OSError, ValueError) as error:
        return f"it cannot be graded: {error}"
    inside = {file.removesuffix(".py").replace("/", "."): text for file, text in own.items()}
    known = {"numpy"} | {package for name in inside for package in packages(name)}
    wanted = list(imports(data))
    for name, text in inside.items():
        wanted += imports(text, name.rpartition(".")[0])
    named = {x for module, names in wanted for x in _named(module, names)}
    foreign = named - known
    if not (foreign and (lost := foreign - _importable())):
        return ""
    return f"where homework is graded, it cannot import {', '.join(sorted(lost))}"


def _named(module: str, names: list[str]) -> list[str]:
    """What an import needs: the module; of minimha's, each name, since a submission has few of
    them; and the submodules of NumPy among the names, since NumPy may not have imported them yet.
    """
    full = [f"{module}.{name}" for name in names if name != "*"]
    if module.startswith("minimha.") and names:
        return full
    if module == "numpy":
        return [module, *filter(importlib.util.find_spec, full)]
    return [module]


@functools.cache
def _importable() -> frozenset[str]:
    """The modules that a submission may import, because the process that runs it has them, and the
    names that it has of minimha's."""
    code = (
        "import sys; sys.path += sys.argv[1:]\n"
        "import worker; worker.prepare(); print(*worker.importable())"
    )
    folders = Path(np.__file__).parents[1], Path(__file__).parents[1] / "teacher" / "grading"
    command = [sys.executable, "-P", "-s", "-S", "-B", "-c", code, *map(str, folders)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return frozenset(found.stdout.split())


@contextlib.contextmanager
def _away_from_the_terminal(printed: io.StringIO) -> Iterator[None]:
    """Collect what a student's code prints; it can neither read input nor open a debugger, and
    os._exit raises SystemExit, so that the command does not end without a verdict."""
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
