"""The pytest run behind `minimha homework check`; it ignores the user's own pytest settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .catalogue import course
from .verdicts import FAILED, PASSED, TO_DO, Verdict

OUTCOMES = {"passed": PASSED, "skipped": TO_DO, "failed": FAILED}


class Listener:
    """A plugin that reports each verdict, with what the student's code printed."""

    def __init__(self, report: Callable[[Verdict, str], None]) -> None:
        self.report, self.outcomes = report, dict[str, str]()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, to stop it."""
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a task's checks up to the first that does not pass; stop at one that fails."""
        properties = {str(key): str(value) for key, value in report.user_properties}
        if report.when != "call" or self.outcomes.get(properties["task"], PASSED) != PASSED:
            return
        task = course()[properties["task"]]
        check = next(check for check in task.checks if check.name == properties["check"])
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message.removeprefix("Failed: ") if crash else properties.get("message", "")
        verdict = Verdict(task.name, check, OUTCOMES[report.outcome], message)
        self.outcomes[task.name] = verdict.outcome
        self.report(verdict, report.capstdout)
        if report.failed:
            self.session.shouldfail = f"{task.name} is wrong"


def run(place: Path, report: Callable[[Verdict, str], None]) -> dict[str, str]:
    """Check the homework in a folder, or in one file, up to the first task that fails.

    report(verdict, printed) is called for each check of a task up to the first that does not pass.
    Returns the outcomes by task. Raises KeyboardInterrupt, and RuntimeError if pytest fails to run.
    """
    folder = place.parent if place.is_file() else place
    listener = Listener(report)
    options = ["-c", os.devnull, "--rootdir", str(folder.absolute()), "--noconftest"]
    options += ["--assert=plain", "--import-mode=append", "-p", "no:terminal"]
    options += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "minimha_pytest"]
    options += ["--homework", str(place.absolute())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.delenv("PYTEST_PLUGINS", raising=False)
        patch.setattr(sys, "breakpointhook", _no_debugger)
        code = pytest.main(
            [*options, str(Path(__file__).with_name("test_homework.py"))],
            plugins=[listener],
        )
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run: {pytest.ExitCode(code).name}")
    return listener.outcomes


def _no_debugger(*_: object, **__: object) -> None:
    raise RuntimeError("to use a debugger, run: pytest --pyargs minimha.homework -k NAME")
