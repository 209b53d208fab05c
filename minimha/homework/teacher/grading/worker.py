"""The processes that run submissions, and may do little except answer calls.

Started as a program, this file imports the standard library, NumPy, and five files of minimha:
`numpy_tile`, which runs kernels for GPUs on NumPy, `ranks_in_turn`, `forward_calls`, `nested`, and
the engine's `extension`.
It never imports minimha. Then it waits for requests, and forks one confined process for each
submission; that saves the imports.
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
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

_KNOWN = """
    cmath collections copy dataclasses datetime decimal enum fractions functools graphlib heapq
    numbers operator pprint random statistics string textwrap time timeit typing unicodedata
    warnings numpy numpy.char numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random
    numpy.rec numpy.typing
"""
"""The modules that a submission may import, together with those that they import."""
_REFUSED = "ctypes", "_ctypes", "ctypes._endian", "socket", "_socket", "signal"
"""Modules that the process itself imports, but that a submission may not import."""
_NESTED = "minimha.homework.checks.nested"
_EXTENSION = "minimha_autograd.extension"
_OUR_OWN = "connection", "system_calls", _NESTED, _EXTENSION
"""Modules of the grader that are removed before a submission runs: a student's own modules may have
the same names."""
_IN_PART = "minimha.kernels", "minimha.parallel"
"""Modules of which a submission gets only some of the names."""
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
"""Functions that reach beyond the process without being reported to audit hooks."""


def load_minimha() -> None:
    """Make two modules of minimha importable without the rest of the package:
    `minimha.kernels.numpy_tile`, which runs kernels for GPUs on NumPy, and the part of
    `minimha.parallel` that homework needs."""
    _loaded(_EXTENSION, f"{_engine()}/extension.py")
    kernels: Any = types.ModuleType("minimha.kernels")
    kernels.numpy_tile = _loaded("numpy_tile", "../../../kernels/gpu/numpy_tile.py")
    sys.modules |= {"minimha.kernels": kernels}
    _loaded("minimha.parallel", "../../checks/ranks_in_turn.py")
    _loaded("forward_calls", "../../checks/forward_calls.py")
    _loaded(_NESTED, "../../checks/nested.py")


def _engine() -> str:
    """Return the path of the folder of minimha_autograd, the engine, relative to the folder of this
    file. If minimha is installed, minimha_autograd is beside minimha; in a clone of the repository,
    it is inside the folder autograd."""
    beside, in_a_clone = "../../../../minimha_autograd", "../../../../autograd/minimha_autograd"
    installed = os.path.isdir(os.path.join(os.path.dirname(__file__), beside))
    return beside if installed else in_a_clone


def _loaded(name: str, file: str) -> types.ModuleType:
    path = os.path.join(os.path.dirname(__file__), file)
    sys.modules[name] = module = types.ModuleType(name)
    del module.__spec__  # it has no loader: Python 3.15 would warn in every traceback
    with open(path, encoding="utf-8") as source:
        exec(compile(source.read(), path, "exec"), vars(module))
    return module


class OwnModules:
    """Imports a student's own modules for Python's import system, as a member of sys.meta_path.
    `sources` has their sources by path, such as mine/maths.py. A package may lack an
    __init__.py."""

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
        """Return the spec of a module with this full name, as Python's import system expects it, if
        it is one of the student's own; None for any other module."""
        if name not in self.sources:
            return None
        package = self.sources[name][0].endswith("/__init__.py")
        return importlib.machinery.ModuleSpec(name, self, is_package=package)  # type: ignore[arg-type]

    def create_module(self, _: Any) -> None:
        """Return None, so that Python creates the module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run a module's source."""
        execute(*self.sources[module.__name__], module)


def execute(file: str, source: bytes, module: types.ModuleType) -> None:
    """Run a source as the code of this module. Tracebacks of its errors quote its lines, and call
    them lines of `file`."""
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[file] = len(source), None, lines, file
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))


def lock(own: Collection[str] = ()) -> None:
    """From now on, refuse everything that a function on arrays does not need.

    The process may import modules that are already imported, and the student's own, whose full
    names are in `own`; and it may open files by their descriptors. Every other event that Python
    reports to audit hooks is refused, except those in `_ALLOWED`.
    """
    for module in ("os", "posix", "_signal", "_imp"):
        for name in _UNREPORTED.split():
            vars(importlib.import_module(module)).pop(name, None)

    # the names are bound as defaults, because a submission can change globals and built-ins
    def hook(
        event: str, arguments: tuple[Any, ...], allowed: Any = _ALLOWED,
        own: Any = frozenset(own), number: Any = int, kind: Any = type,
        refused: Any = PermissionError, missing: Any = ImportError,
    ) -> None:  # fmt: skip
        if event in allowed or (event == "open" and kind(arguments[0]) is number):  # a descriptor
            return
        if event != "import":
            raise refused(f"{event} is refused here, where homework is graded")
        if arguments[0] not in own:
            raise missing(f"{arguments[0]} cannot be imported here, where homework is graded")

    sys.addaudithook(hook)


