"""Which implementation computes attention: the request, the choice, and the reasons for it.

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

Each is a function of `Arguments` and of the gradients wanted, with the values and the pullback of
`attention`. Where one does not exist for the library of the arrays, or does not support the
arguments, the reference is used instead; `explain_dispatch` says so.

In this file, a request is what a call or a block asks for: a name, "auto" or a function. A
candidate is a function that is registered under a name, with what it supports.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minimha_autograd import Pullback, array_of, backend, half
from minimha_autograd.backend import Array
from minimha_autograd.operation import Wanted

from .. import masks
from ..functional.checks import probability
from ..functional.dropout import Draw
from ..functional.implementations import (
    PLAIN,
    Candidate,
    batch_invariance,
    implementations,
    library_of,
    named,
    refuse,
    requested,
)
from .arguments import Arguments, Inputs, arguments


@contextlib.contextmanager
def implementation(by: str | Callable[..., Any]) -> Iterator[None]:
    """Within the `with` block, this implementation computes `scaled_dot_product_attention`, unless
    a call names another. Where it does not support the arguments, "reference" computes it.

    by  one of `IMPLEMENTATIONS`, "auto", or a function with the arguments and values of `attention`

    Raises ValueError for another name.
    """
    if by != "auto" and not callable(by):
        _candidate(by)
    token = requested.set(by)
    try:
        yield
    finally:
        requested.reset(token)


def choose(request: str, x: Arguments) -> Candidate:
    """The candidate (a function that is registered as an implementation) that computes attention
    for these arguments, given the request of the call: a name, "auto" or a function."""
    request = _in_force(request)
    if batch_invariance.get():
        return _in_order(request, x)
    if callable(request):  # somebody's own function
        return Candidate(request)
    if request in PLAIN:  # fast path: these support everything
        return _candidate(request)
    return _candidate(decide(request, x).implementation)


def computed(
    chosen: Candidate, x: Arguments, wanted: Wanted
) -> tuple[tuple[Array, Array | None, Array | None], Pullback]:
    """Compute attention by the function of the candidate `chosen`. Returns the values (out,
    weights, lse) and the pullback to the seven inputs, query to softcap. If x.return_weights is
    False, weights may be None; if x.return_lse is False, so may lse.

    A candidate is native if it accepts 16-bit floats and a `Draw`, the seed of a dropout mask. If
    it is not, it receives float32 and a boolean array in place of them.
    """
    plain = not (backend.is_half(x.query) or isinstance(x.keep, Draw))
    if _rounds_factors(chosen, x):
        convert = half.with_bfloat16
    elif plain or chosen.native(x.query):
        return chosen.function(x, wanted)
    else:
        convert = half.in_float32
        x = x._replace(keep=x.resolved_keep())

    def attend(*converted: Any) -> tuple[Any, Pullback]:
        inputs = Inputs(*converted)
        return chosen.function(x._replace(**inputs._asdict()), wanted)

    return convert(attend, *x.inputs)


class Dispatch(NamedTuple):
    """The name of the implementation chosen, and the reason for or against each implementation
    considered."""

    implementation: str
    reasons: dict[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.reasons))
        lines = (f"  {name:<{width}}  {why}" for name, why in self.reasons.items())
        return "\n".join([f"{self.implementation} computes it", *lines])


def explain_dispatch(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    bias: Any = None,
    sink: Any = None,
    scale: Any = None,
    softcap: Any = None,
    *,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Any = None,
    return_weights: bool | str = False,
    return_lse: bool = False,
    implementation: str = "auto",
) -> Dispatch:
    """Which implementation computes this call of `scaled_dot_product_attention`, and why.

    The arguments and the errors are those of that function, except that dropout needs no rng here,
    where nothing is drawn. The result prints as a table: the implementation chosen, then the reason
    for or against each one considered. Its dictionary `reasons` has these reasons by the names of
    the implementations.
    """
    inputs = map(array_of, (query, key, value, mask, bias, sink, scale, softcap))
    keep = array_of(keep)
    dropout = array_of(dropout)

    # Without a keep, `arguments` would draw one: it gets no dropout, and x a keep afterwards, since
    # the choice depends on whether there is dropout, not on the draw.
    would_draw = False
    if keep is None:
        would_draw = probability(dropout, "dropout") > 0
        dropout = 0.0
    x = arguments(
        *inputs, dropout=dropout, rng=rng, keep=keep,
        return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip
    masks.key_intervals(x.mask, x.query, x.key)  # raises the errors of the mask
    if would_draw:
        x = x._replace(keep=True)

    request = _in_force(implementation)
    if batch_invariance.get():
        _in_order(request, x)
        why = "the only one that keeps the promise of batch_invariant"
        return Dispatch("microkernel", {"microkernel": why})
    decision = decide(request, x)
    if x.return_weights and decision.implementation not in PLAIN:
        decision.reasons["reference"] = "computes the weights, which kernels do not keep"
    return decision


def decide(request: Any, x: Arguments) -> Dispatch:
    """Decide which implementation computes attention for these arguments. The request is the name
    of an implementation, "auto" or a function. The result has the name and the reasons."""
    if callable(request):
        return Dispatch(request.__name__, {request.__name__: "requested"})
    auto = request == "auto"
    if auto:
        why = _too_small(x)
        if why is not None:
            return Dispatch("reference", {"reference": why})
        ranking = _ranking(x)
    else:
        _candidate(request)
        ranking = Ranking((request,), "requested", {})

    # The first without an obstacle is chosen; the reference has none.
    obstacles: dict[str, str] = {}
    for name in ranking.names:
        candidate = named("attention", name)
        why = candidate.obstacle(x, auto) if candidate else "it is not installed"
        if why is None:
            return Dispatch(name, {**ranking.slower, **obstacles, name: ranking.verdict})
        obstacles[name] = why
    return Dispatch("reference", {**obstacles, "reference": "supports everything"})


class Ranking(NamedTuple):
    """Which implementations of attention "auto" tries, in their order, and the reasons that
    `explain_dispatch` shows."""

    names: tuple[str, ...]  # the fastest first
    verdict: str  # the reason for the first that supports the arguments
    slower: dict[str, str]  # why each of the others is slower


_SLOWER = {
    "microkernel": "computes the weights twice: slower for few queries",
    "tiled": "the algorithm of microkernel on BLAS: slower",
    "fused": "stores all scores: slower",
    "reference": "passes over all scores several times: slower, but handles NaN and infinity",
    "loop": "one head at a time: slower",
    "simulated": "runs on NumPy block by block: much slower",
}
_FOR_MANY_QUERIES = Ranking(
    ("microkernel", "tiled", "fused"),
    "the fastest for many queries that supports these arguments",
    _SLOWER,
)
_FOR_FEW_QUERIES = Ranking(
    ("fused", "microkernel", "tiled"),
    "the fastest for few queries that supports these arguments",
    _SLOWER,
)
_ON_GPU = Ranking(
    ("tiled", "fused"),
    "the fastest on a GPU that supports these arguments",
    {
        "tiled": "stores no scores: faster",
        "fused": _SLOWER["fused"],
        "reference": _SLOWER["reference"],
        "loop": _SLOWER["loop"],
    },
)
_FEW = 32  # queries
_ENOUGH = 2**16  # multiplications


def _ranking(x: Arguments) -> Ranking:
    """The order in which "auto" tries implementations for these arguments, with the reasons."""
    if library_of(x.query) == "cupy":
        return _ON_GPU
    queries = x.shape[-2]
    return _FOR_FEW_QUERIES if queries <= _FEW else _FOR_MANY_QUERIES


def _too_small(x: Arguments) -> str | None:
    """The reason why no kernel would be faster for these arguments, or None if one may be
    faster."""
    widths = x.query.shape[-1] + x.value.shape[-1]
    if math.prod(x.shape) * widths < _ENOUGH:
        return "too few numbers for a kernel to be faster"
    return None


def _in_force(request: Any) -> Any:
    """The request to follow. This is the request of the call, unless that is "auto"; then it is the
    request of the enclosing `implementation` block or, without one, of the environment variable."""
    return requested.get() if request == "auto" else request


def _candidate(name: str) -> Candidate:
    """The `Candidate` registered under this name as an implementation of attention. Raises
    ValueError if there is none."""
    found = named("attention", name)
    if found is None:
        known = ", ".join(map(repr, ["auto", *implementations("attention")]))
        variable = "MINIMHA_IMPLEMENTATION"
        source = f" ({variable})" if name == os.environ.get(variable) else ""
        raise ValueError(
            f"no implementation of attention is called {name!r}{source}: there are {known}"
        )
    return found


def _in_order(request: Any, x: Arguments) -> Candidate:
    """The candidate registered as "microkernel", the only implementation that keeps the promise of
    `batch_invariant`: the attention of a sequence has the same bits alone and in a batch.

    Raises TypeError if microkernel cannot keep the promise for these arguments, or if another
    implementation is requested.
    """
    found = named("attention", "microkernel")
    why = None
    if request not in ("auto", "microkernel"):
        why = f"{request!r} is requested, and only microkernel keeps this promise"
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


def _rounds_factors(chosen: Candidate, x: Arguments) -> bool:
    """Whether to round Q, K and V to bfloat16. This is done inside `half.bfloat16_products`, for
    kernels that multiply 16-bit numbers.

    Returns False if there is a bias, a sink, or an array as scale or softcap, or if weights or lse
    are returned: `half.with_bfloat16` would round these as well, although they are not factors of a
    product.
    """
    if x.return_weights or x.return_lse or x.bias is not None or x.sink is not None:
        return False
    if backend.is_array(x.scale) or backend.is_array(x.softcap):
        return False
    return chosen.native(x.query) and half.rounds_factors(x.query)
