"""The ways to compute attention: each is the same function, forward and backward.

    with mh.implementation("loop"):
        out = mha(x)

"loop"         one head at a time in a Python loop, `attention_loop`
"reference"    batched matmuls over all heads, `attention`
"fused"        the same with scale, bias, mask and softmax in one compiled pass over the scores
"tiled"        in compiled tiles, whose products are BLAS's: no array of T × S entries
"microkernel"  in compiled tiles, whose products stay in the registers of the CPU
"auto"         what an enclosing `implementation` says, or the environment variable
               MINIMHA_IMPLEMENTATION, else the fastest that is right for the arguments

Each means the counterpart for the library of the arrays; where there is none, or it does not serve,
it is the reference. `explain_dispatch` tells.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from minimha_autograd import array_of

from ..functional import acceleration
from ..kernels import attention as kernels
from .loop import attention_loop
from .reference import attention

IMPLEMENTATIONS: dict[str, Any] = {
    "loop": attention_loop,
    "reference": attention,
    "fused": kernels.fused,
    "tiled": kernels.tiled,
    "microkernel": kernels.microkernel,
}


@contextlib.contextmanager
def implementation(name: str) -> Iterator[None]:
    """Within the block, compute attention in the way of this name wherever "auto" is asked for.

    Raises ValueError for a name that is not among `IMPLEMENTATIONS`, or "auto".
    """
    _check(name)
    token = acceleration.in_force.set(name)
    try:
        yield
    finally:
        acceleration.in_force.reset(token)


def _check(name: str) -> None:
    if name != "auto" and name not in IMPLEMENTATIONS:
        known = ", ".join(map(repr, ["auto", *IMPLEMENTATIONS]))
        raise ValueError(f"no implementation of attention is called {name!r}: there are {known}")


class Dispatch(NamedTuple):
    """Which implementation computes, and what speaks for or against each."""

    implementation: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        lines = (f"  {name:<{width}}  {why}" for name, why in self.reasons.items())
        return "\n".join([f"{self.implementation} computes it", *lines])


def choose(name: str, *inputs: Any, keep: Any = None) -> Any:
    """The operation that computes attention of these inputs, seven as `attention` takes them.

    Raises ValueError as `implementation` does.
    """
    return IMPLEMENTATIONS[decide(name, *inputs, keep=keep).implementation]


def decide(name: str, *inputs: Any, keep: Any = None) -> Dispatch:
    """The same with the reasons."""
    name = acceleration.in_force.get() if name == "auto" else name
    _check(name)
    if name in ("loop", "reference"):
        return Dispatch(name, {name: "asked for"})
    query, key, value, _, sink, _, softcap = arrays = tuple(map(array_of, inputs))
    if name == "auto" and (why := _too_small(query, key, value)):
        return Dispatch("reference", {"reference": why})
    if (why := kernels.obstacle(*arrays)) is not None:
        asked = ("microkernel", "tiled", "fused") if name == "auto" else (name,)
        reasons = dict.fromkeys(asked, why) | {"reference": "serves everything"}
        return Dispatch("reference", reasons)
    if name != "auto":
        if why := kernels.WAYS[name].obstacle(sink, softcap, keep, name == "microkernel"):
            return Dispatch("reference", {name: why, "reference": "serves everything"})
        return Dispatch(name, {name: "asked for"})
    no_vectors = kernels.no_vectors()
    best = "tiled" if no_vectors else "microkernel"
    reasons = {
        "microkernel": no_vectors or "any mask, on a CPU with vectors that multiply and add",
        "tiled": "the same algorithm on BLAS: slower",
        "fused": "holds all scores in memory: slower",
        "reference": "passes over all scores several times: slower, but where a result is not "
        "finite it is this one",
        "loop": "the same one head at a time: slower",
    }
    few = max(query.shape[-2], key.shape[-2]) <= _IN_CACHE
    if few and not kernels.WAYS["fused"].obstacle(sink, softcap, keep, False):
        best = "fused"
        reasons["fused"] = "so few positions that the scores of a head stay in the cache"
        reasons["microkernel"] = "computes the weights twice: slower for few positions"
    return Dispatch(best, reasons)


_ENOUGH = 2**19  # products of two numbers
_FEW = 8  # queries that meet a key
_IN_CACHE = 32  # positions


def _too_small(query: Any, key: Any, value: Any) -> str | None:
    """Why a kernel would not pay, or None."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    if pairs * (query.shape[-1] + value.shape[-1]) < _ENOUGH:
        return "so few numbers that a kernel would not pay"
    if query.shape[-2] * (query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1) < _FEW:
        return "so few queries for each key head that a kernel would not pay"
    return None
