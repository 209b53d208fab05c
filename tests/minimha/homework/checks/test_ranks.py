"""A rank passes if it computes its result from what it has and receives, in whatever way."""

import contextlib
import time
from collections import Counter

import numpy as np
import pytest
from answers import WRONG

from minimha import homework
from minimha.homework.checks import ranks, ranks_in_turn
from minimha.parallel import run, threads

SHARED, TURNS = {}, Counter()


def messages(on_rank, size=3, started=None):
    """The messages of ranks that add up their arrays. Raises the AssertionError that refuses them."""
    rng = np.random.default_rng(8)
    worlds = rng.standard_normal((ranks.WORLDS, size, 2))
    expected = [[sum(xs)] * size for xs in worlds]

    def yours(xs):
        return run(lambda comm: on_rank(comm, xs), started or size)

    try:
        return ranks.same_on_ranks(
            yours, lambda f, xs: f(xs), worlds, ranks.of_rank, expected, rng, "xs"
        )
    finally:
        assert threads.run_elsewhere.function is threads.run_elsewhere.default


def in_a_ring(comm, xs):
    total = visitor = xs[comm.rank]
    for _ in range(comm.size - 1):
        comm.send(visitor, (comm.rank + 1) % comm.size)
        visitor = comm.recv((comm.rank - 1) % comm.size)
        total = total + visitor
    return total


def with_errors_caught(comm, xs):
    try:
        return in_a_ring(comm, xs)
    except RuntimeError:
        return sum(xs)


@pytest.mark.parametrize(("call", "on_rank"), [
    ("send and recv", in_a_ring),
    ("send and recv", with_errors_caught),
    ("all_reduce", lambda comm, xs: comm.all_reduce(xs[comm.rank])),
    ("all_gather", lambda comm, xs: comm.all_gather(xs[comm.rank][None]).sum(0)),
    ("broadcast", lambda comm, xs: sum(comm.broadcast(xs[comm.rank], r) for r in range(comm.size))),
])  # fmt: skip
def test_ranks_may_exchange_what_they_have_in_any_way(call, on_rank):
    assert all(call in text for _, _, text in messages(on_rank))


def in_a_global(comm, xs):
    SHARED[comm.rank] = xs[comm.rank]
    comm.all_gather(np.zeros(1))
    return sum(SHARED[rank] for rank in range(comm.size))


def in_globals_by_turn(comm, xs):
    world = TURNS[comm.rank] % ranks.WORLDS
    TURNS[comm.rank] += 1
    SHARED[world, comm.rank] = xs[comm.rank]
    comm.all_gather(np.zeros(1))
    return sum(SHARED[world, rank] for rank in range(comm.size))


def after_a_ring(comm, xs):
    in_a_ring(comm, xs)
    return sum(xs)


@pytest.mark.parametrize(("says", "on_rank"), [
    ("this one received nothing", lambda comm, xs: sum(xs)),
    ("this one received messages from", after_a_ring),
    ("this one received messages from", in_a_global),
    ("this one received messages from", in_globals_by_turn),
    ("the result of rank 0 of 3 is wrong", lambda comm, xs: comm.all_reduce(2 * xs[comm.rank])),
])  # fmt: skip
def test_what_a_rank_cannot_know_is_refused(says, on_rank):
    with pytest.raises(AssertionError) as error:
        messages(on_rank)
    assert says in " ".join(str(error.value).split())


def test_an_error_in_the_open_is_reported_as_what_it_is():
    def one_more(comm, xs):
        if comm.rank == 1:
            comm.send(xs[1], 2)
        return sum(xs)

    with pytest.raises(
        RuntimeError, match=r"rank 1 sent to rank 2 .* but rank 2 never received it"
    ):
        messages(one_more)


def test_as_many_ranks_start_as_there_are():
    with pytest.raises(RuntimeError, match="2 ranks were started, not 3"):
        messages(in_a_ring, started=2)


CHAPTER = [name for name, task in homework.course().items() if task.chapter == 13]


LATE = {
    "the first": lambda comm: comm.rank == 0,
    "the last": lambda comm: comm.rank == comm.size - 1,
    "odd ones": lambda comm: comm.rank % 2 == 1,
}
"""The ranks whose messages, and whose errors, come last."""


def delay(monkeypatch, is_late):
    """Let these ranks wait before each message that they send or receive."""

    def late(of_rank):
        def call(comm, *arguments):
            if is_late(comm):
                time.sleep(0.0005)
            return of_rank(comm, *arguments)

        return call

    for name in ("_post", "_take"):
        of_rank = getattr(threads._ThreadCommunicator, name)
        monkeypatch.setattr(threads._ThreadCommunicator, name, late(of_rank))


@pytest.fixture(params=LATE.values(), ids=LATE)
def one_is_late(request, monkeypatch):
    delay(monkeypatch, request.param)


@pytest.mark.parametrize(
    "task", [pytest.param(x, marks=[pytest.mark.thorough][x == CHAPTER[0] :]) for x in CHAPTER]
)
def test_a_verdict_does_not_depend_on_which_rank_runs_first(task, request):
    """Every fourth wrong answer, or all with --thorough: a verdict takes half a second."""
    wrong = [x for x in WRONG if x.task == task]
    for answer in wrong if request.config.getoption("--thorough") else wrong[::4]:
        said = []
        for is_late in LATE.values():
            with pytest.MonkeyPatch.context() as monkeypatch:
                delay(monkeypatch, is_late)
                said.append([(x.outcome, x.message) for x in answer.verdicts()])
        assert said[0] == said[1] == said[2], answer.text


def errors_on_all(comm):
    if comm.rank == 2:
        comm.recv(0)
    raise ValueError(f"on purpose, on rank {comm.rank}")


def waits_for_the_next(comm):
    return comm.recv((comm.rank + 1) % comm.size)


def waits_for_one_that_fails(comm):
    if comm.rank == 2:
        raise ValueError("on purpose, on rank 2")
    return comm.recv(comm.rank + 1)


def sends_too_much(comm):
    for to in range(comm.size):
        comm.send(np.ones(2), to)


@pytest.mark.usefixtures("one_is_late")
@pytest.mark.parametrize("module", [threads, ranks_in_turn], ids=["threads", "in turn"])
@pytest.mark.parametrize(("on_rank", "says"), [
    (errors_on_all, "on purpose, on rank 0"),
    (waits_for_the_next, "rank 0 waits for rank 1 at send and recv, and nothing can arrive"),
    (waits_for_one_that_fails, "on purpose, on rank 2"),
    (sends_too_much, "rank 0 sent to rank 0 at send and recv, but rank 0 never received it"),
])  # fmt: skip
def test_the_error_of_the_first_rank_that_fails_by_itself_is_raised(on_rank, says, module):
    with pytest.raises((ValueError, RuntimeError), match=says):
        module.run(on_rank, 3)


def test_a_rank_may_go_on_after_a_deadlock_was_found():
    def on_rank(comm):
        with contextlib.suppress(RuntimeError):
            comm.recv(1 - comm.rank)
        comm.send(np.array(comm.rank), 1 - comm.rank)
        return int(comm.recv(1 - comm.rank))

    assert run(on_rank, 2) == [1, 0]
