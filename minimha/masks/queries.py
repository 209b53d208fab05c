"""What attention needs from a mask: its array, the keys that each query sees, the empty rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minimha_autograd.backend import Array, namespace

from .kinds import boolean, broadcasts, dense
from .mask import AnyMask, KeyIntervals, Mask, Scores


def resolve(mask: AnyMask, query: Array, key: Array) -> Array | None:
    """The boolean array of a mask, True = may attend: it broadcasts to (…, H, T, S). None if the
    mask is None.

    mask        one of `minimha.masks`, or a bare boolean array, which is read as `masks.dense`
    query, key  (…, H, T, D) and (…, G, S, D), read for their shapes; the result has the library and
                the device of query

    A bare array of shape (B, S) raises a ValueError, even if it is meant as (T, S) with T = B:
    otherwise it would silently broadcast over queries instead of the batch. So does one of shape
    (B, T, S) with B = H > 1, which could also be (H, T, S).
    """
    if mask is None:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    return typed(mask, shape).array(shape, like=query)


def key_intervals(mask: AnyMask, query: Array, key: Array) -> KeyIntervals | None:
    """The interval start ≤ j < stop of the keys j that each query sees, and the mask `inside` that
    says which of them: see `KeyIntervals`. None if the mask is None. Arguments and errors are those
    of `resolve`, which returns the array of a mask.

    Attention in blocks skips the keys that no query of a block sees. It needs an array only if
    `inside` is a mask: then `inside.array(…, queries=…)` builds the rows of a block. The intervals
    take O(T + S) memory per sequence; those of `dense`, and of documents with ids on a device, also
    take that of a whole array.

    `inside` is None for causal, sliding_window, padding and prefix, and for keys, documents and
    dense if each query sees one run of keys; for a & b of such masks; and for a | b if the
    intervals of each query meet, as in causal() | prefix(n). For queries on a device, where the
    host would have to wait to find out more, `inside` is None only for the first four, for
    documents with ids on the host if each query sees one run of keys, and for a & b of these.
    """
    if mask is None:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    return typed(mask, shape)._intervals(Scores.of(shape, query))


def empty_rows(mask: Mask | Array, shape: Sequence[int], *, like: Any = None) -> Array:
    """For each query, True if it may attend to nothing, so that its output is 0: boolean (…, H, T).

    mask   one of `minimha.masks`, or a bare boolean array, which is read as in `resolve`
    shape  that of the scores, (…, H, T, S) or (T, S)
    like   an array of the library and on the device wanted. By default the result has those of a
           bare array, and is a NumPy array for one of `minimha.masks`
    """
    if not isinstance(mask, Mask):
        mask = boolean(mask, "mask")
        like = mask if like is None else like
    seen = typed(mask, shape).array(shape, like=like)
    xp = namespace(seen)
    return ~xp.any(xp.broadcast_to(seen, tuple(shape)), axis=-1)


def typed(mask: Mask | Array, scores: Sequence[int]) -> Mask:
    """Return a `Mask` unchanged, and a bare boolean array as a `dense` mask. scores is the shape
    (…, H, T, S) of the scores. Raises ValueError for an array of a shape with two readings: (B, S),
    which could be (T, S); and (B, T, S) with B = H > 1, which could be (H, T, S)."""
    if isinstance(mask, Mask):
        return mask
    array = boolean(mask, "mask")
    shape, batch = tuple(array.shape), tuple(scores[:-3])
    if batch and shape == (*batch, scores[-1]):
        raise ValueError(
            f"mask of shape {shape} could be (B, S): write masks.keys(mask) or "
            "masks.padding(lengths); if it is (T, S), write masks.dense(mask)"
        )
    over_heads = broadcasts(shape[:-2], scores[:-2])
    if batch and shape[:-2] == batch and over_heads and max(batch) > 1:
        raise ValueError(
            f"mask of shape {shape} could be (B, T, S) or (H, T, S): write "
            "mask[..., None, :, :] for one mask per sequence, masks.dense(mask) for one per head"
        )
    return dense(array)
