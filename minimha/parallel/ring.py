"""Ring attention: each rank holds a part of the positions, and keys and values circulate.

Sources: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023);
zigzag: Zhu, "ring-flash-attention" (2024).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..attention import Arguments, merge_attention
from ..attention.arguments import check
from ..attention.scaled_dot_product import choose
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

    query    (…, H, T_r, D), this rank's `part` of the queries
    key      (…, G, S_r, D), this rank's part of the keys; value (…, G, S_r, Dv)
    mask     refers to positions in the whole sequence: T is the sum of all T_r, S of all S_r
    scale, softcap
             numbers, as in `scaled_dot_product_attention`
    zigzag   whether the parts are those of `part` with zigzag=True, which divides the work under a
             causal mask more evenly

    Returns this rank's part of the output, (…, H, T_r, Dv): an array for arrays, a Tensor if any
    argument is one. Gradients are those of `ring`.

    Keys and values go round the ring, one key head and at most 1,024 positions at a time, and stop
    only at ranks with queries that see them. Each rank computes the attention of its queries to
    each visitor, and merges these results as `merge_attention` does. So a rank needs memory for its
    own part and for the arrays of the mask, and little more.

    Raises ValueError on every rank if there are more ranks than positions, or if the parts are not
    those of `part`; and the errors of `scaled_dot_product_attention`.
    """
    settings = {"mask": mask, "scale": scale, "softcap": softcap, "zigzag": zigzag}
    return ring(query, key, value, comm=comm, **settings)


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
    """`ring_attention` on arrays. Visit v computes (outᵥ, lseᵥ), and these merge to (out, lse):

        wᵥ = exp(lseᵥ − lse)          doutᵥ = wᵥ · dout
        out = Σ wᵥ · outᵥ             dlseᵥ = wᵥ · Σ dout · (outᵥ − out)

    The pullback computes each visit again, since only out and lse are kept, and the pullback of the
    visit gives its share of dQ, dK and dV. Keys and values go the same way as before, now with
    their gradients, to which every rank adds its share; the last rank sends the gradients home.
    """
    check(Arguments(query, key, value, scale=scale, softcap=softcap))
    settings: dict[str, Any] = {"mask": mask, "scale": scale, "softcap": softcap, "zigzag": zigzag}
    if query.ndim == 2:
        one_head = (x[None, ...] for x in (query, key, value))
        y, pull = ring.function(*one_head, comm=comm, **settings)
        return y[0, ...], lambda dy: tuple(dx[0, ...] for dx in pull(dy[None, ...]))
    route, xp = Route(comm, query, key, mask, zigzag), namespace(query)
    journeys = [  # query heads, the number of a piece, and where this piece of their key head is
        (of, n, (..., slice(g, g + 1), route.piece(comm.rank, n), slice(None)))
        for g, of in enumerate(parts(query.shape[-3], key.shape[-3]))
        for n in range(route.pieces)
    ]
    made = {"dtype": query.dtype, "device": query.device}
    out = xp.zeros((*query.shape[:-1], value.shape[-1]), **made)
    lse = xp.full(query.shape[:-1], -math.inf, **made)

    def attend(q: Array, k: Array, v: Array, seen: masks.Mask | None) -> tuple[Any, Pullback]:
        x = Arguments(q, k, v, None, None, scale, softcap, seen, return_weights=False)
        (y, _, log), pull = choose("auto", x).function(x, (True,) * 3 + (False,) * 4)
        return (y, log), pull

    def visit(source: int, of: slice, n: int, own: tuple[Any, ...]) -> None:
        """The attention of the query heads `of` to piece n of a source's key head."""
        q, y, log = query[..., of, :, :], out[..., of, :, :], lse[..., of, :]
        k, v = route.receive(source, key[own], value[own])
        route.send_on(source, k, v)
        for rows, columns, seen in route.blocks(source, n, of):
            part, _ = attend(q[..., rows, :], k[..., columns, :], v[..., columns, :], seen)
            both = zip((y[..., rows, :], log[..., rows]), part, strict=True)
            y[..., rows, :], log[..., rows] = merge_attention(*both)

    for journey in journeys:
        for source in route.sources:
            visit(source, *journey)
        comm.flush()

    def pullback(dout: Array) -> tuple[Array, Array, Array]:
        dquery, dkey, dvalue = (xp.zeros_like(x) for x in (query, key, value))
        dout_out = xp.sum(dout * out, axis=-1)
        finite = xp.where(lse == -math.inf, 0.0, lse)  # queries that see nothing

        def visit(source: int, of: slice, n: int, own: tuple[Any, ...]) -> None:
            q, dq, dy = (x[..., of, :, :] for x in (query, dquery, dout))
            log, dy_y = finite[..., of, :], dout_out[..., of, :]
            k, v, dk, dv = route.receive(source, key[own], value[own], dkey[own], dvalue[own])
            if source == comm.rank:
                route.send_on(source, k, v)
            for rows, columns, seen in route.blocks(source, n, of):
                own_part = q[..., rows, :], k[..., columns, :], v[..., columns, :]
                (y, part), pull = attend(*own_part, seen)
                w = xp.exp(part - log[..., rows])
                dpart = w * (xp.sum(dy[..., rows, :] * y, axis=-1) - dy_y[..., rows])
                more = pull(w[..., None] * dy[..., rows, :], None, dpart)
                dq[..., rows, :] += more[0]
                dk[..., columns, :] += more[1]
                dv[..., columns, :] += more[2]
            if source != comm.rank:
                route.send_on(source, k, v, dk, dv)

        for journey in journeys:
            for source in route.sources:
                visit(source, *journey)
            route.add_arriving(dkey[journey[-1]], dvalue[journey[-1]])
            comm.flush()
        return dquery, dkey, dvalue

    return out, pullback


class Ring(PositionParallel):
    """Each rank reads its own positions, and keys and values circulate."""

    zigzag = True
    attention = staticmethod(partial(ring_attention, zigzag=True))
