"""`minimha homework grade`: the scores of submissions, none of which is ever run in here."""

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
from pathlib import Path
from typing import Any

import numpy as np

from . import course, submissions
from .peer import LostError
from .remote import Limits, Submission
from .task import FAILED, PASSED, TO_DO, Check, Task, Verdict

MISSING = "missing"
_PLACES = 4
_NOTES = 20  # of files that are not graded, in the table: somebody may hand in thousands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `grade` is told."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER",
        help="a folder a student, or files called STUDENT_TASK.py",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", metavar="TASK", help="tasks, or numbers of chapters (default: all)"
    )
    for form in ("json", "csv"):
        parser.add_argument(
            f"--{form}", nargs="?", const=f"grades.{form}", metavar="FILE",
            help=f"write {form.upper()} (default: grades.{form}; - for standard output)",
        )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the inputs, to repeat a run (default: a new one)"
    )
    parser.add_argument(
        "--time", type=float, default=Limits().seconds, metavar="SECONDS",
        help=f"that one check may take (default: {Limits().seconds:g})",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=int, default=Limits().megabytes, metavar="MB",
        help=f"that a submission may use (default: {Limits().megabytes})",
    )  # fmt: skip


def run(options: Any) -> int:
    """Grade a folder and write the results. Returns 0 whatever the scores are.

    Raises ValueError for options that cannot be used, and OSError as files do.
    """
    if sys.platform == "win32":
        raise ValueError("grading needs Linux or macOS: on Windows run it in WSL")
    limits = Limits(options.time, options.memory)
    if not (0 < limits.seconds < 1e6 and limits.megabytes > 0):
        raise ValueError("--time and --memory are more than 0")
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if seed < 0:
        raise ValueError(f"--seed {seed} is negative")
    report = grade(options.folder, chosen(options.only), seed, limits)
    for path, text in ((options.json, as_json), (options.csv, as_csv)):
        if path == "-":
            _print(text(report))
        elif path:
            Path(path).write_text(text(report), encoding="utf-8", newline="")
    if "-" not in (options.json, options.csv):
        _print(as_table(report))
    return 0


