"""A kernel passes if each block computes its part from the tiles that it loads, in whatever way."""

import numpy as np
import pytest

from minimha.homework.checks import blocks
from minimha.homework.checks.calls import calls_recorded
from minimha.kernels import numpy_tile as ct

X = np.random.default_rng(7).standard_normal((6, 8))
"""The task is the sum of each row, in tiles of (2, 4)."""


def refusal(yours):
    """Why a function is refused; "" if it passes."""
    axes, tile = {"x": "T S", "out": "T"}, {"T": 2, "S": 4}
    expected = {"out": X.sum(axis=1)}
    try:
        blocks.same_in_blocks(yours, {"x": X}, (), expected, axes, tile, largest=8)
    except Exception as error:
        return str(error)
    finally:
        assert ct.run_elsewhere.function is ct.run_elsewhere.default
    return ""


def sums(kernel, grid=(3,), arrays=lambda x: x, after=lambda out: out):
    """A function that launches a kernel."""

    def yours(x):
        out = np.zeros(len(x))
        ct.launch(None, grid, kernel, (arrays(x), out))
        return after(out)

    return yours


def two(x, i, j):
    """A tile of the task."""
    return ct.load(x, (i, j), (2, 4))


def rows(load=two, steps=(0, 1), part=lambda: ct.bid(0)):
    """A kernel in which a block computes the sums of some rows."""

    def kernel(x, out):
        i = part()
        ct.store(out, (i,), sum(load(x, i, j).sum(axis=1) for j in steps))

    return kernel


@pytest.mark.parametrize("yours", [
    sums(rows()),
    sums(rows(steps=(1, 0))),
    sums(rows(lambda x, i, j: (two(x, i, j) + two(x, i, j)) / 2)),
    sums(rows(lambda x, i, j: ct.load(x, (j, i), (4, 2), order="F").T)),
    sums(rows(lambda x, i, j: ct.load(x, (j, i), (4, 2)).T), arrays=np.transpose),
    sums(rows(lambda x, i, j: ct.load(x, (i, j), (2, 2)), range(4))),
    sums(rows(lambda x, i, j: ct.load(x, (i, j), (1, 4))), (6,)),
    sums(rows(part=lambda: 2 - ct.bid(1)), (1, 3)),
    sums(rows(), arrays=lambda x: np.pad(x, ((2, 2), (0, 8)))[2:]),
])  # fmt: skip
def test_the_order_number_and_form_of_loads_do_not_matter(yours):
    assert refusal(yours) == ""


def whole(x):
    return sums(
        lambda _, out: ct.store(out, (ct.bid(0),), x.reshape(3, 2, 8).sum(axis=2)[ct.bid(0)])
    )(x)


def loads_and_reads(x):
    def kernel(array, out):
        i = ct.bid(0)
        ct.load(array, (i, 0), (2, 4)), ct.load(array, (i, 1), (2, 4))
        ct.store(out, (i,), x[2 * i : 2 * i + 2].sum(axis=1))

    return sums(kernel)(x)


def one_for_all(x, out):
    for i in range(3):
        rows(part=lambda: i)(x, out)  # noqa: B023


def one_more(x, out):
    two(x, 0, 0)
    rows()(x, out)


def half_from_elsewhere(x, out):
    i = ct.bid(0)
    ct.store(out, (i,), two(x, i, 0).sum(axis=1) + X[2 * i : 2 * i + 2, 4:].sum(axis=1))


def again(x):
    try:
        sums(rows())(x)
        return sums(rows())(x)
    except RuntimeError:
        return X.sum(axis=1)


def only_when_watched(greedy):
    """A function that uses up memory, if it is called with serial numbers."""
    return lambda x: (greedy if x.max() > 1e9 else sums(rows()))(x)


LARGE = rows(lambda x, i, j: ct.load(x, (i, 0), (2, 8)), [0])
TALL = rows(lambda x, i, j: ct.load(x, (i, j), (4, 4), padding_mode=ct.PaddingMode.ZERO))
HUGE = rows(lambda x, i, j: ct.load(x, (i, j), (2**20, 2**20)))
JOINED = rows(lambda x, i, j: np.hstack([two(x, i, 0), two(x, i, 1)]), [0])


@pytest.mark.parametrize(("says", "yours"), [
    ("x was loaded 0 times", lambda x: x.sum(axis=1)),
    ("x was loaded 0 times", whole),
    ("right only if entries are read without ct.load", loads_and_reads),
    ("block (0,) stored tiles with 6 entries along T; it should have at most 2", sums(one_for_all, (1,))),
    ("loaded a tile with 8 entries along S; it should have at most 4", sums(LARGE)),
    ("stored a tile with 4 entries along T", sums(TALL, (2,))),
    ("which its results need", sums(half_from_elsewhere)),
    ("which its results do not need", sums(one_more)),
    ("out[0] was not stored by a block", sums(rows(), after=lambda out: out * (1 + 1e-15))),
    ("launch one kernel, once", lambda x: (sums(rows())(x), sums(rows())(x))),
    ("launch one kernel, once", again),
    ("more blocks than there are tiles", only_when_watched(sums(rows(), (10**9,)))),
    ("is too large", only_when_watched(sums(HUGE))),
    ("tiles joined to 16 entries: at most 8 fit", sums(JOINED)),
    ("out is wrong", sums(rows(), after=lambda out: 2 * out)),
])  # fmt: skip
def test_what_a_block_cannot_know_is_refused(says, yours):
    assert says in refusal(yours)


@pytest.mark.parametrize("yours", [sums(rows(), after=lambda out: 2 * out), sums(rows(steps=[2]))])
def test_only_calls_that_a_solution_could_repeat_are_recorded(yours):
    calls = []
    refusal(calls_recorded(yours, calls))
    assert [call.arguments[0].tolist() for call in calls] == [X.tolist()]
