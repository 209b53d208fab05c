"""A check of functions that run on several ranks: does each rank compute its result only from the
data that it has and the messages that it receives?

The student's function is called once for each rank, as if each rank were another machine: the call
gets only this rank's data, and `run` in it runs only this rank. The ranks take turns, as in
`ranks_in_turn`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...diagnosis.closeness import is_close
from . import ranks_in_turn
from .calls import unrecorded
from .comparisons import same

WORLDS = 4
"""The number of copies of all ranks that run, each on different data. With several copies, a call
that finds data in a shared variable cannot know to which copy they belong."""

Messages = set[tuple[int, int, str]]
"""The messages that were sent: for each, the sender, the receiver, and a text that names the
call."""


def of_rank(rank: int, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of all ranks as one rank sees them: its own array, and zeros in place of
    the others."""
    return [x if r == rank else np.zeros_like(x) for r, x in enumerate(xs)]


def same_on_ranks(
    yours: Callable[..., Any], call: Callable[[Any, Any], Any], worlds: Sequence[Any],
    has: Callable[[int, Any], Any], expected: Sequence[Sequence[np.ndarray]],
    rng: np.random.Generator, what: str,
) -> Messages:  # fmt: skip
    """Raise AssertionError unless each rank computes its result only from its own data and from the
    messages that it receives.

    yours     the student's function
    call      call(yours, data) returns the results of all ranks
    worlds    the data of each world. All ranks run in WORLDS copies, the worlds, on different data;
              only data that a task gives to every rank is the same in all worlds
    has       has(rank, data) is the data as one rank has it, with zeros for what it lacks
    expected  expected[w][rank] is the right result of a rank in world w
    rng       draws the order in which the worlds take their turns
    what      the name of the data of which a rank has only its own part, for the message: "xs"

    Returns the messages between ranks.
    """
    ranks = len(expected[0])
    plain = unrecorded(yours)
    try:
        results, messages = _alone(lambda w, r: call(plain, has(r, worlds[w]))[r], ranks, rng)
    except Exception:
        call(yours, worlds[0])  # to report an error that has nothing to do with ranks
        raise
    for (world, rank), y in results.items():
        if not is_close(np.asarray(y), expected[world][rank]):
            name = f"the result of rank {rank} of {ranks}"
            same(call(yours, worlds[world])[rank], expected[world][rank], name)
            sources = sorted({source for source, to, _ in messages if to == rank})
            received = f"messages from {', '.join(map(str, sources))}" if sources else "nothing"
            text = (
                f"{name} is right only if it reads {what} of other ranks; it should use only what "
                f"it knows, its own and what it receives: this one received {received}"
            )
            raise AssertionError(textwrap.fill(text, 80))
    return messages


def _alone(
    program: Callable[[int, int], Any], ranks: int, rng: np.random.Generator
) -> tuple[dict[tuple[int, int], Any], Messages]:
    """Call program(world, rank) for each rank of each world, where the worlds 0 to WORLDS − 1 are
    copies of all ranks. The calls take turns, as in `ranks_in_turn`.

    program  starts all ranks, by `minimha.parallel.run`, and returns the result of the given rank.
             In each call, only this rank really runs; its messages go to the calls for the other
             ranks of its world
    ranks    the number of ranks in each world
    rng      draws the order of the worlds in which the calls for a rank take their turns

    Returns the results by (world, rank), and the messages of all worlds together.
    """
    from ...parallel import threads

    slots = [(int(world), rank) for rank in range(ranks) for world in rng.permutation(WORLDS)]
    messages: Messages = set()

    def turn(comm: Any) -> Any:
        world, rank = slots[comm.rank]
        waiting: list[BaseException] = []

        def post(x: np.ndarray, to: int, text: str) -> None:
            comm.send(x, slots.index((world, to)), text)
            messages.add((rank, to, text))

        def take(source: int, text: str) -> np.ndarray:
            try:
                return comm.recv(slots.index((world, source)), text)
            except BaseException as error:
                waiting.append(error)
                raise RuntimeError("another rank's turn") from None

        def run_this_rank(function: Callable[..., Any], size: int) -> list[Any]:
            if size != ranks:
                raise RuntimeError(f"{size} ranks were started, not {ranks}")
            return [function(rank, ranks, post, take)] * ranks

        try:
            with threads.run_elsewhere.replaced_by(run_this_rank):
                result = program(world, rank)
        except Exception:
            if not waiting:
                raise
        if waiting:
            raise waiting[0]
        return result

    return dict(zip(slots, ranks_in_turn.run(turn, len(slots)), strict=True)), messages
