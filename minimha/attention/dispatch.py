"""The implementations of attention: each is the same function, forward and backward.

    with mh.implementation("loop"):
        out = mha(x)

"loop"         one head at a time in a Python loop, `attention_loop`
"reference"    batched matmuls over all heads, `attention`
"fused"        the same with scale, bias, mask and softmax in one compiled pass over the scores
"tiled"        in compiled tiles; no array has T × S entries. On a CPU BLAS computes the products
"microkernel"  in compiled tiles, with products in the registers of the CPU
"simulated"    the kernels of "tiled" for GPUs, run by NumPy: slow, to study and test them
"auto"         the one that an enclosing `implementation` or the environment variable
               MINIMHA_IMPLEMENTATION names, else the fastest that supports the arguments

Where an implementation does not exist for the library of the arrays, or does not support the
arguments, the reference is used instead; `explain_dispatch` says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minimha_autograd import array_of

from .. import functional
from .arguments import Arguments, library_of
from .loop import attention_loop
from .reference import attention

PROVIDERS: list[str] = []
"""Names of the modules that register kernels; imported when a kernel is first needed."""

_implementations: dict[str, Any] = {"loop": attention_loop, "reference": attention}
_obstacles: dict[str, Callable[[Arguments, bool], str | None]] = {}


def register(name: str, operation: Any, obstacle: Callable[[Arguments, bool], str | None]) -> None:
    """Register an operation made by `attention_operation` as the implementation of this name.

    obstacle  a function of the arguments and of whether "auto" chooses. Returns the reason why this
              implementation cannot compute them or should not be chosen, or None
    """
    _implementations[name], _obstacles[name] = operation, obstacle


@functools.cache
def implementations() -> dict[str, Any]:
    """All implementations by name, including those of the providers."""
    for provider in PROVIDERS:
        importlib.import_module(provider)
    return _implementations


def named(name: str) -> Any:
    """The implementation of this name. Raises ValueError if there is none."""
    found = _implementations.get(name) or implementations().get(name)
    if found is None:
        known = ", ".join(map(repr, ["auto", *implementations()]))
        raise ValueError(f"no implementation of attention is called {name!r}: there are {known}")
    return found


@contextlib.contextmanager
def implementation(name: str) -> Iterator[None]:
    """Within the block, the implementation of this name computes attention instead of "auto".

    Raises ValueError for a name that is neither among `IMPLEMENTATIONS` nor "auto".
    """
    if name != "auto":
        named(name)
    token = functional.acceleration.in_force.set(name)
    try:
        yield
    finally:
        functional.acceleration.in_force.reset(token)


class Dispatch(NamedTuple):
    """The implementation chosen, and the reasons for or against each."""

    implementation: str
    reasons: dict[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.reasons))
        lines = (f"  {name:<{width}}  {why}" for name, why in self.reasons.items())
        return "\n".join([f"{self.implementation} computes it", *lines])


def choose(name: str, x: Arguments) -> Any:
    """The operation that handles these arguments when this name is requested."""
    return _implementations[decide(name, x).implementation]


def decide(name: str, x: Arguments) -> Dispatch:
    """Which implementation handles these arguments when this name is requested, and why.

    Raises ValueError for a name that is neither among `IMPLEMENTATIONS` nor "auto".
    """
    name = functional.acceleration.in_force.get() if name == "auto" else name
    if name != "auto":
        named(name)
        candidates, others, verdict = [name], {}, "requested"
    elif why := _too_small(x):
        return Dispatch("reference", {"reference": why})
    elif library_of(array_of(x.query)) == "cupy":
        candidates, others = ["tiled", "fused"], _SLOWER_ON_GPU
        verdict = "the fastest on a GPU that supports these arguments"
    else:
        candidates, others = ["microkernel", "tiled", "fused"], _SLOWER
        verdict = "the fastest for long sequences that supports these arguments"
        if max(x.shape[-2:]) <= _IN_CACHE:  # the scores of a head stay in the cache
            candidates.insert(0, candidates.pop())
            verdict = "the fastest for short sequences that supports these arguments"
    obstacles: dict[str, str] = {}
    for candidate in candidates:
        why = _obstacle(candidate, x, auto=name == "auto")
        if why is None:
            return Dispatch(candidate, {**others, **obstacles, candidate: verdict})
        obstacles[candidate] = why
    return Dispatch("reference", {**obstacles, "reference": "supports everything"})


def _obstacle(name: str, x: Arguments, auto: bool) -> str | None:
    if name in ("loop", "reference"):
        return None
    implementations()
    return _obstacles[name](x.arrays, auto) if name in _obstacles else "it is not installed"


_ENOUGH = 2**19  # multiplications
_FEW = 8  # queries for each key
_IN_CACHE = 32  # positions
_SLOWER = {
    "microkernel": "computes the weights twice: slower for short sequences",
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
    if q[-2] * (q[-3] // v[-3] if len(q) > 2 else 1) < _FEW:
        return "too few queries for each key head for a kernel to be faster"
    return None
