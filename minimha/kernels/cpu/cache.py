"""Compiled kernels, stored in files for the next process.

Numba's own cache, `cache=True`, was tried and used the wrong code in two cases. It notices changes
in the file of a kernel, but not in other files with functions that the kernel calls, so an update
can leave old code in use. And if two processes compile a kernel for different types at the same
time, as the workers of pytest-xdist do, their common index can name the code for one type as that
for the other. Here each version of the kernel sources and the compiler has its own folder, and each
combination of kernel, argument types and CPU has its own file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy
from numba.core.caching import IndexDataCacheFile, NullCache
from numba.core.compiler import CompileResult
from numba.misc.appdirs import AppDirs

from .. import warn_once

_MONTH = 30 * 24 * 3600  # seconds
_log = logging.getLogger("minimha")


class KernelCache(NullCache):
    """The cache of one kernel, a function not yet compiled. Numba calls `load_overload` before it
    compiles the kernel for new argument types, and `save_overload` after it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def load_overload(self, types: Any, target: Any) -> Any:
        """Read the compiled kernel for arguments of these types from its file, where
        `save_overload` has stored it. `target` is Numba's description of the CPU. Returns None if
        there is no readable file; Numba then compiles the kernel."""
        target.refresh()
        with contextlib.suppress(Exception):
            return CompileResult._rebuild(target, *_files()._load_data(self._name(types, target)))
        _prepare()
        return None

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Store `compiled`, the kernel compiled for arguments of these types, in a file of its own.
        If that is not possible, log a warning."""
        try:
            _files()._save_data(self._name(types, compiled.target_context), compiled._reduce())
        except Exception as error:
            warn_once(
                "minimha: compiled kernels cannot be kept (%s), so each process compiles them "
                "anew; set MINIMHA_CACHE_DIR to a folder that can be written",
                getattr(error, "strerror", None) or error,
            )

    def _name(self, types: Any, target: Any) -> str:
        cpu = target.codegen().magic_tuple()
        key = self.function.__module__, self.function.__qualname__, str(types), cpu
        return f"{self.function.__name__}-{_digest(repr(key).encode())}"


def folder() -> Path:
    """The folder of this version's compiled kernels, `kernels-…`. It is in MINIMHA_CACHE_DIR;
    without this environment variable, in the folder `minimha` in NUMBA_CACHE_DIR; without either,
    in the folder `minimha` where the system keeps the user's caches, such as ~/.cache.

    Code from this folder is executed, so only its owner should be able to write to it.
    """
    if ours := os.environ.get("MINIMHA_CACHE_DIR"):
        caches = Path(ours).expanduser()
    elif numba.config.CACHE_DIR:
        caches = Path(numba.config.CACHE_DIR, "minimha")
    else:
        caches = Path(AppDirs("minimha", appauthor=False).user_cache_dir)
    return caches.absolute() / f"kernels-{_FINGERPRINT}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fingerprint() -> str:
    """A hash of all on which compiled kernels depend: the sources in `minimha.kernels`, the
    versions of Python, NumPy, Numba and llvmlite, and Numba's environment variables. It is part of
    the name of the folder for kernels."""
    versions = sys.version, numpy.__version__, numba.__version__, llvmlite.__version__
    irrelevant = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}
    names = sorted(k for k in os.environ if k.startswith("NUMBA_") and k not in irrelevant)
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    contents = [source.read_bytes() for source in sources]
    return _digest(repr((versions, [(k, os.environ[k]) for k in names], contents)).encode())


_FINGERPRINT = _fingerprint()


def _files() -> IndexDataCacheFile:
    """An object of Numba that reads and writes files in `folder()`. Other processes never see a
    file that is written only in part."""
    return IndexDataCacheFile(folder(), "", "")


@functools.cache
def _prepare() -> None:
    """Make the folder for kernels, tell the user why compiling takes a while, and remove the
    folders of other versions of the kernels in which no file was stored for a month."""
    ours = folder()
    kernels = "more kernels" if ours.is_dir() else "kernels for this machine, once"
    with contextlib.suppress(OSError):  # `save_overload` reports it
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        _log.warning("minimha: compiling %s (kept in %s)", kernels, ours)
        for other in ours.parent.glob("kernels-*"):
            if other != ours and other.stat().st_mtime < time.time() - _MONTH:
                shutil.rmtree(other, ignore_errors=True)
