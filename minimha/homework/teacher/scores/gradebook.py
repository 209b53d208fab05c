"""Fills the points into a gradebook, a CSV file that Canvas or Moodle exported.

Canvas  the gradebook: Student, ID, SIS Login ID, …, and "Homework 1 (1234)" for each assignment;
        a row above the students contains the points possible
Moodle  the grading worksheet of an assignment: Identifier, Full name, …, Grade, Maximum Grade
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import sheets

_LOGINS = "SIS User ID", "SIS Login ID", "Email address"


class Gradebook:
    """A gradebook, read from a file. The points belong in the column with the name `homework`, that
    of the graded folder, or in the only column for points if there is just one.

    Raises OSError if the file cannot be read, ValueError if neither Canvas nor Moodle made it or if
    it has no such column.
    """

    def __init__(self, path: Path, homework: str) -> None:
        self.path, (rows, self.delimiter) = path, sheets.read(path)
        self.header = header = [cell.strip() for cell in rows[0]]
        self.rows = [[*row, *[""] * (len(header) - len(row))] for row in rows]
        self.column = self._column(homework)
        cells = {k: dict(zip(header, row, strict=False)) for k, row in enumerate(self.rows)}
        self.names = {k: names for k in cells if k and (names := _names(cells[k]))}
        self.most = {k: self._points_possible(cells[k]) for k in self.names}

    def _column(self, homework: str) -> int:
        if {"Student", "ID"} <= set(self.header):
            pattern = r"(.+) \(\d+\)"
        elif {"Identifier", "Grade"} <= set(self.header):
            pattern = "(Grade)"
        else:
            raise ValueError(
                f"{self.path} is neither Canvas's gradebook nor Moodle's grading worksheet in "
                "English: its first row has neither Student and ID, nor Identifier and Grade"
            )
        columns = {}
        for k, cell in enumerate(self.header):
            if found := re.fullmatch(pattern, cell):
                columns[k] = found[1]
        named = [k for k, name in columns.items() if _plain(name) == _plain(homework)]
        clear = named or list(columns)
        if len(clear) != 1:
            names = ", ".join(columns.values()) or "none"
            raise ValueError(
                f"{self.path} has no column {homework}, only {names}: rename the folder of the "
                "submissions to the name of the assignment"
            )
        return clear[0]

    def _points_possible(self, cells: dict[str, str]) -> float:
        """Return the greatest number of points that a student can get, given the cells of the
        student's row by the name of the column; 0 if the gradebook does not say."""
        above = (row for row in self.rows if row[0].strip().lower() == "points possible")
        text = next(above, {self.column: ""})[self.column]
        text = cells.get("Maximum Grade", text)
        try:
            return sheets.number(text)
        except ValueError:
            raise ValueError(f"{self.path}: the points possible are {text!r}") from None

    def filled(self, report: dict[str, Any]) -> str:
        """Write a copy of the gradebook with the points from the report filled in, beside the
        original: grades_graded.csv for grades.csv. Returns lines for the teacher: how points were
        scaled, which students have no row, and which rows belong to no student."""
        rows = [list(row) for row in self.rows]
        partners = self._partners(student["student"] for student in report["students"])
        scales, alone = set(), []
        for student in report["students"]:
            if k := partners.get(student["student"]):
                most = self.most[k] or student["out_of"]
                scales.add((student["out_of"], most))
                rows[k][self.column] = f"{student['points'] * most / student['out_of']:.2f}"
            else:
                alone.append(f"not in the gradebook: {student['student']}")
        others = (rows[k] for k in self.names if k not in partners.values())
        alone += [f"not graded: {' '.join(row[:2])}" for row in others]  # name and id
        path = self.path.with_name(f"{self.path.stem}_graded.csv")
        path.write_text(sheets.text(rows, self.delimiter), encoding="utf-8", newline="")
        count = f"{len(partners)} student{'s' * (len(partners) != 1)}"
        scaled = [f"scaled from {own:g} points to {most:g}" for own, most in scales if own != most]
        lines = [f"{path}: {count}, column {self.header[self.column]}"]
        return "".join(f"{line}\n" for line in [*lines, *(f"  {x}" for x in [*scaled, *alone])])

    def _partners(self, students: Iterable[str]) -> dict[str, int]:
        """Return the number of the row for each student, by name. A student is left out whose name
        fits no row or several rows, or the same single row as another student's name."""
        found = {}
        for student in students:
            rows = [k for k, names in self.names.items() if _plain(student) in names]
            if len(rows) == 1:
                found[student] = rows[0]
        times = Counter(found.values())
        return {student: k for student, k in found.items() if times[k] == 1}


def _names(cells: dict[str, str]) -> set[str]:
    """Return the names by which the student in a row may be known, in the form that `_plain` gives
    them: name, login or e-mail address, or name and id together, as in the names of downloads.
    Empty for a row without an id, such as Canvas's row with the points possible. The cells are
    given by the name of the column."""
    number = cells.get("ID") or cells.get("Identifier", "").removeprefix("Participant ")
    full = cells.get("Student") or cells.get("Full name") or "Participant"  # if names are hidden
    if not number.strip():
        return set()
    logins = [cells.get(name, "") for name in _LOGINS]
    accounts = [login.partition("@")[0] for login in logins]
    names = [full, full + number, " ".join(reversed(full.split(", "))), *logins, *accounts]
    return set(map(_plain, names)) - {""}


def _plain(name: str) -> str:
    """Return the letters and digits of a name in lower case, which is how Canvas names files."""
    composed = unicodedata.normalize("NFC", name)  # an accent alone is not a letter
    return "".join(c for c in composed.casefold() if c.isalnum())
