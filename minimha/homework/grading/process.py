"""A submission in its own confined process: the grader's end of the connection."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .connection import NO_ANSWER, Connection, ConnectionLost

_WORKER = Path(__file__).with_name("worker.py")
_MOST = 1 << 28  # bytes that one check may send back


class Limits(NamedTuple):
    """The limits of a submission: seconds for each check, and megabytes of memory."""

    seconds: float = 10
    megabytes: int = 512


class Submission:
    """The function that a source defines, in a process that starts when it is needed.

    The source never runs in this process. A context manager: leaving it ends the process.
    """

    def __init__(self, source: bytes, name: str, limits: Limits) -> None:
        self.source, self.name, self.limits = source, name, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._unusable: BaseException | None = None

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def function(self) -> Callable[..., Any]:
        """The function for another check, with new limits on time and on the bytes sent back.

        Raises the error of running the source, or ConnectionLost; either is final.
        """
        self._deadline, self._left = time.monotonic() + self.limits.seconds, _MOST
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

    def end(self) -> None:
        """Kill the process and everything it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, for a zombie
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._process = None

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.connection = Connection(self._read, self._write)
        folder = Path(np.__file__).parents[1]
        seconds = int(3 * self.limits.seconds) + 1  # of processor time, in case the grader dies
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_WORKER)]
                + [str(x) for x in (folder, self.name, self.limits.megabytes, seconds)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )

    def _read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._lost("it sent back too much")
        data = bytearray()
        while len(data) < size:
            chunk = self._on_time(self._socket.recv, min(size - len(data), 1 << 16))
            if not chunk:
                raise self._lost()
            data += chunk
        return bytes(data)

    def _write(self, data: bytes) -> None:
        self._on_time(self._socket.sendall, data)

    def _on_time(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """One step of the connection, limited to the remaining time."""
        try:
            self._socket.settimeout(max(self._deadline - time.monotonic(), 1e-6))
            return step(argument)
        except TimeoutError:
            raise self._lost(f"not done after {self.limits.seconds:g} seconds") from None
        except OSError:
            raise self._lost() from None

    def _lost(self, why: str = "") -> ConnectionLost:
        """End the process. The error says why, or how the process ended."""
        process = self._process
        if process is not None and not why:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        code = None if process is None else process.poll()
        self.end()
        if not why and code is not None:
            how = f" itself, with exit code {code}" if code >= 0 else f": {signal.strsignal(-code)}"
            why = f"its process ended{how}"
        return ConnectionLost(why or "its process does not answer")


def _environment() -> dict[str, str]:
    """An environment with nothing of ours except the paths of shared libraries."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return dict.fromkeys(threads, "1") | {k: os.environ[k] for k in kept if k in os.environ}
