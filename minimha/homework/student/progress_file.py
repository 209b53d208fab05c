"""The record of a student's progress: one file for the homework in notebooks and in files.

For each task it contains, as far as they are known,

    notebook             the best outcome of its checks in a notebook
    file, hash, outcome  its file and, from the last check of the file, the file's hash, by which
                         a later change shows, and the outcome
    hints                how many hints the student has read
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ..checks.verdicts import PASSED
from ..tasks.catalogue import course

RECORD = ".minimha-homework.json"
NEIGHBOURS = "homework", "minimha-notebooks"
"""The names that `minimha` gives to the folders in which students work."""
NOT_STARTED, CHANGED = "not started", "changed"


def path(place: Path) -> Path:
    """Return the path of the record of a student's progress, given a folder or a file in it.

    Searches the folder, its parent, the folders directly inside it, and the folders beside it that
    are called "homework" or "minimha-notebooks", so that chapters and homework share one record. If
    there is none yet, it will be created in the folder.
    """
    here = (place.parent if place.is_file() else place).resolve()
    neighbours = (here.parent / name for name in NEIGHBOURS)
    inside = sorted(file.parent for file in here.glob(f"*/{RECORD}"))
    folders = [here, here.parent, *inside, *neighbours]
    return next((file for x in folders if (file := x / RECORD).exists()), here / RECORD)


def read(place: Path) -> dict[str, dict[str, Any]]:
    """Return what the record that belongs to the folder `place` contains: facts about each task, by
    the name of the task, and under "guesses" the student's guesses. Empty if the record is missing
    or damaged."""
    try:
        return dict(json.loads(path(place).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return {}


def add(place: Path, name: str, *, file: Path | None = None, **facts: Any) -> None:
    """Record facts about a task, such as hints=2, under its name; with a file, also the file's path
    and hash. The record is the one that belongs to the folder `place`. Prints a message if it
    cannot be written."""
    known, record = read(place), path(place)
    if file is not None:
        facts["file"] = os.path.relpath(file.resolve(), record.parent)
        facts["hash"] = _hash(file)
    known[name] = known.get(name, {}) | facts
    text = json.dumps(known, indent=1, sort_keys=True)
    try:
        record.write_text(f"{text}\n", encoding="utf-8")
    except OSError:
        print(f"(your progress was not saved: {record} cannot be written)")


def files(place: Path) -> dict[str, Path]:
    """Return the student's file for each task, by the name of the task, from the record of progress
    that belongs to the folder `place`. Files that no longer exist are left out."""
    folder = path(place).parent
    known = {name: folder / facts["file"] for name, facts in read(place).items() if "file" in facts}
    return {name: Path(os.path.relpath(file)) for name, file in known.items() if file.is_file()}


def states(place: Path, files: dict[str, Path]) -> dict[str, str]:
    """Return the state of each task of the course, by name. It is PASSED if the task has passed in
    a notebook. Otherwise, for a task with a file, it is the outcome of the last check of the file
    as it is now, TO_DO if the file is as `start` wrote it, and CHANGED in all other cases. A task
    without a file has its outcome in a notebook, or NOT_STARTED.

    place  the folder to which the record of the student's progress belongs
    files  the file of each task that has one, by name
    """
    known, found = read(place), {}
    for name in course():
        facts = known.get(name, {})
        found[name] = facts.get("notebook", NOT_STARTED)
        if name in files and found[name] != PASSED:
            unchanged = facts.get("hash") == _hash(files[name])
            found[name] = facts.get("outcome", CHANGED) if unchanged else CHANGED
    return found


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
