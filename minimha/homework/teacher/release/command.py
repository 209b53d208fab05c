"""`minimha homework release`: a folder with everything that students get."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ....course import CHAPTERS, notebooks
from ...checks import replay
from ...student import student_files
from ...student.answers import answers
from ...student.student_files import chapter, stars
from ..chosen import add_only, chosen
from . import wheel

README = """\
# Homework

You need Python 3.11 or later. In this folder, create an environment and install minimha:

    python3 -m venv --without-pip .venv
    python3 -m pip --python .venv install --quiet --no-compile pip "./{wheel}[notebooks]"
    source .venv/bin/activate

(On Windows, the last line is `.venv\\Scripts\\activate`.) `jupyter lab` opens the notebooks. If you
have an environment from an earlier week, activate it and install the new wheel in it:

    python -m pip install "./{wheel}"

If you write your answers only in files, leave out `[notebooks]` and add `--no-deps numpy`: the
environment then takes 80 MB instead of 620.

Write your answers in the files in `homework/`, or in the cells of the notebooks in `notebooks/`
that begin with `# minimha homework:`. You need not do both.{alone}
Check your answers as often as you like:

    minimha homework check {task}
    minimha homework hint {task}
    minimha homework progress

If a task uses a function of an earlier task, its file starts with an unfinished copy of that
function: replace the copy with your own function. Some chapters use your functions from earlier
weeks: copy their files into `homework/`, too.

Hand in the files or the notebooks with your answers. Keep the lines `# minimha homework: …`. In a
file, the only imports that you may add are your own modules and modules such as `math`.
{more}
| task | chapter | difficulty | minutes |
| --- | --- | --- | --- |
{tasks}
"""
MORE = "\nYour answers are graded with these checks on other inputs, and with additional checks.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `release` to the parser."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    add_only(parser)
    parser.add_argument(
        "--hidden",
        action="store_true",
        help="leave out the hidden checks, which you keep for grading",
    )


def write_release(options: Any) -> int:
    """Write the folder that students get, `options.folder`: a wheel of minimha, files to fill in,
    and notebooks. Returns 0, the exit status of the command.

    Raises ValueError if the folder is not empty, if --only names no task or chapter, or in the
    students' edition, which has no solutions; OSError if the folder cannot be written.
    """
    if replay.results():
        raise ValueError("a release needs the teacher's copy of minimha, which has the solutions")
    tasks, folder = chosen(options.only), options.folder
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder")
    (folder / "homework").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    last = max(task.chapter for task in tasks)
    packed = wheel.for_students(folder, options.tasks, last=last, hidden=options.hidden)
    for task in tasks:
        path = folder / "homework" / f"{task.name}.py"
        path.write_text(student_files.stub(task, wheel.code(task)), encoding="utf-8")
    numbers = {task.chapter for task in tasks}
    stems = {CHAPTERS[n].stem for n in numbers & set(CHAPTERS)}
    names = {task.name for task in tasks}
    for path in notebooks():
        if path.stem in stems:
            copy = folder / "notebooks" / path.name
            copy.write_text(wheel.notebook(path), encoding="utf-8")
            names -= set(answers(copy, names))
    alone = ", ".join(f"`{x.name}`" for x in tasks if x.name in names)
    rows = (f"| `{x.name}` | {chapter(x.chapter)} | {stars(x)} | {x.minutes} |" for x in tasks)
    text = README.format(
        wheel=packed.name, task=tasks[0].name, tasks="\n".join(rows),
        alone=f" These tasks are in no notebook: {alone}." if alone else "",
        more=MORE if options.hidden else "",
    )  # fmt: skip
    student_files.write_agents(folder)
    (folder / "README.md").write_text(text, encoding="utf-8")
    count = f"{len(tasks)} task{'s' * (len(tasks) > 1)}"
    sys.stdout.write(
        f"{folder} is ready for your students: {count}, and {packed.name}\n"
        f"with the chapters up to {chapter(last)}\n"
    )
    return 0
