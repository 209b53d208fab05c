"""Masks of other libraries, read as a typed mask and a bias, and written as their arguments.

Each pair of functions is named after the function whose convention it follows, and uses the names
of its arguments:

                     a boolean True    numbers are added,     is_causal, use_causal_mask
                                       and hide where
    torch_sdpa       may attend        −∞                     top-left
    torch_mha        is hidden         −∞
    keras            may attend        refused                top-left
    hugging_face     may attend        the dtype's min, −∞

Reading gives (mask, bias) for `scaled_dot_product_attention(query, key, value, mask, bias=bias)`,
None where the arguments have no mask or no bias. Writing gives a dictionary of keyword arguments;
reading these gives the same mask, and the same bias where it is not hidden.

Where a query may attend to nothing, the output is 0 here. In other libraries it depends. Before the
output projection, in float32 on a CPU, it is

    torch 2.13, 2.15          the mean of the values for the dtype's min, 0 for booleans and −∞
    its MultiheadAttention    for booleans and −∞, NaN if weights are requested, and for booleans
                              also on its fast path, in eval() without gradients; otherwise 0
    keras 3.15 on torch       0 if scores are requested or the layer has dropout, otherwise the mean

In float16, the min hides less: the mean is then weighted by the scores.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace

from ..masks import Mask, causal, dense, keys
from ..masks.kinds import broadcasts
from ..masks.mask import AnyMask
from ..masks.queries import typed

__all__ = [
    "from_hugging_face", "from_keras", "from_torch_mha", "from_torch_sdpa", "to_hugging_face",
    "to_keras", "to_torch_mha", "to_torch_sdpa",
]  # fmt: skip

MaskAndBias = tuple[Mask | None, Array | None]

_OF_KERAS = "TS", "BTS", "BHTS"
"""The axes that an attention_mask of Keras may have."""


def from_torch_sdpa(*, attn_mask: Any = None, is_causal: bool = False) -> MaskAndBias:
    """Read the arguments of torch.nn.functional.scaled_dot_product_attention as (mask, bias), those
    of minimha's function of this name; each is None if the arguments contain none. In attn_mask,
    True = may attend.

    attn_mask  boolean, or floats that are added to the scores, where −∞ hides a key; broadcasts to
               (…, H, T, S)
    is_causal  top-left: query i sees key j where j ≤ i, even if T ≠ S

    Raises TypeError for integers. Raises ValueError if both arguments are given, since torch's
    kernels do not agree on what that means.
    """
    if is_causal and attn_mask is not None:
        raise ValueError(
            "torch takes attn_mask or is_causal, not both: read the mask alone, then write "
            'mask & masks.causal(align="top-left")'
        )
    if is_causal:
        return causal(align="top-left"), None
    return _read("attn_mask", attn_mask, floats=True)


def to_torch_sdpa(
    mask: AnyMask, shape: Sequence[int], *, bias: Any = None, like: Any = None
) -> dict[str, Array]:
    """Write a mask as {"attn_mask": …}: booleans, True = may attend; with a bias, floats that are
    added to the scores, −∞ where a key is hidden. The array broadcasts to the scores. The
    dictionary is empty if mask and bias are None.

    mask   one of `minimha.masks`, a boolean array with True = may attend, or None
    shape  of the scores, (…, H, T, S) or (T, S)
    bias   floats that broadcast to this shape
    like   an array, such as torch's query: attn_mask is an array of the same library, on the same
           device. By default, like is the bias; without a bias, attn_mask is a NumPy array

    Raises ValueError if mask or bias do not fit the shape.
    """
    x = _written(mask, shape, bias, like)
    return {} if x is None else {"attn_mask": x}


def from_torch_mha(
    *, attn_mask: Any = None, key_padding_mask: Any = None, num_heads: int | None = None
) -> MaskAndBias:
    """Read the arguments of torch.nn.MultiheadAttention as (mask, bias), those of minimha's
    `scaled_dot_product_attention`; each is None if the arguments contain none. In both of
    torch's masks, True hides a key.

    attn_mask         (T, S) or (B·H, T, S), boolean, or floats that are added to the scores, where
                      −∞ hides a key
    key_padding_mask  (B, S), or (S,) without a batch; boolean or floats as well
    num_heads         H, needed for an attn_mask of three axes

    torch's is_causal is a hint that attn_mask is causal, so attn_mask is enough. Raises TypeError
    for integers, ValueError for other shapes or a missing num_heads.
    """
    hidden: dict[str, Any] = {"true_hides": True, "floats": True}
    return _together(
        _read("attn_mask", attn_mask, "TS", "NTS", num_heads=num_heads, **hidden),  # N = B·H
        _read("key_padding_mask", key_padding_mask, "S", "BS", **hidden),
    )


def to_torch_mha(
    mask: AnyMask, shape: Sequence[int], *, bias: Any = None, like: Any = None
) -> dict[str, Array]:
    """Write a mask as {"attn_mask": …} or {"key_padding_mask": …}: booleans, True = is hidden: may
    NOT attend; with a bias, floats that are added to the scores, −∞ where a key is hidden. The
    dictionary is empty if mask and bias are None.

    shape             of the scores, (B, H, T, S), or (H, T, S) or (T, S) without a batch
    mask, bias, like  as in `to_torch_sdpa`

    A mask that is the same for all heads and queries becomes key_padding_mask (B, S) or (S,),
    unless there is a bias. Otherwise attn_mask is (T, S) if it is the same for all sequences and
    heads, else (B·H, T, S).
    """
    x = _written(mask, shape, bias, like, ranks=(2, 3, 4))
    if x is None:
        return {}
    per_key = _reduced(x, shape, "BS") if bias is None else None
    if per_key is not None:
        return {"key_padding_mask": ~per_key}
    x = _reduced(x, shape, "TS", "BHTS")
    if x.ndim == 4:
        x = namespace(x).reshape(x, (math.prod(shape[:2]), *shape[2:]))
    return {"attn_mask": ~x if bias is None else x}


def from_keras(
    *,
    attention_mask: Any = None,
    query_mask: Any = None,
    value_mask: Any = None,
    key_mask: Any = None,
    use_causal_mask: bool = False,
) -> MaskAndBias:
    """Read the arguments of keras.layers.MultiHeadAttention as (mask, None). True = may attend.

    attention_mask        (B, T, S), (T, S) or (B, H, T, S)
    query_mask            (B, T): False = this query attends to nothing. keras 3.15 ignores the
                          argument and takes the mask that the query itself carries
    value_mask, key_mask  (B, S)
    use_causal_mask       top-left: query i sees key j where j ≤ i

    A key must be allowed by all masks that are given. There is no bias: keras takes none, and casts
    numbers to booleans, which turns a mask of 0 and −1e9 into its opposite. So numbers raise a
    TypeError here.
    """
    return _together(
        (causal(align="top-left") if use_causal_mask else None, None),
        _read("attention_mask", attention_mask, *_OF_KERAS),
        _read("query_mask", query_mask, "BT"),
        _read("value_mask", value_mask, "BS"),
        _read("key_mask", key_mask, "BS"),
    )


def to_keras(mask: AnyMask, shape: Sequence[int], *, like: Any = None) -> dict[str, Array]:
    """Write a mask as {"attention_mask": …}: booleans, True = may attend. The dictionary is empty
    if the mask is None.

    shape       of the scores, (B, H, T, S) or (T, S)
    mask, like  as in `to_torch_sdpa`

    attention_mask is (T, S) if it is the same for all sequences and heads, (B, T, S) if it is the
    same for all heads, else (B, H, T, S).
    """
    x = _written(mask, shape, None, like, ranks=(2, 4))
    return {} if x is None else {"attention_mask": _reduced(x, shape, *_OF_KERAS)}


def from_hugging_face(attention_mask: Any) -> MaskAndBias:
    """Read the attention_mask of a model in transformers as (mask, bias), arguments of minimha's
    `scaled_dot_product_attention`. The bias is None unless attention_mask has floats.

    (B, S)        integers, 1 = may attend and 0 = is hidden, or booleans, True = may attend: which
                  keys are not padding. For a decoder, which is causal as well, combine the mask
                  with `masks.causal()` by &
    (B, H, T, S)  floats that are added to the scores, and hide a key where they are the dtype's min
                  or −∞; or booleans, True = may attend. H may be 1

    Raises TypeError for floats (B, S) and for integers (B, H, T, S): a 0 in them could mean that a
    key is hidden, or that nothing is added to its score. Raises ValueError for other shapes, and
    for integers other than 0 and 1.
    """
    x = backend.asarray(array_of(attention_mask))
    if x.ndim == 4:
        return _read("attention_mask", x, "BHTS", floats=True, lowest_hides=True)
    if x.ndim == 2 and backend.is_integral(x):
        if bool(namespace(x).any((x != 0) & (x != 1))):
            raise ValueError("attention_mask (B, S) must hold the integers 1 (may attend) and 0")
        x = x != 0
    return _read("attention_mask", x, "BS", "BHTS")


def to_hugging_face(
    mask: AnyMask,
    shape: Sequence[int],
    *,
    dtype: str | None = None,
    bias: Any = None,
    like: Any = None,
) -> dict[str, Array]:
    """Write a mask as {"attention_mask": …}: with a dtype or a bias, floats that are added to the
    scores; otherwise integers, 1 = may attend and 0 = is hidden. The dictionary is empty if mask,
    dtype and bias are None.

    shape             of the scores, (B, H, T, S)
    dtype             of the floats, such as "float32"; None for integers, or for the dtype of the
                      bias
    mask, bias, like  as in `to_torch_sdpa`

    Integers are (B, S). Floats are (B, 1, T, S), or (B, H, T, S) if heads differ. They are the
    dtype's min where a key is hidden, elsewhere the bias, or 0 without one.

    Raises ValueError if integers cannot express the mask, because it is not the same for all heads
    and queries; TypeError for a bias and a dtype at once.
    """
    if bias is not None and dtype is not None:
        raise TypeError("a bias has its dtype: give bias or dtype, not both")
    if dtype is not None:
        there = backend.asarray(0) if like is None else array_of(like)
        xp = namespace(there)
        bias = xp.zeros((), dtype=backend.dtype(xp, dtype), device=there.device)
    x = _written(mask, shape, bias, like, ranks=(4,), lowest_hides=True)
    if x is None:
        return {}
    if bias is not None:
        x = _reduced(x, shape, "BTS", "BHTS")
        return {"attention_mask": x if x.ndim == 4 else x[:, None, :, :]}
    x = _reduced(x, shape, "BS")
    if x is None:
        raise ValueError(
            f"{mask!r} is not the same for all heads and queries, as (B, S) is: give dtype=… for "
            "floats (B, 1, T, S), or leave out what the model adds itself, such as causal()"
        )
    return {"attention_mask": namespace(x).astype(x, namespace(x).int64)}


def _read(
    name: str,
    x: Any,
    *choices: str,
    true_hides: bool = False,
    floats: bool = False,
    lowest_hides: bool = False,
    num_heads: int | None = None,
) -> MaskAndBias:
    """Read x, which messages call `name`, as (mask, bias): (None, None) if x is None. The bias is
    None unless x has floats; where the mask hides a key, the bias is 0.

    choices       the axes that x may have, such as "BS" for (B, S) or "NTS" for (B·H, T, S); if
                  none are given, any axes that broadcast to the scores
    true_hides    whether True means hidden instead of may attend
    floats        whether x may have floats, which are added to the scores; −∞ hides a key
    lowest_hides  whether the dtype's min hides a key, too
    num_heads     H, needed for the axes "NTS"
    """
    if x is None:
        return None, None
    x = backend.asarray(array_of(x))
    axes = next((axes for axes in choices if len(axes) == x.ndim), "")
    if choices and not axes:
        meant = " or ".join(map(_tuple, choices))
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but must be {meant}")
    if axes == "NTS":
        x = _heads_apart(x, num_heads)
        axes = "BHTS"[-x.ndim :]
    xp, bias = namespace(x), None
    if backend.is_boolean(x):
        seen = ~x if true_hides else x
    elif floats and backend.is_floating(x):
        seen = ~(x <= _hiding(x, lowest_hides))  # NaN does not hide
        bias = _over_scores(xp.where(seen, x, xp.zeros_like(x)), axes)
    else:
        true = "are hidden" if true_hides else "may attend"
        raise TypeError(
            f"{name} has dtype {x.dtype} and must be boolean{' or floating' * floats}: "
            f"write {name} != 0 if ones {true}, or {name} == 0 if zeros {true}"
        )
    per_key = axes in ("S", "BS")
    return keys(seen) if per_key else dense(_over_scores(seen, axes)), bias


def _over_scores(x: Array, axes: str) -> Array:
    """Insert axes of length 1 into x, so that it broadcasts to the scores (B, H, T, S): with the
    axes "BS", x (B, S) becomes (B, 1, 1, S); with "TS" it stays (T, S). If `axes` is empty, x is
    returned unchanged."""
    if not axes:
        return x
    every = "BHTS"["BHTS".index(axes[0]) :]
    return x[tuple(slice(None) if axis in axes else None for axis in every)]


def _heads_apart(x: Array, num_heads: int | None) -> Array:
    """Reshape x (B·H, T, S) to (B, H, T, S), with H = num_heads. If B = 1, the result is (H, T, S),
    which fits inputs with and without an axis for the batch. Raises ValueError if H is None, or
    does not divide B·H."""
    n, *lengths = x.shape
    if num_heads is None or num_heads < 1 or n % num_heads:
        raise ValueError(
            f"attn_mask has shape {tuple(x.shape)}, (B·H, T, S): num_heads must be H, a "
            f"divisor of {n}, not {num_heads}"
        )
    batch = [n // num_heads] * (n != num_heads)
    return namespace(x).reshape(x, (*batch, num_heads, *lengths))


def _tuple(axes: str) -> str:
    """The axes as they are written in messages: "NTS" as "(B·H, T, S)"."""
    return f"({', '.join(axes).replace('N', 'B·H')}{',' * (len(axes) == 1)})"


def _hiding(x: Array, lowest: bool) -> float:
    """The number that hides a key in a float mask with the dtype of x: −∞ or, if `lowest`, the
    dtype's min. Every smaller number hides it, too."""
    return float(backend.finfo(x).min) if lowest else -math.inf


