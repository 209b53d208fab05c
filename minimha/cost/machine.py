"""The time that a computation takes on a machine."""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minimha_autograd import Tensor, backend

from ..projections import Projections
from .primitives import Cost, short
from .projections import projections

Curve = tuple[tuple[float, float], ...]
"""Sizes in ascending order, and the seconds that each takes."""


@dataclass(frozen=True)
class Machine:
    """How long operations take on a machine. Its two functions are given by points: sizes in
    ascending order, with the seconds that each takes.

    products  seconds of a matrix product, as a function of its flops
    walks     seconds of an elementwise operation, as a function of the bytes it reads and writes
    overhead  seconds that every array operation and node of the tape takes, however small
    """

    products: Curve
    walks: Curve
    overhead: float

    def seconds(self, cost: Cost) -> float:
        """The expected time in seconds of a computation with this cost: the sum over all
        primitives, counted as often as they run, of the following, where `products` and `walks` are
        the functions of this machine.

            overhead + max(matrices · products(flops / matrices), walks(bytes))

        Source: Williams et al., "Roofline: An Insightful Visual Performance Model for Multicore
        Architectures" (2009), with curves in place of one peak and one bandwidth.
        """
        expected = 0.0
        for s in cost.primitives:
            flops = s.matrices * _on(self.products, s.flops / s.matrices)
            expected += s.times * (self.overhead + max(flops, _on(self.walks, s.bytes)))
        return expected

    def __repr__(self) -> str:
        flops, bandwidth = (max(n / t for n, t in curve) for curve in (self.products, self.walks))
        slow = min(n / t for n, t in self.walks[-2:])
        return (
            f"{short(flops)}flop/s at best, {short(bandwidth)}B/s in the cache and "
            f"{short(slow)}B/s in fresh memory, {short(self.overhead)}s a call"
        )


@functools.cache
def calibrate(dtype: str = "float32") -> Machine:
    """The times of this machine, measured by the first call for this dtype, in a second or two.
    Later calls return the same object.

    products  of square matrices of 8 to 384 rows: the mean time of y = a b, da = y bᵀ and
              db = aᵀ y. If a large product takes longer per flop than a smaller one, its threads
              have waited for each other: the time per flop of the smaller one counts instead
    walks     sums of two arrays of 2¹⁰ to 2²¹ entries. Eight results exist at once, as activations
              do in training, so small ones lie in the cache, larger ones in memory, and the largest
              in fresh memory, which the operating system must provide first
    overhead  the time of the stacked projections of a 2 × 2 input, forward and backward, divided by
              the number of calls in it
    """

    def ones(*shape: int) -> Any:
        return backend.full(shape, 1.0, dtype=dtype)

    products: list[tuple[float, float]] = []
    for n in (8, 24, 64, 160, 384):
        count = max(1, 48**3 // n**3)
        a = ones(count, n, n)
        times = [_seconds(f) for f in (lambda: a @ a, lambda: a @ a.mT, lambda: a.mT @ a)]  # noqa: B023
        flops, least = 2.0 * n**3, sum(times) / 3 / count
        if products:
            least = min(least, products[-1][1] * flops / products[-1][0])
        products.append((flops, least))
    walks = []
    for k in (21, 20, 19, 18, 17, 16, 14, 12, 10):  # later, the system provides memory faster
        x = ones(2**k)
        walks.append((3.0 * x.nbytes, _seconds(lambda: [x + x for _ in range(8)]) / 8))  # noqa: B023
    walks.reverse()
    small = Projections(2, 1, dtype=dtype)
    one = Tensor(ones(2, 2), requires_grad=True)

    def tiny() -> None:
        q, k, v = small.project(one, one, one)
        (q + k + v).backward(ones(1, 2, 2))

    calls = projections(M=2, H=1, T=2).calls + 4  # two sums and their nodes
    return Machine(tuple(products), tuple(walks), _seconds(tiny) / calls)


def _seconds(call: Callable[[], Any]) -> float:
    """The shortest time of a call, among all the calls that fit into 0.03 s: an interrupted call
    takes longer."""
    least = math.inf
    call()
    start = now = time.perf_counter()
    while now - start < 0.03:
        before, _ = now, call()
        now = time.perf_counter()
        least = min(least, now - before)
    return least


def _on(curve: Curve, size: float) -> float:
    """The seconds for a size, read from a curve, which has the seconds for some sizes. Between
    neighbouring points the time is a power law; below the first and above the last point it is
    proportional to the size."""
    if not size:
        return 0.0
    k = bisect.bisect([n for n, _ in curve], size)
    if k in (0, len(curve)):
        n, t = curve[min(k, len(curve) - 1)]
        return t * size / n
    (n, t), (n1, t1) = curve[k - 1 : k + 1]
    return t * (size / n) ** (math.log(t1 / t) / math.log(n1 / n))
