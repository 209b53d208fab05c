"""AdamW and clipping on a GPU: each launch updates up to 64 parameters. As operations on arrays,
AdamW would take 13 launches for each parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd.backend import Array

from ...functional.implementations import register
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")
_MOST = 64
"""The largest number of parameters in a launch, as in the source."""
_SIZE = 4096
"""The number of entries that a block computes, as in the source."""
_POINTERS = "p", "g", "m", "v", "next"
_PARAMETER = np.dtype([(name, np.int64) for name in (*_POINTERS, "n", "next_block")])
_PARAMETERS = np.dtype([("of", _PARAMETER, (_MOST,))])


@register("adamw", library="cupy")
def adamw(
    parameters: Sequence[tuple[Array, ...]], betas: Any, decay: float, rate: float, eps: float
) -> list[tuple[Array, ...]] | None:
    """A step of AdamW: the next p, m and v for each (p, g, m, v), which are a parameter, its
    gradient, and the running means of g and g². Returns None for arrays that the kernel does not
    support.

    betas      (β₁, β₂), by which the two means are multiplied before the new terms are added
    decay      the factor by which p shrinks
    rate, eps  the learning rate, and the number added to √v before dividing by it, both already
               corrected for the first steps: see `nn.optimisers._adamw`

    m and v belong to the optimiser, so they change in place. p does not, since a pullback may have
    kept it.
    """
    if not _supported(*zip(*parameters, strict=True)):
        return None
    ps, gs, ms, vs = ([cuda.contiguous(x) for x in xs] for xs in zip(*parameters, strict=True))
    news = [cuda.empty(p.shape, like=p) for p in ps]
    numbers = map(float, (*betas, decay, rate, eps))
    _launch("adamw", {"p": ps, "g": gs, "m": ms, "v": vs, "next": news}, *numbers)
    return list(zip(news, ms, vs, strict=True))


@register("square_of_norm", library="cupy")
def square_of_norm(gs: Sequence[Array]) -> Array | None:
    """The square of the norm of all gradients `gs` together: the sum of the squares of all their
    entries, as an array without axes. None for arrays that the kernel does not support."""
    if not _supported(gs):
        return None
    gs = [cuda.contiguous(g) for g in gs]
    sums = cuda.empty((sum(map(_blocks, gs)),), like=gs[0])
    done = 0
    for some in _in_parts({"g": gs}):
        blocks = sum(map(_blocks, some["g"]))
        _launch("squares", some, sums[done : done + blocks])
        done += blocks
    square = cuda.empty((), like=gs[0])
    cuda.launch(SOURCE, "total", sums.dtype, 1, 1024, sums, square, sums.size)
    return square


@register("clipped", library="cupy")
def clipped(gs: Sequence[Array], square: Array, largest: float) -> Any:
    """The norm of all gradients `gs` together, and a list of these gradients, each multiplied by
    min(1, largest / (norm + 1e-6)). None for arrays that the kernel does not support.

    square   the square of the norm, an array without axes
    largest  the norm above which gradients are scaled down
    """
    if not _supported(gs, [square] * len(gs), alike=False):
        return None
    gs = [cuda.contiguous(g) for g in gs]
    news = [cuda.empty(g.shape, like=g) for g in gs]
    norm = cuda.empty((), like=square)
    _launch("clip", {"g": gs, "next": news}, square, norm, float(largest))
    return norm, news


def _supported(*lists: Sequence[Array], alike: bool = True) -> bool:
    """Whether the kernels support all arrays in these lists. If `alike`, arrays at the same
    position of the lists, such as a parameter and its gradient, must also have the same shape."""
    first = lists[0][0]
    if not cuda.are_reals(first):
        return False
    for arrays in zip(*lists, strict=True):
        if not cuda.are_reals(*arrays, first) or (alike and len({x.shape for x in arrays}) > 1):
            return False
    return True


def _blocks(x: Array) -> int:
    return -(-x.size // _SIZE)


def _in_parts(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Divide lists of arrays, with an array for each parameter, into parts that one launch can
    take. For each part, yield a dictionary with the keys of `arrays`, such as {"p": some of the
    parameters, "g": their gradients}."""
    count = len(next(iter(arrays.values())))
    for k in range(0, count, _MOST):
        yield {name: xs[k : k + _MOST] for name, xs in arrays.items()}


def _launch(name: str, arrays: dict[str, Any], *arguments: Any) -> None:
    """Launch the kernel of optimiser.cu with this name for all parameters. `arrays` has a key for
    each of "p", "g", "m", "v" and "next" (see `Parameter` in optimiser.cu) that the kernel uses;
    each value is a list with an array for each parameter. The kernel also receives the `arguments`.
    """
    for some in _in_parts(arrays):
        xs = next(iter(some.values()))
        table = np.zeros(1, _PARAMETERS)
        rows = table["of"][0, : len(xs)]
        rows["n"] = [x.size for x in xs]
        rows["next_block"] = list(accumulate(map(_blocks, xs)))
        for field, addresses in some.items():
            rows[field] = [x.data.ptr for x in addresses]
        blocks = int(rows["next_block"][-1])
        cuda.launch(SOURCE, name, xs[0].dtype, blocks, cuda.THREADS, table, *arguments)
