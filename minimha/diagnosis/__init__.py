"""Finding faults: behind a wrong gradient, where `mh.gradcheck` loads this, and behind a model that
does not learn: `mh.diagnose`."""

from .causes import UNEXPLAINED, Diagnosis, Finding
from .explanation import AXES, explain
from .learning import diagnose

__all__ = ["AXES", "UNEXPLAINED", "Diagnosis", "Finding", "diagnose", "explain"]
