"""The arguments of attention, packed and checked once."""

from __future__ import annotations

import math
from numbers import Number, Real
from typing import Any, NamedTuple

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..functional.checks import probability
from ..functional.dropout import Draw, draw
from ..functional.implementations import library_of
from ..masks.kinds import broadcasts
from ..masks.queries import typed


class Arguments(NamedTuple):
    """The arguments of every implementation of attention. The first seven have gradients."""

    query: Array  # (…, H, T, D)
    key: Array  # (…, G, S, D)
    value: Array  # (…, G, S, Dv)
    bias: Array | None = None  # broadcasts to (…, H, T, S)
    sink: Array | None = None  # broadcasts to (…, H)
    scale: Any = None  # a number, or broadcasts to (…, H, T, S)
    softcap: Any = None  # a number, or broadcasts to (…, H, T, S)
    mask: masks.Mask | None = None
    keep: Array | Draw | None = None  # broadcasts to (…, H, T, S)
    p: float = 0.0
    return_weights: bool = True
    return_lse: bool = True

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The seven arguments that have gradients."""
        return self[:7]

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, H, T, S), the shape of the scores."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    def resolved_mask(self) -> Array | None:
        """The mask as a boolean array."""
        return None if self.mask is None else self.mask.array(self.shape, like=self.query)

    def resolved_keep(self) -> Array | None:
        """keep as a boolean array."""
        if isinstance(self.keep, Draw):
            return self.keep.array(self.shape, like=self.query)
        return self.keep


def arguments(
    query: Array,
    key: Array,
    value: Array,
    mask: masks.Mask | Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    *,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    return_weights: bool | str = False,
    return_lse: bool = False,
) -> Arguments:
    """The arguments of `scaled_dot_product_attention`, checked, with keep drawn from rng."""
    if return_weights not in (False, True, "dropped"):
        raise ValueError(f'return_weights is False, True or "dropped", not {return_weights!r}')
    dropout = backend.setting(dropout)
    if keep is not None and dropout == 0:
        raise ValueError(
            "keep is given, but dropout is 0: pass the dropout with which keep was drawn"
        )
    asked = bool(return_weights), return_lse
    x = Arguments(query, key, value, bias, sink, scale, softcap, None, keep, dropout, *asked)
    check(x)
    if mask is None and dropout == 0:
        return x
    if keep is None and dropout != 0:
        on_gpu = library_of(query) == "cupy"
        keep = draw(dropout, rng, x.shape, like=query, name="dropout", counted=on_gpu)
    kind = None if mask is None else typed(mask, x.shape)
    return Arguments(*x[:7], kind, keep, dropout, *asked)


def check(x: Arguments) -> None:
    """Raise unless attention is defined for these arguments.

    Kernels rely on this: they do not check where an array ends.
    """
    query, key, value, bias, sink, scale, softcap = x.inputs
    if (
        type(query) is type(key) is type(value) is backend.HostArray
        and query.dtype is key.dtype is value.dtype
        and query.shape == key.shape == value.shape
        and query.ndim > 1
        and query.shape[-1]
        and query.dtype.kind == "f"
        and bias is sink is softcap is x.keep is None
        and (scale is None or type(scale) is float)
    ):
        return  # fast path: saves a tenth of the time of a small call
    for name, a in zip(_NAMES, x.inputs, strict=True):
        if a is not None or name in _NAMES[:3]:
            _check_input(name, a, query)
    shapes = {name: tuple(a.shape) for name, a in zip(_NAMES, x[:3], strict=False)}
    for name, shape in shapes.items():
        if len(shape) < 2:
            raise ValueError(f"{name} has shape {shape}: it needs at least two axes")
    if why := _mismatch(*shapes.values()):
        raise ValueError(f"{why}: {', '.join(f'{n} is {shape}' for n, shape in shapes.items())}")
    if x.keep is not None:
        probability(x.p, "dropout")
        backend.require(backend.is_boolean, x.keep, "keep")
        _check_library("keep", x.keep, query)
    extras = {"bias": bias, "scale": scale, "softcap": softcap, "keep": x.keep}
    for name, a in extras.items():
        if backend.is_array(a):
            _check_broadcasts(name, a, x.shape, "(…, H, T, S)")
    if sink is not None:
        _check_broadcasts("sink", sink, x.shape[:-2], "(…, H)")


_NAMES = (
    "query (…, H, T, D)", "key (…, G, S, D)", "value (…, G, S, Dv)",
    "bias", "sink", "scale", "softcap",
)  # fmt: skip
_PURPOSES = {
    "bias": "it is added to the scores; a boolean or integer mask goes to mask, as boolean, "
    "True = may attend",
    "sink": "it is a logit for each head",
    "scale": "it multiplies the scores",
    "softcap": "it limits the scores",
}


def _mismatch(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> str | None:
    """What is wrong with the shapes of query, key and value, or None."""
    if q[-1] != k[-1] or not q[-1]:
        return "query and key need the same width D, at least 1"
    if k[-2] != v[-2]:
        return "key and value need the same number of positions S"
    if k[:-2] != v[:-2]:
        return "key and value need the same batch and heads (…, G)"
    if q[:-3] != k[:-3] or len(q) != len(k):
        return "query, key and value need the same batch and heads (…)"
    h, g = (1, 1) if len(q) == 2 else (q[-3], k[-3])
    if h != g and (not g or h % g):
        return f"the {h} heads H of query must be a multiple of the {g} heads G of key and value"
    return None


def _check_input(name: str, x: Any, query: Array) -> None:
    """Raise unless x is an array like query, or a number where one is allowed."""
    if x is not query and type(x) is type(query) and x.dtype is query.dtype:
        return  # query has passed
    if name in ("scale", "softcap") and isinstance(x, Number):
        if isinstance(x, bool):
            raise ValueError(f"{name} = {x!r}: a number is required")
        if name == "softcap" and not (isinstance(x, Real) and 0 < float(x) < math.inf):
            raise ValueError(
                f"softcap = {x!r}: a positive, finite number is required; omit it for no cap"
            )
        return
    if not backend.is_array(x):
        raise TypeError(f"{name} must be an array or a Tensor, not {type(x).__name__}")
    if not (backend.is_floating(x) or backend.is_complex(x)):
        why = _PURPOSES.get(name, "attention needs floating-point numbers")
        raise TypeError(f"{name} has dtype {x.dtype}: {why}")
    _check_library(name, x, query)


def _check_library(name: str, x: Array, query: Array) -> None:
    """Raise TypeError for an array of another library or type of real floats than query."""
    if namespace(x) is not namespace(query) or (
        backend.is_floating(x) and backend.is_floating(query) and x.dtype != query.dtype
    ):
        name = name.partition(" ")[0]
        raise TypeError(
            f"query is {_described(query)}, {name} is {_described(x)}: convert one; nothing is "
            "converted silently"
        )


def _described(x: Array) -> str:
    return f"{library_of(x)}.{type(x).__name__} {tuple(x.shape)} of {x.dtype}"


def _check_broadcasts(name: str, x: Any, shape: tuple[int, ...], axes: str) -> None:
    if not broadcasts(tuple(x.shape), shape):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, which does not broadcast to {axes} {shape}"
        )
