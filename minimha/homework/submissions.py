"""Which file of a folder is whose homework, and of which task.

A folder in it is a student, with files in folders of their own. A file in it is of the student
whose name stands before that of the task, anna_softmax.py, or else after it. The task is what the
file's first lines say, `# minimha homework: softmax`, or else what its name ends with.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from .workbook import MARK, decoded

MOST = 1 << 20
"""Bytes of a file: longer ones are not read."""
DEEPEST = 20
"""Folders in one another: what lies deeper is not looked at."""

_AFTER = re.compile(r"[ _.-]*\(?\d*\)?$")  # "softmax (1)", "softmax-2": what browsers add

Found = dict[str, dict[str, Path]]


def find(folder: Path, tasks: Iterable[str]) -> tuple[Found, list[str]]:
    """The file of each task by student, and notes on what is left out.

    Of two files of one task the one counts that lies less deep, or comes last by name. Links are
    not followed; names that begin with a dot or two underscores are passed over.
    """
    tasks, found, notes = list(tasks), Found(), list[str]()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not _hidden(entry.name):
            found[entry.name] = {}
    files = sorted(_files(folder, notes), key=lambda path: (-len(path.parts), path.stem))
    for path in files:  # those that count come last
        name = task_of(path, tasks)
        inside = path.relative_to(folder)
        if name is None:
            notes.append(f"{inside}: no task that is graded")
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
            notes.append(f"{old}: not graded, as {inside} is homework of {name} too")
        theirs[name] = path
    return dict(sorted(found.items())), sorted(notes)


def task_of(path: Path, tasks: Iterable[str]) -> str | None:
    """The task that a file is homework of."""
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
    """What is in the file. Raises ValueError for a file that is too long."""
    with path.open("rb") as file:
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"the file is longer than {MOST >> 20} MB")
    return data


def _files(folder: Path, notes: list[str]) -> Iterator[Path]:
    """The files *.py at any depth, as they are called: no links, pipes or devices."""
    for top, folders, names in os.walk(
        folder, onerror=lambda e: notes.append(f"{e.filename}: {e.strerror}")
    ):
        inside = Path(top).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        folders[:] = [name for name in folders if not _hidden(name) and name not in links]
        if folders and len(inside.parts) == DEEPEST:
            notes.append(f"{inside}: what lies deeper is not looked at")
            folders.clear()
        for name in [*links, *names]:
            if name in links or (name.endswith(".py") and not _is_file(Path(top, name))):
                notes.append(f"{inside / name}: a link or no file, which is not followed")
            elif name.endswith(".py") and not _hidden(name):
                yield Path(top, name)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it is gone, or its name is too long
        return False


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))
