"""Wrong answers to homework, each an edit of the solution.

They include the usual mistakes that a task declares and, in one file per chapter, mistakes that its
checks find but do not name.
"""

import functools
import importlib
import linecache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minimha import homework
from minimha.homework.mistakes import Mistake
from minimha.homework.verdicts import PASSED


class Wrong(NamedTuple):
    """An answer with a mistake.

    what    the mistake, in words
    old     the part of the solution that it replaces
    new     the replacement
    check   the first check that fails; empty for a declared mistake, which any check may find
    says    a part of the message to the student
    """

    what: str
    old: str
    new: str
    check: str
    says: str


def all_wrong():
    """(task, Wrong) for every answer: the declared mistakes, then the others."""
    for task in homework.course().values():
        for old, new, text in task.mistakes:
            yield task, Wrong(text, old, new, "", f"looks like {text}")
    for path in sorted(Path(__file__).parent.glob("ch*.py")):
        for name, answers in importlib.import_module(f"wrong_answers.{path.stem}").WRONG.items():
            for wrong in answers:
                yield homework.course()[name], wrong


def function(task, code=None):
    """The function defined by this text, as in a student's file."""
    names, code = {"np": np}, code or task.code(solved=True)
    linecache.cache["answer.py"] = len(code), None, code.splitlines(keepends=True), "answer.py"
    exec(compile(code, "answer.py", "exec"), names)
    return names[task.name]


def answered(task, wrong):
    """The function with this mistake in it."""
    return function(task, Mistake(*wrong[1:3], "").made_in(task.code(solved=True)))


@functools.cache
def first_failure(task, wrong):
    """The verdict of the first check that the answer does not pass."""
    with np.errstate(divide="ignore"):  # an error relative to a gradient of 0
        return next(v for v in task.verdicts(answered(task, wrong)) if v.outcome != PASSED)
