"""The gradebook of a course, a CSV file that Canvas or Moodle exported, with the points filled in.

Canvas  the gradebook: Student, ID, SIS Login ID, …, and "Homework 1 (1234)" for each assignment;
        a row above the students contains the points possible
Moodle  the grader report: First name, Last name, Email address, …, and
        "Assignment: Homework 1 (Real)" for each assignment
Moodle  the grading worksheet of one assignment: Identifier, Full name, …, Grade, Maximum Grade
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from .downloads import person_and_id
from .sheets import Sheet, number, read

_IDS = {"ID", "Identifier"}  # as in the names of downloaded submissions
_LOGINS = ("SIS User ID", "SIS Login ID", "Username", "ID number", "Email address")


class Person(NamedTuple):
    """A student's row: its index, the id, what their files may be called, and the full name."""

    row: int
    id: str
    names: frozenset[str]
    name: str


class Gradebook:
    """The gradebook in a file. The points belong in the column named like the homework, or in the
    only one that there is.

    Raises OSError if the file cannot be read, ValueError if it is none of the three above or has no
    such column.
    """

    def __init__(self, path: Path, homework: str) -> None:
        rows, delimiter = read(path)
        header = [cell.strip() for cell in rows[0]]
        rows = [[*row, *[""] * (len(header) - len(row))] for row in rows]
        self.path, self.sheet, self.header = path, Sheet(rows, delimiter), header
        self.column = self._column(homework)
        found = (self._person(k) for k in range(1, len(rows)))
        self.people = [person for person in found if person]
        self.most = {person.row: self._most(person.row) for person in self.people}

    def _column(self, homework: str) -> int:
        if {"Student", "ID"} <= set(self.header):
            pattern = r"(.+) \(\d+\)"
        elif {"Identifier", "Grade"} <= set(self.header):
            pattern = "(Grade)"
        elif "First name" in self.header:
            pattern = r"Assignment: *(.+?)(?: \(Real\))?"
        else:
            raise ValueError(
                f"{self.path} is not a gradebook that Canvas or Moodle exported in English: its "
                "first row has neither Student and ID, nor Identifier and Grade, nor First name"
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

    def _person(self, k: int) -> Person | None:
        """Whose row this is; None for the rows above the students, which have no id."""
        cells = dict(zip(self.header, map(str.strip, self.sheet.rows[k]), strict=False))
        number = cells.get("ID") or cells.get("Identifier", "")
        first = cells.get("First name", "")
        last = cells.get("Last name") or cells.get("Surname", "")
        full = cells.get("Student") or cells.get("Full name") or f"{first} {last}".strip()
        if not (number if _IDS & set(cells) else full):
            return None
        logins = [cells.get(name, "") for name in _LOGINS]
        names = {full, " ".join(reversed(full.split(", "))), f"{last} {first}", *logins}
        names |= {login.partition("@")[0] for login in logins}
        plain = frozenset(map(_plain, names)) - {""}
        return Person(k, number.removeprefix("Participant "), plain, full or number)

    def filled(self, report: dict[str, Any]) -> str:
        """Write a copy with the points beside the file. Returns lines for the teacher: the scale,
        and the students and rows without a partner."""
        rows = [list(row) for row in self.sheet.rows]
        partners = self.partners([student["student"] for student in report["students"]])
        scales, alone = set(), []
        for student in report["students"]:
            if person := partners.get(student["student"]):
                most = self.most[person.row] or student["out_of"]
                scales.add((student["out_of"], most))
                points = student["points"] * most / student["out_of"]
                rows[person.row][self.column] = f"{points:.2f}"
            else:
                alone.append(f"not in the gradebook: {student['student']}")
        matched = set(partners.values())
        alone += [f"not graded: {x.name}" for x in self.people if x not in matched]
        path = self.path.with_name(f"{self.path.stem}_graded.csv")
        text = Sheet(rows, self.sheet.delimiter).text()
        path.write_text(text, encoding="utf-8", newline="")
        count = f"{len(partners)} student{'s' * (len(partners) != 1)}"
        lines = [f"{path}: {count}, column {self.header[self.column]}"]
        lines += [
            f"  scaled from {own:g} points to {most:g}" for own, most in scales if own != most
        ]
        return "".join(f"{line}\n" for line in [*lines, *(f"  {line}" for line in alone)])

    def _most(self, row: int) -> float:
        """The points that the gradebook allows in a row; 0 if it does not say."""
        above = (x for x in self.sheet.rows if x[0].strip().lower() == "points possible")
        text = next(above, {self.column: ""})[self.column]
        if "Maximum Grade" in self.header:
            text = self.sheet.rows[row][self.header.index("Maximum Grade")]
        try:
            return number(text)
        except ValueError:
            raise ValueError(f"{self.path}: the points possible are {text!r}") from None

    def partners(self, students: Collection[str]) -> dict[str, Person]:
        """Whose row belongs to each student: the person whose id is in the name of the downloaded
        submission, or else the only one with this name, login or e-mail address.

        In Canvas, a name with another id is another person. In another assignment Moodle may give
        the same id to another person, so the name must agree, too, unless names are hidden.
        """
        found, canvas, moodle = {}, "Student" in self.header, "Identifier" in self.header
        for student in students:
            name, number = person_and_id(student)
            called = {_plain(student), _plain(student if canvas else name)}
            named = [x for x in self.people if called & x.names]
            same = [x for x in self.people if number and x.id == number]
            same = [x for x in same if x in named or not (moodle and x.names)] or named
            if len(same) == 1:
                found[student] = same[0]
        times = Counter(found.values())
        return {student: person for student, person in found.items() if times[person] == 1}


def _plain(name: str) -> str:
    """The letters and digits of a name in lower case, which is how Canvas names files."""
    return "".join(c for c in name.casefold() if c.isalnum())