def limit(megabytes: int, seconds: int) -> None:
    """Limit the memory and the processor time of this process; forbid it to open or write files,
    and to create sockets, processes and core dumps. If the process runs as root, give up root's
    rights."""
    import resource

    for name, most in (
        ("AS", megabytes << 20), ("CPU", seconds), ("NOFILE", 0), ("FSIZE", 0), ("NPROC", 0),
        ("CORE", 0),
    ):  # fmt: skip
        with suppress(AttributeError, OSError, ValueError):  # not every system has each limit
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    if os.geteuid() == 0:
        nobody = 61184 + os.getpid() % 4336  # no user has one of these numbers: systemd's UIDs.md
        with suppress(OSError):
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)


def serve(descriptor: int) -> None:
    """Run a submission in this process, which was started for it: load its source when asked, and
    answer calls to its functions.

    The name of the task and the student's own modules arrive only now, over the connection, the
    socket with this descriptor. The process that starts all submissions does not get them, so that
    no later submission can find them in its memory.
    """
    import system_calls  # type: ignore[import-not-found]
    from connection import Connection  # type: ignore[import-not-found]

    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    received = bytearray()

    def receive() -> None:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:  # the grader is gone
            os._exit(0)
        received.extend(chunk)

    def read(size: int) -> bytes:
        while len(received) < size:
            receive()
        data = bytes(received[:size])
        del received[:size]
        return data

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def load(source: Any) -> Any:
        module = sys.modules["_homework"] = types.ModuleType("_homework")
        del module.__spec__
        execute(file, bytes(source), module)
        if not callable(vars(module).get(name)):
            raise NameError(f"{file} defines no function {name}")
        return sys.modules["forward_calls"].limited(vars(module)[name])

    while b"\n" not in received:
        receive()
    request = json.loads(read(received.index(b"\n") + 1))
    name, file = request["name"], f"{request['name']}.py"
    own = OwnModules({path: text.encode("latin-1") for path, text in request["modules"].items()})
    connection = Connection(read, write)
    connection.caught, connection.files = BaseException, [*request["modules"], file]
    connection.give(load)
    tiles: Any = sys.modules["minimha.kernels"].numpy_tile
    ranks: Any = sys.modules["minimha.parallel"]
    tiles.run_elsewhere.provide(lambda *launch: connection.call(connection.LAUNCH, launch, {}))
    ranks.run_elsewhere.provide(lambda *run: connection.call(connection.RUN, run, {}))
    for module in ("random", "numpy.random"):  # the same random numbers in each run
        sys.modules[module].seed(0)
    system_calls.confine()
    limit(request["megabytes"], request["seconds"])
    for module in _REFUSED:
        sys.modules[module] = None  # type: ignore[assignment]
    for module in _OUR_OWN:
        del sys.modules[module]
    sys.path.clear()
    sys.meta_path.insert(0, own)
    lock(own.sources)
    connection.serve()


def ended(process: int, seconds: float) -> int | None:
    """Wait up to this many seconds for the process with the number `process` to end, and then kill
    it if it still runs. In either case, kill everything that it started. Returns its exit code or
    minus the number of the signal that ended it; None if it had to be killed."""
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


def prepare() -> None:
    """Import all modules that a submission may import, and those that a process needs to run a
    submission."""
    importlib.import_module("socket")
    sys.modules["ctypes"] = None  # type: ignore[assignment]  # NumPy works without it
    for module in _KNOWN.split():
        importlib.import_module(module)
    numpy: Any = sys.modules["numpy"]  # `from numpy import *` loads everything in its __all__
    numpy.__all__ = [name for name in numpy.__all__ if name in vars(numpy)]
    for file in os.listdir(os.path.dirname(sys.modules["encodings"].__file__ or "")):
        with suppress(ImportError):  # those of Windows
            importlib.import_module(f"encodings.{file.partition('.')[0]}")
    load_minimha()
    importlib.import_module("connection")
    del sys.modules["ctypes"]
    for module in ("ctypes", "resource", "system_calls"):
        importlib.import_module(module)


def importable() -> list[str]:
    """Return the full names that a submission may import: modules, such as math, and the names that
    it gets from modules of which it gets only a part, such as minimha.parallel.run. Call `prepare`
    before."""
    lost = {*_REFUSED, *_OUR_OWN, *_IN_PART, __name__}
    names = [f"{module}.{name}" for module in _IN_PART for name in vars(sys.modules[module])]
    return [*(sys.modules.keys() - lost), *names]


def main() -> None:
    """Answer the grader's requests: start a process for a submission, or end one and say how it
    ended."""
    import socket  # not for submissions, as a global would be

    folder = sys.argv[1]
    sys.path += [folder, os.path.dirname(__file__)]
    prepare()
    requests = socket.socket(fileno=0)
    while True:
        text, descriptors, *_ = socket.recv_fds(requests, 1 << 10, 1)
        if not text:  # the grader is gone
            os._exit(0)
        if descriptors:
            answer: int | None = os.fork()
            if answer == 0:
                os.setsid()
                serve(descriptors[0])
            os.close(descriptors[0])
        else:
            answer = ended(*json.loads(text))
        requests.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
