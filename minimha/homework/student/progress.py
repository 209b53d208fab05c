"""What a student has done in each chapter, and what to do next."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ..checks.task import Task
from ..checks.verdicts import FAILED, PASSED, TO_DO
from ..tasks.catalogue import course
from . import progress_file, student_files
from .progress_file import CHANGED, NOT_STARTED
from .student_files import WIDTH


def print_progress(place: Path, tasks: Path | None = None) -> None:
    """Print the state of each task, such as passed or not started, chapter by chapter, and the next
    step.

    place  the folder of the student's files
    tasks  the teacher's own file with tasks, None if there is none
    """
    files = student_files.find(place)
    standing = progress_file.states(place, files)
    for chapter, found in by_chapter():
        names = [task.name for task in found]
        print(f"{chapter:<18}  {_bar(names, standing, 12)}")
        for state in (PASSED, CHANGED, FAILED, TO_DO, NOT_STARTED):
            if these := ", ".join(name for name in names if standing[name] == state):
                first = f"  {state:<16}  "
                print(textwrap.fill(these, WIDTH, initial_indent=first, subsequent_indent=" " * 20))
    print_bar(standing)
    print(next_step(files, standing, place, tasks))


def print_bar(standing: dict[str, str]) -> None:
    """Print the progress bar of the whole course, given the state of each task by name, such as
    PASSED."""
    print(f"\nhomework  {_bar(list(standing), standing, 24)}")


def _bar(names: list[str], standing: dict[str, str], width: int) -> str:
    done = sum(standing[name] == PASSED for name in names)
    total = len(names)
    filled = max(done * width // total, min(done, 1))
    return f"{'█' * filled}{'░' * (width - filled)}  {done} of {total} task{'s' * (total > 1)}"


def by_chapter() -> Iterator[tuple[str, list[Task]]]:
    """Yield the name of each chapter that has tasks, such as "05 attention", and these tasks."""
    tasks = sorted(course().values(), key=lambda task: task.chapter)
    for number, found in itertools.groupby(tasks, key=lambda task: task.chapter):
        yield student_files.chapter(number), list(found)


def next_step(
    files: dict[str, Path],
    standing: dict[str, str],
    place: Path,
    tasks: Path | None,
    asked: str | None = None,
) -> str:
    """Return a line with the student's next step, such as the command that starts a task. It is
    about the first task that has not passed: the task that was asked about, or else one that was
    started, or else the next task of the course. If all have passed, the line says so.

    files     the file of each task that has one, by name
    standing  the state of each task, by name, such as PASSED
    place     the folder of the student's files
    tasks     the teacher's own file with tasks, None if there is none
    asked     the name of the task that was asked about, None if there is none
    """
    names = list(standing)
    here = names.index(asked) if asked else 0
    begun = [name for name in names if standing[name] != NOT_STARTED]
    for name in [*([asked] if asked else []), *begun, *names[here:], *names[:here]]:
        state = standing[name]
        if state == PASSED:
            continue
        if state == NOT_STARTED:
            step = command_line("start", name, tasks)
        elif state == TO_DO:
            step = f"fill in {files[name]}"
        elif name in files:
            step = command_line("check", name, tasks, place)
        else:
            step = f"correct {name} in chapter {student_files.chapter(course()[name].chapter)}"
        return f"next      {step}"
    return "You have finished all tasks."


def command_line(what: str, name: str, tasks: Path | None, place: Path | None = None) -> str:
    """Return the command `minimha homework WHAT NAME` for the student to type next. It repeats the
    options of the present command: --tasks with the file `tasks`, unless this is None, and --from
    with the folder `place`, unless this is None or the current folder."""
    text = f"minimha homework {what} {name}"
    for option, path in (("--from", place), ("--tasks", tasks)):
        if path not in (None, Path()):
            text += f' {option} "{path}"' if " " in str(path) else f" {option} {path}"
    return text
