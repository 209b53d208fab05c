"""A rank passes if it computes its result from what it has and receives, in whatever way."""

from collections import Counter

import numpy as np
import pytest

from minimha.homework import ranks
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
        assert threads.instead is None


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
