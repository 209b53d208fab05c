"""Finding out why a model does not learn. `mh.diagnose` runs the checks in these files."""

from .diagnose import diagnose
from .report import Finding, ModelReport

__all__ = ["Finding", "ModelReport", "diagnose"]
