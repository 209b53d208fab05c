"""Assigns the answers in a folder to students and tasks.

Each folder inside it belongs to a student, with files and notebooks at any depth. A file directly
inside it belongs to the student named before the task or chapter, anna_softmax.py, or after it.
`student_of` knows the names that Canvas and Moodle give to folders and files. `answers` says which
tasks a file answers; a file without a mark answers the task at the end of its name.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...course import CHAPTERS, notebooks
from ..answers import ADAPTERS, answers, decoded, is_stub, mark, modules, source
from ..catalogue import course

DEEPEST = 20
"""How deep folders are searched."""

_ENDINGS = ".py", ".ipynb"
_ARCHIVES = ".zip", ".gz", ".tar", ".7z", ".rar"
_AFTER = re.compile(r"[ _.-]*\(?\d*\)?$")  # "softmax (1)", "softmax-2": suffixes that browsers add
_SENT = re.compile(
    r"(?P<name>[^_].*?)(?:_LATE)?_(?P<id>\d+)_"
    r"(?:(?P<moodle>assignsubmission_[a-z]+(_.*)?)|\d+_.+)"
)  # the first id counts, because students choose what follows


class Answer(NamedTuple):
    """A student's answer to one task: its file, its source, and the student's own modules that it
    imports; or the problem that prevents grading."""

    path: Path
    source: bytes = b""
    modules: Mapping[str, bytes] = {}
    problem: str = ""

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Of several answers to a task, the one with the highest rank counts: one that is filled
        in; of these, one nearer the top; of these, the last by name."""
        return not is_stub(self.source), -len(self.path.parts), self.path.stem


Found = dict[str, dict[str, Answer]]


def find(
    folder: Path, tasks: Mapping[str, int], student: str | None = None
) -> tuple[Found, list[str]]:
    """The answers of each student by task, and notes on what is not graded.

    tasks    the chapter of each task, by name
    student  the student to whom the whole folder belongs

    Links are not followed; names that begin with a dot or two underscores are skipped.
    """
    found, notes = Found() if student is None else {student: {}}, list[str]()
    if student is None:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        dirs = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
        found |= {_owner(entry.name): {} for entry in dirs if not _hidden(entry.name)}
    wanted: list[tuple[str, Path, set[str]]] = []  # the exercises of each notebook
    unused, used = dict[Path, str](), set[Path]()
    for path in sorted(_files(folder, notes)):
        inside, remarks = path.relative_to(folder), list[str]()
        given = _given(path, tasks, remarks)
        whose = student or _student(inside, tasks) or folder.resolve().name
        theirs = found.setdefault(whose, {}) if given else found.get(whose, {})
        if path.suffix == ".ipynb":
            exercises = _exercises(frozenset(tasks[x] for x in given)) & set(tasks)
            wanted.append((whose, inside, exercises))
        elif not (given or remarks or _answers_another(path)):
            unused[path] = f"{inside}: not one of the tasks being graded"
        used |= {
            path.parent / top / x for y in given.values() for x in y.modules for top in ("", "src")
        }
        for name, answer in given.items():
            worse, better = sorted([answer, theirs.get(name, answer)], key=lambda x: x.rank)
            theirs[name] = better
            if worse is not better and worse.rank[0]:
                here, there = (x.path.relative_to(folder) for x in (worse, better))
                unused[worse.path] = f"{here}: {name} is graded in {there} instead"
        notes += [f"{inside}: {remark}" for remark in remarks]
    notes += [note for path, note in unused.items() if path not in used]
    notes += [
        f"{inside}: {name} is missing, because no cell contains # minimha homework: {name}"
        for whose, inside, names in wanted
        for name in sorted(names - set(found.get(whose, {})))
    ]
    return dict(sorted(found.items())), sorted(notes)


def _given(path: Path, tasks: Mapping[str, int], notes: list[str]) -> dict[str, Answer]:
    """The answers in a file. Notes say why one is not graded."""
    named = _named_by_file(path, tasks)
    try:
        sources = answers(path, tasks, notes)
        if not sources and path.suffix == ".py" and not _mark(path):
            sources = {name: source(path) for name in named}
        own = {data: modules(data, path.parent) for data in set(sources.values())}
        return {name: Answer(path, data, own[data]) for name, data in sources.items()}
    except (OSError, ValueError) as error:
        if not named:
            notes.append(str(error))
        return {name: Answer(path, problem=str(error)) for name in named}


def _answers_another(path: Path) -> bool:
    """Whether a file is homework for another task of the course, which is not being graded."""
    return bool({_mark(path), *_named_by_file(path, course())} & set(course()))


def _mark(path: Path) -> str | None:
    """The name in the line that marks a file."""
    return mark(decoded(source(path)[:1000]))


def _named_by_file(path: Path, tasks: Iterable[str]) -> list[str]:
    """The task at the end of a file's name: at most one."""
    stem = _AFTER.sub("", path.stem) if path.suffix == ".py" else ""
    return sorted((x for x in tasks if re.search(rf"(^|[\W_]){x}$", stem)), key=len)[-1:]


def _student(inside: Path, tasks: Iterable[str]) -> str:
    """The student to whom a file belongs, by its path; "" if the path does not say."""
    if len(inside.parts) > 1 or student_of(inside.name):
        return _owner(inside.parts[0])
    known = [*tasks, *(chapter.stem for chapter in CHAPTERS.values()), ADAPTERS]
    name = max((x for x in known if x in inside.stem), key=len, default="")
    before, _, after = inside.stem.rpartition(name) if name else (inside.stem, "", "")
    return (before or _AFTER.sub("", after)).strip(" _.-")


def _owner(name: str) -> str:
    """The student to whom a folder belongs, or a file that Canvas or Moodle named."""
    return student_of(name) or name


def student_of(name: str) -> str | None:
    """Who handed in the file or folder with this name; None if neither Canvas nor Moodle made it.

    smithjane_LATE_1234_5678_softmax.py                 Canvas: user id, file id
    Jane Smith_1234_assignsubmission_file_              Moodle, with one folder per student
    Jane Smith_1234_assignsubmission_file_softmax.py    Moodle, without folders

    Such a student is called smithjane_1234 or "Jane Smith (1234)".
    """
    found = _SENT.fullmatch(name)
    if not found:
        return None
    return ("{name} ({id})" if found["moodle"] else "{name}_{id}").format(**found.groupdict())


@functools.cache
def _exercises(numbers: frozenset[int]) -> set[str]:
    """The tasks that the notebooks of these chapters contain."""
    stems = {CHAPTERS[n].stem for n in numbers if n in CHAPTERS}
    ours = (path for path in notebooks() if path.stem in stems)
    return {name for path in ours for name in answers(path, course())}


def _files(folder: Path, notes: list[str]) -> Iterator[Path]:
    """The files and notebooks at any depth, without links, pipes and devices."""
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
            if name in links or (name.endswith(_ENDINGS) and not _is_file(Path(top, name))):
                notes.append(f"{inside / name}: a link or a special file, which is not read")
            elif name.endswith(_ENDINGS) and not _hidden(name):
                yield Path(top, name)
            elif name.endswith(_ARCHIVES):
                notes.append(f"{inside / name}: an archive, which is not read: unpack it")


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it was deleted, or its name is too long
        return False


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))
