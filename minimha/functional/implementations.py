"""The ways to compute attention: each is the same function, forward and backward.

    with mh.implementation("loop"):
        out = mha(x)

"reference"  batched matmuls over all heads, `attention`
"loop"       one head at a time in a Python loop, `attention_loop`
"auto"       what an enclosing `implementation` says, else the fastest that there is
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..kernels.choice import COMPILED, in_force
from .attention import attention
from .attention_loop import attention_loop

IMPLEMENTATIONS: dict[str, Any] = {"reference": attention, "loop": attention_loop}
_FASTEST = "reference"


@contextlib.contextmanager
def implementation(name: str) -> Iterator[None]:
    """Within the block, compute attention in the way of this name wherever "auto" is asked for.

    Raises ValueError for a name that is not among `IMPLEMENTATIONS`, or "auto".
    """
    _check(name)
    token = in_force.set(name)
    try:
        yield
    finally:
        in_force.reset(token)


def choose(name: str) -> Any:
    """The operation of this name: takes the arguments of `attention`. Raises as above."""
    _check(name)
    name = in_force.get() if name == "auto" else name
    return IMPLEMENTATIONS.get(name, IMPLEMENTATIONS[_FASTEST])


def _check(name: str) -> None:
    names = ["auto", *IMPLEMENTATIONS, *sorted(COMPILED - IMPLEMENTATIONS.keys())]
    if name not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"no implementation of attention is called {name!r}: there are {known}")
