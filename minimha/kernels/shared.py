"""What the kernels of attention on the CPU and on a GPU share: four axes, numbers, gradients."""

from __future__ import annotations

import math

from minimha_autograd.backend import Array, namespace

from ..attention import Arguments
from ..attention.arguments import Gradients


def obstacle_to_fused(x: Arguments) -> str | None:
    """The reason why the implementation "fused", which stores all scores, does not support the
    arguments, or None if it does."""
    for name, a in {"sink": x.sink, "softcap": x.softcap, "dropout": x.keep}.items():
        if a is not None:
            return f"it does not support {name}"
    return "it does not compute lse" if x.return_lse else None


def numbers(x: Arguments) -> tuple[float, float, float]:
    """The scale of a call's scores, 1/√D unless x gives one; their softcap (0 for none); and the
    factor 1 / (1 − dropout) of the weights that dropout keeps (0 if dropout is 1)."""
    scale = 1 / math.sqrt(x.query.shape[-1]) if x.scale is None else x.scale
    return float(scale), float(x.softcap or 0), 0.0 if x.p == 1 else 1 / (1 - x.p)


def batch_and_heads(shape: tuple[int, ...]) -> tuple[int, int]:
    """(B, H) for the shape (…, H, T, S) of the scores or that of an array like it, where B counts
    the sequences along all axes before H. Both are 1 for a shape (T, S)."""
    return math.prod(shape[:-3]), shape[-3] if len(shape) > 2 else 1


def four_axes(x: Array) -> Array:
    """Reshape x (…, H, T, N) to (B, H, T, N), where B counts the sequences along all axes before H.
    B and H are 1 if x is (T, N)."""
    if x.ndim == 4:
        return x
    return namespace(x).reshape(x, (*batch_and_heads(x.shape), *x.shape[-2:]))


def like_scores(x: Array, shape: tuple[int, ...]) -> Array:
    """x, which broadcasts to the shape (…, H, T, S) of the scores, as an array (B, H, T, S). Axes
    along which x is repeated have stride 0, and x is copied only if several batch axes are merged
    into one, B."""
    return four_axes(namespace(x).broadcast_to(x, shape))


def empty_laid_out_like(x: Array, width: int) -> Array:
    """An array (B, H, T, width), not yet filled, whose memory has the same order of axes as that of
    x (B, H, T, N).

    The result of a projection is stored as (B, T, H, N). An array stored in the same order needs no
    copy when `merge_heads` reshapes it to (B, T, H·width).
    """
    xp = namespace(x)
    b, h, t, _ = x.shape
    there = {"dtype": x.dtype, "device": x.device}
    if x.strides[1] < x.strides[2]:
        return xp.permute_dims(xp.empty((b, t, h, width), **there), (0, 2, 1, 3))
    return xp.empty((b, h, t, width), **there)


def as_given(shape: tuple[int, ...], groups: int, *gradients: Array | None) -> Gradients:
    """Reshape the gradients of query, key, value, bias and sink, passed in this order, to
    (…, H, T, D), (…, G, S, D), (…, G, S, Dv), (…, H, T, S) and (…, H). None stays None, and those
    of scale and softcap are None. shape is that of the scores, (…, H, T, S), and groups is G."""
    keys = (*shape[:-3], groups, shape[-1], -1) if len(shape) > 2 else (shape[-1], -1)
    shapes = (*shape[:-1], -1), keys, keys, shape, shape[:-2]
    each = zip(gradients, shapes, strict=True)
    return Gradients(*(None if dx is None else dx.reshape(of) for dx, of in each))
