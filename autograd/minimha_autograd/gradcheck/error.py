"""The error of a check that failed, and what explains it."""

from __future__ import annotations

from typing import Any

EXPLAINERS: list[str] = []
"""Modules with a function `explain(FailedCheck)`: the last is imported, and asked, when a check
fails. It returns a message with the step at fault and its likely cause, and the same as an object.
"""


class GradcheckError(AssertionError):
    """A gradient is wrong. The message says which, where, by how much, and what it looks like.

    report     the Report, wrong rows included; None where nothing could be compared
    diagnosis  the step at fault and the likely cause; None where nothing explains it
    """

    __module__ = "minimha_autograd"  # as it is written in a traceback

    def __init__(self, message: str, report: Any = None, diagnosis: Any = None) -> None:
        super().__init__(message)
        self.report, self.diagnosis = report, diagnosis
