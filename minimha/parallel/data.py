"""Data parallel: each rank computes the gradients of its own sequences, and the ranks add them up.

The optimiser's state is divided among the ranks. Source: Rajbhandari et al., "ZeRO" (2020),
section 5.1; buckets: Li et al., "PyTorch Distributed" (2020), section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minimha_autograd import Tensor, backend
from minimha_autograd.backend import Array, namespace

from .collectives import in_turn, parts
from .communicator import nbytes
from .ways import Way

BUCKET = 2**20
"""The largest size of a bucket in bytes, unless a single parameter is larger. Small messages cost
more time per byte, and large buckets more memory, since their entries are copied."""


class DataParallel(Way):
    """The "data" way to divide the training of a GPT: each rank computes with the whole model, on
    its own sequences."""

    axis = 0


class Buckets:
    """Parameters that every rank holds, in buckets of which each rank updates one part.

        buckets = Buckets(comm, decay_groups(model, 0.1))
        optimiser = AdamW(buckets.groups, lr=1e-3)        # on this rank's part of every bucket
        …
        loss.backward()
        buckets.reduce()                                  # sums this part's gradient over ranks
        optimiser.step()
        buckets.gather()                                  # gets the other parts from other ranks

    comm    this rank's communicator
    groups  groups of parameters, as for an `Optimiser`
    split   parameters in these groups of which each rank holds a different part: they need no
            bucket

    In the attribute `groups`, this rank's parts of the buckets, the shards, take the place of the
    parameters in buckets. Every optimiser of minimha updates each entry independently of the
    others, so it can update a shard like a parameter. The gradients travel after backward(),
    one bucket at a time.
    """

    def __init__(
        self, comm: Any, groups: Iterable[Mapping[str, Any]], split: Sequence[Tensor] = ()
    ) -> None:
        self._entries: list[tuple[Sequence[int], Bucket | None]] = []
        self._buckets: list[Bucket] = []
        self.groups, first, parted = [], 0, set(split)
        for group in groups:
            made = []
            numbered = list(enumerate(group["params"], first))
            first += len(numbered)
            for k, p in numbered:
                if p in parted:
                    made.append(p)
                    self._entries.append(([k], None))
            for chunk in _chunks([(k, p) for k, p in numbered if p not in parted]):
                numbers, parameters = zip(*chunk, strict=True)
                bucket = Bucket(comm, parameters)
                made.append(bucket.shard)
                self._buckets.append(bucket)
                self._entries.append((numbers, bucket))
            self.groups.append({**group, "params": made})

    def reduce(self) -> None:
        """Set the gradient of this rank's part of every bucket to its sum over all ranks."""
        for bucket in self._buckets:
            bucket.reduce()

    def gather(self) -> None:
        """Collect the parts of all buckets from all ranks, and set the parameters to them."""
        for bucket in self._buckets:
            bucket.gather()

    def take(self) -> None:
        """Copy this rank's part of every bucket from the parameters, after these have been set."""
        for bucket in self._buckets:
            bucket.shard.data = bucket.part(bucket.flat(p.data for p in bucket.parameters))

    def whole_state(self, state: Mapping[str, Array], joined: Any) -> dict[str, Array]:
        """The state that the optimiser would have on a single process. Every rank must call this
        method, since the ranks put it together from their parts.

        state   the `Optimiser.state` of this rank's optimiser
        joined  joined(k, x) is called for the parameters in `split`: k is the number of the
                parameter, and x this rank's part of an array of its state. It returns the whole
                array, from all ranks
        """
        whole = {}
        for name, x in state.items():
            number, _, field = name.partition(".")
            places, bucket = self._entries[int(number)]
            if x.ndim == 0:  # a counter
                found = [x] * len(places)
            else:
                found = [joined(places[0], x)] if bucket is None else bucket.cut(bucket.whole(x))
            whole.update({f"{k}.{field}": y for k, y in zip(places, found, strict=True)})
        return whole

    def part_of_state(self, state: Mapping[str, Array], cut: Any) -> dict[str, Array]:
        """The state of this rank's optimiser, cut from `state`, that of an optimiser on a single
        process: the inverse of `whole_state`. cut(k, x) is called for the parameters in `split`:
        it returns this rank's part of x, an array of the state of parameter number k."""
        found = {}
        for number, (places, bucket) in enumerate(self._entries):
            for field in [n.partition(".")[2] for n in state if n.startswith(f"{places[0]}.")]:
                xs = [state[f"{k}.{field}"] for k in places]
                if xs[0].ndim == 0:
                    y = xs[0]
                else:
                    y = cut(places[0], xs[0]) if bucket is None else bucket.part(bucket.flat(xs))
                found[f"{number}.{field}"] = y
        return found


class Bucket:
    """Parameters as one flat array, of which each rank updates its part, the shard.

    comm        this rank's communicator
    parameters  the whole parameters, which every rank holds
    shard       this rank's part of the flat array: a leaf, as an optimiser needs it
    """

    def __init__(self, comm: Any, parameters: Sequence[Tensor]) -> None:
        self.comm, self.parameters = comm, parameters
        self.shard = Tensor(self.part(self.flat(p.data for p in parameters)), requires_grad=True)

    def flat(self, arrays: Iterable[Array]) -> Array:
        """All entries of all arrays, one array after the other, in a single array (n,)."""
        arrays = list(arrays)
        xp = namespace(*arrays)
        return xp.concat([xp.reshape(x, (-1,)) for x in arrays])

    def cut(self, flat: Array) -> list[Array]:
        """Cut a flat array into an array for each parameter: the inverse of `flat`."""
        xp, runs = namespace(flat), in_turn(math.prod(p.shape) for p in self.parameters)
        return [
            xp.reshape(flat[run], p.shape) for run, p in zip(runs, self.parameters, strict=True)
        ]

    def part(self, flat: Array) -> Array:
        """A copy of this rank's part of a flat array."""
        return backend.copy(flat[parts(flat.shape[0], self.comm.size)[self.comm.rank]])

    def whole(self, shard: Array) -> Array:
        """The whole flat array, collected from all ranks, each of which passes its shard."""
        return self.comm.all_gather(shard)

    def reduce(self) -> None:
        gradients = (0 * p.data if p.grad is None else p.grad for p in self.parameters)
        self.shard.grad = self.comm.reduce_scatter(self.flat(gradients))
        for p in self.parameters:
            p.grad = None

    def gather(self) -> None:
        for p, x in zip(self.parameters, self.cut(self.whole(self.shard.data)), strict=True):
            p.data = x


def _chunks(items: Sequence[tuple[int, Tensor]]) -> Iterable[list[tuple[int, Tensor]]]:
    """Divide the numbered parameters, in order, into those of each bucket: at most BUCKET bytes,
    unless a single parameter is larger."""
    chunk: list[tuple[int, Tensor]] = []
    size = 0
    for k, p in items:
        if chunk and size + nbytes(p.data) > BUCKET:
            yield chunk
            chunk, size = [], 0
        chunk.append((k, p))
        size += nbytes(p.data)
    if chunk:
        yield chunk
