"""Assigns the files of a folder to students and tasks.

Each folder inside it belongs to a student, with files at any depth. A file directly inside it
belongs to the student named before the task, anna_softmax.py, or after it. The task is named in the
file's first lines, `# minimha homework: softmax`, or by the end of the file's name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..workbook import MARK, decoded

MOST = 1 << 20
"""The largest file that is read, in bytes."""
DEEPEST = 20
"""How deep folders are searched."""

_AFTER = re.compile(r"[ _.-]*\(?\d*\)?$")  # "softmax (1)", "softmax-2": suffixes that browsers add

Found = dict[str, dict[str, Path]]


def find(folder: Path, tasks: Iterable[str]) -> tuple[Found, list[str]]:
    """The file of each task by student, and notes on the files that were left out.

    If there are two files for one task, the less deeply nested one counts, or the last by name.
    Links are not followed; names that begin with a dot or two underscores are skipped.
    """
    tasks, found, notes = list(tasks), Found(), list[str]()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not _hidden(entry.name):
            found[entry.name] = {}
    files = sorted(_files(folder, notes), key=lambda path: (-len(path.parts), path.stem))
    for path in files:  # the file that counts comes last
        name = task_of(path, tasks)
        inside = path.relative_to(folder)
        if name is None:
            notes.append(f"{inside}: not one of the tasks being graded")
            continue
        if len(inside.parts) > 1:
            student = inside.parts[0]
        else:
            before, named, after = path.stem.rpartition(name)  # anna_softmax, softmax_anna
            student = before or (_AFTER.sub("", after) if named else path.stem)
            student = student.strip(" _.-") or folder.resolve().name
        theirs = found.setdefault(student, {})
        if name in theirs:
            old = theirs[name].relative_to(folder)
            notes.append(f"{old}: not graded, because {inside} is also homework for {name}")
        theirs[name] = path
    return dict(sorted(found.items())), sorted(notes)


def task_of(path: Path, tasks: Iterable[str]) -> str | None:
    """The task that a file is homework for."""
    try:
        with path.open("rb") as file:
            marked = MARK.search(decoded(file.read(1000)))
    except OSError:
        return None
    if marked:
        return marked[1] if marked[1] in tasks else None
    stem = _AFTER.sub("", path.stem)
    fitting = [task for task in tasks if re.search(rf"(^|[\W_]){task}$", stem)]
    return max(fitting, key=len, default=None)


def source(path: Path) -> bytes:
    """The contents of a file. Raises ValueError if it is too long."""
    with path.open("rb") as file:
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"the file is longer than {MOST >> 20} MB")
    return data


def _files(folder: Path, notes: list[str]) -> Iterator[Path]:
    """The *.py files at any depth, without links, pipes and devices."""
    for top, folders, names in os.walk(
        folder, onerror=lambda e: notes.append(f"{e.filename}: {e.strerror}")
    ):
        inside = Path(top).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        folders[:] = [name for name in folders if not _hidden(name) and name not in links]
        if folders and len(inside.parts) == DEEPEST:
            notes.append(f"{inside}: folders below this one were not searched")
            folders.clear()
        for name in [*links, *names]:
            if name in links or (name.endswith(".py") and not _is_file(Path(top, name))):
                notes.append(f"{inside / name}: a link or a special file, which is not read")
            elif name.endswith(".py") and not _hidden(name):
                yield Path(top, name)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it was deleted, or its name is too long
        return False


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))
