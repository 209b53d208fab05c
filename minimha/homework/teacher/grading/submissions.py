"""Assigns the answers in a folder to students and tasks.

Each folder inside this folder belongs to a student, with files and notebooks in it and in the
folders below. A file directly inside it belongs to the student named before the task or chapter,
anna_softmax.py, or after it.

`downloads` knows the names that Canvas and Moodle give to folders and files. `answers` says which
tasks a file answers; a file without a line such as "# minimha homework: softmax" answers the task
at the end of its name.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ....course import CHAPTERS
from ...student.answers import ADAPTERS, answers, decoded, is_stub, mark, modules, source
from ...tasks.catalogue import course
from ..chosen import exercises
from ..scores.downloads import student_of

DEEPEST = 20
"""The number of levels of folders that are searched."""

_ENDINGS = ".py", ".ipynb"
_ARCHIVES = ".zip", ".gz", ".tar", ".7z", ".rar"
_UNMARKED = "nothing is graded, because no cell contains # minimha homework: and the name of a task"
_AFTER = re.compile(r"[ _.-]*\(?\d*\)?$")  # "softmax (1)", "softmax-2": suffixes that browsers add


class Answer(NamedTuple):
    """A student's answer to one task: the path of its file, its source, and in `modules` the
    sources, by path, of the student's own modules that it imports. If it cannot be graded,
    `problem` says why, otherwise this is ""."""

    path: Path
    source: bytes = b""
    modules: Mapping[str, bytes] = {}
    problem: str = ""

    @property
    def rank(self) -> tuple[int, int, str]:
        """A key for comparing several answers to a task: the one with the highest rank counts.
        Answers that are filled in rank highest, then those that cannot be graded, then stubs; among
        equals, those nearer the top of the folder, and then the last by name."""
        worth = 1 if self.problem else 0 if is_stub(self.source) else 2
        return worth, -len(self.path.parts), self.path.stem


class Note(NamedTuple):
    """A remark on a file or folder, and the name of the student to whom the file or folder belongs,
    "" if it belongs to none."""

    student: str
    text: str


Found = dict[str, dict[str, Answer]]
_Remarks = list[tuple[Path, str]]


def find(
    folder: Path, tasks: Mapping[str, int], student: str | None = None
) -> tuple[Found, list[Note]]:
    """Return the answers of each student by task, and notes on what is not graded.

    folder   the folder with the submissions
    tasks    the tasks being graded: the number of the chapter of each, by name
    student  the student to whom the whole folder belongs; None if it contains the work of several

    Links are not followed; names that begin with a dot or two underscores are skipped.
    """
    found = Found()
    remarks = _Remarks()
    if student is not None:
        found[student] = {}
    else:  # a student whose folder is empty has handed in nothing, but is listed
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        dirs = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
        found |= {_owner(entry.name): {} for entry in dirs if not _hidden(entry.name)}

    def owner(inside: Path) -> str:
        return student or _student(inside, tasks) or _composed(folder.resolve().name)

    wanted: list[tuple[str, Path, set[str]]] = []  # the exercises of each notebook
    unused, used = dict[Path, str](), set[Path]()
    for path in sorted(_files(folder, remarks)):
        inside = path.relative_to(folder)
        said = list[str]()
        given = _given(path, tasks, said)
        lost = not given and (said or not _answers_another(path))
        notebook = path.suffix == ".ipynb"

        # A stray file, such as readme.py, does not count as the work of a student called readme.
        theirs = found.get(owner(inside), {})
        if given or (lost and (said or notebook)):
            found[owner(inside)] = theirs

        if notebook:
            names = set().union(*(exercises(tasks[x]) for x in given)) & set(tasks)
            wanted.append((owner(inside), inside, names))
        if lost and not said:
            unused[path] = _UNMARKED if notebook else "not one of the tasks being graded"

        # Modules that an answer imports are no answers, but need no remark either.
        used |= {
            path.parent / top / x for y in given.values() for x in y.modules for top in ("", "src")
        }

        # Of several answers to a task, the best one is graded.
        for name, answer in given.items():
            worse, better = sorted([answer, theirs.get(name, answer)], key=lambda x: x.rank)
            theirs[name] = better
            if worse is not better and worse.rank[0]:
                there = better.path.relative_to(folder)
                unused[worse.path] = f"{name} is graded in {there} instead"
        remarks += [(inside, remark) for remark in said]
    remarks += [(x.relative_to(folder), text) for x, text in unused.items() if x not in used]
    remarks += [
        (inside, f"{name} is missing, because no cell contains # minimha homework: {name}")
        for whose, inside, names in wanted
        for name in sorted(names - set(found.get(whose, {})))
    ]
    notes = (
        Note(owner(inside) if owner(inside) in found else "", f"{inside}: {text}")
        for inside, text in remarks
    )
    return dict(sorted(found.items())), sorted(notes, key=lambda note: note.text)


def _given(path: Path, tasks: Mapping[str, int], notes: list[str]) -> dict[str, Answer]:
    """Return the answers in a file to the tasks in `tasks`, by name. Remarks on what is not graded
    are added to `notes`."""
    named = _named_by_file(path, tasks)
    try:
        sources = answers(path, tasks, notes)
        if not sources and path.suffix == ".py" and not _mark(path):
            sources = {name: source(path) for name in named}
        own = {data: modules(data, path.parent) for data in dict.fromkeys(sources.values())}
        return {name: Answer(path, data, own[data]) for name, data in sources.items()}
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if not named:
            notes.append(why)
        return {name: Answer(path, problem=why) for name in named}


def _answers_another(path: Path) -> bool:
    """Whether a file that answers none of the tasks being graded is homework for another task of
    the course."""
    if path.suffix == ".ipynb":
        return bool(answers(path, course()))
    return bool({_mark(path), *_named_by_file(path, course())} & set(course()))


def _mark(path: Path) -> str | None:
    """Return the name in the line near its top that marks a file as an answer, such as "# minimha
    homework: softmax"; None if there is no such line."""
    return mark(decoded(source(path)[:1000]))


