"""The teacher's file: points to add and comments, in a CSV file.

    student,task,points,comment
    anna,softmax,0.5,"The idea is right, only the sign is wrong."
    ben,,,Come and see me.

Grading only reads it, so it survives every re-grade.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from .reports import PLACES
from .sheets import number, read

COLUMNS = ["student", "task", "points", "comment"]


class Row(NamedTuple):
    """A row of the teacher's file, with points to add and a comment. `task` is "" for a comment on
    no particular task. `place` says for messages where the row is, such as "points.csv, row 3"."""

    place: str
    student: str
    task: str
    points: float
    comment: str


def rows(path: Path) -> list[Row]:
    """Return the rows of the teacher's file.

    Raises OSError if it cannot be read, ValueError if its columns are not COLUMNS or a row cannot
    be used, for example because its points are not a number.
    """
    header, *lines = read(path)[0]
    if [cell.strip() for cell in header] != COLUMNS:
        raise ValueError(f"the columns of {path} must be {', '.join(COLUMNS)}")
    found = []
    for k, cells in enumerate(lines, 2):
        place = f"{path}, row {k}"
        if not any(cells):
            continue
        if any(cells[len(COLUMNS) :]):
            raise ValueError(f"{place} has too many cells: quote a text with a comma in it")
        student, task, points, comment = map(str.strip, [*cells, "", "", ""][: len(COLUMNS)])
        name = unicodedata.normalize("NFC", student)  # as grading writes the names
        found.append(Row(place, name, task, _points(points, place), comment))
        if found[-1].points and not task:
            raise ValueError(f"{place}: name the task to which the points are added")
    return found


def _points(cell: str, place: str) -> float:
    try:
        points = number(cell)
    except ValueError:
        points = math.nan
    if not math.isfinite(points):
        raise ValueError(f"{place}: {cell!r} is not a number")
    return points


def check(found: list[Row], students: Collection[str], tasks: Collection[str]) -> None:
    """Raise ValueError if one of these rows of the teacher's file names a student who is not in
    `students` or a task that is not in `tasks`. The message suggests the most similar name."""
    for row in found:
        for name, names, what in (
            (row.student, students, "student in this folder"),
            (row.task, ["", *tasks], "task being graded"),
        ):
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                advice = f": did you mean {near[0]}?" if near else ""
                raise ValueError(f"{row.place}: no {what} is called {name!r}{advice}")


def adjusted(report: dict[str, Any], found: list[Row]) -> dict[str, Any]:
    """Return the report with the points and comments of these rows of the teacher's file added.

    Each task gets `adjustment`, the points added, and `comment`; each student gets `comments`,
    those on no particular task.
    """
    students = []
    for student in report["students"]:
        theirs = [row for row in found if row.student == student["student"]]
        tasks = [
            _task(task, [row for row in theirs if row.task == task["task"]])
            for task in student["tasks"]
        ]
        points = round(sum(task["points"] for task in tasks), PLACES)
        comments = [row.comment for row in theirs if row.comment and not row.task]
        students.append(student | {"points": points, "tasks": tasks, "comments": comments})
    return report | {"students": students}


def _task(task: dict[str, Any], found: list[Row]) -> dict[str, Any]:
    adjustment = sum(row.points for row in found)
    return task | {
        "points": round(task["points"] + adjustment, PLACES),
        "adjustment": adjustment,
        "comment": "\n".join(row.comment for row in found if row.comment),
    }
