"""The processes that run submissions: they may answer calls and do little else.

Started as a program, this file imports the standard library, NumPy, and three files of minimha:
`numpy_tile`, which runs kernels for GPUs on NumPy, `ranks_in_turn` and `forward_calls`. It never
imports minimha.
Then it waits for requests, and forks one confined process for each submission; that saves the
imports.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import linecache
import os
import sys
import time
import types
from collections.abc import Collection, Mapping, Sequence
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
    _loaded("minimha.parallel", "ranks_in_turn.py")
    _loaded("forward_calls", "../forward_calls.py")


def _loaded(name: str, file: str) -> types.ModuleType:
    path = os.path.join(os.path.dirname(__file__), file)
    sys.modules[name] = module = types.ModuleType(name)
    with open(path, encoding="utf-8") as source:
        exec(compile(source.read(), path, "exec"), vars(module))
    return module


class OwnModules:
    """Imports a student's own modules from their sources, given by path: mine/maths.py. A folder
    may be without an __init__.py."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        folders = {
            f"{path[:k]}/__init__.py": b""
            for path in sources
            for k, c in enumerate(path)
            if c == "/"
        }
        self.sources = {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): (path, data)
            for path, data in (folders | dict(sources)).items()
        }

    def find_spec(self, name: str, *_: Any) -> Any:
        """How to import one of these modules; None for any other."""
        if name not in self.sources:
            return None
        package = self.sources[name][0].endswith("/__init__.py")
        return importlib.machinery.ModuleSpec(name, self, is_package=package)  # type: ignore[arg-type]

    def create_module(self, _: Any) -> None:
        """Let Python make the module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run a module's source."""
        run(*self.sources[module.__name__], module)


def run(file: str, source: bytes, module: types.ModuleType) -> None:
    """Run a source as this module. Errors quote its lines."""
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[file] = len(source), None, lines, file
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))


def lock(readable: Sequence[str], own: Collection[str] = ()) -> None:
    """From now on, refuse everything that a function on arrays does not need.

    The process may read files below the readable folders, which end in a separator, and import
    modules that are already imported or are in those folders, and the student's own. Every other
    event that Python reports to audit hooks is refused, except those in `_ALLOWED`.
    """
    for module in ("os", "posix", "_signal", "_imp"):
        for name in _UNREPORTED.split():
            vars(importlib.import_module(module)).pop(name, None)

    # the names are bound as defaults, because a submission can change globals and built-ins
    def hook(
        event: str, arguments: tuple[Any, ...], allowed: Any = _ALLOWED,
        readable: Any = tuple(readable), own: Any = frozenset(own),
        writes: Any = os.O_WRONLY | os.O_RDWR | os.O_CREAT, text: Any = str, kind: Any = type,
        refused: Any = PermissionError, missing: Any = ImportError,
    ) -> None:  # fmt: skip
        if event in allowed:
            return
        first: Any = arguments[0] if arguments else None
        if event == "import":
            if not text.startswith(first, ("numpy.", "encodings.")) and first not in own:
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


def serve(line: int, request: Mapping[str, Any], readable: Sequence[str]) -> None:
    """In a process of its own: load a submission when asked, and answer calls to its functions."""
    from connection import Connection  # type: ignore[import-not-found]

    name, file = request["name"], f"{request['name']}.py"
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)

    received = bytearray()

    def read(size: int) -> bytes:
        while len(received) < size:
            chunk = os.read(line, 1 << 16)
            if not chunk:  # the grader is gone
                os._exit(0)
            received.extend(chunk)
        data = bytes(received[:size])
        del received[:size]
        return data

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(line, rest) :]

    def load(source: Any) -> Any:
        module = sys.modules["_homework"] = types.ModuleType("_homework")
        run(file, bytes(source), module)
        if not callable(vars(module).get(name)):
            raise NameError(f"{file} defines no function {name}")
        return sys.modules["forward_calls"].limited(vars(module)[name])

    own = OwnModules({path: text.encode("latin-1") for path, text in request["modules"].items()})
    connection = Connection(read, write)
    connection.caught, connection.files = BaseException, [*request["modules"], file]
    connection.give(load)
    for module in ("random", "numpy.random"):  # the same random numbers in each run
        sys.modules[module].seed(0)
    limit(request["megabytes"], request["seconds"])
    confine(readable)
    for module in ("ctypes", "_ctypes", "ctypes._endian", "socket", "_socket", "signal"):
        sys.modules[module] = None  # type: ignore[assignment]
    sys.path.clear()
    sys.meta_path.insert(0, own)
    lock(readable, own.sources)
    connection.serve()


def ended(process: int, seconds: float) -> int | None:
    """The exit code of a process that ends within some seconds, or minus the signal that ended it;
    None if it has to be killed."""
    late, code = time.monotonic() + seconds, None
    while code is None and time.monotonic() < late:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
    if code is None:
        os.kill(process, 9)
        os.waitpid(process, 0)
    with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, for a zombie
        os.killpg(process, 9)  # everything that it started
    return code


def main() -> None:
    """Answer the grader's requests: start a process for a submission, or say how one ended."""
    import socket  # not for submissions, as a global would be

    folder = sys.argv[1]
    sys.path += [folder, os.path.dirname(__file__)]
    sys.modules["ctypes"] = None  # type: ignore[assignment]  # NumPy works without it
    for module in _KNOWN.split():
        importlib.import_module(module)
    numpy: Any = sys.modules["numpy"]  # `from numpy import *` loads everything in its __all__
    numpy.__all__ = [name for name in numpy.__all__ if name in vars(numpy)]
    load_minimha()
    importlib.import_module("connection")
    del sys.modules["ctypes"]
    importlib.import_module("ctypes")  # for `confine`
    encodings = os.path.join(os.path.dirname(os.__file__), "encodings")
    readable = [os.path.join(folder, "numpy", ""), os.path.join(encodings, "")]
    requests = socket.socket(fileno=0)
    while True:
        text, lines, *_ = socket.recv_fds(requests, 1 << 16, 1)
        if not text:  # the grader is gone
            os._exit(0)
        while not text.endswith(b"\n"):
            text += requests.recv(1 << 16)
        request = json.loads(text)
        if lines:
            answer: int | None = os.fork()
            if answer == 0:
                os.setsid()
                serve(lines[0], request, readable)
            os.close(lines[0])
        else:
            answer = ended(*request)
        requests.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
