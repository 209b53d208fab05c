"""The teacher's file: points to add, comments, and late days, in a CSV file.

    homework,student,task,points,late_days,comment
    monday,anna,softmax,0.5,,"The idea is right, only the sign is wrong."
    monday,ben,,,2,

Grading only reads it, so it survives every re-grade. One file serves the whole course: `homework`
is the name of the graded folder, and the late days of all rows count against the same budget.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from ..catalogue import task_named
from .downloads import person_and_id
from .reports import PLACES
from .sheets import number, read

COLUMNS = "homework", "student", "task", "points", "late_days", "comment"


class Row(NamedTuple):
    """A row, and where it is, for messages."""

    place: str
    homework: str
    student: str
    task: str
    points: float
    late_days: int
    comment: str


def rows(path: Path) -> list[Row]:
    """The rows of the teacher's file.

    Raises OSError if it cannot be read, ValueError for a missing column or an unusable number.
    """
    sheet = read(path)
    header = [cell.strip() for cell in sheet.rows[0]]
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(f"{path} has no column {missing[0]}: it needs {', '.join(COLUMNS)}")
    found = []
    for k, cells in enumerate(sheet.rows[1:], 2):
        place, filled = f"{path}, row {k}", dict(zip(header, map(str.strip, cells), strict=False))
        if any(cells[len(header) :]):
            raise ValueError(f"{place} has too many cells: quote a text with a comma in it")
        homework, student, task, points, late_days, comment = (
            filled.get(name, "") for name in COLUMNS
        )
        added, days = _number(points, place), _days(late_days, place)
        if added and not task:
            raise ValueError(f"{place}: name the task to which the points are added")
        if student and not homework:
            raise ValueError(f"{place}: name the homework")
        found.append(Row(place, homework, student, task, added, days, comment))
    return found


def _number(text: str, place: str) -> float:
    try:
        value = number(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: {text!r} is not a number")
    return value


def _days(text: str, place: str) -> int:
    days = _number(text, place)
    if days < 0 or days != int(days):
        raise ValueError(f"{place}: late_days must be 0, 1, 2, …, not {text}")
    return int(days)


def check(
    found: list[Row], homework: str, students: Collection[str], tasks: Collection[str]
) -> None:
    """Raise ValueError, with the nearest name, if a row of this homework names a student who is not
    in its folder or a task that is not graded, or if there is no such task."""
    names = _names(students)
    for row in found:
        here = row.homework == homework
        if here and _name(row.student, names) not in names.values():
            near = difflib.get_close_matches(row.student, names.values(), 1)
            advice = f": did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"{row.place}: no student in {homework} is called {row.student!r}{advice}"
            )
        if row.task:
            try:
                task_named(row.task)
            except ValueError as error:
                raise ValueError(f"{row.place}: {error}") from None
            if here and row.task not in tasks:
                raise ValueError(f"{row.place}: {row.task} is not one of the tasks being graded")


def _names(students: Collection[str]) -> dict[str, str]:
    """What each student is called in the file: without Moodle's id, which changes with each
    assignment, if no other student has the same name."""
    times = Counter(map(_without_id, students))
    return {x: _without_id(x) if times[_without_id(x)] == 1 else x for x in students}


def _name(written: str, names: dict[str, str]) -> str:
    short = _without_id(written)
    return short if short in names.values() else written


def _without_id(student: str) -> str:
    return person_and_id(student)[0] if student.endswith(")") else student


def adjusted(
    report: dict[str, Any], found: list[Row], late_days: int, percent: float
) -> dict[str, Any]:
    """The report with the points, comments and late days of these rows.

    late_days  each student's budget for the whole course
    percent    of the points of a homework that each further day costs

    Adds to each task `adjustment`, the points added, and `comment`; to each student `late_days`,
    `penalty`, the points subtracted for them, and `comments` on no particular task.
    """
    names = _names([student["student"] for student in report["students"]])
    students = []
    for student in report["students"]:
        name = names[student["student"]]
        theirs = [row for row in found if _name(row.student, names) == name]
        here = [row for row in theirs if row.homework == report["homework"]]
        tasks = [
            _task(task, [x for x in here if x.task == task["task"]]) for task in student["tasks"]
        ]
        points = sum(task["points"] for task in tasks)
        beyond = _beyond(theirs, report["homework"], late_days)
        penalty = round(max(points, 0) * min(beyond * percent / 100, 1), PLACES)
        students.append({
            **student,
            "points": round(points - penalty, PLACES),
            "tasks": tasks,
            "late_days": sum(row.late_days for row in here),
            "penalty": penalty,
            "comments": [row.comment for row in here if row.comment and not row.task],
        })  # fmt: skip
    return report | {"students": students}


def _task(task: dict[str, Any], found: list[Row]) -> dict[str, Any]:
    adjustment = sum(row.points for row in found)
    return task | {
        "points": round(task["points"] + adjustment, PLACES),
        "adjustment": adjustment,
        "comment": "\n".join(row.comment for row in found if row.comment),
    }


def _beyond(theirs: list[Row], homework: str, budget: int) -> int:
    """How many late days of this homework the budget does not cover; earlier rows use it first."""
    beyond = 0
    for row in theirs:
        covered = min(row.late_days, budget)
        budget -= covered
        if row.homework == homework:
            beyond += row.late_days - covered
    return beyond
