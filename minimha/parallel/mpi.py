"""Ranks as processes that mpiexec starts, on one machine or on several: MPI passes the messages."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from ..kernels import threads
from . import watcher
from .communicator import TIMEOUT, CommunicationError, Communicator

_STARTED = "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"
_SIZE = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"
"""Environment variables with the rank of a process and the number of ranks: those of MPICH, Slurm
and Open MPI."""

_HEADER, _ENTRIES, _END = range(3)
"""The tags of messages: what is being sent, the entries of the array, the last one of a rank."""


def world(timeout: float = TIMEOUT) -> Communicator:
    """The ranks that mpiexec started; without mpiexec a single rank, which needs no MPI.

        comm = mh.parallel.world()    # in a program started by mpiexec -n 4 python program.py

    Returns the communicator of this rank, which waits up to `timeout` seconds for a message. After
    this call, an uncaught exception on one rank ends all ranks, and a rank that reaches the end of
    the program waits there for the others. The ranks of a machine divide its CPUs among them,
    unless the environment sets the number of threads, for example OMP_NUM_THREADS=1.

    Raises RuntimeError if mpiexec started the program and mpi4py is missing, or uses another
    installation of MPI than mpiexec does.
    """
    if not any(name in os.environ for name in _STARTED):
        return Communicator(0, 1, timeout)
    comm = _started()
    comm.timeout = timeout
    return comm


@functools.cache
def _started() -> _MPICommunicator:
    """Set up MPI, and return the communicator of this rank. Raises RuntimeError if mpi4py is
    missing, or uses another installation of MPI than mpiexec does."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI
        raise RuntimeError(
            f'a program started by mpiexec needs mpi4py: pip install ".[mpi]" ({error})'
        ) from error
    size = next(filter(None, map(os.environ.get, _SIZE)), MPI.COMM_WORLD.size)
    if int(size) != MPI.COMM_WORLD.size:
        raise RuntimeError(
            f"mpiexec started {size} processes, but mpi4py sees {MPI.COMM_WORLD.size}: they belong "
            "to different MPIs; use the mpiexec of the environment that mpi4py is in"
        )
    return _MPICommunicator(MPI.COMM_WORLD.Dup())  # apart from other messages