def _named_by_file(path: Path, tasks: Iterable[str]) -> list[str]:
    """Return, in a list, the task with whose name the name of a .py file ends, such as softmax for
    anna_softmax.py; if several fit, the one with the longest name. The list is empty if there is
    none."""
    stem = _AFTER.sub("", path.stem) if path.suffix == ".py" else ""
    return sorted((x for x in tasks if re.search(rf"(^|[\W_]){x}$", stem)), key=len)[-1:]


def _student(inside: Path, tasks: Iterable[str]) -> str:
    """Return the student to whom a file belongs, by its path inside the folder of the submissions;
    "" if the path does not say. `tasks` are the names that may stand beside the student's in the
    name of a file."""
    if len(inside.parts) > 1 or student_of(inside.name):
        return _owner(inside.parts[0])
    known = [*tasks, *(chapter.stem for chapter in CHAPTERS.values()), ADAPTERS]
    name = max((x for x in known if x in inside.stem), key=len, default="")
    before, _, after = inside.stem.rpartition(name) if name else (inside.stem, "", "")
    return _composed((before or _AFTER.sub("", after)).strip(" _.-"))


def _owner(name: str) -> str:
    """Return the student to whom a folder or file with this name belongs: the one that `student_of`
    finds in a name that Canvas or Moodle made, otherwise the name itself."""
    return _composed(student_of(name) or name)


def _composed(name: str) -> str:
    """Return a name in the Unicode form NFC, in which é is a single character. In names of files
    from macOS, it may be two: e and an accent."""
    return unicodedata.normalize("NFC", name)


def _files(folder: Path, remarks: _Remarks) -> Iterator[Path]:
    """Yield the .py files and notebooks in a folder, down to DEEPEST levels of folders, except
    those whose names begin with a dot or two underscores. Links, special files such as pipes,
    archives, unreadable folders and deeper ones are not read; a remark on each is added to
    `remarks`."""
    for top, folders, names in os.walk(
        folder,
        onerror=lambda e: remarks.append((Path(e.filename).relative_to(folder), str(e.strerror))),
    ):
        inside = Path(top).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        folders[:] = [name for name in folders if not _hidden(name) and name not in links]
        if folders and len(inside.parts) == DEEPEST:
            remarks.append((inside, "folders below this one were not searched"))
            folders.clear()
        for name in [*links, *names]:
            if name in links or (name.endswith(_ENDINGS) and not _is_file(Path(top, name))):
                remarks.append((inside / name, "a link or a special file, which is not read"))
            elif name.endswith(_ENDINGS) and not _hidden(name):
                yield Path(top, name)
            elif name.endswith(_ARCHIVES):
                remarks.append((inside / name, "an archive, which is not read: unpack it"))


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it was deleted, or its name is too long
        return False


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))
