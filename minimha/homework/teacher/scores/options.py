"""The options of `grade` that choose which reports are written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from . import feedback, teacher
from .downloads import reply_to, student_of
from .gradebook import Gradebook
from .overview import as_overview
from .reports import as_csv, as_gradescope, as_json, as_table, printable

_FORMATS = {
    "json": as_json, "csv": as_csv, "gradescope": as_gradescope, "overview": as_overview,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add to the parser the options that `Reports` reads."""
    for option, settings, text in (
        ("--json", {"nargs": "?", "const": "grades.json", "metavar": "FILE"},
         "write JSON (default: grades.json; - for standard output)"),
        ("--csv", {"nargs": "?", "const": "grades.csv", "metavar": "FILE"},
         "write CSV (default: grades.csv; - for standard output)"),
        ("--gradescope", {"nargs": "?", "const": "results.json", "metavar": "FILE"},
         "write the results of one student for Gradescope (default: results.json)"),
        ("--gradebook", {"type": Path, "metavar": "FILE"},
         "a CSV file exported by Canvas or Moodle: write a copy with the points filled in"),
        ("--feedback", {"nargs": "?", "type": Path, "const": "feedback", "metavar": "DIR"},
         "write an HTML page for each student (default: into feedback)"),
        ("--class", {"dest": "overview", "nargs": "?", "const": "class.html", "metavar": "FILE"},
         "write an HTML page about the class: points, checks, where students got stuck "
         "(default: class.html)"),
        ("--teacher", {"type": Path, "metavar": "FILE"},
         "a CSV file with points to add and comments"),
    ):  # fmt: skip
        parser.add_argument(option, help=text, **settings)


class Reports:
    """The reports for which the options of `grade` ask, such as --csv. The gradebook and the
    teacher's file with points and comments are read when this object is made, so that errors in
    them are found before any submission is graded.

    Raises ValueError for unusable options or files, OSError for files that cannot be read and
    folders that do not exist.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.paths = {name: path for name in _FORMATS if (path := getattr(options, name))}
        for folder in [Path(path).parent for path in self.paths.values()]:
            if not folder.is_dir():
                raise FileNotFoundError(f"{folder} does not exist")
        path, homework = options.gradebook, options.folder.resolve().name
        self.gradebook = Gradebook(path, homework) if path else None
        self.rows = teacher.rows(options.teacher) if options.teacher else []

    def expect(self, students: Collection[str], tasks: Collection[str]) -> None:
        """Raise ValueError if any of the reports cannot be written for these students and tasks:
        because the teacher's file names a student or a task that is not among them, or because a
        report for Gradescope, which is about one student, is wanted for none or for several."""
        teacher.check(self.rows, students, tasks)
        if self.options.gradescope and len(students) != 1:
            raise ValueError("--gradescope is for one student: add --student NAME")

    def write(self, report: dict[str, Any]) -> None:
        """Write the report in each form for which the options ask, and print it as a table. The
        table is left out if one of the forms goes to standard output. Raises OSError if a file
        cannot be written."""
        if self.options.teacher:
            report = teacher.adjusted(report, self.rows)
        for name, path in self.paths.items():
            if path == "-":
                sys.stdout.write(_FORMATS[name](report))
            else:
                encoding = "utf-8-sig" if name == "csv" else "utf-8"  # the mark is for Excel
                Path(path).write_text(_FORMATS[name](report), encoding=encoding, newline="")
        if self.options.feedback:
            sent = sorted(filter(student_of, os.listdir(self.options.folder)), reverse=True)
            replies = {printable(student_of(name) or ""): reply_to(name) for name in sent}
            feedback.write(report, self.options.feedback, replies)
        lines = self.gradebook.filled(report) if self.gradebook else ""
        if "-" in self.paths.values():
            sys.stderr.write(lines)
        else:
            sys.stdout.write(as_table(report) + lines)
