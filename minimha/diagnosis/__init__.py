"""Finding faults: behind a wrong gradient, where `mh.gradcheck` loads this, and behind a model that
does not learn: `mh.diagnose`."""

from .learning import diagnose

__all__ = ["diagnose"]
