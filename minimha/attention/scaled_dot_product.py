"""The public functions around attention: they check, resolve and choose.

Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1.
"""

from __future__ import annotations

import math
from numbers import Number, Real
from typing import Any

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array

from .. import masks
from ..functional import acceleration
from ..functional.dropout import check_probability, draw
from ..functional.dropout import dropout as drop
from .dispatch import Dispatch, choose, decide
from .loop import attention_loop
from .reference import attention


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    *,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    return_weights: bool | str = False,
    implementation: str = "auto",
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V: each query takes the mean of the values that it attends to.

    query    (…, H, T, D)
    key      (…, G, S, D); query head h reads key and value head h // (H // G)
    value    (…, G, S, Dv)
    mask     one of `minimha.masks`, or a boolean array that broadcasts to (…, H, T, S);
             True = may attend
    bias     broadcasts to (…, H, T, S), is added to the scores; an entry of −∞ counts as masked
    scale    1/√D by default, so that scores of independent entries of variance 1 have variance 1
    softcap  bends the scaled scores to softcap · tanh(scores / softcap), before the bias
    sink     broadcasts to (…, H): a logit for each head that takes weight and has no value
    dropout  the share of the weights, 0 to 1, that are set to 0; the others grow by 1/(1 − dropout)
    rng      the generator that draws what is kept
    keep     broadcasts to (…, H, T, S), boolean: replays such a draw
    return_weights
             True for the weights (…, H, T, S) as well, "dropped" for those after dropout
    implementation
             one of `attention.IMPLEMENTATIONS`; "auto" leaves it to `minimha.implementation`

    Returns the output (…, H, T, Dv), and the weights if asked for: arrays for arrays, Tensors if
    any argument is one. Gradients flow to query, key, value and bias, and to scale, softcap and
    sink where these are Tensors, by the formulas of `attention.attention`. A query that may attend
    to nothing gets the output 0, weights 0 and gradients 0. What is hidden has no influence, even
    if it is NaN or infinite.

    Raises ValueError for shapes that do not fit, TypeError for dtypes and for masks that are not
    boolean; each names the argument and what is required.
    """
    if return_weights not in (False, True, "dropped"):
        raise ValueError(f'return_weights is False, True or "dropped", not {return_weights!r}')
    check(query, key, value, bias, scale, softcap, sink)
    q, k = array_of(query), array_of(key)
    keep = drawn(dropout, rng, keep, q, k)
    inputs = query, key, value, bias, sink, scale, softcap
    attend = choose(implementation, *inputs, keep=keep)
    if attend in (attention, attention_loop):
        mask = masks.resolve(mask, q, k)
    elif mask is not None:
        mask = masks.typed(mask, (*q.shape[:-1], k.shape[-2]))
    y = attend(*inputs, mask=mask, keep=keep, p=dropout, return_weights=bool(return_weights))
    if return_weights == "dropped" and keep is not None:
        y = y[0], drop(y[1], keep, p=dropout)
    return y


def explain_dispatch(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    *,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    return_weights: bool | str = False,
    implementation: str = "auto",
) -> Dispatch:
    """Which implementation answers this call of `scaled_dot_product_attention`, and why.

    The arguments and errors are those of that function; nothing is computed, nor drawn from rng.
    The result prints as a table: what computes, then what speaks for or against each
    implementation that came into question, which `reasons` has by name.
    """
    check(query, key, value, bias, scale, softcap, sink)
    q, k = array_of(query), array_of(key)
    masks.key_intervals(mask, q, k)
    if keep is not None or not dropout:
        keep = drawn(dropout, rng, keep, q, k)
    else:
        check_probability(dropout, "dropout")
        keep = True  # instead of a draw
    inputs = query, key, value, bias, sink, scale, softcap
    told = decide(implementation, *inputs, keep=keep)
    if return_weights and told.implementation in acceleration.COMPILED:
        told.reasons["reference"] = "makes the weights, which no kernel keeps"
    return told


def check(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
) -> None:
    """Raise unless these are what `scaled_dot_product_attention` takes."""
    query, key, value, bias, scale, softcap, sink = map(
        array_of, (query, key, value, bias, scale, softcap, sink)
    )
    if (
        type(query) is type(key) is type(value) is backend.HostArray
        and query.dtype is key.dtype is value.dtype
        and query.shape == key.shape == value.shape
        and query.ndim > 1
        and query.shape[-1]
        and backend.is_floating(query)
        and bias is scale is softcap is sink is None
    ):
        return  # the usual, soon told
    given = {"query (…, H, T, D)": query, "key (…, G, S, D)": key, "value (…, G, S, Dv)": value}
    for name, x in given.items():
        _check_floats(name, x, "attention needs floating-point numbers")
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: it needs two axes at least")
    extras = {"bias": bias, "sink": sink, "scale": scale, "softcap": softcap}
    _check_alike(query, {"key": key, "value": value, **extras})
    shapes = ", ".join(f"{name} is {tuple(x.shape)}" for name, x in given.items())
    if query.shape[-1] != key.shape[-1] or not query.shape[-1]:
        raise ValueError(f"query and key need the same width D, at least 1: {shapes}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value need the same number of positions S: {shapes}")
    heads, groups = tuple(query.shape[:-2]), tuple(key.shape[:-2])
    if groups != tuple(value.shape[:-2]):
        raise ValueError(f"key and value need the same batch and heads (…, G): {shapes}")
    if heads[:-1] != groups[:-1] or len(heads) != len(groups):
        raise ValueError(f"query, key and value need the same batch and heads (…): {shapes}")
    if heads != groups and (not groups[-1] or heads[-1] % groups[-1]):
        raise ValueError(
            f"the {heads[-1]} heads H of query must be a multiple of the {groups[-1]} heads G of "
            f"key and value: {shapes}"
        )
    scores = (*query.shape[:-1], key.shape[-2])
    why = (
        "it is added to the scores; a boolean or integer mask goes to mask, as boolean, "
        "True = may attend"
    )
    _check_extra("bias", bias, scores, "(…, H, T, S)", why)
    _check_extra("sink", sink, heads, "(…, H)", "it is a logit for each head")
    for name, x in {"scale": scale, "softcap": softcap}.items():
        if not isinstance(x, Number):
            _check_extra(name, x, scores, "(…, H, T, S)", "it multiplies the scores")
        elif isinstance(x, bool):
            raise ValueError(f"{name} = {x!r}: a number is required")
        elif name == "softcap" and not (isinstance(x, Real) and 0 < float(x) < math.inf):
            raise ValueError(
                f"softcap = {x!r}: a positive, finite number is required; for no cap leave it out"
            )


def drawn(
    p: float, rng: backend.Generator | None, keep: Any, query: Array, key: Array
) -> Array | None:
    """What dropout of the weights keeps: the draw that is given, or one from rng; None for p = 0.

    Raises as `drop` does, and ValueError for a keep without the p of its draw.
    """
    scores = (*query.shape[:-1], key.shape[-2])
    if keep is None:
        return draw(p, rng, scores, like=query, name="dropout")
    check_probability(p, "dropout")
    if not p:
        raise ValueError("keep is given and dropout is 0: say the dropout of that draw as well")
    keep = array_of(keep)
    backend.require(backend.is_boolean, keep, "keep")
    _check_broadcasts("keep", keep, scores, "(…, H, T, S)")
    _check_alike(query, {"keep": keep})
    return keep


def _check_alike(query: Array, others: dict[str, Any]) -> None:
    """Raise TypeError for arrays of another library or type of real floats than query."""
    for name, x in others.items():
        if backend.is_array(x) and (
            backend.namespace(x) is not backend.namespace(query)
            or (backend.is_floating(x) and backend.is_floating(query) and x.dtype != query.dtype)
        ):
            raise TypeError(
                f"query is {_described(query)}, {name} is {_described(x)}: convert one, nothing is "
                "converted silently"
            )


def _described(x: Array) -> str:
    library = type(x).__module__.partition(".")[0]
    return f"{library}.{type(x).__name__} {tuple(x.shape)} of {x.dtype}"


def _check_floats(name: str, x: Any, why: str) -> None:
    if not backend.is_array(x):
        raise TypeError(f"{name} must be an array or a Tensor, not {type(x).__name__}")
    if not (backend.is_floating(x) or backend.is_complex(x)):
        raise TypeError(f"{name} has dtype {x.dtype}: {why}")


def _check_extra(name: str, x: Any, shape: tuple[int, ...], axes: str, why: str) -> None:
    if x is not None:
        _check_floats(name, x, why)
        _check_broadcasts(name, x, shape, axes)


def _check_broadcasts(name: str, x: Any, shape: tuple[int, ...], axes: str) -> None:
    if not masks.broadcasts(tuple(x.shape), shape):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, which does not broadcast to {axes} {shape}"
        )
