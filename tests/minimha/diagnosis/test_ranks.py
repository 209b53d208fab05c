"""Gradient checks of functions that run on several ranks name the two usual mistakes."""

import numpy as np
import pytest

import minimha as mh
from minimha.parallel import across

RNG = np.random.default_rng(3)


def total(pullback):
    """all_reduce with another pullback."""

    @mh.operation
    def summed(x, *, comm):
        return comm.all_reduce(x), lambda dy: (pullback(comm, dy),)

    return lambda comm, x, w: summed(x @ w, comm=comm)


@mh.operation
def gather(x, *, comm):
    """all_gather whose pullback keeps this rank's own cotangent, without those of other ranks."""
    start = comm.rank * len(x)
    return comm.all_gather(x), lambda dy: (dy[start : start + len(x)],)


@mh.operation
def alone(x, *, comm):
    """x · x without the other ranks, with a gradient that is too large."""
    return x * x, lambda dy: (comm.size * 2 * x * dy,)


FUNCTIONS = {
    "right": (total(lambda comm, dy: comm.all_reduce(dy)), None),
    "forgotten": (total(lambda comm, dy: dy), "all-reduce-missing"),
    "forgotten in a gather": (lambda comm, x, w: gather(x @ w, comm=comm), "all-reduce-missing"),
    "summed twice": (total(lambda comm, dy: comm.all_reduce(comm.all_reduce(dy))), "counted-per-rank"),
    "times the ranks": (total(lambda comm, dy: comm.size * comm.all_reduce(dy)), "counted-per-rank"),
    "another factor": (total(lambda comm, dy: 4 * comm.all_reduce(dy)), "factor"),
    "the number of ranks without a sum over ranks": (
        lambda comm, x, w: alone(x @ w, comm=comm), "factor"),
    "the mean": (total(lambda comm, dy: comm.all_reduce(dy) / comm.size), "averaged"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_check_across_ranks_names_the_mistake(name, ranks):
    function, cause = FUNCTIONS[name]
    shapes = [(2, 3), (3, 2)] * ranks
    joint, arrays = across(function, ranks), [RNG.standard_normal(shape) for shape in shapes]
    if cause is None:
        assert mh.gradcheck(joint, *arrays)
        return
    with pytest.raises(mh.GradcheckError) as caught:
        mh.gradcheck(joint, *arrays)
    assert {wrong.cause for wrong in caught.value.diagnosis.wrong_gradients} == {cause}
    assert "the gradient of w_of_rank_1 is wrong" in str(caught.value).replace("The", "the")
    said = " ".join(str(caught.value).split())
    assert (f"counted once per rank: it is {ranks} times" in said) == (cause == "counted-per-rank")
    assert ("the all-reduce was forgotten" in said) == (cause == "all-reduce-missing")


def test_a_factor_of_two_on_a_single_rank_has_nothing_to_do_with_ranks():
    with pytest.raises(mh.GradcheckError) as caught:
        mh.gradcheck(lambda x: (x * x, lambda dy: (4 * dy * x,)), RNG.standard_normal((2, 3)))
    assert caught.value.diagnosis.cause == "factor"
