"""Naming the fault behind a wrong gradient. `mh.gradcheck` loads this when a check fails."""

from .causes import UNEXPLAINED, Diagnosis, Finding
from .explanation import AXES, explain

__all__ = ["AXES", "UNEXPLAINED", "Diagnosis", "Finding", "explain"]
