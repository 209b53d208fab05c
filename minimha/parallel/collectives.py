"""Collectives as operations: what all ranks compute together, with hand-derived pullbacks.

Ranks differentiate the sum of their losses, L = L₀ + L₁ + …. So the pullback of a collective, a
linear map from the arrays of all ranks to the arrays of all ranks, is its transpose:

    all_reduce      <->  all_reduce
    all_gather      <->  reduce_scatter
    all_to_all      <->  all_to_all, with the axes swapped
    broadcast       <->  the sum, on the root

All of them are one exchange, in which each rank sends a part to every other rank. Sums run in the
order of ranks, so results do not depend on which message arrives first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace


def parts(length: int, size: int) -> list[slice]:
    """Each rank's part of an axis: lengths differ by at most one, and longer parts come first."""
    least, longer = divmod(length, size)
    return _slices([least + (rank < longer) for rank in range(size)])


def _slices(lengths: Sequence[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]


@operation
def all_reduce(x: Array, *, comm: Any) -> tuple[Array, Pullback]:
    """y = Σ x over all ranks, on every rank.   dx = Σ dy over all ranks.

    x has the same shape on every rank. Each rank sums one part and gathers the other sums: it sends
    2 (1 − 1/size) of the array.
    """
    return _sum(comm, x, "all_reduce"), lambda dy: (_sum(comm, dy, "the gradient of all_reduce"),)


@operation
def all_gather(x: Array, *, comm: Any, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the x of rank 0, 1, …, joined along an axis.   dx = this rank's part of Σ dy.

    Along the axis, the arrays may have different lengths.
    """
    axis, name = _axis(x, axis), "all_gather"
    received = _gathered(comm, x, axis, name)
    lengths = [y.shape[axis] for y in received]

    def pullback(dy: Array) -> tuple[Array]:
        return (_scattered(comm, dy, axis, lengths, f"the gradient of {name}"),)

    return namespace(x).concat(received, axis=axis), pullback


@operation
def reduce_scatter(x: Array, *, comm: Any, axis: int = 0) -> tuple[Array, Pullback]:
    """y = this rank's part of Σ x over all ranks.   dx = the dy of rank 0, 1, …, joined.

    x has the same shape on every rank; `parts` says which part of the axis a rank gets.
    """
    axis, name = _axis(x, axis), "reduce_scatter"
    lengths = [part.stop - part.start for part in parts(x.shape[axis], comm.size)]

    def pullback(dy: Array) -> tuple[Array]:
        received = _gathered(comm, dy, axis, f"the gradient of {name}")
        return (namespace(dy).concat(received, axis=axis),)

    return _scattered(comm, x, axis, lengths, name), pullback


@operation
def all_to_all(x: Array, *, comm: Any, split_axis: int, concat_axis: int) -> tuple[Array, Pullback]:
    """y = this rank's part of the x of rank 0, 1, …, joined along concat_axis.

    x is split along split_axis by `parts`; along concat_axis, the arrays may have different
    lengths. dx = all_to_all of dy with the axes swapped: each part goes back where it came from.
    """
    split, joined, name = _axis(x, split_axis), _axis(x, concat_axis), "all_to_all"
    received = _swapped(comm, x, split, parts(x.shape[split], comm.size), joined, name)
    lengths = [y.shape[joined] for y in received]

    def pullback(dy: Array) -> tuple[Array]:
        sent_back = f"the gradient of {name}"
        received = _swapped(comm, dy, joined, _slices(lengths), split, sent_back)
        return (namespace(dy).concat(received, axis=split),)

    return namespace(x).concat(received, axis=joined), pullback


@operation
def broadcast(x: Array, *, comm: Any, root: int = 0) -> tuple[Array, Pullback]:
    """y = the x of the root, on every rank.   dx = Σ dy over all ranks on the root, 0 elsewhere.

    x has the same shape on every rank; only the root's entries matter.
    """
    everyone, what = range(comm.size), f"broadcast from rank {root} of {_kind(x)}"
    sent = dict.fromkeys(everyone, x) if comm.rank == root else {}

    def pullback(dy: Array) -> tuple[Array]:
        sources = everyone if comm.rank == root else ()
        received = comm.exchange(f"the gradient of {what}", {root: dy}, sources)
        return (reduce(operator.add, received, namespace(dy).zeros_like(dy)),)

    (y,) = comm.exchange(what, sent, [root])
    return y, pullback


def _sum(comm: Any, x: Array, name: str) -> Array:
    xp, what = namespace(x), f"{name} of {_kind(x)}"
    flat = xp.reshape(x, (-1,))
    pieces = dict(enumerate(_split(flat, 0, parts(flat.shape[0], comm.size))))
    own = reduce(operator.add, comm.exchange(what, pieces, range(comm.size)))
    sums = comm.exchange(what, dict.fromkeys(range(comm.size), own), range(comm.size))
    return xp.reshape(xp.concat(list(sums)), x.shape)


def _gathered(comm: Any, x: Array, axis: int, name: str) -> list[Array]:
    """The arrays of all ranks."""
    what, everyone = f"{name} along axis {axis} of {_kind(x, axis)}", range(comm.size)
    return list(comm.exchange(what, dict.fromkeys(everyone, x), everyone))


def _scattered(comm: Any, x: Array, axis: int, lengths: Sequence[int], name: str) -> Array:
    """This rank's part of the sum."""
    what = f"{name} along axis {axis} of {_kind(x)} in parts of {', '.join(map(str, lengths))}"
    pieces = dict(enumerate(_split(x, axis, _slices(lengths))))
    return reduce(operator.add, comm.exchange(what, pieces, range(comm.size)))


def _swapped(
    comm: Any, x: Array, split_axis: int, slices: Sequence[slice], concat_axis: int, name: str
) -> list[Array]:
    """The parts of the arrays of all ranks that are for this one."""
    what = f"{name} of {_kind(x, concat_axis)} split along axis {split_axis}"
    pieces = dict(enumerate(_split(x, split_axis, slices)))
    return list(comm.exchange(what, pieces, range(comm.size)))


def _split(x: Array, axis: int, slices: Sequence[slice]) -> list[Array]:
    return [x[(*(slice(None),) * axis, part, ...)] for part in slices]


def _axis(x: Array, axis: int) -> int:
    """The axis, counted from the front."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"an array of shape {tuple(x.shape)} has no axis {axis}")
    return axis % x.ndim


def _kind(x: Array, axis: int | None = None) -> str:
    """The dtype and shape of an array, without the length of an axis in which ranks may differ."""
    shape = ", ".join("·" if k == axis else str(n) for k, n in enumerate(x.shape))
    return f"{str(x.dtype).rpartition('.')[2]} ({shape})"