class _MPICommunicator(Communicator):
    """A rank that is a process of its own. A message has two parts: a header with a text and the
    library, dtype and shape of an array, and the entries of this array, which MPI reads from the
    sender's array and writes into the receiver's. `ranks` is mpi4py's communicator of all ranks."""

    def __init__(self, ranks: Any) -> None:
        from mpi4py import MPI

        super().__init__(ranks.rank, ranks.size)
        self._ranks = ranks
        self._sending: list[tuple[int, str, list[Any]]] = []
        sys.excepthook = self._uncaught
        signal.signal(signal.SIGINT, lambda *_: self.fail("minimha: interrupted", 130))
        atexit.register(self._end)
        neighbours = ranks.Split_type(MPI.COMM_TYPE_SHARED)
        threads.divide_cpus(neighbours.size)
        self._watcher = watcher.connect(repr(self), neighbours)

    def fail(self, reason: str, code: int = 1) -> int:
        time.sleep(min(0.5 * self.rank, 5))  # the first of all ranks that fail ends the others
        self._watcher.send(b".")
        sys.stdout.flush()
        sys.stderr.write(f"{reason}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # MPI reports it again
        self._ranks.Abort(code)
        return code

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, CommunicationError):
            self.fail(f"minimha: {error}")
        error.add_note(f"on rank {self.rank} of {self.size}")
        self.fail("".join(traceback.format_exception(error)).rstrip())

    def _end(self) -> None:
        """Inform the other ranks that this one has ended, and wait for them to end. Otherwise
        MPI_Finalize would wait for them, and keep a core busy meanwhile. Calls `fail` if a message
        to this rank was never received."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._sending += [(rank, "", [self._ranks.Isend(b"", rank, _END)]) for rank in others]
        for rank in others:
            while not self._ranks.Iprobe(rank, _END):
                time.sleep(0.01)
            self._ranks.Recv(bytearray(), rank, _END)
            if message := _arrived(self._ranks, rank):
                sent = f"rank {rank} sent to rank {self.rank} at {message[0]}"
                self.fail(f"minimha: {sent}, but rank {self.rank} never received it")
        self._watcher.send(b".")

    def _post(self, text: str, x: Array, to: int) -> None:
        header = json.dumps([text, _library(x), str(x.dtype), x.shape]).encode()
        requests = [  # they keep a reference to the memory that they send
            self._ranks.Isend(header, to, _HEADER), self._ranks.Isend(_entries(x), to, _ENTRIES),
        ]  # fmt: skip
        self._sending = [sent for sent in self._sending if not _complete(sent[2])]
        self._sending.append((to, text, requests))

    def _take(self, text: str, source: int) -> tuple[str, Array]:
        waiting = f"rank {self.rank} waits for rank {source} at {text}"
        theirs, x = self._wait(lambda: _arrived(self._ranks, source), source, waiting)
        receiving = self._ranks.Irecv(_entries(x), source, _ENTRIES)
        self._wait(receiving.Test, source, waiting)
        return theirs, x

    def _finish_sending(self) -> None:
        for to, text, requests in self._sending:
            waiting = f"rank {self.rank} waits for rank {to} to receive {text}"
            self._wait(functools.partial(_complete, requests), to, waiting)
        self._sending.clear()

    def _wait(self, ready: Callable[[], Any], other: int, waiting: str) -> Any:
        """Call ready() until its result is true, and return the result. Sleeps between the calls,
        longer and longer, because there may be more ranks than cores. Raises CommunicationError if
        rank `other` ends first, or after the timeout; its message begins with `waiting`, a sentence
        that says what this rank waits for."""
        deadline, pause = time.monotonic() + self.timeout, 1e-5
        while True:
            ended = self._ranks.Iprobe(other, _END)  # asked first: then all it sent has arrived
            if result := ready():
                return result
            if ended:
                raise CommunicationError(f"{waiting}, but rank {other} has ended")
            if time.monotonic() > deadline:
                raise CommunicationError(f"{waiting}, and nothing arrived in {self.timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)


def _arrived(ranks: Any, source: int) -> tuple[str, Array] | None:
    """If the header of the next message from rank `source` has arrived: the text in the header, and
    a new array of the library, dtype and shape that the header states, into which the entries of
    the message are yet to be received. Otherwise None. `ranks` is a communicator of mpi4py."""
    from mpi4py import MPI

    status = MPI.Status()
    message = ranks.Improbe(source, _HEADER, status)
    if message is None:
        return None
    header = bytearray(status.Get_count())
    message.Recv(header)
    text, library, dtype, shape = json.loads(header)
    return text, backend.library(library).empty(tuple(shape), dtype=dtype)


def _complete(requests: list[Any]) -> bool:
    return all(request.Test() for request in requests)


def _entries(x: Array) -> Array:
    """The entries of an array as bytes: a view of its memory if it is contiguous, or a copy."""
    return namespace(x).ascontiguousarray(x).reshape(-1).view("uint8")


def _library(x: Array) -> str:
    """The library of an array, "numpy" or "cupy". Raises CommunicationError for an array that MPI
    cannot read."""
    if isinstance(x, backend.HostArray):
        return "numpy"
    if not backend.on_cupy(x):
        raise CommunicationError(f"MPI sends arrays of NumPy or CuPy, not {backend.described(x)}")
    if not _reads_gpus():
        raise CommunicationError(
            "this MPI cannot read the memory of a GPU: send x.get(), which is on the host, or "
            "install an MPI with support for CUDA, and mpi4py for it"
        )
    x.device.synchronize()  # MPI does not wait for kernels
    return "cupy"


@functools.cache
def _reads_gpus() -> bool:
    from mpi4py import MPI

    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)  # of its MPI
    return bool(query and query())
