"""Looks for contradictions in a task: a solution that fails its own checks, the code for students
that passes them, or a mistake that no check finds.

`minimha homework test` looks for them in a teacher's file, `release`, `grade` and `ci` do so before
anything else, and the tests of the course check that its own tasks have none.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from ..checks import replay
from ..checks.calls import Call, calls_recorded
from ..checks.mistakes import Patch, defined
from ..checks.task import Task
from ..checks.verdicts import FAILED, PASSED, TO_DO, Check, Verdict
from ..student import student_files
from .grading.judge import judged
from .grading.process import Limits
from .release.public import public


def refuse(path: Path, tasks: Iterable[Task]) -> None:
    """Raise ValueError if there are contradictions in the tasks of a teacher's file, such as a
    solution that fails its own checks. The message has one line for each contradiction."""
    if found := in_file(path, tasks):
        raise ValueError("\n  ".join([f"{path} contradicts itself", *found]))


def in_file(path: Path, tasks: Iterable[Task]) -> list[str]:
    """Return one line for each contradiction in the tasks of a teacher's file, or for the reason
    why no release can be made of the file. Whether the checks find the common mistakes that the
    tasks declare is examined only if there are no other contradictions."""
    tasks = list(tasks)
    found = [line for task in tasks for line in in_task(task)]
    if not found:
        found = [line for task in tasks for x in task.mistakes for line in in_mistake(task, x)]
    if not found:
        try:
            public(path.read_text(encoding="utf-8"))
        except ValueError as error:  # no release can be made of it
            found = [str(error)]
    return found


def in_task(task: Task) -> Iterator[str]:
    """Yield a line for each contradiction in a task. There are several kinds, such as a solution
    that fails; after the first kind that is found, the later ones are not examined. The task's
    mistakes are left to `in_mistake`."""
    for find in (_described, _solved, _graded, _stubbed, _released):
        try:
            found = list(find(task))
        except Exception as error:  # a source that cannot be marked or run
            found = [f": {error}"]
        if found:
            yield from (f"{task.name}{line}" for line in found)
            return


def in_mistake(task: Task, mistake: Patch) -> Iterator[str]:
    """Yield a line if a common mistake that the task declares contradicts its checks: no check
    finds the mistake, the message of the check does not name it, or the mistake cannot be made in
    the solution."""
    name = f"the mistake “{mistake.text.partition(chr(10))[0]}”"
    try:
        yours = defined(mistake.made_in(task.code(solved=True)), task.name)
    except Exception as error:  # an edit that does not fit
        yield f"{task.name}: {name} cannot be made: {error}"
        return
    with _quietly():
        failed = next((x for x in _verdicts(task, yours) if x.outcome == FAILED), None)
    if failed is None:
        yield f"{task.name}: no check finds {name}"
    elif "".join(f"looks like {mistake.text}".split()) not in "".join(failed.message.split()):
        said = textwrap.shorten(failed.message.partition("looks like")[2], 60, placeholder="…")
        named = f"is taken for “{said}”" if said else "is found but not named"
        yield f"{task.name}, {failed.check.name}: {name} {named}"


def _verdicts(task: Task, yours: Callable[..., object]) -> Iterator[Verdict]:
    """Yield the verdict of each check of the task on the function `yours`, which runs in this
    process, as on a student's computer."""
    return (student_files.verdict(task, check, yours, None) for check in task.checks)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _wrong(check: Check, what: str, message: str) -> str:
    return f", {check.name}: {what}: {message.partition(chr(10))[0]}".rstrip(": ")


def _described(task: Task) -> Iterator[str]:
    if isinstance(task.hints, str) or len(set(task.hints)) != 3:
        yield ": write three hints: where to look, what to do, almost the code"
    if not task.__doc__:
        yield ": write a docstring, which is the text that students read"
    if all(check.hidden for check in task.checks):
        yield ": write a check that is not hidden, or students have none to run"


def _solved(task: Task) -> Iterator[str]:
    with _quietly():
        verdicts = list(_verdicts(task, defined(task.code(solved=True), task.name)))
    for verdict in verdicts:
        if verdict.outcome != PASSED:
            yield _wrong(verdict.check, "the solution does not pass", verdict.message)


def _graded(task: Task) -> Iterator[str]:
    """Yield a line for each check that the solution fails when it is graded like a submission, in a
    process of its own and with other random inputs."""
    if sys.platform == "win32":  # where nothing can be graded
        return
    for verdict in judged(task, student_files.stub(task, solved=True).encode(), 1, Limits()):
        if verdict.outcome != PASSED:
            yield _wrong(verdict.check, "as a submission the solution fails", verdict.message)


def _stubbed(task: Task) -> Iterator[str]:
    with _quietly():
        verdicts = list(_verdicts(task, defined(task.code(), task.name)))
    for verdict in verdicts:
        if verdict.outcome == FAILED:
            yield _wrong(verdict.check, "the stub is wrong and not to do", verdict.message)
    if not any(verdict.outcome == TO_DO for verdict in verdicts):
        yield ": the stub passes every check: mark the solution with # BEGIN and # END SOLUTION"


def _released(task: Task) -> Iterator[str]:
    """Yield a line for each check that the solution fails in a release. There, checks cannot call
    the solution: they get the results that it returned in earlier calls, which were recorded."""
    for check in task.checks:
        calls: list[Call] = []
        task.answer = calls_recorded(task.solution, calls)
        try:
            with _quietly():
                check.holds(task.solution, task.rng(check))
                record = {task.name: {check.name: {task.name: list(map(replay.stored, calls))}}}
                kept = replay.unpacked(replay.packed(record))
                task.answer = replay.replaying(kept[task.name][check.name][task.name])
                check.holds(task.solution, task.rng(check))
        except Exception as error:
            what = "the solution fails in a release, which records its results"
            yield _wrong(check, what, str(error))
        finally:
            task.answer = task.solution
