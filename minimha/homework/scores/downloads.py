"""The names that Canvas and Moodle give to the submissions that a teacher downloads."""

from __future__ import annotations

import re
from typing import NamedTuple

_SENT = re.compile(
    r"(?P<name>[^_].*?)(?P<late>_LATE)?_(?P<id>\d+)_"
    r"(?:(?P<moodle>assignsubmission_[a-z]+(_.*)?)|\d+_.+)"
)  # the first id counts, because students choose what follows


class Sender(NamedTuple):
    """Who handed a file in.

    student  smithjane_1234 for Canvas, whose ids last; "Jane Smith (1234)" for Moodle, which
             gives each person a new id in each assignment
    late     whether Canvas says that the file was handed in late
    """

    student: str
    late: bool


def student_of(name: str) -> Sender | None:
    """Who handed in the file or folder with this name; None if neither Canvas nor Moodle made it.

    smithjane_LATE_1234_5678_softmax.py                 Canvas: user id, file id
    Jane Smith_1234_assignsubmission_file_              Moodle, with one folder per student
    Jane Smith_1234_assignsubmission_file_softmax.py    Moodle, without folders
    """
    found = _SENT.fullmatch(name)
    if not found:
        return None
    student = "{name} ({id})" if found["moodle"] else "{name}_{id}"
    return Sender(student.format(**found.groupdict()), late=bool(found["late"]))


def person_and_id(student: str) -> tuple[str, str]:
    """The name and the id of a student called by `student_of`; the id is "" for other names."""
    found = re.fullmatch(r"(.+) \((\d+)\)", student) or re.fullmatch(r"(.+)_(\d+)", student)
    return (found[1], found[2]) if found else (student, "")
