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

n_r is the length along an axis of the array that rank r passes, and m_r that of its part of an axis
that the collective divides.
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
    """Divide an axis of this length among `size` ranks: a list with the slice of each rank. The
    lengths of the slices differ by at most one, and longer ones come first."""
    least, longer = divmod(length, size)
    lengths = [least + (rank < longer) for rank in range(size)]
    return in_turn(lengths)


def in_turn(lengths: Iterable[int]) -> list[slice]:
    """A list of slices of these lengths, which follow one another without gaps."""
    ends = accumulate(lengths, initial=0)
    return [slice(start, stop) for start, stop in pairwise(ends)]


@operation(native=half.always)
def all_reduce(
    x: Array,
    *,
    comm: Any,
) -> tuple[Array, Pullback]:
    """y = Σ x over all ranks, on every rank.   dx = Σ dy over all ranks.

    comm is this rank's communicator, and x has the same shape on every rank. Each rank adds up one
    part of all arrays, then gets the sums of the other parts from the other ranks. In total, a rank
    sends 2 (1 − 1/size) times as many entries as x has, if size, the number of ranks, divides their
    number.
    """
    xp = namespace(x)
    shape = x.shape
    what = f"all_reduce of {_kind(x)}"

    def sum_of_part(x: Array, what: str) -> Array:
        """This rank's part of the flattened sum over all ranks, as reduce_scatter computes it.
        `what` names the call in messages, here and below."""
        flat = xp.reshape(x, (-1,))  # (n,)
        places = parts(flat.shape[0], comm.size)
        pieces = _cut(flat, 0, places)  # (m_0,), (m_1,), …
        return _sum(comm, what, pieces)  # (m_r,)

    def gathered(part: Array, what: str) -> Array:
        """The whole sum, in the shape of x: every rank's part, joined as all_gather joins them."""
        copies = [part] * comm.size  # (m_r,) for each rank
        received = exchanged(comm, what, copies)  # (m_0,), (m_1,), …
        flat = xp.concat(received)  # (n,)
        return xp.reshape(flat, shape)

    # The sum of 16-bit floats is float32. It is sent in 16 bits again, as y has the dtype of x.
    part = sum_of_part(x, what)
    part = half.rounded(part, x.dtype)
    y = gathered(part, what)

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        part = sum_of_part(dy, of_gradient)
        dx = gathered(part, of_gradient)
        return (dx,)

    return y, pullback


@operation(native=half.always)
def all_gather(
    x: Array,  # (…, n_r, …)
    *,
    comm: Any,
    axis: int = 0,
) -> tuple[Array, Pullback]:
    """y = the arrays x of rank 0, 1, …, joined along an axis.   dx = this rank's part of Σ dy.

    comm is this rank's communicator. Along the axis, the arrays may have different lengths. Σ dy is
    the sum over all ranks.
    """
    xp = namespace(x)
    axis = _axis(x, axis)
    what = f"all_gather along axis {axis} of {_kind(x, axis)}"

    copies = [x] * comm.size  # (…, n_r, …) for each rank
    received = exchanged(comm, what, copies)  # (…, n_0, …), (…, n_1, …), …
    y = xp.concat(received, axis=axis)  # (…, n_0 + n_1 + …, …)

    # The lengths may differ, so the pullback needs the place in y of each rank's array.
    lengths = [each.shape[axis] for each in received]
    places = in_turn(lengths)

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        pieces = _cut(dy, axis, places)  # (…, n_0, …), (…, n_1, …), …
        dx = _sum(comm, of_gradient, pieces)  # (…, n_r, …)
        return (dx,)

    return y, pullback


@operation(native=half.always)
def reduce_scatter(
    x: Array,  # (…, m_0 + m_1 + …, …)
    *,
    comm: Any,
    axis: int = 0,
) -> tuple[Array, Pullback]:
    """y = this rank's part of Σ x over all ranks.   dx = the arrays dy of rank 0, 1, …, joined.

    comm is this rank's communicator, and x has the same shape on every rank. `parts` says which
    part of the axis a rank gets.
    """
    xp = namespace(x)
    axis = _axis(x, axis)
    what = f"reduce_scatter along axis {axis} of {_kind(x)}"

    places = parts(x.shape[axis], comm.size)
    pieces = _cut(x, axis, places)  # (…, m_0, …), (…, m_1, …), …
    y = _sum(comm, what, pieces)  # (…, m_r, …)

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        copies = [dy] * comm.size  # (…, m_r, …) for each rank
        received = exchanged(comm, of_gradient, copies)  # (…, m_0, …), (…, m_1, …), …
        dx = xp.concat(received, axis=axis)  # (…, m_0 + m_1 + …, …)
        return (dx,)

    return y, pullback


