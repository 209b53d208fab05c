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
from .arguments import Arguments, Inputs
from .reference import attention


@register("attention", "loop")
def attention_loop(
    x: Arguments, wanted: Wanted
) -> tuple[tuple[Array, Array, Array | None], Pullback]:
    """`attention`, head by head, with the same arguments, values and pullback.

    If heads share an input, such as the key of a group, its gradient is the sum over these heads.
    """
    query = x.query
    key = x.key
    value = x.value
    lead, (t, s), d, dv = x.shape[:-2], x.shape[-2:], query.shape[-1], value.shape[-1]
    if not math.prod(lead):  # no head to loop over
        return attention(x, wanted)
    heads = Inputs(
        query=_heads(query, lead, (t, d)),
        key=_heads(_per_head(key, query), lead, (s, d)),
        value=_heads(_per_head(value, query), lead, (s, dv)),
        bias=_heads(x.bias, lead, (t, s)),
        sink=_heads(x.sink, lead, ()),
        scale=_heads(x.scale, lead, (t, s)),
        softcap=_heads(x.softcap, lead, (t, s)),
    )
    visible = _heads(x.resolved_mask(), lead, (t, s))
    keep = _heads(x.resolved_keep(), lead, (t, s))
    values = []
    pulls = []
    for n in range(math.prod(lead)):
        of_head = x._replace(
            query=heads.query[n],
            key=heads.key[n],
            value=heads.value[n],
            bias=heads.bias[n],
            sink=heads.sink[n],
            scale=heads.scale[n],
            softcap=heads.softcap[n],
            mask=None if visible[n] is None else dense(visible[n]),
            keep=keep[n],
        )
        value_of_head, pull = attention(of_head, wanted)
        values.append(value_of_head)
        pulls.append(pull)
    groups, of_value = key.shape, value.shape  # the pullback need not keep the arrays

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        shapes = (t, dv), (t, s), (t,)
        parts = (_heads(dy, lead, shape) for dy, shape in zip(dys, shapes, strict=True))
        gradients = zip(*(pull(*dy) for pull, *dy in zip(pulls, *parts, strict=True)))  # noqa: B905
        dquery, dkey, dvalue, *rest = (_joined(parts, lead) for parts in gradients)
        return dquery, _per_group(dkey, groups), _per_group(dvalue, of_value), *rest

    out, weights, lse = (_joined(parts, lead) for parts in zip(*values, strict=True))
    return (out, weights, lse), pullback


def _heads(x: Any, lead: tuple[int, ...], shape: tuple[int, ...]) -> list[Any]:
    """An array that broadcasts to (*lead, *shape), as a list with one of that shape for each head;
    a number or None repeated."""
    count = math.prod(lead)
    if not backend.is_array(x):
        return [x] * count
    xp = namespace(x)
    flat = xp.reshape(xp.broadcast_to(x, (*lead, *shape)), (count, *shape))
    return [flat[n, ...] for n in range(count)]


def _joined(parts: Sequence[Array | None], lead: tuple[int, ...]) -> Array | None:
    """The inverse of `_heads`."""
    if parts[0] is None:
        return None
    xp = namespace(parts[0])
    return xp.reshape(xp.stack(list(parts)), (*lead, *parts[0].shape))


def _per_head(x: Array, query: Array) -> Array:
    """(…, G, S, N) -> (…, H, S, N): each key head, repeated for every query head that reads it."""
    if x.shape[:-2] == query.shape[:-2]:
        return x
    return namespace(x).repeat(x, query.shape[-3] // x.shape[-3], axis=-3)


def _per_group(dx: Array | None, shape: tuple[int, ...]) -> Array | None:
    """(…, H, S, N) -> (…, G, S, N), of this shape: the sum over the query heads of a key head."""
    if dx is None or dx.shape == shape:
        return dx
    xp = namespace(dx)
    split = xp.reshape(dx, (*shape[:-2], dx.shape[-3] // shape[-3], *shape[-2:]))
    return xp.sum(split, axis=-3)
