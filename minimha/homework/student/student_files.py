"""A student's files: functions that find, start, load and check them, and that give hints.

A file is homework if a line near its top is `# minimha homework: softmax · …`, or if it has the
name of a task and defines that function. With `# minimha homework: adapters`, it is homework for
every task that it defines or imports.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ...course import CHAPTERS
from ..checks.error_messages import error_with_line
from ..checks.task import Task
from ..checks.verdicts import FAILED, TO_DO, Check, Verdict
from ..tasks.catalogue import course, run_file
from . import progress_file
from .answers import answers, decoded, defines, mark
from .interrupts import PACKAGES, in_time

WIDTH = 78

_AGENTS = Path(__file__).with_name("AGENTS.md")


class LoadError(Exception):
    """A student's file cannot be loaded, or does not define the task's function."""


def stars(task: Task) -> str:
    """Return the difficulty of a task as stars, such as ★★☆."""
    return "★" * task.difficulty + "☆" * (3 - task.difficulty)


def chapter(number: int) -> str:
    """Return the name of a chapter, such as "05 attention"; a chapter of a teacher's own may have
    only a number."""
    known = CHAPTERS.get(number)
    return f"{number:02} {known.name}" if known else f"{number:02}"


def find(place: Path) -> dict[str, Path]:
    """Return the file of each task that has been started, by name, in the order of the course.

    place  a file, or a folder, which is searched with the folders directly inside it and with the
           record of the student's progress

    Raises ValueError for two files of one task, FileNotFoundError if the place does not exist.
    """
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist")
    files = {} if place.is_file() else progress_file.files(place)
    marked: dict[str, list[Path]] = {}
    named: dict[str, list[Path]] = {}
    for path in [place] if place.is_file() else _python_files(place):
        names, by_mark = _tasks_of(path)
        for name in names:
            (marked if by_mark else named).setdefault(name, []).append(path)
    for name in course():
        found = marked.get(name) or named.get(name) or []
        if len(found) > 1:
            raise ValueError(
                f"two files are homework for {name}:\n  {found[0]}\n  {found[1]}\n"
                "move one elsewhere, or delete its first line and rename it"
            )
        if found:
            files[name] = found[0]
    return {name: files[name] for name in course() if name in files}


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the .py files in a folder and in the folders directly inside it, except those of
    minimha itself and of virtual environments."""
    below = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for inner in [folder, *below]:
        installed = inner / "pyvenv.cfg", inner / "site-packages"
        ours = any(inner.resolve().is_relative_to(package) for package in PACKAGES)
        with contextlib.suppress(OSError):  # an unreadable folder
            if inner.is_dir() and not ours and not any(path.exists() for path in installed):
                yield from sorted(path for path in inner.glob("*.py") if path.is_file())


def _tasks_of(path: Path) -> tuple[Collection[str], bool]:
    """Return the tasks that a file answers, and whether a line near its top, such as "# minimha
    homework: softmax", marks it as homework. A file without such a line answers the task after
    which it is named, if it defines this function. No tasks if the file cannot be read."""
    try:
        with path.open("rb") as file:
            head = decoded(file.read(1000))
            if mark(head):
                return answers(path, course()), True
            text = head + decoded(file.read()) if path.stem in course() else ""
    except (OSError, ValueError):
        return (), False
    return ([path.stem] if defines(text, path.stem) else []), False


