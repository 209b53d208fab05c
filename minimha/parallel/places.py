"""Which positions of a sequence each rank holds."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend, ops
from minimha_autograd.backend import Array

from .collectives import parts


def runs(length: int, size: int, zigzag: bool = False) -> list[list[slice]]:
    """Divide the positions 0 … length − 1 among `size` ranks. Returns a list with the runs of each
    rank, which are slices of consecutive positions. Without zigzag, rank r has a single run,
    parts(length, size)[r].

    With zigzag, the positions are cut into 2·size blocks, and rank r has two runs, the blocks r and
    2·size − 1 − r. Under a causal mask, early queries see few keys and late queries many. Each rank
    gets an early and a late block, and so about the same work as the others.
    """
    if not zigzag:
        return [[run] for run in parts(length, size)]
    blocks = parts(length, 2 * size)
    return [[blocks[rank], blocks[-1 - rank]] for rank in range(size)]


def part(x: Any, comm: Any, axis: int, zigzag: bool = False) -> Any:
    """The entries of an array or Tensor x at this rank's positions along an axis.

    x covers the whole sequence and is the same on every rank; comm is this rank's communicator. On
    this rank, the gradient of x is zero at the positions of other ranks. `runs` says which
    positions a rank holds, and what zigzag means.
    """
    before = (slice(None),) * (axis % x.ndim)
    own = runs(x.shape[axis], comm.size, zigzag)[comm.rank]
    return ops.concat([x[(*before, run, ...)] for run in own], axis=axis)


def positions(length: int, comm: Any, zigzag: bool = False) -> Array:
    """The positions that this rank holds in a sequence of this length: an array of integers, in the
    order in which `part`, with the same comm and zigzag, returns the entries at these positions."""
    return part(backend.asarray(range(length)), comm, 0, zigzag)


def lengths(length: int, size: int, zigzag: bool = False) -> list[int]:
    """The number of positions that each of `size` ranks holds in a sequence of this length, if
    `runs` divides it, with the same zigzag."""
    return [sum(run.stop - run.start for run in held) for held in runs(length, size, zigzag)]


def require_one_each(size: int, count: int, what: str) -> None:
    """Raise ValueError if there are fewer things to divide, `count`, than ranks, `size`. `what` is
    the name of these things in the message, such as "positions"."""
    if count < size:
        raise ValueError(
            f"{size} ranks need at least {size} {what}, but there are {count}: use fewer ranks"
        )
