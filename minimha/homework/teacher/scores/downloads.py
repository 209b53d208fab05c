"""The names that Canvas and Moodle give to the files and folders of a download."""

from __future__ import annotations

import re

_SENT = re.compile(
    r"(?P<name>[^_].*?)(?:_LATE)?_(?P<id>\d+)_"
    r"(?:(?P<moodle>assignsubmission_[a-z]+(_.*)?)|(?P<file>\d+)_.+)"
)  # the first id counts, because students choose what follows


def student_of(name: str) -> str | None:
    """Return the name of the student who handed in this file or folder; None if neither Canvas nor
    Moodle made its name.

    smithjane_LATE_1234_5678_softmax.py                 Canvas: user id, file id
    Jane Smith_1234_assignsubmission_file_              Moodle, with one folder per student
    Jane Smith_1234_assignsubmission_file_softmax.py    Moodle, without folders

    Such a student is called smithjane_1234 or "Jane Smith (1234)".
    """
    found = _SENT.fullmatch(name)
    if not found:
        return None
    return ("{name} ({id})" if found["moodle"] else "{name}_{id}").format(**found.groupdict())


def reply_to(name: str) -> str:
    """Return a name, without an ending, for a file with feedback. When the file is uploaded, Canvas
    or Moodle gives it to the student who handed in the file or folder with this `name`.

    Canvas looks in a file's name for the ids of the user and of a file that the user handed in.
    Moodle looks for an id after the first underscore, such as 1234 in Jane
    Smith_1234_assignsubmission_file_feedback.

    Raises ValueError if neither Canvas nor Moodle made `name`.
    """
    found = _SENT.fullmatch(name)
    if not found:
        raise ValueError(f"neither Canvas nor Moodle made the name {name}")
    who, number = found["name"].replace("_", " "), found["id"]
    if found["moodle"]:
        return f"{who}_{number}_assignsubmission_file_feedback"
    return f"{who}_{number}_{found['file']}_feedback"
