"""The homework as tests for pytest, run in the folder of the files: `pytest --pyargs
minimha.homework`.

There is one test for each check of each task that was started in this folder. `--homework` names
another folder, or one file.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minimha.homework.checks.task import Task
from minimha.homework.checks.verdicts import PASSED, TO_DO, Check
from minimha.homework.student import student_files
from minimha.homework.tasks.catalogue import course


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test for each check of each task that has a file."""
    try:
        files = student_files.find(Path(metafunc.config.getoption("--homework", ".")).absolute())
    except (ValueError, OSError) as error:
        raise pytest.Collector.CollectError(str(error)) from None
    tasks = [course()[name] for name in files]
    tests = [(task, check, files[task.name]) for task in tasks for check in task.checks]
    names = [f"{task.name}: {check.name}" for task, check, _ in tests]
    if not tests:
        none = pytest.mark.skip(reason="no task has been started here; see minimha homework start")
        tests, names = [pytest.param(None, None, None, marks=none)], ["none started"]  # type: ignore[list-item]
    metafunc.parametrize(("task", "check", "path"), tests, ids=names)


@pytest.fixture(scope="session")
def load() -> Callable[[Path, str], Any]:
    """Return a function that loads a student's function, given the path of its file and its name.
    Called again for the same function, it returns the function that it has loaded before."""
    return functools.cache(student_files.load)


def test_homework(task: Task, check: Check, path: Path, load: Callable[..., Any]) -> None:
    """Run one check: the test passes, fails with the message for the student, or is skipped if the
    task is still to do."""
    verdict = student_files.file_verdict(task, check, path, load)
    if verdict.outcome == TO_DO:
        pytest.skip(f"to do: {task.name}")
    if verdict.outcome != PASSED:
        pytest.fail(verdict.message, pytrace=False)
