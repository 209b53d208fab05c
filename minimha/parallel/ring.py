"""Ring attention: each rank holds a part of the positions, and keys and values go round the ring.

At each step of the ring, a rank receives a block of keys and values from the rank before it,
computes the attention of its own queries to this block, and sends the block to the rank after it.
The owner of a block is the rank that holds its positions. With three ranks, and one block each:

                own block     step 1      step 2
    rank 0      block 0       block 2     block 1
    rank 1      block 1       block 0     block 2
    rank 2      block 2       block 1     block 0

Sources: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023);
zigzag: Zhu, "ring-flash-attention" (2024).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..attention import Arguments, merge_attention, scaled_dot_product_attention
from ..attention.arguments import check
from ..attention.dispatch import choose
from ..masks.mask import AnyMask
from .collectives import parts
from .route import Route
from .ways import PositionParallel


def ring_attention(
    comm: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: AnyMask = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    zigzag: bool = False,
) -> Any:
    """`scaled_dot_product_attention` of a sequence whose positions are divided among the ranks.

    comm     this rank's communicator
    query    (…, H, T_r, D), this rank's `part` of the queries
    key      (…, G, S_r, D), this rank's part of the keys; value (…, G, S_r, Dv)
    mask     refers to positions in the whole sequence: T is the sum of all T_r, S of all S_r
    scale, softcap
             numbers, as in `scaled_dot_product_attention`
    zigzag   whether the parts are those of `part` with zigzag=True, which divides the work under a
             causal mask more evenly

    Returns this rank's part of the output, (…, H, T_r, Dv): an array for arrays, a Tensor if any
    argument is one. Gradients are those of `ring`.

    A block that goes round the ring has the keys and values of one key head at no more than 1,024
    positions, and goes only to ranks with queries that see it. Each rank computes the attention of
    its queries to each block, and merges these results as `merge_attention` does. So a rank needs
    memory for its own part and for the arrays of the mask, and little more.

    Raises ValueError on every rank if there are more ranks than positions, or if any T_r or S_r is
    not the length that `part` gives the rank; and the errors of `scaled_dot_product_attention`.
    """
    return ring(
        query,
        key,
        value,
        comm=comm,
        mask=mask,
        scale=scale,
        softcap=softcap,
        zigzag=zigzag,
    )


@operation
def ring(
    query: Array,
    key: Array,
    value: Array,
    *,
    comm: Any,
    mask: AnyMask = None,
    scale: float | None = None,
    softcap: float | None = None,
    zigzag: bool = False,
) -> tuple[Array, Pullback]:
    """`ring_attention` on arrays, with the same arguments. The attention to block i gives the
    output outᵢ, and lseᵢ, the logsumexp of each query's scores. The results for all blocks are
    merged to out and lse:

        wᵢ = exp(lseᵢ − lse)          doutᵢ = wᵢ · dout
        out = Σᵢ wᵢ · outᵢ            dlseᵢ = wᵢ · Σ dout · (outᵢ − out)

    The last sum is over the axis of length Dv. Of these results, only out and lse are kept for the
    pullback. There the blocks go round the ring again, and each rank computes its attention to each
    block again; the pullback of this attention returns what it contributes to dQ, dK and dV. The
    contributions to dK and dV travel with the block: each rank adds its own to their sums, and the
    last one sends these to the owner, the rank that holds the block's keys and values.
    """
    check(Arguments(query, key, value, scale=scale, softcap=softcap))
    xp = namespace(query)

    if query.ndim == 2:
        return _of_one_head(
            query,
            key,
            value,
            comm=comm,
            mask=mask,
            scale=scale,
            softcap=softcap,
            zigzag=zigzag,
        )

    route = Route(comm, query, key, mask, zigzag)
    blocks = _own_blocks(comm.rank, route, query.shape[-3], key.shape[-3])

    # The attention to no block at all, with which the first result is merged.
    like = {"dtype": query.dtype, "device": query.device}
    lse = xp.full(query.shape[:-1], -math.inf, **like)  # (…, H, T_r)
    out = xp.zeros((*lse.shape, value.shape[-1]), **like)  # (…, H, T_r, Dv)

    def step(owner: int, block: Block) -> None:
        """Merge the attention to a block of `owner`, the rank that holds its keys and values, into
        out and lse."""
        heads = block.query_heads
        q = query[..., heads, :, :]  # (…, H/G, T_r, D)
        out_of_heads = out[..., heads, :, :]  # (…, H/G, T_r, Dv)
        lse_of_heads = lse[..., heads, :]  # (…, H/G, T_r)

        # Sent on before it is used, so that the next rank need not wait for this one to compute.
        k, v = route.receive(owner, key[block.place], value[block.place])
        route.send_on(owner, k, v)

        for rows, columns, seen in route.tiles(owner, block.number, heads):
            (out_i, lse_i), _ = _attention(
                q[..., rows, :],
                k[..., columns, :],
                v[..., columns, :],
                seen,
                scale,
                softcap,
            )
            merged_out, merged_lse = merge_attention(
                [out_of_heads[..., rows, :], out_i],  # (…, H/G, t, Dv) each
                [lse_of_heads[..., rows], lse_i],  # (…, H/G, t) each
            )
            out_of_heads[..., rows, :] = merged_out
            lse_of_heads[..., rows] = merged_lse

    for block in blocks:
        for owner in route.owners:
            step(owner, block)
        comm.flush()

    def pullback(dout: Array) -> tuple[Array, Array, Array]:
        dquery = xp.zeros_like(query)
        dkey = xp.zeros_like(key)
        dvalue = xp.zeros_like(value)

        # dlseᵢ needs Σ dout · out, which is the same for every block.
        dout_out = xp.sum(dout * out, axis=-1)  # (…, H, T_r)

        # For a query that sees no key, lseᵢ − lse would be −∞ − (−∞), which is NaN.
        finite_lse = xp.where(lse == -math.inf, 0.0, lse)  # (…, H, T_r)

        def step_back(owner: int, block: Block) -> None:
            """Add to the gradients what the attention to a block of `owner`, the rank that holds
            its keys and values, contributes to them."""
            heads = block.query_heads
            q = query[..., heads, :, :]  # (…, H/G, T_r, D)
            dq = dquery[..., heads, :, :]  # (…, H/G, T_r, D)
            dout_of_heads = dout[..., heads, :, :]  # (…, H/G, T_r, Dv)
            dout_out_of_heads = dout_out[..., heads, :]  # (…, H/G, T_r)
            lse_of_heads = finite_lse[..., heads, :]  # (…, H/G, T_r)

            k, v, dk, dv = route.receive(
                owner,
                key[block.place],
                value[block.place],
                dkey[block.place],
                dvalue[block.place],
            )

            # The owner keeps its own contributions to dK and dV, and sends no gradients.
            if owner == comm.rank:
                route.send_on(owner, k, v)

            for rows, columns, seen in route.tiles(owner, block.number, heads):
                of_tile = _attention(
                    q[..., rows, :],
                    k[..., columns, :],
                    v[..., columns, :],
                    seen,
                    scale,
                    softcap,
                )
                dq_i, dk_i, dv_i = _contributions(
                    *of_tile,
                    dout_of_heads[..., rows, :],
                    dout_out_of_heads[..., rows],
                    lse_of_heads[..., rows],
                )
                dq[..., rows, :] += dq_i
                dk[..., columns, :] += dk_i
                dv[..., columns, :] += dv_i

            if owner != comm.rank:
                route.send_on(owner, k, v, dk, dv)

        for block in blocks:
            for owner in route.owners:
                step_back(owner, block)
            route.collect(dkey[block.place], dvalue[block.place])
            comm.flush()

        return dquery, dkey, dvalue

    return out, pullback


def _attention(
    q: Array,  # (…, H/G, t, D)
    k: Array,  # (…, 1, s, D)
    v: Array,  # (…, 1, s, Dv)
    seen: masks.Mask | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[tuple[Array, Array], Pullback]:
    """The attention of t queries of a rank to s keys of a block: the values (outᵢ, lseᵢ) of `ring`,
    and the pullback. `seen` is the part of the mask for these queries and keys, or None if every
    query sees every key; scale and softcap are as for `ring`."""
    x = Arguments(q, k, v, None, None, scale, softcap, seen, return_weights=False)
    wanted = scaled_dot_product_attention.wanted(query=True, key=True, value=True)
    (out_i, _, lse_i), pull_i = choose("auto", x).function(x, wanted)
    return (out_i, lse_i), pull_i


def _contributions(
    values: tuple[Array, Array],  # outᵢ (…, H/G, t, Dv) and lseᵢ (…, H/G, t)
    pull_i: Pullback,
    dout: Array,  # (…, H/G, t, Dv)
    dout_out: Array,  # (…, H/G, t)
    lse: Array,  # (…, H/G, t)
) -> tuple[Array, Array, Array]:
    """What the attention of t queries to s keys contributes to dQ, dK and dV, by the formulas of
    `ring`.

    values, pull_i  the results of `_attention`
    dout_out        Σ dout · out, a sum over Dv
    lse             that of the attention to all blocks
    """
    out_i, lse_i = values
    xp = namespace(out_i)
    w_i = xp.exp(lse_i - lse)  # (…, H/G, t)

    dout_i = w_i[..., None] * dout  # (…, H/G, t, Dv)
    dout_out_i = xp.sum(dout * out_i, axis=-1)  # (…, H/G, t)
    dlse_i = w_i * (dout_out_i - dout_out)  # (…, H/G, t)

    dq_i, dk_i, dv_i, *_ = pull_i(dout_i, None, dlse_i)
    return dq_i, dk_i, dv_i


def _of_one_head(query: Array, key: Array, value: Array, **settings: Any) -> tuple[Array, Pullback]:
    """The value and the pullback of `ring` for arrays without an axis for heads, such as a query
    (T_r, D). The settings are the keyword arguments of `ring`."""
    y, pull = ring.function(
        query[None, ...],  # (1, T_r, D)
        key[None, ...],  # (1, S_r, D)
        value[None, ...],  # (1, S_r, Dv)
        **settings,
    )

    def pullback(dy: Array) -> tuple[Array, ...]:
        return tuple(dx[0, ...] for dx in pull(dy[None, ...]))

    return y[0, ...], pullback


class Block(NamedTuple):
    """One block of keys and values: those of one key head, for one of the `Route.pieces` into which
    the positions of a rank are divided. All ranks send the blocks of the same key head and the same
    piece round the ring at the same time."""

    query_heads: slice  # the query heads that share the key head
    number: int  # which of the pieces it is
    place: tuple[Any, ...]  # where this rank's own block is in key and value


def _own_blocks(rank: int, route: Route, num_heads: int, num_kv_heads: int) -> list[Block]:
    """All blocks of this rank, in the order in which they are sent: for each of the num_kv_heads
    key heads, which num_heads query heads share, one for each piece of the rank's positions."""
    blocks = []
    for g, query_heads in enumerate(parts(num_heads, num_kv_heads)):
        for number in range(route.pieces):
            positions = route.piece(rank, number)
            place = (..., slice(g, g + 1), positions, slice(None))
            blocks.append(Block(query_heads, number, place))
    return blocks


class Ring(PositionParallel):
    """The "ring" way to divide the training of a GPT: each rank reads its own positions, and
    keys and values go round the ring."""

    zigzag = True
    attention = staticmethod(partial(ring_attention, zigzag=True))
