"""Homework as pytest runs it, in the folder of the files: `pytest --pyargs minimha.homework`.

There is one test for each check of each task started here. `--homework` names another folder, or
one file.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minimha import homework
from minimha.homework import workbook
from minimha.homework.task import Task
from minimha.homework.verdicts import FAILED, PASSED, TO_DO, Check, Verdict


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check of each task that has a file."""
    try:
        files = workbook.find(Path(metafunc.config.getoption("--homework", ".")).absolute())
    except (ValueError, OSError) as error:
        raise pytest.Collector.CollectError(str(error)) from None
    tasks = [homework.course()[name] for name in files]
    tests = [(task, check, files[task.name]) for task in tasks for check in task.checks]
    names = [f"{task.name}: {check.name}" for task, check, _ in tests]
    if not tests:
        none = pytest.mark.skip(reason="no task has been started here; see minimha homework start")
        tests, names = [pytest.param(None, None, None, marks=none)], ["none started"]  # type: ignore[list-item]
    metafunc.parametrize(("task", "check", "path"), tests, ids=names)


@pytest.fixture(scope="session")
def load() -> Callable[[Path, str], Any]:
    """Load a student's file, once."""
    return functools.cache(workbook.load)


def test_homework(
    task: Task, check: Check, path: Path, load: Callable[..., Any], record_property: Any
) -> None:
    """Passes, fails with the message for the student, or is skipped if still to do."""
    record_property("task", task.name)
    record_property("check", check.name)
    verdict = _verdict(task, check, path, load)
    if verdict.outcome == TO_DO:
        record_property("message", verdict.message)
        pytest.skip(f"to do: {task.name}")
    if verdict.outcome != PASSED:
        pytest.fail(verdict.message, pytrace=False)


def _verdict(task: Task, check: Check, path: Path, load: Callable[..., Any]) -> Verdict:
    try:
        yours = load(path, task.name)
    except NotImplementedError:
        return Verdict(task.name, check, TO_DO)
    except workbook.LoadError as error:
        return Verdict(task.name, check, FAILED, str(error))
    return workbook.verdict(task, check, yours, str(path))
