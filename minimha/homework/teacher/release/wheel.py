"""Packs editions of minimha, with or without solutions, as wheels:
https://packaging.python.org/specifications/binary-distribution-format/"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import minimha_autograd

from ....course import notebooks
from ...checks import replay
from ...checks.calls import Call, calls_recorded
from ...checks.solutions import stubbed
from ...checks.task import Task, source_of
from ...student import student_files
from ...student.answers import mark
from ...tasks.catalogue import course
from .public import public

_PACKAGES = [Path(__file__).parents[3], Path(minimha_autograd.__file__ or "").parent]
_TASKS = Path("minimha") / "homework" / "tasks"


def for_students(folder: Path, own: Path | None, *, last: int, hidden: bool) -> Path:
    """Write the students' edition of minimha, a wheel, into a folder and return the path of the
    wheel. It contains no solutions, and only the chapters and tasks up to chapter `last`.

    own     a file with tasks of the teacher's own, which become part of the course, whatever their
            chapters are; None if there is none
    last    the number of the last chapter
    hidden  True to leave out the hidden checks, which teachers keep for grading
    """
    files = dict(_library())
    for path in notebooks():
        if _chapter(path.name) <= last:
            files[f"minimha/notebooks/{path.name}"] = notebook(path).encode()
    for name, text in _tasks(own):
        if _chapter(name) <= last and not name.endswith("_mistakes.py"):
            files[(_TASKS / name).as_posix()] = public(text, hidden=hidden).encode()
    tasks = [x for x in course().values() if _chapter(x.__module__.rpartition(".")[2]) <= last]
    results = replay.packed(_results(tasks, hidden=hidden))
    files[(_TASKS / replay.FILE.name).as_posix()] = results
    return _written(folder, f"students.{last}", files)


def for_grading(folder: Path, own: Path | None) -> Path:
    """Write the edition of minimha for an autograder, a wheel, into a folder, and return the path
    of the wheel. It contains everything, including the solutions: they compute the right results
    for new random inputs in each run.

    own  a file with tasks of the teacher's own, which become part of the course; None if there is
         none
    """
    files = dict(_library())
    files |= {f"minimha/notebooks/{path.name}": path.read_bytes() for path in notebooks()}
    files |= {(_TASKS / name).as_posix(): text.encode() for name, text in _tasks(own)}
    return _written(folder, "grading", files)


def _chapter(name: str) -> int:
    """Return the number of the chapter to which a file or module of the course belongs; 0 if it
    belongs to none."""
    found = re.match(r"(?:ch)?(\d\d)_", name)
    return int(found[1]) if found else 0


def _library() -> Iterator[tuple[str, bytes]]:
    """Yield the path in a wheel and the contents of each file that every edition has: the modules
    of the command and of the pytest plugin, and all files of minimha and minimha_autograd except
    notebooks and tasks."""
    for package in _PACKAGES:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            skipped = "__pycache__" in path.parts or "notebooks" in inside.parts[:2]
            if path.is_file() and not skipped and inside.parent != _TASKS:
                yield inside.as_posix(), path.read_bytes()
    for name in ("minimha_command.py", "minimha_pytest.py"):
        yield name, (_PACKAGES[1].parent / name).read_bytes()


def _tasks(own: Path | None) -> Iterator[tuple[str, str]]:
    """Yield a name and the text for each file with tasks: the files of the course under their own
    names, and under the name own.py the file `own`, whatever it is called on disk. None means that
    the teacher has no tasks of their own."""
    for path in sorted((_PACKAGES[0].parent / _TASKS).glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")
    if own:
        yield "own.py", own.read_text(encoding="utf-8")


def _written(folder: Path, label: str, files: dict[str, bytes]) -> Path:
    """Write a wheel into a folder, and return its path. Its version is minimha's with the label,
    such as 1.0+students.5. `files` has the contents of its files, by their paths in the wheel; the
    files that describe a wheel are added to this dictionary."""
    distribution = importlib.metadata.distribution("minimha")
    version = f"{distribution.version}+{label}"
    about = f"minimha-{version}.dist-info"
    metadata = distribution.read_text("METADATA") or ""
    files |= {
        f"{about}/METADATA": metadata.replace(
            f"\nVersion: {distribution.version}\n", f"\nVersion: {version}\n", 1
        ).encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: minimha\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{about}/entry_points.txt": (distribution.read_text("entry_points.txt") or "").encode(),
    }
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    path = folder / f"minimha-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # without a date: the same each time
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _results(tasks: list[Task], *, hidden: bool) -> replay.Results:
    """Run the checks of these tasks, without the hidden ones if `hidden` is true, and return what
    the solutions returned: for each task, each of its checks and each function that the check
    called, a list with the result of each call."""
    found: replay.Results = {}
    for task in tasks:
        for check in task.checks:
            if hidden and check.hidden:
                continue
            calls: dict[str, list[Call]] = {other.name: [] for other in tasks}
            inside: list[Call] = []
            for other in tasks:
                other.answer = calls_recorded(other.solution, calls[other.name], inside=inside)
            try:
                check.holds(task.solution, task.rng(check))
            finally:
                for other in tasks:
                    other.answer = other.solution
            made = {name: list(map(replay.stored, some)) for name, some in calls.items() if some}
            found.setdefault(task.name, {})[check.name] = made
    return found


def code(task: Task) -> str:
    """Return the code that students get for a task in a release: the given functions, and the
    function to write. If a given function is itself a task, its solution is left out, too."""
    return "\n\n".join(stubbed(source_of(f)) for f in [*task.given, task.solution])


def notebook(path: Path) -> str:
    """Return the text of a chapter's notebook in which the cell of each task contains the code that
    students get in a release."""
    text = json.loads(path.read_text(encoding="utf-8"))
    for cell in text["cells"]:
        name = mark("".join(cell["source"])) if cell["cell_type"] == "code" else None
        if name in course():
            cell["source"] = student_files.cell(name, code(course()[name]))
    return json.dumps(text, indent=1, ensure_ascii=False) + "\n"