def _print(text: str) -> None:
    """Print it on a console that may lack the letters of a name."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def chosen(only: Sequence[str] | None) -> list[Task]:
    """The tasks of these names or chapters, in the order of the course.

    Raises ValueError for a name that is neither.
    """
    tasks = list(course().values())
    names = {task.name: {task.name, str(task.chapter), f"{task.chapter:02}"} for task in tasks}
    unknown = set(only or ()) - set().union(*names.values())
    if unknown:
        raise ValueError(f"no task or chapter is called {', '.join(sorted(unknown))}")
    return [task for task in tasks if not only or names[task.name] & set(only)]


def grade(folder: Path, tasks: Sequence[Task], seed: int, limits: Limits) -> dict[str, Any]:
    """The results of all students, as they go into JSON. Tells on standard error how far it is.

    Raises ValueError where there are no submissions, and OSError where there is no folder.
    """
    import minimha

    found, notes = submissions.find(folder, [task.name for task in tasks])
    if not found:
        raise ValueError(f"{folder} holds no submissions: a folder a student, or STUDENT_TASK.py")
    students = []
    for name, files in found.items():
        start = time.monotonic()
        results = [_result(task, files.get(task.name), folder, seed, limits) for task in tasks]
        points, out_of = (
            round(sum(r[key] for r in results), _PLACES) for key in ("points", "out_of")
        )
        shown = plain(name)
        students.append({"student": shown, "points": points, "out_of": out_of, "tasks": results})
        taken = time.monotonic() - start
        sys.stderr.write(f"{shown}: {len(files)} of {len(tasks)} handed in, {taken:.1f} s\n")
    return {
        "minimha": minimha.__version__,
        "seed": seed,
        "students": students,
        "notes": [plain(note) for note in notes],
    }


def _result(
    task: Task, path: Path | None, folder: Path, seed: int, limits: Limits
) -> dict[str, Any]:
    """The result of one student in one task."""
    given = passed_by_stub(task)
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
        "file": None if path is None else plain(str(path.relative_to(folder))),
        "points": round(task.difficulty * score(verdicts, given), _PLACES),
        "out_of": task.difficulty,
        "checks": [
            {
                "check": verdict.check.name,
                "weight": 0 if verdict.check.name in given else verdict.check.weight,
                "outcome": verdict.outcome,
                "message": plain(verdict.message, keep="\n"),
            }
            for verdict in verdicts
        ],
    }


@functools.cache
def passed_by_stub(task: Task) -> frozenset[str]:
    """The checks that pass before anything is written: nobody earns points by these."""
    names: dict[str, Any] = {"np": np}
    exec(task.code(), names)
    found = task.verdicts(names[task.name])
    return frozenset(verdict.check.name for verdict in found if verdict.outcome == PASSED)


def score(verdicts: Iterable[Verdict], given: Collection[str] = ()) -> float:
    """The weight of the checks that passed, as a share of that of all but those given."""
    counted = [verdict for verdict in verdicts if verdict.check.name not in given]
    pairs = [(verdict.check.weight, verdict.outcome == PASSED) for verdict in counted]
    total = sum(weight for weight, _ in pairs)
    return sum(weight for weight, passed in pairs if passed) / total if total else 0.0


def judged(task: Task, source: bytes, seed: int, limits: Limits) -> list[Verdict]:
    """What came of each check of a source, which runs in a process of its own.

    A check that ends the process has failed, and the next gets a new one, as long as the task has
    not taken twice the time of a check.
    """
    start, verdicts = time.monotonic(), []
    with Submission(source, task.name, limits) as submission:
        for check in task.checks:
            if time.monotonic() - start < 2 * limits.seconds:
                verdict = _judged(task, check, submission, seed)
            else:
                verdict = Verdict(task.name, check, FAILED, "no time is left for this check")
            verdicts.append(verdict)
    return verdicts


def _judged(task: Task, check: Check, submission: Submission, seed: int) -> Verdict:
    try:
        yours = submission.function()
        submission.peer.restores, submission.peer.changed = True, False
        verdict = task.verdict(check, yours, seed)
        if verdict.outcome == PASSED and submission.peer.changed:
            # what it was lent, a cotangent perhaps, is not what it was: into what makes a wrong
            # answer look right? (Arguments of the function itself are watched by the task.)
            submission.peer.restores = False
            verdict = task.verdict(check, yours, seed)
    except NotImplementedError:
        return Verdict(task.name, check, TO_DO)
    except LostError as error:
        return Verdict(task.name, check, FAILED, str(error))
    except Exception as error:  # of a file that cannot be run
        return Verdict(task.name, check, FAILED, f"{type(error).__name__}: {error}")
    return verdict


def plain(text: str, keep: str = "") -> str:
    """The text with nothing in it that a terminal takes for an order, and not too long."""
    return "".join(c if c.isprintable() or c in keep else "�" for c in text)[:4000]


def as_json(report: dict[str, Any]) -> str:
    """All there is to tell."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def as_csv(report: dict[str, Any]) -> str:
    """A row a student and task. No cell is one that a spreadsheet takes for a formula.

    Text is quoted, as in some countries a semicolon begins the next cell.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["student", "chapter", "task", "points", "out_of", "not_passed", "file"])
    for student in report["students"]:
        for result in student["tasks"]:
            row = [student["student"], result["chapter"], result["task"]]
            row += [result["points"], result["out_of"], _lacking(result), result["file"] or ""]
            writer.writerow([_harmless(cell) for cell in row])
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    risky = isinstance(cell, str) and cell.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{cell}" if risky else cell


def as_table(report: dict[str, Any]) -> str:
    """A line a student, and below it one for each task that is not complete."""
    width = max(len(student["student"]) for student in report["students"])
    lines = []
    for student in report["students"]:
        points = f"{student['points']:6.2f} of {student['out_of']}"
        lines.append(f"{student['student']:<{width}}  {points}")
        for result in student["tasks"]:
            if lacking := _lacking(result):
                points = f"{result['points']:6.2f} of {result['out_of']}"
                lines.append(f"{'':<{width}}  {points}  {result['task']}  {lacking}")
    notes = report["notes"]
    lines += [f"not graded: {note}" for note in notes[:_NOTES]]
    lines += [f"… and {len(notes) - _NOTES} more, which the JSON has"] * (len(notes) > _NOTES)
    return "\n".join([*lines, f"seed {report['seed']}"]) + "\n"


def _lacking(result: dict[str, Any]) -> str:
    """The checks that did not pass, by outcome: "wrong: gradients · to do: values".

    Where all fail for one reason, such as an import at the top of the file, the reason.
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
