"""Masks: which query may attend to which key. True = may attend, everywhere.

    masks.causal() & masks.padding([5, 3])

A mask is a rule; the boolean array is made when the shapes are known. Combine them with & | ~.
T query positions, S key positions, B batch, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace

__all__ = ["Mask", "broadcasts", "causal", "dense", "keys", "padding", "resolve"]


class Mask:
    """What may be attended to. Each kind says it in `array`."""

    def array(self, query: Array, key: Array) -> Array:
        """The boolean array of this mask for query (…, H, T, D) and key (…, H, S, D).

        It broadcasts to (…, H, T, S). Raises ValueError if the mask does not fit the shapes.
        """
        raise NotImplementedError

    def __and__(self, other: Mask) -> Mask:
        return _Combined(self, other, "and")

    def __or__(self, other: Mask) -> Mask:
        return _Combined(self, other, "or")

    def __invert__(self) -> Mask:
        return _Inverted(self)


class _Combined(Mask):
    def __init__(self, left: Mask, right: Mask, how: str) -> None:
        if not isinstance(right, Mask):
            raise TypeError(f"a mask combines with a mask, not with {type(right).__name__}")
        self.left, self.right, self.how = left, right, how

    def array(self, query: Array, key: Array) -> Array:
        left, right = self.left.array(query, key), self.right.array(query, key)
        return left & right if self.how == "and" else left | right


class _Inverted(Mask):
    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def array(self, query: Array, key: Array) -> Array:
        return ~self.mask.array(query, key)


class _Causal(Mask):
    def __init__(self, offset: int | None, align: str | None) -> None:
        if offset is not None and align is not None:
            raise ValueError("causal: give offset or align, not both")
        if align not in (None, "top-left", "bottom-right"):
            raise ValueError(f'causal: align is "top-left" or "bottom-right", not {align!r}')
        self.offset, self.align = offset, align

    def array(self, query: Array, key: Array) -> Array:
        xp, t, s = namespace(query), query.shape[-2], key.shape[-2]
        offset = {"top-left": 0, "bottom-right": s - t}.get(self.align or "", self.offset)
        if offset is None:
            if t != s:
                raise ValueError(
                    f"causal: with T = {t} query and S = {s} key positions, say which key the "
                    'first query sees last: offset=…, align="top-left" (offset 0) or '
                    f'align="bottom-right" (offset S − T = {s - t})'
                )
            offset = 0
        i = xp.arange(t, device=query.device)[:, None]
        j = xp.arange(s, device=query.device)[None, :]
        return j <= i + offset


class _Keys(Mask):
    def __init__(self, valid: Any) -> None:
        self.valid = _boolean(valid, "keys: valid")

    def array(self, query: Array, key: Array) -> Array:
        expected = (*query.shape[:-3], key.shape[-2])
        valid = backend.mover(query)(self.valid)
        if tuple(valid.shape) != expected:
            raise ValueError(f"keys: valid has shape {tuple(valid.shape)}, not (…, S) {expected}")
        return _over_heads_and_queries(valid, query)


class _Padding(Mask):
    def __init__(self, lengths: Any) -> None:
        self.lengths = backend.asarray(array_of(lengths))
        if not namespace(self.lengths).isdtype(self.lengths.dtype, "integral"):
            raise TypeError(
                f"padding: lengths are integers, one a sequence, not {self.lengths.dtype}; "
                "a boolean array of valid keys goes to masks.keys(valid)"
            )

    def array(self, query: Array, key: Array) -> Array:
        xp, batch, s = namespace(query), query.shape[:-3], key.shape[-2]
        lengths = backend.mover(query)(self.lengths)
        if lengths.shape != batch:
            raise ValueError(
                f"padding: lengths has shape {tuple(lengths.shape)}, the batch (…) {tuple(batch)}"
            )
        if bool(xp.any((lengths < 0) | (lengths > s))):
            raise ValueError(f"padding: lengths must be from 0 to S = {s}")
        valid = xp.arange(s, device=query.device) < lengths[..., None]
        return _over_heads_and_queries(valid, query)


class _Dense(Mask):
    def __init__(self, array: Any) -> None:
        self.dense = _boolean(array, "dense: the mask")

    def array(self, query: Array, key: Array) -> Array:
        scores = (*query.shape[:-1], key.shape[-2])
        mask = backend.mover(query)(self.dense)
        if not broadcasts(mask.shape, scores):
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}, which does not broadcast to (…, H, T, S) "
                f"{scores}; to hide keys of each sequence write masks.padding(lengths) or "
                "masks.keys(valid)"
            )
        return mask


def causal(*, offset: int | None = None, align: str | None = None) -> Mask:
    """Query i sees key j where j ≤ i + offset: no look into the future.

    With T = S the offset is 0. Otherwise it must be said, since libraries disagree: offset=…, or
    align="top-left" (offset 0: both sequences start together) or align="bottom-right" (S − T: they
    end together). Raises ValueError naming all three when it is left out.
    """
    return _Causal(offset, align)


def padding(lengths: Array | Sequence[int]) -> Mask:
    """Every query sees the first lengths[b] keys of its sequence b. lengths: integers (…), 0 to S.

    Hides keys, never queries. Raises TypeError unless lengths are integers, ValueError where they
    do not match the batch or exceed S.
    """
    return _Padding(lengths)


def keys(valid: Array) -> Mask:
    """Every query sees the keys where valid (…, S) is True: padding anywhere in the sequence."""
    return _Keys(valid)


def dense(array: Array) -> Mask:
    """A boolean array that broadcasts to (…, H, T, S). Raises TypeError unless it is boolean."""
    return _Dense(array)


def resolve(mask: Mask | Array | None, query: Array, key: Array) -> Array | None:
    """The boolean array of a mask, typed or bare, for these shapes; None for no mask.

    A bare array is taken as `dense`, unless it could be (B, S): that is refused, since it would be
    broadcast over queries instead of the batch without a word.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        array = _boolean(mask, "mask")
        shape, per_sequence = tuple(array.shape), (*query.shape[:-3], key.shape[-2])
        if len(shape) == 2 and query.ndim == 4 and shape == per_sequence:
            raise ValueError(
                f"mask of shape {shape} could be (B, S): write masks.keys(mask) or "
                "masks.padding(lengths); if it is (T, S), write masks.dense(mask)"
            )
        mask = dense(array)
    return mask.array(query, key)


def broadcasts(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the shape of the scores (…, H, T, S)."""
    return len(shape) <= len(scores) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(scores), strict=False)
    )


def _boolean(array: Any, what: str) -> Array:
    if callable(array):
        raise TypeError(f"{what} is a function: call it, as in masks.causal()")
    array = backend.asarray(array_of(array))
    if not namespace(array).isdtype(array.dtype, "bool"):
        raise TypeError(
            f"{what} has dtype {array.dtype} and must be boolean, True = may attend: write "
            "mask != 0 for zeros and ones, or pass numbers to add to the scores as bias"
        )
    return array


def _over_heads_and_queries(valid: Array, query: Array) -> Array:
    """(…, S) as (…, 1, 1, S), with as many axes as the query."""
    middle = [1] * (query.ndim - valid.ndim)
    return namespace(valid).reshape(valid, (*valid.shape[:-1], *middle, valid.shape[-1]))
