"""A version of `minimha.parallel` for submissions, which may not start threads: its ranks take
turns.

A rank runs until it waits for a message that has not been sent; then the next rank runs. On its
next turn, a rank starts again from the beginning: it receives the same messages as before, and
messages that it sends a second time are dropped. So a function must do the same in each turn. A
deadlock is noticed at once. The process that runs submissions has this file, too, so it imports
only the standard library and NumPy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from minimha_autograd.extension import ExtensionPoint

Mail = defaultdict[tuple[int, int], list[tuple[str, np.ndarray]]]
"""All messages that one rank has sent to another, by sender and receiver: for each, a text that
names the call, and the array."""


class CommunicationError(RuntimeError):
    """Communication between ranks has failed, for example because every rank waits for a
    message."""


class _WaitingError(BaseException):
    """A rank waits for a message that has not been sent yet. Contains the error to raise if the
    message is never sent."""


def parts(length: int, size: int) -> list[slice]:
    """Divide `length` entries into one slice for each of `size` ranks, as `minimha.parallel.parts`
    does."""
    ends = [length // size * rank + min(rank, length % size) for rank in range(size + 1)]
    return [slice(ends[rank], ends[rank + 1]) for rank in range(size)]


def run(function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 300.0) -> list[Any]:
    """Run function(comm, *args) on each rank, and return the results of all ranks, as
    `minimha.parallel.run` does. `timeout` has no effect here: a deadlock is noticed at once."""
    results = run_elsewhere(lambda *of_rank: function(_Communicator(*of_rank), *args), ranks)
    if results is not None:
        return results
    world = _World(ranks)
    while world.living:
        before = world.state()
        waiting: dict[int, CommunicationError] = {}
        for rank in world.living:
            turn = _Turn(rank, world)
            try:
                comm = _Communicator(rank, ranks, turn.post, turn.take)
                world.results[rank] = function(comm, *args)
                world.received[rank] = turn.received
            except _WaitingError as error:
                (waiting[rank],) = error.args
            except Exception as error:
                world.errors[rank] = error
        if before == world.state():  # a deadlock
            world.errors |= waiting
    return world.outcome()


@ExtensionPoint
def run_elsewhere(function: Callable[..., Any], ranks: int) -> list[Any] | None:
    """An extension point: a replacement may run the ranks, and returns their results. When a
    submission is graded, the replacement asks the process of the grader, where a check may run the
    ranks to watch their messages. None, the default result, means that the ranks take turns here.

    function(rank, size, post, take) is the program of a rank. It sends an array x by
    post(x, to, text) and receives one by take(source, text), where the text names the call."""
    return None


class _World:
    """What all ranks share: their messages, results and errors. If several ranks fail, the same
    error is raised whatever the order of turns. `size` is the number of ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.mail: Mail = defaultdict(list)
        self.results: dict[int, Any] = {}
        self.received: dict[int, Counter[int]] = {}
        self.errors: dict[int, BaseException] = {}
        self.misled: set[int] = set()

    @property
    def living(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.results | self.errors]

    def state(self) -> tuple[int, int]:
        """Return how many ranks still run and how many messages were sent. At least one of the two
        changes in every round of turns unless there is a deadlock."""
        return len(self.living), sum(map(len, self.mail.values()))

    def outcome(self) -> list[Any]:
        """Return the results in the order of ranks. Raises the error of a rank that failed, or
        CommunicationError if a message was never received."""
        if self.errors:
            raise self.errors[min(self.errors.keys() - self.misled)]
        for (source, to), sent in sorted(self.mail.items()):
            if len(sent) > self.received[to][source]:
                text, _ = sent[self.received[to][source]]
                raise CommunicationError(
                    f"rank {source} sent to rank {to} at {text}, but rank {to} never received it"
                )
        return [self.results[rank] for rank in range(self.size)]


class _Turn:
    """What a rank sends and receives in one turn. In each turn the rank starts from the beginning,
    so its messages are counted from the first one again."""

    def __init__(self, rank: int, world: _World) -> None:
        self.rank, self._world, self._mail = rank, world, world.mail
        self.sent, self.received = Counter[int](), Counter[int]()

    def post(self, x: Any, to: int, text: str) -> None:
        mail = self._mail[self.rank, to]
        self.sent[to] += 1
        if self.sent[to] > len(mail):
            mail.append((text, np.array(x)))

    def take(self, source: int, text: str) -> np.ndarray:
        mail = self._mail[source, self.rank]
        if self.received[source] == len(mail):
            waiting = f"rank {self.rank} waits for rank {source} at {text}"
            if source in self._world.living:
                never = f"{waiting}, and nothing can arrive: every rank waits"
                raise _WaitingError(CommunicationError(never))
            if source in self._world.errors:
                self._world.misled.add(self.rank)
            raise CommunicationError(f"{waiting}, but rank {source} has ended")
        theirs, x = mail[self.received[source]]
        self.received[source] += 1
        if theirs != text:
            raise CommunicationError(
                f"ranks disagree: rank {self.rank} is at {text}; rank {source} is at {theirs}"
            )
        return x.copy()


class _Communicator:
    """A rank's communicator with the methods of `minimha.parallel.Communicator`, for arrays; it
    does not count bytes.

    It is made with two functions: post(x, to, text) sends x to the rank `to`, and take(source,
    text) returns the array that the rank `source` has sent. text describes the call: calls that
    belong together must have the same one.
    """

    def __init__(self, rank: int, size: int, post: Any, take: Any) -> None:
        self.rank, self.size, self._post, self._take = rank, size, post, take

    def send(self, x: Any, to: int, text: str = "send and recv") -> None:
        self._post(np.array(x), self._checked(to), text)

    def recv(self, source: int, text: str = "send and recv") -> np.ndarray:
        received: np.ndarray = self._take(self._checked(source), text)
        return received

    def all_reduce(self, x: Any) -> np.ndarray:
        first, *others = self._of_all(x, f"all_reduce of {x.dtype} {x.shape}")
        return sum(others, first)

    def all_gather(self, x: Any, axis: int = 0) -> np.ndarray:
        return np.concatenate(self._of_all(x, "all_gather"), axis)

    def reduce_scatter(self, x: Any, axis: int = 0) -> np.ndarray:
        return self._own(self.all_reduce(x), axis)

    def all_to_all(self, x: Any, split_axis: int, concat_axis: int) -> np.ndarray:
        everyone = self._of_all(x, "all_to_all")
        return np.concatenate([self._own(y, split_axis) for y in everyone], concat_axis)

    def broadcast(self, x: Any, root: int = 0) -> np.ndarray:
        return self._of_all(x, "broadcast")[self._checked(root)]

    def _of_all(self, x: Any, text: str) -> list[np.ndarray]:
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            self.send(x, rank, text)
        return [x if r == self.rank else self.recv(r, text) for r in range(self.size)]

    def _own(self, x: np.ndarray, axis: int) -> np.ndarray:
        before = (slice(None),) * (axis % x.ndim)
        return x[(*before, parts(x.shape[axis], self.size)[self.rank])]

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank}: there are 0 to {self.size - 1}")
        return rank
