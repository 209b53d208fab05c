"""Ranks that take turns, where homework is graded, do what ranks in threads do."""

import numpy as np
import pytest
from answers import RIGHT, WRONG

from minimha import homework, parallel
from minimha.homework.checks import ranks_in_turn as turns
from minimha.homework.checks.verdicts import PASSED
from minimha.parallel import threads

CHAPTER = [task for task in homework.course().values() if task.chapter == 13]
RNG = np.random.default_rng(5)
XS = [RNG.standard_normal((5, 4)) for _ in range(3)]


def changes_what_it_receives(comm):
    if comm.rank != 1:
        return comm.send(XS[comm.rank], 1)
    x = comm.recv(0)
    x *= 2
    return x + comm.recv(2)


PROGRAMS = {
    "what is received and changed": changes_what_it_receives,
    "all_reduce": lambda comm: comm.all_reduce(XS[comm.rank]),
    "all_gather": lambda comm: comm.all_gather(XS[comm.rank], 1),
    "reduce_scatter": lambda comm: comm.reduce_scatter(XS[comm.rank], -2),
    "all_to_all": lambda comm: comm.all_to_all(XS[comm.rank], 1, 0),
    "broadcast": lambda comm: comm.broadcast(XS[comm.rank], 2),
    "a message too many": lambda comm: comm.send(XS[0], 0) if comm.rank == 1 else None,
    "a rank that has ended": lambda comm: comm.recv(1) if comm.rank == 0 else None,
    "no such rank": lambda comm: comm.send(XS[0], 3),
}


def outcome(run, program):
    """What every rank returns, or the error."""
    try:
        return run(program, 3, timeout=0.2)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_taking_turns_gives_what_threads_give(program):
    threads, taken = (outcome(module.run, program) for module in (parallel, turns))
    if isinstance(threads, str):
        assert taken == threads
    else:
        for a, b in zip(threads, taken, strict=True):
            assert np.array_equal(a, b)


def test_parts_are_the_same():
    assert all(turns.parts(n, k) == parallel.parts(n, k) for n in range(12) for k in range(1, 6))


def test_a_deadlock_ends_at_once():
    message = "rank 0 waits for rank 1 at send and recv, and nothing can arrive: every rank waits"
    with pytest.raises(turns.CommunicationError, match=message):
        turns.run(lambda comm: comm.recv((comm.rank + 1) % comm.size), 3)


@pytest.mark.thorough
@pytest.mark.parametrize("task", CHAPTER, ids=lambda task: task.name)
def test_answers_to_the_chapter_pass_or_fail_as_in_threads(task, monkeypatch):
    answers = [answer for answer in (*RIGHT, *WRONG) if answer.task == task.name]
    assert len(answers) > 5
    monkeypatch.setattr(parallel, "run", turns.run)
    monkeypatch.setattr(turns, "run_elsewhere", threads.run_elsewhere)
    for answer in answers:
        outcomes = {v.outcome for v in answer.verdicts()}
        assert (outcomes == {PASSED}) == (not answer.mistake), answer
