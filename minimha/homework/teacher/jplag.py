"""`minimha homework jplag`: copies submissions into the folders that JPlag compares.

JPlag (https://github.com/jplag/JPlag) finds similar code even if names and the order of functions
were changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..student import student_files
from .chosen import add_only, chosen
from .grading import find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jplag` to the parser."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that you grade")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", default=Path("jplag"),
        help="a new folder (default: jplag)",
    )  # fmt: skip
    add_only(parser)


def write_jplag_folders(options: Any) -> int:
    """Write DIR/submissions/STUDENT/TASK.py, also for answers in notebooks, and DIR/base/TASK.py,
    the code that all students were given. DIR is `options.into`. Returns 0, the exit status of the
    command.

    Raises ValueError if DIR is not empty or --only names no task or chapter, OSError for files that
    cannot be read or written.
    """
    tasks, into = chosen(options.only), options.into
    if into.exists() and any(into.iterdir()):
        raise ValueError(f"{into} is not empty: name a new folder with --into")
    found, _ = find(options.folder, {task.name: task.chapter for task in tasks})
    count = 0
    for student, answers in found.items():
        files = dict[str, bytes]()
        for name, answer in answers.items():
            # An adapters file answers several tasks; a file that cannot be graded has no source.
            if answer.source not in (b"", *files.values()):
                files[f"{name}.py"] = answer.source
            files |= answer.modules
        count += bool(files)
        _write(into / "submissions" / student, files)
    _write(into / "base", {f"{task.name}.py": student_files.stub(task).encode() for task in tasks})
    sys.stdout.write(
        f"{into} contains the work of {count} student{'s' * (count != 1)}. Compare them with\n"
        f"  java -jar jplag.jar -l python3 -bc {into / 'base'} {into / 'submissions'}\n"
    )
    return 0


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
