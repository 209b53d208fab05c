"""`minimha homework grade`: the scores of a folder of submissions, and reports on them."""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import secrets
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import course
from ..task import Task
from ..verdicts import FAILED, PASSED, TO_DO, Check, Verdict
from . import submissions
from .connection import ConnectionLost
from .process import Limits, Submission

MISSING = "missing"
_PLACES = 4
_NOTES = 20  # the table lists at most this many files that were not graded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `grade`."""
    seconds, megabytes = Limits()
    for option, settings, text in (
        ("folder", {"type": Path, "metavar": "FOLDER"},
         "one folder per student, or files named STUDENT_TASK.py"),
        ("--only", {"nargs": "+", "metavar": "TASK"},
         "tasks, or numbers of chapters (default: all)"),
        ("--json", {"nargs": "?", "const": "grades.json", "metavar": "FILE"},
         "write JSON (default: grades.json; - for standard output)"),
        ("--csv", {"nargs": "?", "const": "grades.csv", "metavar": "FILE"},
         "write CSV (default: grades.csv; - for standard output)"),
        ("--seed", {"type": int, "metavar": "N"},
         "seed of the random inputs, to repeat a run (default: a new one)"),
        ("--time", {"type": float, "default": seconds, "metavar": "SECONDS"},
         f"time limit of one check (default: {seconds:g})"),
        ("--memory", {"type": int, "default": megabytes, "metavar": "MB"},
         f"memory limit of a submission (default: {megabytes})"),
    ):  # fmt: skip
        parser.add_argument(option, help=text, **settings)


def run(options: Any) -> int:
    """Grade a folder and write the results. Returns 0 for any scores.

    Raises ValueError for unusable options, and OSError for files that cannot be read or written.
    """
    if sys.platform == "win32":
        raise ValueError("grading needs Linux or macOS: on Windows run it in WSL")
    limits = Limits(options.time, options.memory)
    if not (0 < limits.seconds < 1e6 and limits.megabytes > 0):
        raise ValueError("--time and --memory must be positive")
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if seed < 0:
        raise ValueError(f"--seed {seed} is negative")
    report = grade(options.folder, chosen(options.only), seed, limits)
    for path, text in ((options.json, as_json), (options.csv, as_csv)):
        if path == "-":
            sys.stdout.write(text(report))
        elif path:
            Path(path).write_text(text(report), encoding="utf-8", newline="")
    if "-" not in (options.json, options.csv):
        sys.stdout.write(as_table(report))
    return 0


