"""Masks of other libraries, read as a typed mask and a bias, and written as their arguments.

Each pair of functions is named after the function whose convention it follows, and uses the names
of its arguments:

                     a boolean True    numbers are added,     is_causal, use_causal_mask
                                       and hidden where
    torch_sdpa       may attend        −∞                     top-left
    torch_mha        is hidden         −∞
    keras            may attend        refused                top-left
    hugging_face     may attend        the dtype's min, −∞

Reading gives (mask, bias) for `scaled_dot_product_attention(query, key, value, mask, bias=bias)`,
None where the arguments have no mask or no bias. Writing gives a dictionary of keyword arguments;
reading these gives the same mask, and the same bias where it is not hidden.

Where a query may attend to nothing, the output is 0 here. Elsewhere it depends. torch 2.13 on a CPU
gives 0 for booleans and −∞, and the mean of the values for the dtype's min; its MultiheadAttention
NaN where weights are asked for, else 0. keras 3.15 gives 0 where scores are asked for, else the
mean. (0 and the mean are those before the output projection.)

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, namespace

from .kinds import broadcasts, causal, dense, keys
from .mask import Mask
from .queries import typed

__all__ = [
    "from_hugging_face",
    "from_keras",
    "from_torch_mha",
    "from_torch_sdpa",
    "to_hugging_face",
    "to_keras",
    "to_torch_mha",
    "to_torch_sdpa",
]

MaskAndBias = tuple[Mask | None, Array | None]


def from_torch_sdpa(*, attn_mask: Any = None, is_causal: bool = False) -> MaskAndBias:
    """Read the arguments of torch.nn.functional.scaled_dot_product_attention. True = may attend.

    attn_mask  boolean, or floats that are added to the scores; broadcasts to (…, H, T, S)
    is_causal  top-left: query i sees key j where j ≤ i, also if T ≠ S

    Raises TypeError for integers, ValueError for both arguments: torch's kernels disagree on them.
    """
    if is_causal and attn_mask is not None:
        raise ValueError(
            "torch takes attn_mask or is_causal, not both: read the mask alone, then write "
            'mask & masks.causal(align="top-left")'
        )
    if is_causal:
        return causal(align="top-left"), None
    if attn_mask is None:
        return None, None
    seen, bias = _split(
        attn_mask,
        "attn_mask",
        "write attn_mask != 0 if ones may attend, or attn_mask == 0 if ones are hidden",
    )
    return dense(seen), bias


def to_torch_sdpa(
    mask: Mask | Array | None,
    shape: Sequence[int],
    *,
    bias: Any = None,
    offset: int | None = None,
    like: Any = None,
) -> dict[str, Array]:
    """Write attn_mask: boolean, True = may attend; with a bias floats, −∞ where hidden.

    mask    one of `minimha.masks`, a boolean array, or None
    shape   of the scores, (…, H, T, S) or (T, S)
    bias    floats that broadcast to it
    offset  where the first query stands among the keys, as in `Mask.array`
    like    an array of the library and on the device wanted, such as torch's query

    Left out, like is the bias, or NumPy's. Raises ValueError where mask or bias do not fit.
    """
    seen, bias = _arrays(mask, shape, bias, offset, like)
    added = seen if bias is None else _added(seen, bias, -math.inf)
    return {} if added is None else {"attn_mask": added}


def from_torch_mha(
    *, attn_mask: Any = None, key_padding_mask: Any = None, num_heads: int | None = None
) -> MaskAndBias:
    """Read the arguments of torch.nn.MultiheadAttention. True = is hidden: may NOT attend.

    attn_mask         (T, S) or (B·H, T, S), boolean or floats that are added to the scores
    key_padding_mask  (B, S), or (S,) without a batch; the same
    num_heads         H, needed for an attn_mask of three axes

    torch's is_causal is a hint that attn_mask is causal, so attn_mask is enough.
    Raises TypeError for integers, ValueError for other shapes or a missing num_heads.
    """
    fix = "write {0} != 0 if ones are hidden, or {0} == 0 if ones may attend"
    mask, bias, of_keys, bias_of_keys = None, None, None, None
    if attn_mask is not None:
        seen, bias = _split(attn_mask, "attn_mask", fix.format("attn_mask"), true_hides=True)
        mask = dense(_heads_apart(seen, num_heads))
        bias = None if bias is None else _heads_apart(bias, num_heads)
    if key_padding_mask is not None:
        name = "key_padding_mask"
        seen, bias_of_keys = _split(key_padding_mask, name, fix.format(name), true_hides=True)
        _need(seen, name, "(B, S), or (S,) without a batch", 1, 2)
        of_keys = keys(seen)
        if bias_of_keys is not None and bias_of_keys.ndim == 2:
            bias_of_keys = bias_of_keys[:, None, None, :]
    return _reduced(operator.and_, mask, of_keys), _reduced(operator.add, bias, bias_of_keys)


def to_torch_mha(
    mask: Mask | Array | None,
    shape: Sequence[int],
    *,
    bias: Any = None,
    offset: int | None = None,
    like: Any = None,
) -> dict[str, Array]:
    """Write attn_mask or key_padding_mask: boolean, True = is hidden: may NOT attend.

    shape is (B, H, T, S), or (H, T, S) or (T, S) without a batch; the rest as in `to_torch_sdpa`.
    A mask that is the same for all heads and queries becomes key_padding_mask (B, S) or (S,).
    Others become attn_mask, (T, S) if it is the same for all sequences and heads, else (B·H, T, S);
    so do those with a bias, as floats with −∞ where hidden.
    """
    seen, bias = _arrays(mask, shape, bias, offset, like, axes=(2, 3, 4))
    if bias is not None:
        return {"attn_mask": _heads_together(_added(seen, bias, -math.inf), shape)}
    if seen is None:
        return {}
    per_key = _per_key(seen, shape)
    if per_key is not None:
        return {"key_padding_mask": ~per_key}
    return {"attn_mask": _heads_together(~seen, shape)}


def from_keras(
    *,
    attention_mask: Any = None,
    query_mask: Any = None,
    value_mask: Any = None,
    key_mask: Any = None,
    use_causal_mask: bool = False,
) -> MaskAndBias:
    """Read the arguments of keras.layers.MultiHeadAttention. True = may attend.

    attention_mask         (B, T, S), (T, S) or (B, H, T, S)
    query_mask             (B, T): False = this query attends to nothing. keras 3.15 ignores the
                           argument and takes the mask that the query itself carries
    value_mask, key_mask   (B, S)
    use_causal_mask        top-left: query i sees key j where j ≤ i

    All of them hold together. The bias is None: keras takes none, and casts numbers to booleans,
    which turns a mask of 0 and −1e9 into its opposite. So numbers are a TypeError here.
    """
    mask = causal(align="top-left") if use_causal_mask else None
    arguments = (
        ("attention_mask", attention_mask, "(B, T, S), (T, S) or (B, H, T, S)", (2, 3, 4)),
        ("query_mask", query_mask, "(B, T)", (2,)),
        ("value_mask", value_mask, "(B, S)", (2,)),
        ("key_mask", key_mask, "(B, S)", (2,)),
    )
    for name, x, shape, axes in arguments:
        if x is None:
            continue
        seen = backend.asarray(array_of(x))
        if not backend.is_boolean(seen):
            raise TypeError(
                f"{name} has dtype {seen.dtype} and must be boolean, True = may attend: write "
                f"{name} != 0 for ones and zeros, {name} == 0 for zeros and large negative numbers"
            )
        _need(seen, name, shape, *axes)
        if name == "attention_mask":
            part = dense(seen[:, None, :, :] if seen.ndim == 3 else seen)
        else:
            part = dense(seen[:, None, :, None]) if name == "query_mask" else keys(seen)
        mask = _reduced(operator.and_, mask, part)
    return mask, None


def to_keras(
    mask: Mask | Array | None,
    shape: Sequence[int],
    *,
    offset: int | None = None,
    like: Any = None,
) -> dict[str, Array]:
    """Write attention_mask: boolean, True = may attend.

    shape is (B, H, T, S), or (T, S); the rest as in `to_torch_sdpa`. The result is (T, S) if it is
    the same for all sequences and heads, (B, T, S) if for all heads, else (B, H, T, S).
    """
    seen, _ = _arrays(mask, shape, None, offset, like, axes=(2, 4))
    if seen is None:
        return {}
    xp, seen = namespace(seen), _matrices(seen, shape)
    if math.prod(seen.shape[:-2]) == 1:
        return {"attention_mask": xp.reshape(seen, tuple(shape[-2:]))}
    seen = seen[:, 0, :, :] if seen.shape[1] == 1 else seen
    return {"attention_mask": xp.broadcast_to(seen, (shape[0], *seen.shape[1:]))}


def from_hugging_face(attention_mask: Any) -> MaskAndBias:
    """Read the attention_mask of a model in transformers. 1 and True = may attend.

    (B, S)        integers 0 and 1, or booleans: which keys are no padding. A decoder is causal
                  besides; add `masks.causal()` for one
    (B, H, T, S)  floats that are added to the scores, hidden where they are the dtype's min or
                  −∞; or booleans. H may be 1

    Raises TypeError for floats (B, S) and for integers (B, H, T, S), which could mean either;
    ValueError for other shapes, and other integers than 0 and 1.
    """
    x = backend.asarray(array_of(attention_mask))
    _need(x, "attention_mask", "(B, S) or (B, H, T, S)", 2, 4)
    xp, name = namespace(x), "attention_mask"
    if x.ndim == 4:
        fix = f"write {name} != 0 if ones may attend, or {name} == 0 if ones are hidden"
        seen, bias = _split(x, name, fix, lowest=True)
        return dense(seen), bias
    if backend.is_integral(x):
        if bool(xp.any((x != 0) & (x != 1))):
            raise ValueError(f"{name} (B, S) holds other integers than 1 (may attend) and 0")
        x = x != 0
    if not backend.is_boolean(x):
        raise TypeError(
            f"{name} (B, S) has dtype {x.dtype} and must be integers or booleans: write "
            f"{name} != 0 for ones and zeros; floats to add to the scores are (B, H, T, S)"
        )
    return keys(x), None


def to_hugging_face(
    mask: Mask | Array | None,
    shape: Sequence[int],
    *,
    dtype: str | None = None,
    bias: Any = None,
    offset: int | None = None,
    like: Any = None,
) -> dict[str, Array]:
    """Write attention_mask: with a dtype or a bias the floats that are added, else 1 and 0.

    shape is (B, H, T, S). With dtype, such as "float32", or a bias, which has one: floats
    (B, 1, T, S), or (B, H, T, S) where heads differ, the dtype's min where hidden. Otherwise
    integers (B, S), 1 = may attend. The rest as in `to_torch_sdpa`.

    Raises ValueError where integers are asked for and the mask is not the same for all heads and
    queries, TypeError for a bias and a dtype at once.
    """
    if bias is not None and dtype is not None:
        raise TypeError("a bias has its dtype: give bias or dtype, not both")
    seen, bias = _arrays(mask, shape, bias, offset, like, axes=(4,))
    if dtype is not None:
        there = backend.asarray(0) if like is None else array_of(like)
        xp = namespace(there)
        bias = xp.zeros((1, 1, 1, 1), dtype=backend.dtype(xp, dtype), device=there.device)
    if bias is not None:
        added = _added(seen, bias, float(namespace(bias).finfo(bias.dtype).min))
        added = _matrices(added, shape)
        batch = (shape[0], *added.shape[1:])
        return {"attention_mask": namespace(added).broadcast_to(added, batch)}
    if seen is None:
        return {}
    per_key = _per_key(seen, shape)
    if per_key is None:
        raise ValueError(
            f"{mask!r} is not the same for all heads and queries, as (B, S) is: give dtype=… for "
            "floats (B, 1, T, S), or leave out what the model adds itself, such as causal()"
        )
    xp = namespace(per_key)
    return {"attention_mask": xp.astype(per_key, xp.int64)}


def _split(
    x: Any, name: str, fix: str, *, true_hides: bool = False, lowest: bool = False
) -> tuple[Array, Array | None]:
    """What may be attended to, and the bias: None for booleans. Hidden entries of it are 0."""
    x = backend.asarray(array_of(x))
    if backend.is_boolean(x):
        return (~x if true_hides else x), None
    if not backend.is_floating(x):
        raise TypeError(f"{name} has dtype {x.dtype} and must be boolean or floating: {fix}")
    xp = namespace(x)
    hidden = x <= (float(xp.finfo(x.dtype).min) if lowest else -math.inf)
    return ~hidden, xp.where(hidden, xp.zeros_like(x), x)


def _arrays(
    mask: Mask | Array | None,
    shape: Sequence[int],
    bias: Any,
    offset: int | None,
    like: Any,
    axes: tuple[int, ...] = (),
) -> tuple[Array | None, Array | None]:
    """The boolean array, with as many axes as shape, and the bias, where like lives."""
    if axes and len(shape) not in axes:
        meant = " or ".join(("(T, S)", "(H, T, S)", "(B, H, T, S)")[n - 2] for n in axes)
        raise ValueError(f"shape is that of the scores, {meant}, not {tuple(shape)}")
    bias = None if bias is None else backend.asarray(array_of(bias))
    like = bias if like is None else array_of(like)
    if bias is not None:
        if not backend.is_floating(bias):
            raise TypeError(f"bias has dtype {bias.dtype}: it is floats to add to the scores")
        if not broadcasts(bias.shape, shape):
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}, which does not broadcast to "
                f"(…, H, T, S) {tuple(shape)}"
            )
        bias = _all_axes(backend.mover(like)(bias), shape)
    if mask is None:
        return None, bias
    seen = typed(mask, shape).array(shape, offset=offset, like=like)
    return _all_axes(seen, shape), bias


def _added(seen: Array | None, bias: Array, hidden: float) -> Array:
    """The bias, and where nothing may be attended to the number that means hidden."""
    if seen is None:
        return bias
    xp = namespace(bias)
    return xp.where(seen, bias, xp.full_like(bias, hidden))


def _all_axes(x: Array, shape: Sequence[int]) -> Array:
    """x with as many axes as the scores."""
    return namespace(x).reshape(x, (*[1] * (len(shape) - x.ndim), *x.shape))


def _matrices(x: Array, shape: Sequence[int]) -> Array:
    """x with its last two axes broadcast to (T, S)."""
    return namespace(x).broadcast_to(x, (*x.shape[:-2], *shape[-2:]))


def _per_key(seen: Array, shape: Sequence[int]) -> Array | None:
    """(B, S), or (S,) without a batch; None unless it is the same for all heads and queries."""
    if math.prod(seen.shape[-3:-1]) != 1:
        return None
    xp, per_key = namespace(seen), (*seen.shape[:-3], seen.shape[-1])
    return xp.broadcast_to(xp.reshape(seen, per_key), (*shape[:-3], shape[-1]))


def _heads_apart(x: Array, num_heads: int | None) -> Array:
    """(B·H, T, S) as (B, H, T, S), and as (H, T, S) if B = 1, which may be without a batch."""
    _need(x, "attn_mask", "(T, S) or (B·H, T, S)", 2, 3)
    if x.ndim == 2:
        return x
    n = x.shape[0]
    if num_heads is None or num_heads < 1 or n % num_heads:
        raise ValueError(
            f"attn_mask has shape {tuple(x.shape)}, (B·H, T, S): num_heads must be the H that "
            f"{n} is a multiple of, not {num_heads}"
        )
    if n == num_heads:
        return x
    return namespace(x).reshape(x, (n // num_heads, num_heads, *x.shape[1:]))


def _heads_together(x: Array, shape: Sequence[int]) -> Array:
    """(T, S) if x is the same for all sequences and heads, else (B·H, T, S)."""
    xp, x = namespace(x), _matrices(x, shape)
    if math.prod(x.shape[:-2]) == 1:
        return xp.reshape(x, tuple(shape[-2:]))
    return xp.reshape(xp.broadcast_to(x, tuple(shape)), (math.prod(shape[:-2]), *shape[-2:]))


def _need(x: Array, name: str, meaning: str, *axes: int) -> None:
    if x.ndim not in axes:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, required is {meaning}")


def _reduced(how: Callable[[Any, Any], Any], *parts: Any) -> Any:
    """The parts together, without those that are None; None if all are."""
    present = [part for part in parts if part is not None]
    return functools.reduce(how, present) if present else None
