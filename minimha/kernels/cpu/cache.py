"""Compiled kernels, kept in files for the next process.

Numba's own cache misses changes in the modules that a kernel uses, and raises if a file is damaged
or a folder cannot be written. Here a folder belongs to one state of all sources of kernels and of
the compiler, and a file in it to one kernel, argument types and CPU.
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

_MONTH = 30 * 24 * 3600  # seconds
_log = logging.getLogger("minimha")


class KernelCache(NullCache):
    """What Numba asks before it compiles a function for new types, and tells afterwards."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def load_overload(self, types: Any, target: Any) -> Any:
        """The compiled kernel, or None if there is no file of it that can be read."""
        target.refresh()
        with contextlib.suppress(Exception):
            return CompileResult._rebuild(target, *_files()._load_data(self._name(types, target)))
        _prepare()
        return None

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Keep it, unless it holds addresses that are valid in this process only."""
        if compiled.library.has_dynamic_globals:
            return
        try:
            _files()._save_data(self._name(types, compiled.target_context), compiled._reduce())
        except Exception as error:
            _cannot_keep(error)

    def _name(self, types: Any, target: Any) -> str:
        cpu = target.codegen().magic_tuple()
        key = self.function.__module__, self.function.__qualname__, str(types), cpu
        return f"{self.function.__name__}-{_digest(repr(key).encode())}"


def folder() -> Path:
    """Where kernels are kept: `kernels-…` in MINIMHA_CACHE_DIR, or else in `minimha` in
    NUMBA_CACHE_DIR, or else in `minimha` in the folder of the user's caches.

    What is kept there is executed, so nobody else should be able to write to it.
    """
    if ours := os.environ.get("MINIMHA_CACHE_DIR"):
        caches = Path(ours).expanduser()
    elif numba.config.CACHE_DIR:
        caches = Path(numba.config.CACHE_DIR, "minimha")
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "minimha"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minimha"
    return caches.absolute() / f"kernels-{_FINGERPRINT}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fingerprint() -> str:
    """Of all sources of kernels, of what compiles them, and of its settings."""
    versions = sys.version, numpy.__version__, numba.__version__, llvmlite.__version__
    settings = {k: v for k, v in os.environ.items() if k.startswith("NUMBA_")}
    for irrelevant in ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"):
        settings.pop(irrelevant, None)
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    contents = [_digest(source.read_bytes()) for source in sources]
    return _digest(repr((versions, sorted(settings.items()), contents)).encode())


_FINGERPRINT = _fingerprint()


def _files() -> IndexDataCacheFile:
    """Numba's reading and writing of files, of which only whole ones ever appear."""
    return IndexDataCacheFile(folder(), "", "")


@functools.cache
def _prepare() -> None:
    """Make the folder, tell the user why this takes a while, and remove other versions' folders in
    which nothing was written for a month."""
    try:
        ours = folder()
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in ours.parent.glob("kernels-*"):
            if other != ours and other.stat().st_mtime < time.time() - _MONTH:
                shutil.rmtree(other, ignore_errors=True)
    except Exception as error:
        _cannot_keep(error)
    else:
        _log.warning("minimha: compiling kernels for this machine, once (kept in %s)", ours)


_errors: list[Exception] = []


def _cannot_keep(error: Exception) -> None:
    if not _errors:
        _log.warning(
            "minimha: compiled kernels cannot be kept (%s), so each process compiles them anew; "
            "set MINIMHA_CACHE_DIR to a folder that can be written",
            error,
        )
    _errors.append(error)
