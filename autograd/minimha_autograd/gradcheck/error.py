"""The error of a check that failed."""

from __future__ import annotations

from typing import Any


class GradcheckError(AssertionError):
    """A gradient is wrong: the message says which one, where, by how much, and the probable cause
    if one is known. Or nothing can be compared: the message says why.

    report     the Report, including wrong rows; None if nothing could be compared
    diagnosis  an object that holds the wrong step and its likely cause; None if nothing has
               searched for them
    """

    __module__ = "minimha_autograd"  # as it is written in a traceback

    def __init__(self, message: str, report: Any = None, diagnosis: Any = None) -> None:
        super().__init__(message)
        self.report, self.diagnosis = report, diagnosis
