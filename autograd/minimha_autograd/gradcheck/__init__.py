"""Is this gradient right? `gradcheck` compares it with numeric derivatives of the same function."""

from .check import gradcheck
from .report import GradcheckError, Report

__all__ = ["GradcheckError", "Report", "gradcheck"]