def _together(*parts: MaskAndBias) -> MaskAndBias:
    """Combine several pairs (mask, bias) into one: all masks by &, and the sum of all biases. What
    is None is left out; the result has None where every pair has."""
    masks, biases = ([x for x in xs if x is not None] for xs in zip(*parts, strict=True))
    return (
        functools.reduce(operator.and_, masks) if masks else None,
        functools.reduce(operator.add, biases) if biases else None,
    )


def _written(
    mask: AnyMask,
    shape: Sequence[int],
    bias: Any,
    like: Any,
    ranks: tuple[int, ...] = (),
    lowest_hides: bool = False,
) -> Array | None:
    """The mask as one array: booleans or, with a bias, the bias with −∞ (if lowest_hides, the
    dtype's min) where the mask hides a key. None if there is neither mask nor bias.

    shape  of the scores. The array has as many axes, and broadcasts to it
    like   an array: the result has its library and its device. If like is None, the bias takes its
           place; without a bias, the result is a NumPy array
    ranks  the numbers of axes that the scores may have; if empty, any number

    Raises ValueError if the scores have another number of axes, or if mask or bias do not fit them;
    TypeError for a bias that is not floats.
    """
    if ranks and len(shape) not in ranks:
        meant = " or ".join(_tuple("BHTS"[-n:]) for n in ranks)
        raise ValueError(f"shape is that of the scores, {meant}, not {tuple(shape)}")
    bias = None if bias is None else backend.asarray(array_of(bias))
    like = bias if like is None else array_of(like)
    x = None if mask is None else typed(mask, shape).array(shape, like=like)
    if bias is not None:
        if not backend.is_floating(bias):
            raise TypeError(f"bias has dtype {bias.dtype}: it is floats to add to the scores")
        if not broadcasts(bias.shape, shape):
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}, which does not broadcast to "
                f"(…, H, T, S) {tuple(shape)}"
            )
        seen, x = x, backend.mover(like)(bias)
        if seen is not None:
            hidden = namespace(x).full_like(x, _hiding(x, lowest_hides))
            x = namespace(x).where(seen, x, hidden)
    return None if x is None else namespace(x).reshape(x, (*[1] * (len(shape) - x.ndim), *x.shape))


def _reduced(x: Array, shape: Sequence[int], *choices: str) -> Any:
    """x without some of its axes. x has as many axes as the scores, whose shape is `shape`, and
    broadcasts to them. Each choice names the axes to keep, such as "TS", and the first choice is
    taken for which x has length 1 along all other axes. The axes kept get the length that they have
    in the scores. Returns None if no choice fits.

    Letters of axes that the scores do not have are ignored.
    """
    axes = "BHTS"[-len(shape) :]
    for choice in choices:
        if all(n == 1 for n, axis in zip(x.shape, axes, strict=True) if axis not in choice):
            kept = [n if axis in choice else 1 for n, axis in zip(shape, axes, strict=True)]
            where = tuple(slice(None) if axis in choice else 0 for axis in axes)
            return namespace(x).broadcast_to(x, tuple(kept))[where]
    return None
