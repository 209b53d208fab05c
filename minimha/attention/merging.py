"""Attention over parts of the keys, merged into attention over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minimha_autograd import Pullback, operation, ops
from minimha_autograd.backend import Array, namespace

from ..functional.softmax import masked_softmax


def merge_attention(
    outs: Sequence[Any],
    lses: Sequence[Any],
) -> tuple[Any, Any]:
    """Merge the attention of the same queries over different keys: out and lse over all the keys.

        first = mh.scaled_dot_product_attention(q, k[..., :9, :], v[..., :9, :], return_lse=True)
        other = mh.scaled_dot_product_attention(q, k[..., 9:, :], v[..., 9:, :], return_lse=True)
        out, lse = mh.merge_attention(*zip(first, other))

    outs  (…, T, Dv) each, the outputs of the parts
    lses  (…, T) each, the logarithms of the parts' sums of exponentials. Where a part has no
          visible key and no sink, its lse is −∞ and its out is 0, and it changes nothing

    out = Σ wₚ outₚ and lse = log Σ exp(lseₚ), with the weights wₚ = exp(lseₚ − lse) of the parts p,
    which sum to one where a part is not empty. Gradients flow back from both, by the formulas of
    `merged`. A sink belongs to one part only, because the lse of a part includes it.
    Raises ValueError unless there is one lse for each out, and TypeError for different dtypes.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    if len(outs) != len(lses) or not outs:
        raise ValueError(f"there are {len(outs)} outs and {len(lses)} lses: pass one of each part")
    out, lse = merged(*outs, *lses)
    return out, lse


@operation
def merged(*arrays: Array) -> tuple[tuple[Array, Array], Pullback]:
    """`merge_attention` as an operation: its arguments are all outs, then all lses.

        doutₚ = wₚ · dout          dlseₚ = wₚ · (Σ dout · (outₚ − out) + dlse)

    The sum is over the last axis. Where all parts are empty, lse is −∞, and out and all gradients
    are 0. This is attention to the parts: their scores are the lses, and their values the outs.
    """
    xp = namespace(*arrays)
    count = len(arrays) // 2
    outs = arrays[:count]  # (…, T, Dv) each
    lses = xp.stack(list(arrays[count:]))  # (P, …, T), for P parts

    # The softmax of the lses: its first axis has an entry for each part, as a row has for each key.
    all_weights, _ = masked_softmax(lses, axis=0)
    weights = [all_weights[p, ...] for p in range(count)]  # (…, T) each

    # The sum adds one product at a time, so only one of them is in memory beside it.
    pairs = zip(weights, outs, strict=True)
    out = sum(w[..., None] * y for w, y in pairs)  # (…, T, Dv)
    lse = ops.logsumexp(lses, axis=0)  # (…, T)

    def pullback(
        dout: Array | None,
        dlse: Array | None,
    ) -> tuple[Array, ...]:
        if dout is None:
            dout = xp.zeros_like(out)
        if dlse is None:
            dlse = 0
        douts = []
        dlses = []
        for w, y in zip(weights, outs, strict=True):
            douts.append(w[..., None] * dout)  # (…, T, Dv)

            # The lse of a part decides its weight in out, and is part of the lse of all.
            through_out = xp.sum(dout * (y - out), axis=-1)  # (…, T)
            dlses.append(w * (through_out + dlse))  # (…, T)
        return *douts, *dlses

    return (out, lse), pullback
