"""A submission in its own confined process: the grader's end of the connection."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...checks.time_limit import Spent
from .connection import NO_ANSWER, Connection, ConnectionLost

_WORKER = Path(__file__).with_name("worker.py")
_MOST = 1 << 28  # bytes that one check may send back
_SECONDS = 120  # in which the process that starts submissions answers
_DYING = 10  # seconds in which a process that has closed its connection ends
_LOOK = 0.1  # seconds between two looks whether time is up


class Limits(NamedTuple):
    """The limits for a submission: how many seconds of processor time each check may take, as
    explained in `Spent.exceeds`, and how many megabytes of memory the submission may use."""

    seconds: float = 10
    megabytes: int = 512


class Killed(BaseException):
    """The process that starts submissions was killed, perhaps by the submission that was
    running."""


class Submission:
    """A student's source, which runs in a process of its own, and the function `name` that it
    defines. The process starts when the function is first asked for. `modules` has the sources, by
    path, of the student's own modules, which the source may import; None if there are none.

    The source never runs in the grader's process. A context manager: leaving it ends the process
    that runs the source.
    """

    def __init__(
        self, source: bytes, name: str, limits: Limits, modules: Mapping[str, bytes] | None = None
    ) -> None:
        self.source, self.name, self.limits, self.modules = source, name, limits, modules or {}
        self._process: int | None = None
        self._unusable: BaseException | None = None
        self._computed = 0.0  # by processes that have ended
        self._start_of_all = self._start_of_check = self._spent()

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def function(self) -> Callable[..., Any]:
        """Return the submission's function for the next check, with new limits on time and on the
        bytes sent back.

        Raises the error that running the source raised, or ConnectionLost if its process ended or
        took too long; after either, every later call raises the same error again. Raises Killed if
        the process that starts submissions was killed.
        """
        self._start_of_check = self._spent()
        self._left = _MOST
        if self._unusable:
            raise self._unusable
        if self._process is not None:
            self.connection.functions.clear()  # a check must not call those of an earlier one
        else:
            try:
                self._start()
                self._function = self.connection.call(0, [np.frombuffer(self.source, np.uint8)], {})
                if not callable(self._function):
                    raise ConnectionLost(NO_ANSWER)
            except (Exception, ConnectionLost) as error:
                self._unusable = error
                raise
        return self._function

    def time_is_up(self) -> str:
        """Return the reason why there is no time for another check; "" if there is time.

        All checks together have twice the limit of one.
        """
        return self._spent().since(self._start_of_all).exceeds(2 * self.limits.seconds)

    def end(self, seconds: float = 0) -> int | None:
        """End the process and everything it started, after waiting up to `seconds` for it to end by
        itself. Returns its exit code or minus the number of the signal that ended it; None if it
        was killed here or was not running.

        Raises Killed if the process that starts submissions was killed.
        """
        if self._process is None:
            return None
        self._computed = self._spent().computing
        process, self._process = self._process, None
        self._socket.close()
        try:
            return _asked([process, seconds])
        except Killed:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
            raise

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._received = bytearray()
        self.connection = Connection(self._read, self._write)
        for number, module in (
            (Connection.LAUNCH, "minimha.kernels.gpu.numpy_tile"),
            (Connection.RUN, "minimha.parallel.threads"),
        ):
            self.connection.always[number] = functools.partial(_run_by_the_check, module)
        request = {
            "name": self.name,
            "megabytes": self.limits.megabytes,
            # of processor time, in case the grader dies
            "seconds": int(3 * self.limits.seconds) + 1,
            "modules": {path: data.decode("latin-1") for path, data in self.modules.items()},
        }
        with theirs:
            self._process = _asked([], theirs.fileno())
        self._write(json.dumps(request).encode() + b"\n")

    def _read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._lost("it sent back too much")
        while len(self._received) < size:
            chunk = self._on_time(self._socket.recv, 1 << 16)
            if not chunk:
                raise self._lost()
            self._received += chunk
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._on_time(self._socket.send, rest) :]

    def _on_time(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """Call step(argument), an operation of the socket, until it succeeds, and return its
        result. If time is up first, end the process and raise ConnectionLost."""
        self._socket.settimeout(_LOOK)
        while True:
            spent = self._spent().since(self._start_of_check)
            if late := spent.exceeds(self.limits.seconds):
                raise self._lost(f"not done after {late}")
            if late := self.time_is_up():
                raise self._lost(f"not done, and all checks together took {late}")
            try:
                return step(argument)
            except TimeoutError:
                continue
            except OSError:
                raise self._lost() from None

    def _spent(self) -> Spent:
        """Return the processor time that this submission has used so far, and the time on the
        clock. The operating system measures both, so the submission cannot lie about them."""
        computing = self._computed
        if self._process is not None:
            computing += _processor_time(self._process)
        return Spent(computing, time.monotonic())

    def _lost(self, why: str = "") -> ConnectionLost:
        """End the process, and return an error with the message `why` or, if that is empty, with
        how the process ended."""
        code = self.end(0 if why else _DYING)
        if not why and code is not None:
            how = f" itself, with exit code {code}" if code >= 0 else f": {signal.strsignal(-code)}"
            why = f"its process ended{how}"
        return ConnectionLost(why or "its process does not answer")


def _processor_time(process: int) -> float:
    """Return the seconds for which all threads of the process with this number have computed.

    Returns 0 if the system does not say, as on macOS: then only the limit on the clock remains.
    """
    clock = ~process << 3 | 2  # CPUCLOCK_SCHED, as clock_getcpuclockid makes it on Linux
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def _run_by_the_check(module: str, *arguments: Any) -> Any:
    """Call the function `run_elsewhere` of the module with this name, with these arguments, in the
    grader's process, and return its result. A check may have replaced the function, so that the
    check runs the blocks of a submission's GPU kernel, or its parallel ranks. If it has not, the
    result is None, and the submission runs them itself."""
    if module not in sys.modules:
        return None
    return sys.modules[module].run_elsewhere(*arguments)


def _asked(request: Any, *descriptors: int) -> Any:
    """Send a request, with file descriptors, to the process that starts submissions, and return its
    answer. The request [], with the descriptor of a socket, starts a process for a submission; the
    answer is the number of this process. The request [number, seconds], without a descriptor, ends
    that process; the answer is what `worker.ended` returns.

    Raises Killed if the process that starts submissions does not answer. The next call then starts
    it anew.
    """
    process, requests = _server()
    try:
        socket.send_fds(requests, [json.dumps(request).encode()], descriptors)
        answer = requests.recv(64)
    except OSError:  # a timeout too: it may have been stopped
        answer = b""
    if not answer:
        _server.cache_clear()
        process.kill()
        process.wait()
        raise Killed
    return json.loads(answer)


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that starts submissions, and return this process and the connection to it.
    The process runs until the present process ends."""
    ours, theirs = socket.socketpair()
    ours.settimeout(_SECONDS)
    folder = str(Path(np.__file__).parents[1])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", str(_WORKER), folder],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # called first
    return process, ours


def _environment() -> dict[str, str]:
    """Return the environment of the processes that run submissions: it contains nothing from this
    process except the paths of shared libraries. With the fixed hash seed, sets have the same order
    in each run."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    own = dict.fromkeys(threads, "1") | {"PYTHONHASHSEED": "0"}
    return own | {k: os.environ[k] for k in kept if k in os.environ}
