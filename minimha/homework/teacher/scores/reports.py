"""Writes the report as JSON, as CSV, in Gradescope's format, and as the table that is printed."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ...checks.verdicts import FAILED, MISSING, PASSED

PLACES = 4
"""The number of decimal places to which points are rounded."""
_NOTES = 20  # the table lists at most this many notes


def printable(text: str, keep: str = "") -> str:
    """Return the text with escapes such as \\x1b in place of control characters, cut at 4000
    characters. The characters in `keep` stay as they are."""
    shown = (c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
    return "".join(shown)[:4000]


def as_json(report: dict[str, Any]) -> str:
    """Return the whole report as JSON."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def as_csv(report: dict[str, Any]) -> str:
    """Return a table as CSV, with one row for each student and task. Spreadsheets cannot mistake a
    cell for a formula.

    Text is quoted, so that it may contain a comma or, where spreadsheets separate cells by
    semicolons, a semicolon.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["student", "chapter", "task", "points", "out_of", "not_passed", "file"])
    for student in report["students"]:
        for task in student["tasks"]:
            facts = [task[key] for key in ("chapter", "task", "points", "out_of")]
            row = [student["student"], *facts, _not_passed(task), task["file"] or ""]
            writer.writerow(f"'{cell}" if _is_formula(cell) else cell for cell in row)
    return text.getvalue()


def _is_formula(cell: Any) -> bool:
    """Whether a spreadsheet would take a cell for a formula."""
    return isinstance(cell, str) and cell.lstrip().startswith(("=", "+", "-", "@"))


def as_gradescope(report: dict[str, Any]) -> str:
    """Return the report on one student in the format that Gradescope reads from an autograder.
    Gradescope shows the hidden checks when grades are published:
    https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
    (student,) = report["students"]
    tests = [
        {
            "name": f"{task['task']}: {check['check']}",
            "status": "passed" if check["outcome"] == PASSED else "failed",
            "score": points,
            "max_score": out_of,
            "output": check["message"] or check["outcome"],
            "output_format": "text",
            "visibility": "after_published" if check["hidden"] else "visible",
        }
        for task in student["tasks"]
        for check, (points, out_of) in zip(task["checks"], check_points(task), strict=True)
    ]
    output = "\n".join([*remarks(student), *report["notes"], f"seed {report['seed']}"])
    results = {"score": student["points"], "output": output, "output_format": "text"}
    return json.dumps(results | {"tests": tests}, indent=1, ensure_ascii=False) + "\n"


def as_table(report: dict[str, Any]) -> str:
    """Return a table as text: one line for each student, and below it one line for each task whose
    checks did not all pass, and the teacher's remarks. Notes and the seed follow at the end."""
    width = max(len(student["student"]) for student in report["students"])
    lines = []
    for student in report["students"]:
        points = f"{student['points']:6.2f} of {student['out_of']}"
        lines.append(f"{student['student']:<{width}}  {points}")
        for result in student["tasks"]:
            if lacking := _not_passed(result):
                points = f"{result['points']:6.2f} of {result['out_of']}"
                lines.append(f"{'':<{width}}  {points}  {result['task']}  {lacking}")
        lines += [f"{'':<{width}}      {remark}" for remark in remarks(student)]
    notes = report["notes"]
    lines += [f"note: {note}" for note in notes[:_NOTES]]
    lines += [f"… and {len(notes) - _NOTES} more, listed in the JSON"] * (len(notes) > _NOTES)
    return "\n".join([*lines, f"seed {report['seed']}"]) + "\n"


def remarks(student: dict[str, Any]) -> list[str]:
    """Return what the teacher's file says about a student of the report, one line for each
    adjustment of points and each comment."""
    lines = []
    for task in student["tasks"]:
        if task.get("adjustment"):
            lines.append(f"{task['task']}: {task['adjustment']:+g} points from the teacher")
        if task.get("comment"):
            lines.append(f"{task['task']}: {task['comment']}")
    return [*lines, *student.get("comments", [])]


def check_points(task: dict[str, Any]) -> list[tuple[float, float]]:
    """Return two numbers for each check of a task of the report: the points earned, and the points
    that could be earned."""
    total = sum(check["weight"] for check in task["checks"])
    shares = [task["out_of"] * check["weight"] / (total or 1) for check in task["checks"]]
    return [
        (round(share, PLACES) if check["outcome"] == PASSED else 0, round(share, PLACES))
        for share, check in zip(shares, task["checks"], strict=True)
    ]


def _not_passed(result: dict[str, Any]) -> str:
    """Return the names of the checks that did not pass, by outcome: "wrong: gradients · to do:
    values"; "" if all passed. If all fail for the same reason, such as an import at the top of the
    file, return the reason; if no answer was handed in, "missing"."""
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