def start(task: Task, folder: Path, place: Path) -> None:
    """Write the file that a student gets for a task to folder/NAME.py, and add this file to the
    record of progress that belongs to the folder `place`.

    Raises FileExistsError if the file exists, OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.py"
    with path.open("x", encoding="utf-8") as file:
        file.write(stub(task))
    progress_file.add(place, task.name, file=path, outcome=TO_DO)


def write_agents(folder: Path) -> None:
    """Write two files into a folder: AGENTS.md, which asks coding agents to be tutors, and
    CLAUDE.md, which refers to it. A file that exists already is left unchanged. Raises OSError if
    they cannot be written."""
    texts = {_AGENTS.name: _AGENTS.read_text(encoding="utf-8"), "CLAUDE.md": f"@{_AGENTS.name}\n"}
    for name, text in texts.items():
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="utf-8")


def stub(task: Task, code: str = "", *, solved: bool = False) -> str:
    """Return the text of a student's file: a heading, and below it `code` or, if this is empty, the
    code of the task, which includes the solution if `solved` is true."""
    return (
        f"# minimha homework: {task.name} · chapter {chapter(task.chapter)} · {stars(task)} · "
        f"about {task.minutes} minutes\n"
        f"#   minimha homework check {task.name}    runs its checks\n"
        f"#   minimha homework hint {task.name}     shows a hint, one more each time\n\n"
        f"import numpy as np\n\n\n{code or task.code(solved=solved)}"
    )


def cell(name: str, code: str) -> str:
    """Return the text of a notebook cell in which a student completes `code`, the answer to the
    task of this name."""
    return f"# minimha homework: {name}\n{code}\n\nmh.homework.check({name})"


def load(path: Path, name: str) -> Callable[..., Any]:
    """Run a file as a separate module, and return the function of this name that it defines.

    Raises NotImplementedError if the file raises it as it runs, and LoadError, with a message for
    the student, if the file fails in any other way or defines no such function.
    """
    for folder in (str(path.parent), str(path.parent / "src")):  # for imports of own modules
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        names = in_time(run_file, path, f"_minimha_homework_{name}")
    except (NotImplementedError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise LoadError(_syntax(error)) from None
    except BaseException as error:
        raise LoadError(
            f"{path.name} cannot be loaded\n{error_with_line(error, str(path))}"
        ) from None
    function = names.get(name)
    if callable(function):
        return function
    functions = [key for key, value in names.items() if isinstance(value, type(load))]
    near = "".join(f": is it {other}?" for other in difflib.get_close_matches(name, functions, 1))
    raise LoadError(f"{path.name} defines no function {name}{near}")


def _syntax(error: SyntaxError) -> str:
    where = f"\n  in {Path(error.filename or '').name}, line {error.lineno}" if error.lineno else ""
    line = f": {error.text.strip()}" if where and error.text else ""
    return f"{type(error).__name__}: {error.msg}{where}{line}"


def verdict(task: Task, check: Check, yours: Callable[..., Any], file: str | None) -> Verdict:
    """Return the outcome of one check of a student's function. A check that takes too long fails.

    file  the path of the file with the function: messages quote its lines. None if the function is
          in no file
    """
    try:
        outcome: Verdict = in_time(task.verdict, check, yours)
        return outcome
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a timeout, or an error class of the student's own
        return Verdict(task.name, check, FAILED, error_with_line(error, file))


def file_verdict(
    task: Task, check: Check, path: Path, load: Callable[[Path, str], Any] = load
) -> Verdict:
    """Return the verdict of one check on a student's function, which load(path, task.name) returns
    from the file `path`. The outcome is TO_DO if the file raises NotImplementedError as it is
    loaded, and FAILED if it cannot be loaded."""
    try:
        yours = load(path, task.name)
    except NotImplementedError:
        return Verdict(task.name, check, TO_DO)
    except LoadError as error:
        return Verdict(task.name, check, FAILED, str(error))
    return verdict(task, check, yours, str(path))


def hint(task: Task, number: int) -> str:
    """Return a task's first, second or third hint, as text to be printed."""
    text = textwrap.fill(task.hints[number - 1], WIDTH - 2, break_on_hyphens=False)
    return f"{task.name}, hint {number} of {len(task.hints)}\n{textwrap.indent(text, '  ')}"


def next_hint(task: Task, place: Path, again: str) -> str:
    """Return the next hint for a task and, unless it is the last one, a line that says what to type
    for one more. Record in the progress of the folder `place` that the hint was read. `again` is
    the command that prints a hint."""
    number = min(progress_file.read(place).get(task.name, {}).get("hints", 0) + 1, len(task.hints))
    progress_file.add(place, task.name, hints=number)
    more = f"\none more: {again}" if number < len(task.hints) else ""
    return hint(task, number) + more
