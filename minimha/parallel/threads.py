"""Ranks as threads of one process: nothing to install, and every run gives the same numbers."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from minimha_autograd import Pullback, Tensor, backend, operation
from minimha_autograd.backend import Array
from minimha_autograd.extension import ExtensionPoint

from . import browser
from .communicator import TIMEOUT, CommunicationError, Communicator


def run(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = TIMEOUT
) -> list[Any]:
    """Call function(comm, *args) on several ranks at once, each in a thread of its own. In a
    browser, which has no threads, they take turns.

        mh.parallel.run(lambda comm: comm.all_reduce(np.array([comm.rank])), 3)   # three times [3]

    Returns the results in the order of ranks. If a rank raises an error, the ranks that wait for it
    stop, and `run` raises this error with a note that names the rank. If several ranks raise errors
    of their own, `run` raises that of the lowest rank. Raises CommunicationError if the ranks
    disagree about what to do next, if all wait for each other, if a rank waits for a message for
    more than `timeout` seconds, or if a message is left unread.

    The results and the error do not depend on which thread runs first.
    """
    results = run_elsewhere(lambda *of_rank: function(_Posting(*of_rank), *args), ranks)
    if results is not None:
        return results
    return _World(ranks, timeout).run(function, [args] * ranks)


@ExtensionPoint
def run_elsewhere(function: Callable[..., Any], ranks: int) -> list[Any] | None:
    """An extension point, a function that can be replaced: `run` calls it first. A replacement runs
    the ranks without threads, and returns their results in a list. Homework provides one to record
    the messages. If the result is None, as it is here, `run` runs the ranks in threads.

    function(rank, size, post, take) is the program of a rank, which sends an array x by
    post(x, to, text) and receives one by take(source, text). The text names the operation, such as
    an all_reduce, to which the message belongs."""
    return None


def across(function: Callable[..., Any], ranks: int) -> Any:
    """Turn function(comm, *tensors), which runs on several ranks, into a single operation.

        mh.gradcheck(mh.parallel.across(lambda comm, x: comm.all_reduce(x * x), 2), x_0, x_1)

    The operation takes the arguments of rank 0, then those of rank 1, and so on, and returns the
    results of the ranks in the same order. The function itself takes Tensors, and returns a Tensor
    or a tuple of Tensors. Like any operation, the new one is called with arrays or Tensors, and has
    `with_pullback`. A gradient check calls the argument x of rank 1 x_of_rank_1.
    """

    def joint(*arrays: Array) -> tuple[Any, Pullback]:
        count = len(arrays) // ranks
        if count * ranks != len(arrays):
            raise ValueError(f"{len(arrays)} arrays cannot be divided among {ranks} ranks")
        own = [arrays[rank * count : (rank + 1) * count] for rank in range(ranks)]
        world = _World(ranks, TIMEOUT)
        leaves, results = zip(*world.run(forward, own), strict=True)
        values = [tuple(y.data for y in result) for result in results]

        def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
            rest = iter(dys)
            cotangents = [[next(rest) for _ in result] for result in results]
            gradients = world.run(backward, list(zip(leaves, results, cotangents, strict=True)))
            return tuple(dx for of_rank in gradients for dx in of_rank)

        return tuple(y for of_rank in values for y in of_rank), pullback

    def forward(comm: Communicator, *arrays: Array) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        inputs = [Tensor(x, requires_grad=backend.is_floating(x)) for x in arrays]
        result = function(comm, *inputs)
        return inputs, result if isinstance(result, tuple) else (result,)

    def backward(
        comm: Communicator, xs: Sequence[Tensor], ys: Sequence[Tensor], dys: Sequence[Array | None]
    ) -> list[Array | None]:
        for x in xs:
            x.grad = None
        pairs = zip(ys, dys, strict=True)
        loss = sum((y * (0 * y.data if dy is None else dy)).sum() for y, dy in pairs)
        loss.backward(retain_graph=True)  # one backward: all ranks come to the same collectives
        return [x.grad for x in xs]

    joint.__name__ = getattr(function, "__name__", "function")
    joint.__module__ = f"across({function.__module__})"  # it does not replace the function itself
    lifted = operation(joint)
    lifted.ranks, lifted.__signature__ = ranks, _signature_on(ranks, function)
    return lifted


def _signature_on(ranks: int, function: Callable[..., Any]) -> inspect.Signature:
    """The signature of the operation that `across` makes: x_of_rank_0, x_of_rank_1, … for each
    argument x of the function that follows comm and has no default."""
    _, *own = inspect.signature(function).parameters.values()
    names = [p.name for p in own if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    labels = [f"{name}_of_rank_{rank}" for rank in range(ranks) for name in names]
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in labels])


class _World:
    """What the threads of one run share: the messages that have been sent but not yet received, and
    which ranks are waiting or have ended. `size` is the number of ranks, and `timeout` the number
    of seconds for which a rank waits for a message.

    Each rank chooses the rank that it receives from, and gets that rank's messages in the order of
    sending. So the results do not depend on the order in which the threads run (Kahn, "The
    semantics of a simple language for parallel programming", 1974). Nor does the error that `run`
    raises, because it first lets every rank run to its own end.
    """

    def __init__(self, size: int, timeout: float) -> None:
        if size < 1:
            raise ValueError(f"there must be at least one rank, not {size}")
        self.changed = browser.Turns() if browser.is_here() else threading.Condition()
        self.mail: dict[tuple[int, int], deque[tuple[str, Array]]] = defaultdict(deque)
        self.comms = [_ThreadCommunicator(self, rank, size, timeout) for rank in range(size)]

    def run(self, function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
        """Run function(comm, *args[rank]) on every rank. Returns the results in the order of
        ranks."""
        results: list[Any] = [None] * len(self.comms)
        self.ended: set[int] = set()
        self.errors: dict[int, BaseException] = {}
        self.misled: set[int] = set()  # ranks whose errors only follow from those of others
        self.waiting: dict[int, Callable[[], object]] = {}  # the condition each rank waits for
        self.stuck: set[int] = set()

        def work(comm: Communicator) -> None:
            try:
                results[comm.rank] = function(comm, *args[comm.rank])
            except BaseException as error:
                self.end(comm.rank, error)
            else:
                self.end(comm.rank)

        if browser.is_here():
            browser.run(work, self.comms)
        else:
            self._run_threads(work)
        if self.errors:
            rank = min(self.errors.keys() - self.misled)
            cause = self.errors[rank]
            cause.add_note(f"on rank {rank} of {len(self.comms)}")
            raise cause
        for (source, to), mail in sorted(self.mail.items()):
            if mail:
                text = mail[0][0]
                raise CommunicationError(
                    f"rank {source} sent to rank {to} at {text}, but rank {to} never received it"
                )
        return results

    def _run_threads(self, work: Callable[[Communicator], None]) -> None:
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(work, comm), daemon=True,
                name=f"rank {comm.rank}",
            )
            for comm in self.comms
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt as error:
            self.end(0, error)
            raise

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Record that a rank has ended, with the error that ended it or None, and wake up the ranks
        that wait for it."""
        with self.changed:
            self.ended.add(rank)
            if error is not None:
                self.errors[rank] = error
            self.find_deadlock()
            self.changed.notify_all()

    def wait(self, rank: int, holds: Callable[[], object], timeout: float) -> None:
        """Let a rank wait until the condition holds() is true, a deadlock is found, or the timeout
        has passed. The caller must hold the lock `changed`."""
        self.waiting[rank] = holds
        self.find_deadlock()
        self.changed.wait_for(lambda: holds() or rank in self.stuck, timeout)
        self.waiting.pop(rank, None)

    def find_deadlock(self) -> None:
        """If every rank that has not ended is waiting, and none of the conditions for which they
        wait is true, mark these ranks as stuck and wake them up."""
        everyone_waits = len(self.waiting) + len(self.ended) == len(self.comms)
        if everyone_waits and not any(holds() for holds in self.waiting.values()):
            self.stuck |= self.waiting.keys()
            self.waiting.clear()
            self.changed.notify_all()


class _ThreadCommunicator(Communicator):
    """The communicator of a rank that is a thread: its messages are copies of arrays."""

    def __init__(self, world: _World, rank: int, size: int, timeout: float) -> None:
        super().__init__(rank, size, timeout)
        self._world = world

    def _post(self, text: str, x: Array, to: int) -> None:
        with self._world.changed:
            self._world.mail[self.rank, to].append((text, backend.copy(x)))
            self._world.changed.notify_all()

    def flush(self) -> None:
        world = self._world
        with world.changed:
            sent = [(to, mail) for (rank, to), mail in world.mail.items() if rank == self.rank]
            world.changed.wait_for(
                lambda: all(not mail or to in world.ended for to, mail in sent), self.timeout
            )

    def _take(self, text: str, source: int) -> tuple[str, Array]:
        world = self._world
        waiting = f"rank {self.rank} waits for rank {source} at {text}"
        with world.changed:
            mail = world.mail[source, self.rank]
            world.wait(self.rank, lambda: mail or source in world.ended, self.timeout)
            if self.rank in world.stuck:
                world.stuck.remove(self.rank)
                raise CommunicationError(f"{waiting}, and nothing can arrive: every rank waits")
            if mail:
                world.changed.notify_all()  # ranks that wait in flush
                return mail.popleft()
            if source in world.errors:
                world.misled.add(self.rank)
        if source in world.ended:
            raise CommunicationError(f"{waiting}, but rank {source} has ended")
        raise CommunicationError(f"{waiting}, and nothing arrived in {self.timeout:g} s")


class _Posting(Communicator):
    """The communicator of a rank that sends and receives its messages by two given functions: it
    sends x by post(x, to, text), and receives an array by take(source, text)."""

    def __init__(
        self, rank: int, size: int, post: Callable[..., None], take: Callable[..., Array]
    ) -> None:
        super().__init__(rank, size)
        self._posted, self._taken = post, take

    def _post(self, text: str, x: Array, to: int) -> None:
        self._posted(x, to, text)

    def _take(self, text: str, source: int) -> tuple[str, Array]:
        return text, self._taken(source, text)
