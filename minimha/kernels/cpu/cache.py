"""Compiled kernels, kept in files for the next process. This uses parts of Numba that may change.

Numba's own cache asks whether the file that defines a function has changed, and raises where a file
is damaged or a folder cannot be written. Here a folder belongs to one state of all sources of
kernels and of the compiler, and a file in it to one kernel, types and CPU; its checksum comes last.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import IndexDataCacheFile, NullCache
from numba.core.compiler import CompileResult

SETTINGS = (  # of numba.config, those that change the code
    "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DISABLE_INTEL_SVML", "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS", "LLVM_REFPRUNE_PASS", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE",
)  # fmt: skip
UNUSED = 30 * 24 * 3600
"""After so many seconds without use a folder goes."""

VERSIONS = sys.version, metadata.version("numpy"), numba.__version__, llvmlite.__version__

log = logging.getLogger("minimha")


def fingerprint() -> str:
    """Of all sources of kernels and of what compiles them; empty where there are no sources."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(repr(VERSIONS).encode())
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16] if sources else ""


LOADED = fingerprint()  # what is in memory: this module is imported before any kernel


def folder() -> Path:
    """Where kernels are kept; RuntimeError where there is no home."""
    if ours := os.environ.get("MINIMHA_CACHE_DIR"):
        base = Path(ours).expanduser()
    elif numba.config.CACHE_DIR:  # NUMBA_CACHE_DIR
        base = Path(numba.config.CACHE_DIR, "minimha")
    else:
        windows = sys.platform == "win32"
        caches = Path(os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME", ""))
        if not caches.is_absolute():  # not set, or to be ignored
            caches = Path.home() / ("AppData/Local" if windows else ".cache")
        base = caches / "minimha"
    return base.absolute() / f"kernels-{LOADED}"


class Cache(NullCache):
    """What Numba asks before it compiles a function for new types, and tells after."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options

    def load_overload(self, types: Any, target: Any) -> Any:
        """The kernel, or None: there is none, it is damaged, it cannot be read."""
        target.refresh()
        with contextlib.suppress(Exception):
            if fingerprint() == LOADED:
                _use(folder())
                name, key = self._name_and_key(types, target)
                kept, parts = _File(folder(), "", "")._load_data(name)
                if kept == key:
                    return CompileResult._rebuild(target, *parts)
        return None

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Keep it, if it may be kept: not where it holds addresses in this process."""
        if compiled.lifted or compiled.library.has_dynamic_globals:
            return
        try:
            if fingerprint() == LOADED and ready():
                name, key = self._name_and_key(types, compiled.target_context)
                _File(folder(), "", "")._save_data(name, (key, compiled._reduce()))
        except Exception as error:
            _cannot_keep(error)

    def _name_and_key(self, types: Any, target: Any) -> tuple[str, Any]:
        settings = [str(getattr(numba.config, name, None)) for name in SETTINGS]
        cpu = target.codegen().magic_tuple()
        named = self.function.__module__, self.function.__qualname__, str(types), cpu, settings
        digest = hashlib.sha256(repr(named).encode()).hexdigest()[:32]
        return f"{self.function.__name__}-{digest}", (types, cpu, settings, self.options)


class _File(IndexDataCacheFile):
    """Numba's reading and writing (whole or not at all), with a checksum that readers pass over."""

    def _dump(self, data: Any) -> bytes:
        dumped: bytes = super()._dump(data)
        return dumped + hashlib.sha256(dumped).digest()

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError(f"{name} is damaged")
        return super()._load_data(name)


@functools.cache
def _use(ours: Path) -> None:
    """Note that it was used today, and remove others that were not for long."""
    with contextlib.suppress(OSError):
        os.utime(ours)
        for other in ours.parent.iterdir():
            stale = other.stat().st_mtime < time.time() - UNUSED
            if stale and re.fullmatch("kernels-[0-9a-f]{16}", other.name):
                shutil.rmtree(other, ignore_errors=True)


def ready() -> bool:
    """Whether the folder is there, made if need be."""
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    except Exception as error:
        _cannot_keep(error)
        return False
    return True


def _cannot_keep(error: Exception) -> None:
    if not _told:
        _told.append(error)
        log.warning(
            "minimha: compiled kernels cannot be kept (%s), so each process compiles them anew; "
            "set MINIMHA_CACHE_DIR to a folder that can be written",
            str(error) or type(error).__name__,
        )


_told: list[Exception] = []


def keep(kernel: Any, options: dict[str, Any]) -> None:
    """Have a compiled function kept, if nothing but our sources and its options make it."""
    function = kernel.py_func
    ours = LOADED and function.__module__.startswith("minimha.kernels.")
    if ours and "<locals>" not in function.__qualname__:
        kernel._cache = Cache(function, options)
