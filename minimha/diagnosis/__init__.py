"""Finding faults: the mistake behind a wrong gradient, for which `mh.gradcheck` loads this package,
and the reason why a model does not learn, which `mh.diagnose` looks for."""

from .learning import diagnose

__all__ = ["diagnose"]
