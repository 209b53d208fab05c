"""The verdicts on one submission, and the points that it earns."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...checks.error_messages import text_of
from ...checks.task import Task
from ...checks.verdicts import FAILED, MISSING, PASSED, TO_DO, Check, Verdict
from ..scores import PLACES, printable
from .connection import ConnectionLost
from .process import Killed, Limits, Submission
from .submissions import Answer

_KILLED = "twice, the process that runs submissions was killed while it ran this one"


def student(
    name: str, answers: Mapping[str, Answer], tasks: Collection[Task], folder: Path, seed: int,
    limits: Limits,
) -> dict[str, Any]:  # fmt: skip
    """Return the results of the student with this name: the total points, and the result for each
    of these tasks.

    answers  the student's answers, by the name of the task
    folder   the folder of all submissions, to which the paths of files in the results are relative
    seed     determines the random inputs of the checks
    limits   on the time and the memory of each answer
    """
    results = [_result(task, answers.get(task.name), folder, seed, limits) for task in tasks]
    return {
        "student": printable(name),
        "points": round(sum(result["points"] for result in results), PLACES),
        "out_of": sum(task.difficulty for task in tasks),
        "tasks": results,
    }


def _result(
    task: Task, answer: Answer | None, folder: Path, seed: int, limits: Limits
) -> dict[str, Any]:
    """Return a student's result for one task: the points, and the outcome of each check. The answer
    is None if the student handed in none.

    folder  the folder of all submissions, to which the path of the answer's file in the result is
            relative
    seed    determines the random inputs of the checks
    limits  on the time and the memory of the answer
    """
    free = passed_by_stub(task)
    if answer is None:
        verdicts = [Verdict(task.name, check, MISSING) for check in task.checks]
    elif answer.problem:
        verdicts = [Verdict(task.name, check, FAILED, answer.problem) for check in task.checks]
    else:
        verdicts = judged(task, answer.source, seed, limits, answer.modules)
    return {
        "task": task.name,
        "chapter": task.chapter,
        "file": None if answer is None else printable(str(answer.path.relative_to(folder))),
        "points": round(task.difficulty * score(verdicts, free), PLACES),
        "out_of": task.difficulty,
        "checks": [
            {
                "check": verdict.check.name,
                "weight": 0 if verdict.check.name in free else verdict.check.weight,
                "outcome": verdict.outcome,
                "message": printable(verdict.message, keep="\n"),
                "hidden": verdict.check.hidden,
            }
            for verdict in verdicts
        ],
    }


@functools.cache
def passed_by_stub(task: Task) -> frozenset[str]:
    """Return the names of the checks that the code for students passes as it is, without a
    solution; they earn no points."""
    names: dict[str, Any] = {"np": np}
    exec(task.code(), names)
    found = task.verdicts(names[task.name])
    return frozenset(verdict.check.name for verdict in found if verdict.outcome == PASSED)


def score(verdicts: Iterable[Verdict], free: Collection[str] = ()) -> float:
    """Return the weight of the checks that passed, as a fraction of the weight of all checks, given
    their verdicts. Checks whose names are in `free` are left out of both; 0 if no other checks
    remain."""
    counted = [verdict for verdict in verdicts if verdict.check.name not in free]
    total = sum(verdict.check.weight for verdict in counted)
    passed = sum(verdict.check.weight for verdict in counted if verdict.outcome == PASSED)
    return passed / total if total else 0.0


def judged(
    task: Task, source: bytes, seed: int, limits: Limits,
    modules: Mapping[str, bytes] | None = None,
) -> list[Verdict]:  # fmt: skip
    """Return the verdict of each check of the task on a source, which runs in its own process.

    seed     determines the random inputs of the checks
    limits   on the time of each check and on the memory of the process
    modules  the sources, by path, of the student's own modules, which the source may import; None
             if there are none

    If the process ends during a check, the check fails, and the next one gets a new process. Once
    the task has used twice the time limit of a check, the remaining checks fail. If the process
    that starts all submissions is killed, the source is judged again; if it is killed a second
    time, all checks fail.
    """
    for _ in range(2):
        with suppress(Killed):
            return _all_judged(task, source, seed, limits, modules)
    return [Verdict(task.name, check, FAILED, _KILLED) for check in task.checks]


def _all_judged(
    task: Task, source: bytes, seed: int, limits: Limits, modules: Mapping[str, bytes] | None
) -> list[Verdict]:
    verdicts = []
    with Submission(source, task.name, limits, modules) as submission:
        for check in task.checks:
            if submission.time_is_up():
                verdict = Verdict(task.name, check, FAILED, "no time was left for this check")
            else:
                verdict = _judged(task, check, submission, seed)
            verdicts.append(verdict)
    return verdicts


def _judged(task: Task, check: Check, submission: Submission, seed: int) -> Verdict:
    try:
        yours = submission.function()
        submission.connection.restores, submission.connection.changed = True, False
        verdict = task.verdict(check, yours, seed)
        if verdict.outcome == PASSED and submission.connection.changed:
            # By changing an array that a function of the check returned to it, it could make a
            # wrong answer look right: check again without the changes. (Its arguments are copies.)
            submission.connection.restores = False
            verdict = task.verdict(check, yours, seed)
        return verdict
    except NotImplementedError:
        return Verdict(task.name, check, TO_DO)
    except ConnectionLost as error:
        return Verdict(task.name, check, FAILED, str(error))
    except Exception as error:  # the file does not run
        return Verdict(task.name, check, FAILED, f"{type(error).__name__}: {text_of(error)}")