def chosen(only: Sequence[str] | None) -> list[Task]:
    """The tasks with these names or chapters, in the order of the course.

    Raises ValueError for a name that is neither.
    """
    tasks = list(course().values())
    names = {task.name: {task.name, str(task.chapter), f"{task.chapter:02}"} for task in tasks}
    unknown = set(only or ()) - set().union(*names.values())
    if unknown:
        raise ValueError(f"no task or chapter is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or names[task.name] & set(only)]


def grade(folder: Path, tasks: Sequence[Task], seed: int, limits: Limits) -> dict[str, Any]:
    """The results of all students, as written to JSON. Reports progress on standard error.

    Raises ValueError if there are no submissions, OSError if there is no folder.
    """
    found, notes = submissions.find(folder, [task.name for task in tasks])
    if not found:
        raise ValueError(
            f"{folder} contains no submissions: use one folder per student, or STUDENT_TASK.py"
        )
    students = []
    for name, files in found.items():
        start = time.monotonic()
        results = [_result(task, files.get(task.name), folder, seed, limits) for task in tasks]
        points = round(sum(result["points"] for result in results), _PLACES)
        out_of = sum(task.difficulty for task in tasks)
        shown = printable(name)
        students.append({"student": shown, "points": points, "out_of": out_of, "tasks": results})
        taken = time.monotonic() - start
        sys.stderr.write(f"{shown}: {len(files)} of {len(tasks)} handed in, {taken:.1f} s\n")
    return {
        "minimha": version("minimha"),
        "seed": seed,
        "students": students,
        "notes": [printable(note) for note in notes],
    }


def _result(
    task: Task, path: Path | None, folder: Path, seed: int, limits: Limits
) -> dict[str, Any]:
    """The result of one student for one task."""
    free = passed_by_stub(task)
    if path is None:
        verdicts = [Verdict(task.name, check, MISSING) for check in task.checks]
    else:
        try:
            verdicts = judged(task, submissions.source(path), seed, limits)
        except (OSError, ValueError) as error:
            verdicts = [Verdict(task.name, check, FAILED, str(error)) for check in task.checks]
    return {
        "task": task.name,
        "chapter": task.chapter,
        "file": None if path is None else printable(str(path.relative_to(folder))),
        "points": round(task.difficulty * score(verdicts, free), _PLACES),
        "out_of": task.difficulty,
        "checks": [
            {
                "check": verdict.check.name,
                "weight": 0 if verdict.check.name in free else verdict.check.weight,
                "outcome": verdict.outcome,
                "message": printable(verdict.message, keep="\n"),
            }
            for verdict in verdicts
        ],
    }


@functools.cache
def passed_by_stub(task: Task) -> frozenset[str]:
    """The checks that the unchanged stub passes; they earn no points."""
    names: dict[str, Any] = {"np": np}
    exec(task.code(), names)
    found = task.verdicts(names[task.name])
    return frozenset(verdict.check.name for verdict in found if verdict.outcome == PASSED)


def score(verdicts: Iterable[Verdict], free: Collection[str] = ()) -> float:
    """The share of the weight that passed, not counting the checks in `free`."""
    counted = [verdict for verdict in verdicts if verdict.check.name not in free]
    total = sum(verdict.check.weight for verdict in counted)
    passed = sum(verdict.check.weight for verdict in counted if verdict.outcome == PASSED)
    return passed / total if total else 0.0


def judged(task: Task, source: bytes, seed: int, limits: Limits) -> list[Verdict]:
    """The verdict of each check on a source, which runs in its own process.

    A check that ends the process fails, and the next check gets a new process, until the task has
    used twice the time limit of a check.
    """
    start, verdicts = time.monotonic(), []
    with Submission(source, task.name, limits) as submission:
        for check in task.checks:
            if time.monotonic() - start < 2 * limits.seconds:
                verdict = _judged(task, check, submission, seed)
            else:
                verdict = Verdict(task.name, check, FAILED, "no time was left for this check")
            verdicts.append(verdict)
    return verdicts


def _judged(task: Task, check: Check, submission: Submission, seed: int) -> Verdict:
    try:
        yours = submission.function()
        submission.connection.restores, submission.connection.changed = True, False
        verdict = task.verdict(check, yours, seed)
        if verdict.outcome == PASSED and submission.connection.changed:
            # By changing a lent array, perhaps a cotangent, it could make a wrong answer
            # look right: check again without the changes. (The task watches the arguments itself.)
            submission.connection.restores = False
            verdict = task.verdict(check, yours, seed)
        return verdict
    except NotImplementedError:
        return Verdict(task.name, check, TO_DO)
    except ConnectionLost as error:
        return Verdict(task.name, check, FAILED, str(error))
    except Exception as error:  # the file does not run
        return Verdict(task.name, check, FAILED, f"{type(error).__name__}: {error}")


def printable(text: str, keep: str = "") -> str:
    """The text without control characters, cut at 4000 characters."""
    return "".join(c if c.isprintable() or c in keep else "�" for c in text)[:4000]


def as_json(report: dict[str, Any]) -> str:
    """The whole report."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def as_csv(report: dict[str, Any]) -> str:
    """One row for each student and task. Spreadsheets cannot mistake a cell for a formula.

    Text is quoted, because in some countries a semicolon separates cells.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["student", "chapter", "task", "points", "out_of", "not_passed", "file"])
    for student in report["students"]:
        for result in student["tasks"]:
            row = [student["student"], result["chapter"], result["task"]]
            row += [result["points"], result["out_of"], _not_passed(result), result["file"] or ""]
            risky = (str(cell).lstrip().startswith(("=", "+", "-", "@")) for cell in row)
            writer.writerow(f"'{x}" if bad else x for x, bad in zip(row, risky, strict=True))
    return text.getvalue()


def as_table(report: dict[str, Any]) -> str:
    """One line for each student, and below it one for each incomplete task."""
    width = max(len(student["student"]) for student in report["students"])
    lines = []
    for student in report["students"]:
        points = f"{student['points']:6.2f} of {student['out_of']}"
        lines.append(f"{student['student']:<{width}}  {points}")
        for result in student["tasks"]:
            if lacking := _not_passed(result):
                points = f"{result['points']:6.2f} of {result['out_of']}"
                lines.append(f"{'':<{width}}  {points}  {result['task']}  {lacking}")
    notes = report["notes"]
    lines += [f"not graded: {note}" for note in notes[:_NOTES]]
    lines += [f"… and {len(notes) - _NOTES} more, listed in the JSON"] * (len(notes) > _NOTES)
    return "\n".join([*lines, f"seed {report['seed']}"]) + "\n"


def _not_passed(result: dict[str, Any]) -> str:
    """The checks that did not pass, by outcome: "wrong: gradients · to do: values".

    If all fail for the same reason, such as an import at the top of the file, it is that reason.
    """
    reasons = {check["message"] for check in result["checks"]}
    if len(reasons) == 1 < len(result["checks"]) and (reason := reasons.pop()):
        return f"{FAILED}: all, {reason.splitlines()[0][:120]}"
    by_outcome: dict[str, list[str]] = {}
    for check in result["checks"]:
        by_outcome.setdefault(check["outcome"], []).append(check["check"])
    by_outcome.pop(PASSED, None)
    if MISSING in by_outcome:
        return MISSING
    return " · ".join(f"{outcome}: {', '.join(names)}" for outcome, names in by_outcome.items())
