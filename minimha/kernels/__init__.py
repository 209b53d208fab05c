"""Fast paths: functions of `functional` once more, compiled, with the same values and pullbacks.

Nothing here is needed for an answer, and nothing is loaded before it is used.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys


@functools.cache
def unavailable() -> str | None:
    """Why compiled kernels cannot be used here, or None where they can.

    Imports Numba, SciPy and threadpoolctl at its first call, unless it can tell before.
    """
    if "numba" not in sys.modules and os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        return "NUMBA_DISABLE_JIT is set"
    for name in ("numba", "scipy", "threadpoolctl"):
        try:
            importlib.import_module(name)
        except Exception as error:  # ImportError and more: Numba refuses a NumPy newer than itself
            return f"{name} cannot be imported: {error}"
    numba = sys.modules["numba"]
    if numba.version_info.short < (0, 60):
        return f"Numba is {numba.__version__}, and 0.60 is the oldest that will do"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    return None
