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


class Inputs(NamedTuple):
    """The seven arguments of attention that have gradients; or one value for each of these
    arguments, such as whether its gradient is wanted."""

    query: Any
    key: Any
    value: Any
    bias: Any
    sink: Any
    scale: Any
    softcap: Any


class Gradients(NamedTuple):
    """The gradients of the seven inputs of attention; None for those that are not wanted or not
    given. Where an input is broadcast, its gradient may still have the shape to which it is
    broadcast."""

    query: Array | None = None  # (…, H, T, D)
    key: Array | None = None  # (…, G, S, D)
    value: Array | None = None  # (…, G, S, Dv)
    bias: Array | None = None  # (…, H, T, S)
    sink: Array | None = None  # (…, H)
    scale: Array | None = None  # (…, H, T, S)
    softcap: Array | None = None  # (…, H, T, S)


class Arguments(NamedTuple):
    """The arguments that every implementation of attention receives: those of
    `scaled_dot_product_attention`, checked. keep, drawn if it was not given, is True for the
    weights that dropout keeps, and None without dropout; p is the probability of dropout. The
    property `inputs` selects the seven arguments that have gradients."""

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
    def inputs(self) -> Inputs:
        """The arguments that have gradients, from query to softcap."""
        return Inputs(
            self.query, self.key, self.value, self.bias, self.sink, self.scale, self.softcap
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, H, T, S), the shape of the scores."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    def resolved_mask(self) -> Array | None:
        """The mask as a boolean array that broadcasts to the shape of the scores; None without a
        mask."""
        if self.mask is None:
            return None
        return self.mask.array(self.shape, like=self.query)

    def resolved_keep(self) -> Array | None:
        """A boolean array, True for the weights that dropout keeps; None without dropout. If `keep`
        is a `Draw`, which stores a seed in place of the array, the array is made from it."""
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
    """Check the arguments of `scaled_dot_product_attention`, and return them as `Arguments`. If
    there is dropout and keep is None, draw from rng which weights to keep."""
    if return_weights not in (False, True, "dropped"):
        raise ValueError(f'return_weights is False, True or "dropped", not {return_weights!r}')
    dropout = backend.setting(dropout)
    if keep is not None and dropout == 0:
        raise ValueError(
            "keep is given, but dropout is 0: pass the dropout with which keep was drawn"
        )

    inputs = query, key, value, bias, sink, scale, softcap
    returned = bool(return_weights), return_lse
    x = Arguments(*inputs, None, keep, dropout, *returned)
    check(x)
    if mask is None and dropout == 0:
        return x

    # The mask and the draw of dropout depend on the shape of the scores, known since the check.
    if keep is None and dropout != 0:
        on_gpu = library_of(query) == "cupy"
        keep = draw(dropout, rng, x.shape, like=query, name="dropout", as_seed=on_gpu)
    if mask is not None:
        mask = typed(mask, x.shape)
    return Arguments(*inputs, mask, keep, dropout, *returned)


def check(x: Arguments) -> None:
    """Raise TypeError or ValueError unless attention is defined for these arguments.

    Kernels rely on this check: they do not check that an index lies inside an array.
    """
    query = x.query
    key = x.key
    value = x.value
    if (
        type(query) is type(key) is type(value) is backend.HostArray
        and query.dtype is key.dtype is value.dtype
        and query.shape == key.shape == value.shape
        and query.ndim > 1
        and query.shape[-1]
        and query.dtype.kind == "f"
        and x.bias is x.sink is x.softcap is x.keep is None
        and (x.scale is None or type(x.scale) is float)
    ):
        return  # fast path: saves a tenth of the time of a small call
    for name, title, a in zip(Inputs._fields, _TITLES, x.inputs, strict=True):
        if a is not None or name in ("query", "key", "value"):
            _check_input(title, a, query)
    _check_shapes(
        {
            _TITLES.query: tuple(query.shape),
            _TITLES.key: tuple(key.shape),
            _TITLES.value: tuple(value.shape),
        }
    )
    if x.keep is not None:
        probability(x.p, "dropout")
        backend.require(backend.is_boolean, x.keep, "keep")
        _check_library("keep", x.keep, query)
    extras = {"bias": x.bias, "scale": x.scale, "softcap": x.softcap, "keep": x.keep}
    for name, a in extras.items():
        if backend.is_array(a):
            _check_broadcasts(name, a, x.shape, "(…, H, T, S)")
    if x.sink is not None:
        _check_broadcasts("sink", x.sink, x.shape[:-2], "(…, H)")


_TITLES = Inputs(
    query="query (…, H, T, D)",
    key="key (…, G, S, D)",
    value="value (…, G, S, Dv)",
    bias="bias",
    sink="sink",
    scale="scale",
    softcap="softcap",
)
"""What error messages call the inputs."""
_PURPOSES = {
    "bias": "it is added to the scores; a boolean or integer mask goes to mask, as boolean, "
    "True = may attend",
    "sink": "it is a logit for each head",
    "scale": "it multiplies the scores",
    "softcap": "it limits the scores",
}


def _check_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the shapes of query, key and value match. `shapes` maps the name of
    each array in the message, such as "key (…, G, S, D)", to its shape."""
    for title, shape in shapes.items():
        if len(shape) < 2:
            raise ValueError(f"{title} has shape {shape}: it needs at least two axes")
    why = _mismatch(*shapes.values())
    if why is not None:
        listed = ", ".join(f"{title} is {shape}" for title, shape in shapes.items())
        raise ValueError(f"{why}: {listed}")


def _mismatch(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> str | None:
    """What is wrong with the shapes of query, key and value, in words; None if they match."""
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
    """Raise TypeError or ValueError unless x is an array of the library and dtype of query or, as
    scale or softcap, a number. `name` is the argument's name in messages."""
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
    """Raise TypeError if x is an array of another library than query, or if both are arrays of real
    floating-point numbers with different dtypes. `name` is what the message calls x."""
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
