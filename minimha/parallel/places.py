"""Which positions of a sequence each rank holds."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend, ops
from minimha_autograd.backend import Array

from .collectives import parts


def runs(length: int, size: int, zigzag: bool = False) -> list[list[slice]]:
    """For each rank, a list of the runs of positions that it holds. Without zigzag a rank has one
    run: rank r holds the positions parts(length, size)[r].

    With zigzag, there are 2·size blocks, and rank r holds blocks r and 2·size − 1 − r. Under a
    causal mask early queries see few keys and late queries many, so one block of each gives all
    ranks the same work.
    """
    if not zigzag:
        return [[run] for run in parts(length, size)]
    blocks = parts(length, 2 * size)
    return [[blocks[rank], blocks[-1 - rank]] for rank in range(size)]


def part(x: Any, comm: Any, axis: int, zigzag: bool = False) -> Any:
    """The entries of an array or Tensor that are at this rank's positions along an axis.

    x covers the whole sequence and is the same on every rank. Its gradient is zero at positions
    of other ranks.
    """
    before = (slice(None),) * (axis % x.ndim)
    own = runs(x.shape[axis], comm.size, zigzag)[comm.rank]
    return ops.concat([x[(*before, run, ...)] for run in own], axis=axis)


def positions(length: int, comm: Any, zigzag: bool = False) -> Array:
    """The positions that this rank holds, as integers, in the order of `part`."""
    return part(backend.asarray(range(length)), comm, 0, zigzag)


def lengths(length: int, size: int, zigzag: bool = False) -> list[int]:
    """The number of positions that each rank holds."""
    return [sum(run.stop - run.start for run in held) for held in runs(length, size, zigzag)]


def require_one_each(size: int, count: int, what: str) -> None:
    """Raise ValueError if there are more ranks than things to share, of which there are `count`;
    `what` names them in the message."""
    if count < size:
        raise ValueError(
            f"{size} ranks need at least {size} {what}, but there are {count}: use fewer ranks"
        )