@operation(native=half.always)
def all_to_all(
    x: Array,  # (m_0 + m_1 + …, n_r) along split_axis and concat_axis
    *,
    comm: Any,
    split_axis: int,
    concat_axis: int,
) -> tuple[Array, Pullback]:
    """y = the parts for this rank of the x of rank 0, 1, …, joined along concat_axis.

    comm is this rank's communicator. Each rank's x is split along split_axis by `parts`, into a
    part for each rank; along concat_axis, the arrays may have different lengths. dx = all_to_all of
    dy with the axes swapped: each part goes back where it came from.
    """
    xp = namespace(x)
    split = _axis(x, split_axis)
    joined = _axis(x, concat_axis)
    what = f"all_to_all of {_kind(x, joined)} split along axis {split}"

    places_in_x = parts(x.shape[split], comm.size)
    pieces = _cut(x, split, places_in_x)  # (m_0, n_r), (m_1, n_r), …
    received = exchanged(comm, what, pieces)  # (m_r, n_0), (m_r, n_1), …
    y = xp.concat(received, axis=joined)  # (m_r, n_0 + n_1 + …)

    # The lengths may differ, so the pullback needs the place in y of each rank's array.
    lengths = [each.shape[joined] for each in received]
    places_in_y = in_turn(lengths)

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        pieces = _cut(dy, joined, places_in_y)  # (m_r, n_0), (m_r, n_1), …
        received = exchanged(comm, of_gradient, pieces)  # (m_0, n_r), (m_1, n_r), …
        dx = xp.concat(received, axis=split)  # (m_0 + m_1 + …, n_r)
        return (dx,)

    return y, pullback


@operation(native=half.always)
def broadcast(
    x: Array,
    *,
    comm: Any,
    root: int = 0,
) -> tuple[Array, Pullback]:
    """y = the x of the root, on every rank.   On the root dx = Σ dy over all ranks, elsewhere 0.

    comm is this rank's communicator, and root the number of the rank that sends. x has the same
    shape on every rank; only the root's entries matter.
    """
    xp = namespace(x)
    what = f"broadcast from rank {root} of {_kind(x)}"

    # The ranks to which this one sends its x, and whose dy it therefore adds up.
    receivers = range(0)
    if comm.rank == root:
        receivers = range(comm.size)

    copies = dict.fromkeys(receivers, x)
    (y,) = comm.exchange(what, copies, [root])

    def pullback(dy: Array) -> tuple[Array]:
        of_gradient = f"the gradient of {what}"
        received = comm.exchange(of_gradient, {root: dy}, receivers)
        zero = xp.zeros_like(half.widened(dy))
        widened = map(half.widened, received)  # sums of 16-bit floats are float32
        dx = reduce(operator.add, widened, zero)
        return (dx,)

    return y, pullback


def exchanged(comm: Any, what: str, pieces: Sequence[Array]) -> list[Array]:
    """Send pieces[r] to every rank r, by this rank's communicator. Returns the arrays that the
    ranks send to this one, in the order of ranks. `what` names the call in messages."""
    everyone = range(comm.size)
    of_rank = dict(enumerate(pieces))
    return list(comm.exchange(what, of_rank, everyone))


def _sum(comm: Any, what: str, pieces: Sequence[Array]) -> Array:
    """Send pieces[r] to every rank r, by this rank's communicator, and return the sum of the arrays
    that the ranks send to this one. The sum of 16-bit floats is an array of float32. `what` names
    the call in messages."""
    everyone = range(comm.size)
    of_rank = dict(enumerate(pieces))

    # One piece after another is received and added, so that they are never all in memory.
    received = comm.exchange(what, of_rank, everyone)
    widened = map(half.widened, received)
    return reduce(operator.add, widened)


def _cut(x: Array, axis: int, slices: Sequence[slice]) -> list[Array]:
    """A list of the parts of x that these slices select along an axis."""
    before = (slice(None),) * axis
    return [x[(*before, part, ...)] for part in slices]


def _axis(x: Array, axis: int) -> int:
    """The number of the axis, counted from the front: −1 becomes the number of axes minus 1."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"an array of shape {tuple(x.shape)} has no axis {axis}")
    return axis % x.ndim


def _kind(x: Array, axis: int | None = None) -> str:
    """A text with the dtype and the shape of an array. It leaves out the length of `axis`, in which
    ranks may differ."""
    lengths = [str(n) for n in x.shape]
    if axis is not None:
        lengths[axis] = "·"
    dtype = str(x.dtype).rpartition(".")[2]  # PyTorch's is called torch.float32
    return f"{dtype} ({', '.join(lengths)})"
