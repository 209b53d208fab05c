"""Collectives as operations: what all ranks compute together, with hand-derived pullbacks.

Ranks differentiate the sum of their losses, L = L₀ + L₁ + …. So the pullback of a collective, a
linear map from the arrays of all ranks to the arrays of all ranks, is its transpose:

    all_reduce      <->  all_reduce
    all_gather      <->  reduce_scatter
    all_to_all      <->  all_to_all, with the axes swapped
    broadcast       <->  the sum, on the root

All of them are made of exchanges, in which ranks send arrays to other ranks: all_reduce of two, the
others of one. Sums run in the order of ranks, so results do not depend on which message arrives
first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

from minimha_autograd import Pullback, half, operation
from minimha_autograd.backend import Array, namespace


def parts(length: int, size: int) -> list[slice]:
    """Each rank's part of an axis: lengths differ by at most one, and longer parts come first."""
    least, longer = divmod(length, size)
    return in_turn([least + (rank < longer) for rank in range(size)])


def in_turn(lengths: Iterable[int]) -> list[slice]:
    """Slices of these lengths, one after another."""
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]


@operation(native=half.always)
def all_reduce(x: Array, *, comm: Any) -> tuple[Array, Pullback]:
    """y = Σ x over all ranks, on every rank.   dx = Σ dy over all ranks.

    x has the same shape on every rank. Each rank sums one part and gathers the other sums: it sends
    2 (1 − 1/size) of the array, if size divides the number of entries.
    """
    what = f"all_reduce of {_kind(x)}"

    shape = x.shape

    def part(x: Array, what: str) -> Array:
        flat = namespace(x).reshape(x, (-1,))
        return _sum(comm, what, _cut(flat, 0, parts(flat.shape[0], comm.size)))

    def whole(part: Array, what: str) -> Array:
        xp = namespace(part)
        return xp.reshape(xp.concat(exchanged(comm, what, [part] * comm.size)), shape)

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        return (whole(part(dy, of_gradient), of_gradient),)

    return whole(half.rounded(part(x, what), x.dtype), what), pullback


@operation(native=half.always)
def all_gather(x: Array, *, comm: Any, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the x of rank 0, 1, …, joined along an axis.   dx = this rank's part of Σ dy.

    Along the axis, the arrays may have different lengths.
    """
    axis = _axis(x, axis)
    what = f"all_gather along axis {axis} of {_kind(x, axis)}"
    received = exchanged(comm, what, [x] * comm.size)
    own_parts = in_turn(y.shape[axis] for y in received)

    def pullback(dy: Array) -> tuple[Array]:
        return (_sum(comm, f"the gradient of {what}", _cut(dy, axis, own_parts)),)

    return namespace(x).concat(received, axis=axis), pullback


@operation(native=half.always)
def reduce_scatter(x: Array, *, comm: Any, axis: int = 0) -> tuple[Array, Pullback]:
    """y = this rank's part of Σ x over all ranks.   dx = the dy of rank 0, 1, …, joined.

    x has the same shape on every rank; `parts` says which part of the axis a rank gets.
    """
    axis = _axis(x, axis)
    what = f"reduce_scatter along axis {axis} of {_kind(x)}"

    def pullback(dy: Array) -> tuple[Array]:
        received = exchanged(comm, f"the gradient of {what}", [dy] * comm.size)
        return (namespace(dy).concat(received, axis=axis),)

    return _sum(comm, what, _cut(x, axis, parts(x.shape[axis], comm.size))), pullback


@operation(native=half.always)
def all_to_all(x: Array, *, comm: Any, split_axis: int, concat_axis: int) -> tuple[Array, Pullback]:
    """y = this rank's part of the x of rank 0, 1, …, joined along concat_axis.

    x is split along split_axis by `parts`; along concat_axis, the arrays may have different
    lengths. dx = all_to_all of dy with the axes swapped: each part goes back where it came from.
    """
    split, joined = _axis(x, split_axis), _axis(x, concat_axis)
    what = f"all_to_all of {_kind(x, joined)} split along axis {split}"
    received = exchanged(comm, what, _cut(x, split, parts(x.shape[split], comm.size)))
    own_parts = in_turn(y.shape[joined] for y in received)

    def pullback(dy: Array) -> tuple[Array]:
        received = exchanged(comm, f"the gradient of {what}", _cut(dy, joined, own_parts))
        return (namespace(dy).concat(received, axis=split),)

    return namespace(x).concat(received, axis=joined), pullback


@operation(native=half.always)
def broadcast(x: Array, *, comm: Any, root: int = 0) -> tuple[Array, Pullback]:
    """y = the x of the root, on every rank.   dx = Σ dy over all ranks on the root, 0 elsewhere.

    x has the same shape on every rank; only the root's entries matter.
    """
    everyone, what = range(comm.size), f"broadcast from rank {root} of {_kind(x)}"
    sent = dict.fromkeys(everyone, x) if comm.rank == root else {}

    def pullback(dy: Array) -> tuple[Array]:
        sources = everyone if comm.rank == root else ()
        received = comm.exchange(f"the gradient of {what}", {root: dy}, sources)
        zero = namespace(dy).zeros_like(half.widened(dy))
        return (reduce(operator.add, map(half.widened, received), zero),)

    (y,) = comm.exchange(what, sent, [root])
    return y, pullback


def exchanged(comm: Any, what: str, pieces: Sequence[Array]) -> list[Array]:
    """What the ranks send to this one, in their order; it sends pieces[r] to rank r."""
    return list(comm.exchange(what, dict(enumerate(pieces)), range(comm.size)))


def _sum(comm: Any, what: str, pieces: Sequence[Array]) -> Array:
    """The sum of the pieces that the ranks send to this one, without holding all of them at once.
    The sum of 16-bit floats is float32."""
    received = comm.exchange(what, dict(enumerate(pieces)), range(comm.size))
    return reduce(operator.add, map(half.widened, received))


def _cut(x: Array, axis: int, slices: Sequence[slice]) -> list[Array]:
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
