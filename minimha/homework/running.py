"""pytest underneath `minimha homework check`, in which nobody's own settings have a say."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import minimha_pytest

from . import course
from .task import FAILED, PASSED, TO_DO, Verdict

OUTCOMES = {"passed": PASSED, "skipped": TO_DO, "failed": FAILED}


SETTINGS = "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


class Listener:
    """A plugin that hands on what came of each check, and what the student's code printed."""

    def __init__(self, tell: Callable[[Verdict, str], None]) -> None:
        self.tell, self.outcomes = tell, dict[str, str]()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, to stop it."""
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the checks of a task up to the first that is not ok; stop at one that fails."""
        told = {str(key): str(value) for key, value in report.user_properties}
        if report.when != "call" or self.outcomes.get(told["task"], PASSED) != PASSED:
            return
        task = course()[told["task"]]
        check = next(check for check in task.checks if check.name == told["check"])
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message.removeprefix("Failed: ") if crash else told.get("message", "")
        verdict = Verdict(task.name, check, OUTCOMES[report.outcome], message)
        self.outcomes[task.name] = verdict.outcome
        self.tell(verdict, report.capstdout)
        if report.failed:
            self.session.shouldfail = f"{task.name} is wrong"


def run(place: Path, tell: Callable[[Verdict, str], None]) -> dict[str, str]:
    """Check the homework in a folder, or in one file, up to the first task that fails.

    tell(verdict, printed) is called for each check up to the first of its task that is not ok.
    Returns the outcome by task. Raises KeyboardInterrupt, and RuntimeError where pytest itself
    does not run.
    """
    folder = place.parent if place.is_file() else place
    listener = Listener(tell)
    options = ["-c", os.devnull, "--rootdir", str(folder.absolute()), "--noconftest"]
    options += ["--assert=plain", "--import-mode=append", "-p", "no:terminal"]
    options += ["-p", "no:cacheprovider", "-p", "no:faulthandler"]
    options += ["--homework", str(place.absolute())]
    with _alone():
        code = pytest.main(
            [*options, str(Path(__file__).with_name("test_homework.py"))],
            plugins=[minimha_pytest, listener],
        )
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run: {pytest.ExitCode(code).name}")
    return listener.outcomes


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No plugins but ours, and no options from the environment."""
    before = {name: os.environ.pop(name, None) for name in SETTINGS}
    sys.breakpointhook, hook = _no_debugger, sys.breakpointhook
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        sys.breakpointhook = hook
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def _no_debugger(*_: object, **__: object) -> None:
    raise RuntimeError("for a debugger, run: pytest --pyargs minimha.homework -k NAME")
