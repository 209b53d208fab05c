"""Ulysses: ranks divide the positions everywhere but in attention, where they divide the heads.

Before attention, an all_to_all collects all positions of each rank's heads. After attention,
another one returns all heads of each rank's positions.
Source: Jacobs et al., "DeepSpeed Ulysses" (2023).
"""

from __future__ import annotations

from typing import Any

from minimha_autograd import ops

from ..attention import scaled_dot_product_attention
from ..masks.queries import typed
from .collectives import parts
from .places import lengths, require_one_each
from .ways import PositionParallel, attention_layers


def ulysses_attention(
    comm: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """`scaled_dot_product_attention` of a sequence whose positions are divided among the ranks.

    comm   this rank's communicator
    query  (…, H, T_r, D), the queries at the positions that `parts` gives this rank
    key    (…, G, S_r, D), the keys at these positions; value (…, G, S_r, Dv)
    mask   refers to positions in the whole sequence

    scale and softcap are numbers, as in `scaled_dot_product_attention`. Returns this rank's part of
    the output, (…, H, T_r, Dv): an array for arrays, a Tensor if any argument is one. Each rank
    computes some key heads, with the query heads that share them, and needs memory for all
    positions of these heads.

    Raises ValueError if there are more ranks than key heads, and if T_r is not the length that
    `parts` gives this rank.
    """
    h, g = query.shape[-3], key.shape[-3]
    require_one_each(comm.size, g, "heads of keys and values")
    batch, group, (t, d) = query.shape[:-3], h // g, query.shape[-2:]
    grouped = ops.reshape(query, (*batch, g, group, t, d))  # query heads stay with their key head
    query, key, value = (
        comm.all_to_all(x, split_axis=axis, concat_axis=-2)
        for x, axis in ((grouped, -4), (key, -3), (value, -3))
    )
    own, length = query.shape[-4], query.shape[-2]
    due = lengths(length, comm.size)[comm.rank]
    if t != due:
        raise ValueError(f"rank {comm.rank} holds {t} of {length} positions, but its part is {due}")
    query = ops.reshape(query, (*batch, own * group, length, d))
    if mask is not None:
        whole = (*batch, h, length, key.shape[-2])
        heads = parts(g, comm.size)[comm.rank]
        heads, everything = slice(heads.start * group, heads.stop * group), slice(None)
        mask = typed(mask, whole).part(whole, everything, everything, heads)
    out = scaled_dot_product_attention(query, key, value, mask, scale=scale, softcap=softcap)
    return comm.all_to_all(out, split_axis=-2, concat_axis=-3)


class Ulysses(PositionParallel):
    """The "ulysses" way to divide the training of a GPT: each rank reads its own positions,
    and computes attention for its own heads. comm and model are as for `Way`.

    Raises ValueError if there are more ranks than key heads.
    """

    attention = staticmethod(ulysses_attention)

    def __init__(self, comm: Any, model: Any) -> None:
        super().__init__(comm, model)
        heads = attention_layers(model)[0].sizes.num_kv_heads
        require_one_each(comm.size, heads, "heads of keys and values")
