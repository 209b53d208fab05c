"""The error of a check that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Report
    from .signatures import Diagnosis


class GradcheckError(AssertionError):
    """A gradient is wrong. The message says which, where, by how much, and what it looks like.

    report     the Report, wrong rows included; None where nothing could be compared
    diagnosis  the step at fault and the likely cause; None likewise
    """

    def __init__(
        self, message: str, report: Report | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        super().__init__(message)
        self.report, self.diagnosis = report, diagnosis
