"""A student's folder in a small course."""

import pytest
from graded import TASK

from minimha import homework
from minimha.__main__ import main
from minimha.homework.checks.task import TASKS
from minimha.homework.teacher import chosen as choice
from minimha.homework.teacher.grading import grade

TEACHER = '''
import numpy as np
import minimha as mh
from minimha.homework import same

@mh.homework.task(chapter=99, difficulty=1, minutes=5, hints=("first", "second", "third"))
def twice(x):
    """Twice x. Returns an array."""
    # BEGIN SOLUTION
    return 2 * x
    # END SOLUTION

@twice.check
def of_ones(yours, rng):
    same(yours(np.ones(3)), np.full(3, 2.0), "twice one")

@twice.check
def of_any(yours, rng):
    x = rng.standard_normal(4)
    same(yours(x), 2 * x)

@mh.homework.task(chapter=99, difficulty=3, minutes=7, hints=("first", "second", "third"))
def thrice(x):
    """Three times x. Returns an array."""
    # BEGIN SOLUTION
    return 3 * x
    # END SOLUTION

@thrice.check
def of_ones(yours, rng):
    same(yours(np.ones(3)), np.full(3, 3.0), "three times one")
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A student's folder, in a course of two tasks of a teacher's own."""
    file = tmp_path / "teacher" / "mine" / "teacher.py"
    file.parent.mkdir(parents=True)
    file.write_text(TEACHER, encoding="utf-8")
    before = dict(homework.course())
    TASKS.clear()
    homework.load_tasks(file)
    path = tmp_path / "student"
    path.mkdir()
    monkeypatch.chdir(path)
    yield path
    TASKS.clear()
    TASKS.update(before)


@pytest.fixture
def tasks(monkeypatch):
    """The course to grade has only one task."""
    for module in (grade, choice):
        monkeypatch.setattr(module, "course", lambda: {TASK.name: TASK})


@pytest.fixture
def student(folder, capsys):
    """Run `minimha homework …`: the exit code and the output."""

    def types(line):
        try:
            code = main(["homework", *line.split()])
        except SystemExit as left:
            code = left.code
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return types
