"""The process that runs a submission: it may answer calls and do little else.

Started as a program, python -I -S worker.py …, it has the standard library, NumPy, and two files of
minimha: `numpy_tile`, which runs kernels for GPUs on NumPy, and `ranks`. It never imports minimha.
"""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_KNOWN = """
    cmath collections copy dataclasses datetime decimal enum fractions functools heapq numbers
    operator pprint random statistics string textwrap time timeit typing unicodedata warnings
    numpy numpy.fft numpy.linalg numpy.polynomial numpy.random
"""
"""The modules that a submission may import, together with those that they import."""
_ALLOWED = (
    "array.__new__", "builtins.id", "code.__new__", "compile", "cpython._PySys_ClearAuditHooks",
    "exec", "function.__new__", "marshal.loads", "object.__delattr__", "object.__getattr__",
    "object.__setattr__", "sys._getframe", "sys._getframemodulename", "sys.excepthook",
    "sys.unraisablehook", "time.sleep",
    "_thread.start_joinable_thread", "_thread.start_new_thread",  # reported from Python 3.12 on
)  # fmt: skip
"""Harmless events that Python reports to audit hooks."""
_UNREPORTED = """
    chroot create_builtin create_dynamic killpg mkfifo mknod openpty pidfd_open
    pidfd_send_signal sched_setaffinity sched_setparam sched_setscheduler setns setpriority
    supports_dir_fd unshare
"""
"""Functions that reach beyond the process without an audit event."""


def load_minimha() -> None:
    """Make `minimha.kernels.numpy_tile` and what homework needs of `minimha.parallel` importable,
    without the rest of the package."""
    kernels: Any = types.ModuleType("minimha.kernels")
    kernels.numpy_tile = _loaded("numpy_tile", "../../kernels/gpu/numpy_tile.py")
    sys.modules |= {"minimha.kernels": kernels}
    _loaded("minimha.parallel", "ranks.py")


def _loaded(name: str, file: str) -> types.ModuleType:
    path = os.path.join(os.path.dirname(__file__), file)
    sys.modules[name] = module = types.ModuleType(name)
    with open(path, encoding="utf-8") as source:
        exec(compile(source.read(), path, "exec"), vars(module))
    return module


def lock(readable: Sequence[str]) -> None:
    """From now on, refuse everything that a function on arrays does not need.

    The process may read files below the readable folders, which end in a separator, and import
    modules that are already imported or are in those folders. Every other event that Python reports
    to audit hooks is refused, except those in `_ALLOWED`.
    """
    for module in ("os", "posix", "_signal", "_imp"):
        for name in _UNREPORTED.split():
            vars(importlib.import_module(module)).pop(name, None)

    # the names are bound as defaults, because a submission can change globals and built-ins
    def hook(
        event: str, arguments: tuple[Any, ...], allowed: Any = _ALLOWED,
        readable: Any = tuple(readable), writes: Any = os.O_WRONLY | os.O_RDWR | os.O_CREAT,
        text: Any = str, kind: Any = type,
        refused: Any = PermissionError, missing: Any = ImportError,
    ) -> None:  # fmt: skip
        if event in allowed:
            return
        first: Any = arguments[0] if arguments else None
        if event == "import":
            if not text.startswith(first, ("numpy.", "encodings.")):
                raise missing(f"{first} cannot be imported here, where homework is graded")
            return
        if event in ("open", "os.listdir", "os.scandir"):
            if event == "open" and kind(first) is int:
                return  # an open descriptor
            below = kind(first) is text and text.startswith(first, readable) and "/.." not in first
            if below and not (event == "open" and arguments[2] & writes):
                return
        raise refused(f"{event} is refused here, where homework is graded")

    sys.addaudithook(hook)


def limit(megabytes: int, seconds: int) -> None:
    """Limit memory, time and open files; forbid written files, processes and core dumps."""
    import resource

    for name, most in (
        ("AS", megabytes << 20), ("CPU", seconds), ("NOFILE", 32), ("FSIZE", 0), ("NPROC", 0),
        ("CORE", 0),
    ):  # fmt: skip
        with suppress(AttributeError, OSError, ValueError):  # not every system has each limit
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def confine(readable: Sequence[str]) -> None:
    """Make Linux refuse files, TCP and signals too, because NumPy can overwrite any hook.

    Uses Landlock where the kernel has it: https://docs.kernel.org/userspace-api/landlock.html
    """
    if sys.platform != "linux":
        return
    with suppress(ImportError, AttributeError, OSError):
        import ctypes
        import struct

        libc, number = ctypes.CDLL(None), ctypes.c_long
        version = libc.syscall(number(444), None, number(0), number(1))
        if version < 1:
            return
        rights = (13, 14, 15, 15, 16)[min(version, 5) - 1]  # the rights that this version knows
        size = 8 if version < 4 else 16 if version < 6 else 24
        refused = struct.pack("=QQQ", (1 << rights) - 1, 3, 3)[:size]
        rules = libc.syscall(number(444), refused, number(size), number(0))
        for path in readable:
            folder = os.open(path, os.O_PATH)
            read = struct.pack("=Qi", 4 | 8, folder)  # files, folders
            libc.syscall(number(445), number(rules), number(1), read, number(0))
            os.close(folder)
        libc.prctl(38, number(1), number(0), number(0), number(0))  # no new privileges
        libc.syscall(number(446), number(rules), number(0))
        os.close(rules)


def main() -> None:
    """Load the submission when asked to, and answer calls to its functions."""
    _, folder, name, megabytes, seconds = sys.argv
    sys.modules["ctypes"] = None  # type: ignore[assignment]  # NumPy works without it
    sys.path += [folder, os.path.dirname(__file__)]
    for module in _KNOWN.split():
        importlib.import_module(module)
    load_minimha()
    from connection import Connection  # type: ignore[import-not-found]

    line, file = os.dup(0), f"{name}.py"
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += os.read(line, min(size - len(data), 1 << 16)) or os._exit(
                0
            )  # the grader is gone
        return bytes(data)

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(line, rest) :]

    def load(source: Any) -> Any:
        lines = bytes(source).decode(errors="replace").splitlines(keepends=True)
        linecache.cache[file] = len(source), None, lines, file  # errors quote their lines
        module = sys.modules["homework"] = types.ModuleType("homework")
        exec(compile(bytes(source), file, "exec", dont_inherit=True), vars(module))
        if not callable(vars(module).get(name)):
            raise NameError(f"{file} defines no function {name}")
        return vars(module)[name]

    connection = Connection(read, write)
    connection.caught, connection.file = BaseException, file
    connection.give(load)
    limit(int(megabytes), int(seconds))
    encodings = os.path.join(os.path.dirname(os.__file__), "encodings")
    readable = [os.path.join(folder, "numpy", ""), os.path.join(encodings, "")]
    del sys.modules["ctypes"]
    confine(readable)
    for module in ("ctypes", "_ctypes", "ctypes._endian"):
        sys.modules[module] = None  # type: ignore[assignment]
    sys.path.clear()
    lock(readable)
    connection.serve()


if __name__ == "__main__":
    main()
