"""The communicator: what a rank knows of the others, and how it exchanges arrays with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array

from . import collectives

TIMEOUT = 300.0
"""How many seconds a rank waits for a message by default."""


class CommunicationError(RuntimeError):
    """Ranks disagree about what to do next, or a message does not arrive."""


@dataclass(frozen=True)
class Sent:
    """How many bytes and messages a rank sends. Supports a + b, and a * n for sending a n times."""

    bytes: int = 0
    messages: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.bytes + other.bytes, self.messages + other.messages)

    def __mul__(self, times: int) -> Sent:
        return Sent(times * self.bytes, times * self.messages)

    def seconds(self, latency: float, bandwidth: float) -> float:
        """messages · latency + bytes / bandwidth, the time of messages sent one after another.

        latency in seconds, bandwidth in bytes per second.
        """
        return self.messages * latency + self.bytes / bandwidth

    def __repr__(self) -> str:
        return f"{self.bytes:,} bytes in {self.messages:,} messages"


class Communicator:
    """One of several ranks that run the same program, each on its own part of the data.

    rank     the number of this rank, from 0 to size − 1
    size     the number of ranks
    timeout  how many seconds to wait for a message
    step     the training step, if the program counts steps; all ranks must be at the same one
    sent     the bytes and messages sent by this rank so far

    Every rank must call the same collectives in the same order. If one rank calls backward(), all
    must. Each message of a collective names the call that it belongs to. If two ranks that exchange
    arrays are at different calls, one gets a CommunicationError that says where both are, instead
    of wrong numbers.

    A transport, such as MPI, is a subclass that defines `_post` and `_take`.
    """

    def __init__(self, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.step: int | None = None
        self.sent = Sent()
        self._calls = 0

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    def send(self, x: Any, to: int) -> None:
        """Send an array to another rank, which must receive it by `recv` before the next
        collective. Returns at once: x must not change until it has arrived. Messages from one rank
        to another arrive in the order of sending."""
        self._send(_SEND, array_of(x), self._checked(to))

    def recv(self, source: int) -> Array:
        """Wait for the next array that rank `source` sends to this one by `send`, and return it.

        Raises CommunicationError if it does not arrive within the timeout.
        """
        return self._receive(_SEND, self._checked(source))

    def flush(self) -> None:
        """Wait until the others have received what this rank has sent, or until MPI has copied it
        to memory of its own, as it may do with short messages. So a rank that is ahead of the
        others does not fill the memory with messages."""
        self._finish_sending()

    def all_reduce(self, x: Any) -> Any:
        """The sum of the arrays x of all ranks, which must have the same shape: see
        `collectives.all_reduce`."""
        return collectives.all_reduce(x, comm=self)

    def all_gather(self, x: Any, axis: int = 0) -> Any:
        """The arrays x of all ranks, joined along an axis: see `collectives.all_gather`."""
        return collectives.all_gather(x, comm=self, axis=axis)

    def reduce_scatter(self, x: Any, axis: int = 0) -> Any:
        """This rank's part, along an axis, of the sum of the arrays x of all ranks: see
        `collectives.reduce_scatter`."""
        return collectives.reduce_scatter(x, comm=self, axis=axis)

    def all_to_all(self, x: Any, split_axis: int, concat_axis: int) -> Any:
        """Every rank's x is cut along split_axis into a part for each rank. Returns the parts for
        this rank, joined along concat_axis: see `collectives.all_to_all`."""
        return collectives.all_to_all(x, comm=self, split_axis=split_axis, concat_axis=concat_axis)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """The array x of the root, returned on every rank: see `collectives.broadcast`."""
        return collectives.broadcast(x, comm=self, root=self._checked(root))

    def agree(self, what: str) -> None:
        """Wait until all ranks call this method. Raises CommunicationError if the texts `what` that
        they pass differ."""
        collectives.exchanged(self, what, [backend.full((0,), 0, dtype="bool")] * self.size)

    def fail(self, reason: str, code: int = 1) -> int:
        """Print why the program fails, and return the exit code. If mpiexec started the ranks, this
        ends all of them."""
        sys.stderr.write(f"{reason}\n")
        return code

    def exchange(
        self, what: str, parts: Mapping[int, Array], sources: Iterable[int]
    ) -> Iterator[Array]:
        """Exchange arrays in one call that all ranks make: send parts[r] to each other rank r in
        parts, and yield one array from each rank in sources, in this order. If this rank is among
        the sources, it yields its own part without sending it. `what` names the call in messages.
        """
        self._calls += 1
        step = "" if self.step is None else f"step {self.step}, "
        text = f"{step}call {self._calls}: {what}"
        for shift in range(1, self.size):  # ranks begin with different neighbours
            to = (self.rank + shift) % self.size
            if to in parts:
                self._send(text, parts[to], to)
        for source in sources:
            yield parts[source] if source == self.rank else self._receive(text, source)
        self._finish_sending()

    def _send(self, text: str, x: Array, to: int) -> None:
        self._post(text, x, to)
        self.sent += Sent(nbytes(x), 1)

    def _receive(self, text: str, source: int) -> Array:
        theirs, x = self._take(text, source)
        if theirs != text:
            raise CommunicationError(
                f"ranks disagree: rank {self.rank} is at {text}; rank {source} is at {theirs}"
            )
        return x

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank}: there are 0 to {self.size - 1}")
        return rank

    def _post(self, text: str, x: Array, to: int) -> None:
        """Send to rank `to` a text, which names the call, and an array x, without waiting."""
        raise NotImplementedError

    def _take(self, text: str, source: int) -> tuple[str, Array]:
        """Receive the next text and array from rank `source`. If nothing arrives within the
        timeout, raises a CommunicationError which says that this rank waits at `text`, its call."""
        raise NotImplementedError

    def _finish_sending(self) -> None:
        """Wait until the arrays that were sent may be changed. A transport that copies the arrays
        need not wait."""


_SEND = "send and recv"


def nbytes(x: Array) -> int:
    """The number of bytes that the entries of an array take."""
    return int(x.nbytes if hasattr(x, "nbytes") else backend.to_numpy(x).nbytes)
