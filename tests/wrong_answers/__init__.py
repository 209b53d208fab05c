"""Wrong answers to homework: a file a chapter, each answer a change of the solution's text."""

import importlib
import linecache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minimha import homework


class Wrong(NamedTuple):
    """An answer with a mistake.

    what    the mistake, in words
    old     the part of the solution that it replaces
    new     what stands there instead
    check   the check that finds it, which is the first to fail
    says    a part of what the student reads
    """

    what: str
    old: str
    new: str
    check: str
    says: str


def all_wrong():
    """(task, Wrong) for every answer of every chapter."""
    for path in sorted(Path(__file__).parent.glob("ch*.py")):
        for name, answers in importlib.import_module(f"wrong_answers.{path.stem}").WRONG.items():
            for wrong in answers:
                yield homework.course()[name], wrong


def function(task, code=None):
    """The function that this text defines: what a student's file would."""
    names, code = {"np": np}, code or task.code(solved=True)
    linecache.cache["answer.py"] = len(code), None, code.splitlines(keepends=True), "answer.py"
    exec(compile(code, "answer.py", "exec"), names)
    return names[task.name]


def answered(task, wrong):
    """The function with this mistake in it."""
    solution = task.code(solved=True)
    assert solution.count(wrong.old) == 1, f"{wrong.old!r} stands {solution.count(wrong.old)} times"
    return function(task, solution.replace(wrong.old, wrong.new))
