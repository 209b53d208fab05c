"""How long it takes to grade the first seven chapters of a class.

python benchmarks/grading.py [--quick] [--save docs/measured/grading.md]
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import table, verdict

from minimha import course, homework
from minimha.homework.student import answers, student_files

STUDENTS, CHAPTERS, MINUTES = 400, range(1, 8), 15
HOSTILE = (
    "while True: pass",
    "return [bytearray(1 << 20) for _ in range(10**6)]",
    "import os\n    while True: os.fork()",
    "import os; os._exit(0)",
)
TITLE = f"""# What grading a class costs

`python benchmarks/grading.py`. `minimha homework grade` grades made-up submissions of chapters 1 to
{CHAPTERS[-1]}, as many students at a time as there are cores. Half of the submissions are folders
of notebooks, with files for the tasks that no notebook contains, and half are folders of files.
About one answer in three contains a common mistake. One student in twenty hands in an answer that
runs forever, fills the memory, starts processes without end, or exits. The aim for {STUDENTS}
students is at most {MINUTES} minutes.

"""


def answer(task: homework.Task, rng: random.Random) -> str:
    """The solution, or in one case of three a usual mistake."""
    solution = task.code(solved=True)
    wrong = task.mistakes and rng.randrange(3) == 0
    return rng.choice(task.mistakes).made_in(solution) if wrong else solution


def write(folder: Path, texts: dict[str, str]) -> None:
    """Write these answers as files."""
    for name, text in texts.items():
        file = student_files.stub(homework.course()[name], text)
        (folder / f"{name}.py").write_text(file, encoding="utf-8")


def write_notebooks(folder: Path, texts: dict[str, str]) -> None:
    """Write these answers into the notebooks of the chapters, and the others as files."""
    rest = dict(texts)
    for path in course.notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = {answers.mark("".join(cell["source"])): cell for cell in notebook["cells"]}
        here = rest.keys() & cells.keys()
        for name in here:
            cells[name]["source"] = student_files.cell(name, rest.pop(name))
        if here:
            (folder / path.name).write_text(json.dumps(notebook), encoding="utf-8")
    write(folder, rest)


def write_class(folder: Path, students: int, tasks: list[homework.Task]) -> None:
    """Write the submissions of a class, a folder for each student."""
    rng = random.Random(0)
    for k in range(students):
        texts = {task.name: answer(task, rng) for task in tasks}
        if k % 20 == 19:
            name = rng.choice(sorted(texts))
            texts[name] = f"def {name}(*_, **__):\n    {HOSTILE[k // 20 % len(HOSTILE)]}\n"
        place = folder / f"student {k:03}"
        place.mkdir(parents=True)
        (write_notebooks if k % 2 else write)(place, texts)


def graded(folder: Path, tasks: list[homework.Task]) -> dict[str, Any]:
    """The report of `minimha homework grade`."""
    report, names = folder / "report.json", [task.name for task in tasks]
    command = [sys.executable, "-m", "minimha", "homework", "grade", folder / "class"]
    settings = ["--seed", "0", "--json", report, "--only", *names]
    subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text(encoding="utf-8"))


def main() -> None:
    options = common.arguments(__doc__, quick="20 students, chapter 5").parse_args()
    students, chapters = (20, [5]) if options.quick else (STUDENTS, CHAPTERS)
    tasks = [task for task in homework.course().values() if task.chapter in chapters]
    machine = common.machine()
    with tempfile.TemporaryDirectory() as folder:
        write_class(Path(folder, "class"), students, tasks)
        start = time.perf_counter()
        report = graded(Path(folder), tasks)
        minutes = (time.perf_counter() - start) / 60
    results = [result for student in report["students"] for result in student["tasks"]]
    full = sum(result["points"] == result["out_of"] for result in results)
    row = [f"{students}", f"{len(results):,}", f"{full:,}", f"{minutes:.1f}"]
    text = TITLE + table(["students", "answers", "with full marks", "minutes"], [row])
    text += "" if options.quick else f"\n\nThe bound {verdict(minutes, MINUTES)}."
    common.show(f"{text}\n\n{machine}\n{common.versions()}\n", options.save)


if __name__ == "__main__":
    main()
