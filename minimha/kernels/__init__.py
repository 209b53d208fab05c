"""Compiled kernels: other implementations of operations, with the same values and pullbacks.

They register with `functional.implementations`. They change the speed of results but not their
values, and nothing is imported before it is used.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from minimha_autograd.first_use import on_first_use

if TYPE_CHECKING:
    from .gpu import numpy_tile
else:
    __getattr__, __dir__ = on_first_use(__name__, {"gpu": "numpy_tile", "threads": ""})

__all__ = ["numpy_tile"]

INSTEAD = "minimha: %s; the reference takes over: the same results, but slower"
warn_once = functools.cache(logging.getLogger("minimha").warning)


@functools.cache
def unavailable(*others: str) -> str | None:
    """The reason why compiled kernels cannot be used, or None if they can. The first call with the
    same arguments imports Numba and the other packages.

    others  packages that the kernels need in addition to Numba, such as "scipy"
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        return "NUMBA_DISABLE_JIT is set"
    for name in ("numba", *others):
        try:
            importlib.import_module(name)
        except Exception as error:  # ImportError and more: Numba refuses a NumPy newer than itself
            why = f"{name} cannot be imported: {' '.join(str(error).split())}"
            if not isinstance(error, ModuleNotFoundError):
                warn_once(INSTEAD, why)
            return why
    numba = sys.modules["numba"]
    if numba.version_info.short < (0, 61):
        return f"Numba is {numba.__version__}, but kernels need 0.61 or later"
    return None


def register_all() -> None:
    """Import all kernels, which register themselves."""
    importlib.import_module(".operations", __name__)
    importlib.import_module(".attention", __name__)
