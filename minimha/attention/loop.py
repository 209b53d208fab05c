"""Attention one head at a time, in a Python loop: the picture of the paper, and slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minimha_autograd import Pullback, backend, in_float32, operation
from minimha_autograd.backend import Array, namespace

from .reference import attention


@operation
def attention_loop(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    sink: Array | None = None,
    scale: Array | float | None = None,
    softcap: Array | float | None = None,
    *,
    mask: Array | None = None,
    keep: Array | None = None,
    p: float = 0.0,
    return_weights: bool = True,
    wanted: tuple[bool, ...],
) -> tuple[Any, Pullback]:
    """`attention`, head by head: arguments, values and pullback are the same.

    The gradient of what heads share, such as the key of a group, is the sum over those heads.
    """
    inputs = query, key, value, bias, sink, scale, softcap
    settings: dict[str, Any] = {"keep": keep, "p": p, "return_weights": return_weights}
    if backend.is_half(query):
        return in_float32(attention_loop, *inputs, mask=mask, wanted=wanted, **settings)
    lead, t = tuple(query.shape[:-2]), query.shape[-2]
    s, dv = value.shape[-2:]
    if not math.prod(lead):  # no head to loop over
        return attention.with_pullback(*inputs, mask=mask, wanted=wanted, **settings)
    inputs = query, _per_head(key, query), _per_head(value, query), bias, sink, scale, softcap
    tails = *(tuple(x.shape[-2:]) for x in inputs[:3]), (t, s), (), (t, s), (t, s)
    of_key, of_value = tuple(key.shape), tuple(value.shape)
    columns = [_heads(x, lead, tail) for x, tail in zip(inputs, tails, strict=True)]
    visible, kept = _heads(mask, lead, (t, s)), _heads(keep, lead, (t, s))
    results, pulls = zip(
        *(
            attention.with_pullback(*(x[n] for x in columns), mask=m, keep=k, p=p, wanted=wanted)
            for n, (m, k) in enumerate(zip(visible, kept, strict=True))
        ),
        strict=True,
    )

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        cotangents = zip(_heads(dout, lead, (t, dv)), _heads(dweights, lead, (t, s)), strict=True)
        gradients = zip(*(pull(*dy) for pull, dy in zip(pulls, cotangents, strict=True)))  # noqa: B905
        dquery, dkey, dvalue, *rest = (_joined(parts, lead) for parts in gradients)
        return dquery, _per_group(dkey, of_key), _per_group(dvalue, of_value), *rest

    outs, weights = (_joined(parts, lead) for parts in zip(*results, strict=True))
    if not return_weights:
        return outs, lambda dout: pullback(dout, None)
    return (outs, weights), pullback


def _heads(x: Any, lead: tuple[int, ...], tail: tuple[int, ...]) -> list[Any]:
    """What broadcasts to (*lead, *tail), head by head; a number or None as often as needed."""
    count = math.prod(lead)
    if not backend.is_array(x):
        return [x] * count
    xp = namespace(x)
    flat = xp.reshape(xp.broadcast_to(x, (*lead, *tail)), (count, *tail))
    return [flat[n, ...] for n in range(count)]


def _joined(parts: Sequence[Array | None], lead: tuple[int, ...]) -> Array | None:
    """The inverse of `_heads`."""
    if parts[0] is None:
        return None
    xp = namespace(parts[0])
    return xp.reshape(xp.stack(list(parts)), (*lead, *parts[0].shape))


def _per_head(x: Array, query: Array) -> Array:
    """(…, G, S, N) -> (…, H, S, N): each key head as often as query heads read it."""
    if x.shape[:-2] == query.shape[:-2]:
        return x
    return namespace(x).repeat(x, query.shape[-3] // x.shape[-3], axis=-3)


def _per_group(dx: Array | None, shape: tuple[int, ...]) -> Array | None:
    """The sum of the gradients of those copies, of what had this shape."""
    if dx is None or dx.shape == shape:
        return dx
    xp = namespace(dx)
    split = xp.reshape(dx, (*shape[:-2], dx.shape[-3] // shape[-3], *shape[-2:]))
    return xp.sum(split, axis=-3)
