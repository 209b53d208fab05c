"""Attention one head at a time, in a Python loop: as the paper draws it, and slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minimha_autograd import Pullback, backend
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ..functional.implementations import register
from ..masks import dense
from .arguments import Arguments, Gradients, Inputs
from .reference import attention


@register("attention", "loop")
def attention_loop(
    x: Arguments,
    wanted: Wanted,
) -> tuple[tuple[Array, Array, Array | None], Pullback]:
    """Compute `attention` one head after another. The arguments, the values and the pullback are
    those of `attention`.

    If heads share an input, such as the key of a group, its gradient is the sum over these heads.
    """
    query = x.query  # (…, H, T, D)
    key = x.key  # (…, G, S, D)
    value = x.value  # (…, G, S, Dv)
    lead = x.shape[:-2]  # (…, H)
    if not math.prod(lead):  # no head to loop over
        return attention(x, wanted)

    t, s = x.shape[-2:]
    d = query.shape[-1]
    dv = value.shape[-1]

    def split(a: Any, *shape: int) -> list[Any]:
        return _heads(a, lead, shape)

    # Lists with one entry for each head, of the shape given.
    heads = Inputs(
        query=split(query, t, d),
        key=split(_per_head(key, query), s, d),
        value=split(_per_head(value, query), s, dv),
        bias=split(x.bias, t, s),
        sink=split(x.sink),
        scale=split(x.scale, t, s),
        softcap=split(x.softcap, t, s),
    )
    visible = split(x.resolved_mask(), t, s)
    keep = split(x.resolved_keep(), t, s)

    outs = []  # (T, Dv) each
    all_weights = []  # (T, S) each
    lses = []  # (T,) each, or None
    pulls = []
    for n in range(math.prod(lead)):
        mask = None
        if visible[n] is not None:
            mask = dense(visible[n])

        # The same call with this head's part of each array.
        of_head = x._replace(
            query=heads.query[n],
            key=heads.key[n],
            value=heads.value[n],
            bias=heads.bias[n],
            sink=heads.sink[n],
            scale=heads.scale[n],
            softcap=heads.softcap[n],
            mask=mask,
            keep=keep[n],
        )
        (out, weights, lse), pull = attention(of_head, wanted)
        outs.append(out)
        all_weights.append(weights)
        lses.append(lse)
        pulls.append(pull)

    # The pullback needs the shapes, and need not keep the arrays.
    key_shape = key.shape
    value_shape = value.shape

    def pullback(
        dout: Array | None,
        dweights: Array | None,
        dlse: Array | None,
    ) -> Gradients:
        douts = split(dout, t, dv)
        all_dweights = split(dweights, t, s)
        dlses = split(dlse, t)
        of_heads = []
        for n, pull in enumerate(pulls):
            of_heads.append(pull(douts[n], all_dweights[n], dlses[n]))

        # From a tuple for each head to a tuple of arrays with an axis of heads again.
        arrays = []
        for parts in zip(*of_heads, strict=True):
            arrays.append(_joined(parts, lead))
        joined = Gradients(*arrays)

        # Several query heads have read the same key head.
        return joined._replace(
            key=_per_group(joined.key, key_shape),
            value=_per_group(joined.value, value_shape),
        )

    out = _joined(outs, lead)  # (…, H, T, Dv)
    weights = _joined(all_weights, lead)  # (…, H, T, S)
    lse = _joined(lses, lead)  # (…, H, T)
    return (out, weights, lse), pullback


def _heads(
    x: Any,
    lead: tuple[int, ...],
    shape: tuple[int, ...],
) -> list[Any]:
    """A list with one entry for each head of each sequence. `lead` are the lengths of the batch and
    head axes, such as (B, H). If x is an array, it must broadcast to (*lead, *shape), and each
    entry is the part of one head, of `shape`. If x is a number or None, each entry is x itself."""
    count = math.prod(lead)
    if not backend.is_array(x):
        return [x] * count
    xp = namespace(x)
    of_every_head = xp.broadcast_to(x, (*lead, *shape))
    flat = xp.reshape(of_every_head, (count, *shape))  # one axis for all heads of all sequences
    return [flat[n, ...] for n in range(count)]


def _joined(parts: Sequence[Array | None], lead: tuple[int, ...]) -> Array | None:
    """Join the parts of all heads in one array (*lead, …): the inverse of `_heads`. Returns None if
    the parts are None."""
    if parts[0] is None:
        return None
    xp = namespace(parts[0])
    flat = xp.stack(list(parts))
    return xp.reshape(flat, (*lead, *parts[0].shape))


def _per_head(x: Array, query: Array) -> Array:
    """Repeat each key head for every query head that reads it: (…, G, S, N) -> (…, H, S, N)."""
    if x.shape[:-2] == query.shape[:-2]:
        return x
    group = query.shape[-3] // x.shape[-3]  # H / G
    return namespace(x).repeat(x, group, axis=-3)


def _per_group(dx: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Sum dx (…, H, S, N), the gradient of keys or values as each query head read them, over the
    query heads that share a key head. The result has `shape`, (…, G, S, N); None if dx is None."""
    if dx is None or dx.shape == shape:
        return dx
    xp = namespace(dx)
    group = dx.shape[-3] // shape[-3]  # H / G
    split = xp.reshape(dx, (*shape[:-2], group, *shape[-2:]))  # (…, G, H/G, S, N)
    return xp.sum(split, axis=-3)
