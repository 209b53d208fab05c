"""What ranks send one another when they share the work of a model, in bytes and messages.

Every collective is an exchange: each rank sends an array to every other rank. Of n entries in all,
a part with n_r entries belongs to rank r, which sends

    all_gather       (ranks − 1) · n_r      its part, to everyone else
    reduce_scatter   n − n_r                the other parts, each to the rank that it belongs to
    all_reduce       both
    all_to_all       n_r · (1 − share)      its part, except for the share of it that it keeps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..parallel import pieces
from ..parallel.communicator import Sent
from ..parallel.places import lengths, require_one_each, runs
from .setting import Setting


def communication(
    way: str,
    ranks: int,
    *,
    causal: bool = False,
    window: int | None = None,
    zigzag: bool = False,
    backward: bool = True,
    **letters: Any,
) -> list[Sent]:
    """What each rank sends in one attention layer: a list with a `Sent` for rank 0, 1, 2, …

        mh.cost.communication("ring", 4, T=16_384, H=8, D=64, causal=True, zigzag=True)

    A `Sent` counts bytes and messages. Rank r holds T_r positions, or H_r query heads and G_r key
    heads. In the forward pass, it sends

        data      nothing: it has its own sequences
        heads     an all_reduce, the sum of an array of B·T·M entries over the ranks
        ulysses   three all_to_all, of Q, K and V, each of which gives other ranks their heads at
                  its positions: B·T_r·((H − H_r)·D + (G − G_r)·(D + Dv)) entries; then one of the
                  outputs of its heads at their positions, B·(T − T_r)·H_r·Dv
        ring      its own keys and values, and those of other ranks that it receives, to the next
                  rank whose queries see them, if there is one: B·G·T_s·(D + Dv) entries for those
                  of rank s. For each key head, and for each of the pieces into which ranks divide
                  their keys, which `parallel.pieces` counts, these are two messages, keys and
                  values. Also two integers to every other rank

    In the backward pass, "heads" sends another all_reduce, and "ulysses" another four all_to_all.
    In the ring, gradients travel with keys and values: the rank that owns these sends as much as in
    the forward pass, each later rank twice as much, and the last of them sends only the gradients,
    to the owner.

    way, ranks      how the layer is shared, one of the four names above, and among how many ranks
    causal, window  which keys j a query i of the ring sees: j ≤ i, or i − window ≤ j ≤ i
    zigzag          whether each rank of the ring holds an early and a late run of positions instead
                    of a single run: see `parallel.part`
    backward        whether to include the backward pass
    letters         those of `Setting.of`, such as T and H: the sizes of the whole sequence, and of
                    all heads together

    Raises ValueError for another way, and for more ranks than positions or key heads to share.
    """
    s = Setting.of(**letters)
    heads = s.sizes.num_kv_heads
    divided = {"heads of keys and values": heads}
    shared = {"data": {}, "heads": divided, "ring": {"positions": s.T}}
    shared["ulysses"] = shared["heads"] | shared["ring"]
    if way not in shared:
        raise ValueError(f"way = {way!r}: there are {', '.join(sorted(shared))}")
    for what, count in shared[way].items():
        require_one_each(ranks, count, what)
    if way == "ring":
        return _ring(s, ranks, causal or window is not None, window, zigzag, backward)
    if way == "ulysses":
        return _ulysses(s, ranks, backward)
    reduced = way == "heads"
    once = _all_reduce(s.B * s.T * s.sizes.d_model, ranks, s.itemsize)
    return [sent * (reduced * (1 + backward)) for sent in once]


def update(buckets: Iterable[int], ranks: int, dtype: str = "float32") -> list[Sent]:
    """What each rank sends to update parameters that all ranks hold: a reduce_scatter of their
    gradients and an all_gather of the new parameters, for each bucket, which is a group of
    parameters that `parallel.Buckets` sends together. Returns a list with a `Sent` for each rank.

    buckets  the number of entries of each bucket
    dtype    of the entries
    """
    size = Setting.of(T=1, H=1, M=1, dtype=dtype).itemsize
    return _total([[Sent()] * ranks, *(_all_reduce(n, ranks, size) for n in buckets)])


def training_step(
    way: str, ranks: int, buckets: Iterable[int], *, layers: int, **settings: Any
) -> list[Sent]:
    """What each rank sends in a step of `training.ParallelTraining`: `communication` in every
    layer, the `update`, and an all_reduce for each of two numbers, the loss and the square of the
    gradient's norm. In some steps, the ranks also collect the whole model for a checkpoint; this is
    not counted. Returns a list with a `Sent` for each rank.

    way, ranks  as for `communication`
    buckets     the number of entries of each bucket, as for `update`
    layers      the number of attention layers
    settings    the other arguments of `communication`, such as T and H
    """
    layer = communication(way, ranks, **settings)
    others = update([*buckets, 1, 1], ranks, settings.get("dtype", "float32"))
    return _total([layer] * layers + [others])


def _total(costs: Sequence[Sequence[Sent]]) -> list[Sent]:
    """For each rank, the sum of what it sends in all of the costs."""
    return [sum(of_rank, Sent()) for of_rank in zip(*costs, strict=True)]


def _all_reduce(n: int, ranks: int, itemsize: int) -> list[Sent]:
    """What each rank sends in an all_reduce of n entries of `itemsize` bytes, which is a
    reduce_scatter and an all_gather."""
    return [
        Sent(itemsize * (n - own + (ranks - 1) * own), 2 * (ranks - 1)) for own in lengths(n, ranks)
    ]


def _ulysses(s: Setting, ranks: int, backward: bool) -> list[Sent]:
    z = s.sizes
    queries, keys, heads = (lengths(n, ranks) for n in (s.T, s.S, z.num_kv_heads))
    group = z.num_heads // z.num_kv_heads

    def swapped(have: list[int], split: list[int], width: int) -> list[Sent]:
        """What each rank sends in an all_to_all. Before it, rank r holds have[r] entries of the
        first axis and all entries of the second one; after it, all of the first and split[r] of the
        second. One axis is that of positions, the other that of heads. Each entry stands for
        B · width numbers."""
        return [
            Sent(s.itemsize * s.B * width * n * (sum(split) - own), ranks - 1)
            for n, own in zip(have, split, strict=True)
        ]

    each = (
        (queries, heads, group * z.head_dim), (keys, heads, z.head_dim),
        (keys, heads, z.v_head_dim), (heads, queries, group * z.v_head_dim),
    )  # fmt: skip
    there = [swapped(have, split, width) for have, split, width in each]
    back = [swapped(split, have, width) for have, split, width in each]
    return _total(there + back * backward)


def _ring(
    s: Setting, ranks: int, causal: bool, window: int | None, zigzag: bool, backward: bool
) -> list[Sent]:
    queries, keys = (runs(n, ranks, zigzag) for n in (s.T, s.S))
    z, others = s.sizes, ranks - 1

    def sees(rank: int, owner: int) -> bool:
        return not causal or any(
            k.start < q.stop and (window is None or q.start - window < k.stop)
            for q in queries[rank]
            for k in keys[owner]
            if q.start < q.stop and k.start < k.stop
        )

    sent = [Sent(16 * others, others)] * ranks  # two integers of 8 bytes
    for owner, length in enumerate(lengths(s.S, ranks, zigzag)):
        block = Sent(
            s.itemsize * s.B * z.num_kv_heads * length * (z.head_dim + z.v_head_dim),
            2 * z.num_kv_heads * pieces(s.S, ranks, zigzag),
        )
        ring = ((owner + hop) % ranks for hop in range(1, ranks))
        stops = [owner, *(rank for rank in ring if sees(rank, owner))]
        for rank in stops[:-1]:
            sent[rank] += block
        if backward and len(stops) > 1:
            for rank in stops:
                sent[rank] += block * (1 if rank in (owner, stops[-1]) else 2)
    return sent
