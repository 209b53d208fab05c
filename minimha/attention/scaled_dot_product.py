"""Scaled dot-product attention: the public function, and the implementation that computes it.

    with mh.implementation("loop"):
        out = mha(x)

"loop"         one head at a time in a Python loop, `attention_loop`
"reference"    batched matmuls over all heads, `attention`
"fused"        the same with scale, bias, mask and softmax in one compiled function
"tiled"        in compiled tiles; no array has T × S entries. On a CPU, BLAS does the products
"microkernel"  in compiled tiles, with products in the registers of the CPU
"simulated"    the kernels of "tiled" for GPUs, run by NumPy: slow, to study and test them
"auto"         the one that an enclosing `implementation` or the environment variable
               MINIMHA_IMPLEMENTATION names, else the fastest that supports the arguments

Each is a function of `Arguments` and of which of their gradients are wanted, with the values and
the pullback of `attention`. Where one does not exist for the library of the arrays, or does not
support the arguments, the reference is used instead; `explain_dispatch` says so.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minimha_autograd import Pullback, array_of, backend, half, operation
from minimha_autograd.backend import Array

from .. import masks
from ..functional.checks import probability
from ..functional.dropout import Draw
from ..functional.implementations import (
    PLAIN,
    Implementation,
    batch_invariance,
    implementations,
    library_of,
    named,
    refuse,
    requested,
)
from .arguments import Arguments, arguments
from .reference import drop_weights


@operation(settings=("mask",), describes=False, native=half.always)
def scaled_dot_product_attention(
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
    implementation: str = "auto",
    wanted: tuple[bool, ...],
) -> tuple[Any, Pullback]:
    """softmax(scale · Q Kᵀ + bias) V: each query receives a weighted mean of the values.

    query    (…, H, T, D)
    key      (…, G, S, D); query head h reads key and value head h // (H // G)
    value    (…, G, S, Dv)
    mask     one of `minimha.masks`, or a boolean array that broadcasts to (…, H, T, S);
             True = may attend
    bias     broadcasts to (…, H, T, S) and is added to the scores; an entry of −∞ counts as masked
    scale    1/√D by default, so that scores of independent entries of mean 0 and variance 1 have
             variance 1
    softcap  limits the scaled scores to softcap · tanh(scores / softcap), before the bias is added
    sink     broadcasts to (…, H): one more logit in the softmax of each head, without a value
    dropout  the probability, 0 to 1, with which each weight is set to 0; the others are scaled by
             1/(1 − dropout)
    rng      the generator that draws which weights are kept; on a GPU it draws only a seed for this
    keep     boolean, broadcasts to (…, H, T, S): which weights to keep, instead of a draw
    return_weights
             True for the weights (…, H, T, S) as well, "dropped" for those after dropout
    return_lse
             True for lse (…, H, T) as well: the logarithm of the sum of exp(scores) of each query,
             including the sink; `merge_attention` needs it to join attention over different keys
    implementation
             one of `attention.IMPLEMENTATIONS`; "auto": see `minimha.implementation`

    Returns the output (…, H, T, Dv), then the weights and lse if asked for: arrays for arrays,
    Tensors if one of the first eight arguments, query to softcap, is one. Gradients flow to query,
    key, value and bias, and to scale, softcap and sink where these are Tensors, by the formulas of
    `attention`. A query that may attend to no key has the output 0, weights 0, gradients 0 and,
    without a sink, lse −∞. Hidden keys and values contribute nothing, even if they are NaN or
    infinite.

    Raises ValueError for shapes that do not match and for the boolean arrays that `masks.resolve`
    refuses, TypeError for wrong dtypes and for masks that are not boolean; the errors name the
    argument and what is required.
    """
    x = arguments(
        query, key, value, mask, bias, sink, scale, softcap, dropout=dropout, rng=rng, keep=keep,
        return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip
    by = choose(implementation, x)
    wanted_inputs = (*wanted[:3], *wanted[4:])  # without the mask
    if _rounds_factors(by, x):

        def attend(*inputs: Any) -> Any:
            return by.function(Arguments._make((*inputs, *x[7:])), wanted_inputs)

        values, pullback = half.with_bfloat16(attend, *x.inputs)
    else:
        values, pullback = computed(by, x, wanted_inputs)
    out, weights, lse = values
    pull_dropped: Any = None
    if return_weights == "dropped":
        weights, pull_dropped = half.in_float32(drop_weights, weights, x.resolved_keep(), x.p)
    asked = True, x.return_weights, return_lse

    def pull(*cotangents: Array | None) -> tuple[Array | None, ...]:
        given = iter(cotangents)
        dout, dweights, dlse = [next(given) if ask else None for ask in asked]
        if pull_dropped is not None and dweights is not None:
            dweights = pull_dropped(dweights)
        dquery, dkey, dvalue, *others = pullback(dout, dweights, dlse)
        return dquery, dkey, dvalue, None, *others

    result = tuple(itertools.compress((out, weights, lse), asked))
    return result if len(result) > 1 else out, pull


def _rounds_factors(by: Implementation, x: Arguments) -> bool:
    """Whether Q, K and V are rounded to bfloat16: inside `half.bfloat16_products`, by kernels that
    multiply 16-bit numbers.

    Not if there is a bias, a sink or another array, or if weights or lse are returned: these would
    be rounded as well, although they are not factors of a product.
    """
    others = x.bias, x.sink, *filter(backend.is_array, (x.scale, x.softcap))
    alone = all(other is None for other in others) and not (x.return_weights or x.return_lse)
    return alone and by.native(x.query) and half.rounds_factors(x.query)


def computed(
    by: Implementation, x: Arguments, wanted: tuple[bool, ...]
) -> tuple[tuple[Array, Array | None, Array | None], Pullback]:
    """The values (out, weights, lse), None for those not asked for, and the pullback to the seven
    inputs, by an implementation. Unless it is native, 16-bit floats are computed in float32, and a
    draw of dropout becomes an array."""
    as_it_is = not (backend.is_half(x.query) or isinstance(x.keep, Draw))
    if as_it_is or by.native(x.query):
        return by.function(x, wanted)
    x = x._replace(keep=x.resolved_keep())
    rest = x[7:]

    def function(*inputs: Any) -> tuple[Any, Pullback]:
        return by.function(Arguments._make((*inputs, *rest)), wanted)

    return half.in_float32(function, *x.inputs)


@contextlib.contextmanager
def implementation(by: str | Callable[..., Any]) -> Iterator[None]:
    """Within the `with` block, this implementation computes `scaled_dot_product_attention`, unless
    a call names another; where it does not support the arguments, the reference does.

    by  one of `IMPLEMENTATIONS`, "auto", or a function like these

    Raises ValueError for another name.
    """
    if by != "auto" and not callable(by):
        _found(by)
    token = requested.set(by)
    try:
        yield
    finally:
        requested.reset(token)


def _found(name: str) -> Implementation:
    if (found := named("attention", name)) is None:
        known = ", ".join(map(repr, ["auto", *implementations("attention")]))
        variable = "MINIMHA_IMPLEMENTATION"
        source = f" ({variable})" if name == os.environ.get(variable) else ""
        raise ValueError(
            f"no implementation of attention is called {name!r}{source}: there are {known}"
        )
    return found


def choose(name: str, x: Arguments) -> Implementation:
    """The implementation that attention uses for these arguments when this name is requested."""
    by = requested.get() if name == "auto" else name
    if batch_invariance.get():
        return _in_order(by, x)
    if callable(by):
        return Implementation(by)
    return _found(by if by in PLAIN else decide(by, x).implementation)


def _in_order(by: Any, x: Arguments) -> Implementation:
    """`microkernel`, the only implementation that keeps the promise of `batch_invariant`.

    Raises TypeError if it cannot keep the promise for these arguments, or if another
    implementation is requested.
    """
    found, why = named("attention", "microkernel"), None
    if by not in ("auto", "microkernel"):
        why = f"{by!r} is requested, and only microkernel keeps this promise"
    elif found is None or library_of(x.query) != "numpy" or str(x.query.dtype) != "float32":
        why = f"the query is of {x.query.dtype}, but must be a NumPy array of float32"
    elif x.return_weights:
        why = "the weights that it would return are computed by the reference"
    elif x.sink is not None:
        why = "the gradient of a sink is computed by NumPy"
    else:
        why = found.obstacle(x, False)
    if why is not None:
        refuse(why)
    return found  # type: ignore[return-value]


class Dispatch(NamedTuple):
    """The implementation chosen, and the reasons for or against each."""

    implementation: str
    reasons: dict[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.reasons))
        lines = (f"  {name:<{width}}  {why}" for name, why in self.reasons.items())
        return "\n".join([f"{self.implementation} computes it", *lines])


def explain_dispatch(*inputs: Any, implementation: str = "auto", **settings: Any) -> Dispatch:
    """Which implementation computes this call of `scaled_dot_product_attention`, and why.

    The arguments are those of that function, and so are the errors, except for rng: it computes no
    attention and draws nothing, so that dropout needs no rng here. The result prints as a table:
    the implementation chosen, then the reason for or against each one considered. `reasons` has the
    reasons by name.
    """
    settings = {name: array_of(x) for name, x in settings.items()}
    drops = settings.pop("dropout", 0.0) if settings.get("keep") is None else 0.0
    drops = probability(drops, "dropout")
    x = arguments(*map(array_of, inputs), **settings)
    masks.key_intervals(x.mask, x.query, x.key)  # raises the errors of the mask
    if drops:
        x = x._replace(keep=True)  # the choice depends on whether there is dropout, not on the draw
    by = requested.get() if implementation == "auto" else implementation
    if batch_invariance.get():
        _in_order(by, x)
        why = "the only one that keeps the promise of batch_invariant"
        return Dispatch("microkernel", {"microkernel": why})
    decision = decide(by, x)
    if x.return_weights and decision.implementation not in ("reference", "loop"):
        decision.reasons["reference"] = "computes the weights, which kernels do not keep"
    return decision


explain_dispatch.__signature__ = scaled_dot_product_attention.__signature__  # type: ignore[attr-defined]


def decide(name: Any, x: Arguments) -> Dispatch:
    """Which implementation is used for these arguments when this one is requested, and why."""
    if callable(name):
        return Dispatch(name.__name__, {name.__name__: "requested"})
    if name != "auto":
        _found(name)
        candidates, others, verdict = [name], {}, "requested"
    elif why := _too_small(x):
        return Dispatch("reference", {"reference": why})
    elif library_of(x.query) == "cupy":
        candidates, others = ["tiled", "fused"], _SLOWER_ON_GPU
        verdict = "the fastest on a GPU that supports these arguments"
    else:
        candidates, others = ["microkernel", "tiled", "fused"], _SLOWER
        verdict = "the fastest for many queries that supports these arguments"
        if x.shape[-2] <= _FEW:
            candidates.insert(0, candidates.pop())
            verdict = "the fastest for few queries that supports these arguments"
    obstacles: dict[str, str] = {}
    for candidate in candidates:
        found = named("attention", candidate)
        why = found.obstacle(x, name == "auto") if found else "it is not installed"
        if why is None:
            return Dispatch(candidate, {**others, **obstacles, candidate: verdict})
        obstacles[candidate] = why
    return Dispatch("reference", {**obstacles, "reference": "supports everything"})


_ENOUGH = 2**16  # multiplications
_FEW = 32  # queries
_SLOWER = {
    "microkernel": "computes the weights twice: slower for few queries",
    "tiled": "the algorithm of microkernel on BLAS: slower",
    "fused": "stores all scores: slower",
    "reference": "passes over all scores several times: slower, but handles NaN and infinity",
    "loop": "one head at a time: slower",
    "simulated": "runs on NumPy block by block: much slower",
}
_SLOWER_ON_GPU = {
    "tiled": "stores no scores: faster",
    "fused": _SLOWER["fused"],
    "reference": _SLOWER["reference"],
    "loop": _SLOWER["loop"],
}


def _too_small(x: Arguments) -> str | None:
    """The reason why a kernel would not be faster, or None."""
    q, v = x.query.shape, x.value.shape
    if math.prod(x.shape) * (q[-1] + v[-1]) < _ENOUGH:
        return "too few numbers for a kernel to be faster"
    return None
