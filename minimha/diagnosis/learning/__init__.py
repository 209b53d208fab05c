"""Finding out why a model does not learn. `mh.diagnose` runs the checks in these files."""

from .diagnose import diagnose
from .report import Finding, Report

__all__ = ["Finding", "Report", "diagnose"]
