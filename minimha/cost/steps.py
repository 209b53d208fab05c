"""A computation as a list of steps, one for each array operation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .setting import Setting


@dataclass(frozen=True)
class Step:
    """An array operation that runs `times` times, with the flops and bytes moved of each run.

    A product multiplies `matrices` pairs of matrices, one after another. A node of the tape is a
    step that moves nothing.
    """

    flops: int
    bytes: int
    times: int = 1
    backward: bool = False
    matrices: int = 1


@dataclass(frozen=True)
class Cost:
    """The cost of a computation. Costs can be added.

    parameters  learned numbers
    saved       bytes that the pullbacks keep for the backward, without inputs and parameters
    steps       the array operations
    """

    parameters: int = 0
    saved: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products; a multiply and an add count as two."""
        return sum(s.flops * s.times for s in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes of all operands read and all results written, as if there were no cache."""
        return sum(s.bytes * s.times for s in self.steps)

    @property
    def calls(self) -> int:
        """The number of array operations and of nodes of the tape."""
        return sum(s.times for s in self.steps)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters, self.saved + other.saved, self.steps + other.steps
        )

    def __repr__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {short(self.flops)}flop, "
            f"{short(self.bytes)}B moved in {self.calls} calls, {short(self.saved)}B saved"
        )


def total(
    s: Setting, backward: bool, steps: list[Step], *, parameters: int = 0, saved: int = 0
) -> Cost:
    """The cost of steps that count entries instead of bytes, with the backward or without it."""
    kept = [replace(x, bytes=x.bytes * s.itemsize) for x in steps if backward or not x.backward]
    return Cost(parameters, saved * s.itemsize if backward else 0, tuple(kept))


NODE = Step(0, 0)


def walk(moved: int, *, times: int = 1, backward: bool = False) -> Step:
    """An elementwise operation that reads and writes this many entries."""
    return Step(0, moved, times, backward)


def repeated(count: int, steps: Iterable[Step]) -> list[Step]:
    """The steps, repeated."""
    return [replace(step, times=count * step.times) for step in steps]


def product(
    batch: int, rows: int, inner: int, columns: int, a: int | None = None, b: int | None = None
) -> list[Step]:
    """y = a b for a (batch, rows, inner), b (batch, inner, columns), and da = dy bᵀ, db = aᵀ dy.

    a, b  their sizes, where they are broadcast over the batch
    """
    da, db, y = batch * rows * inner, batch * inner * columns, batch * rows * columns
    a, b = da if a is None else a, db if b is None else b
    flops = 2 * batch * rows * inner * columns
    return [
        Step(flops, a + b + y, matrices=batch),
        Step(flops, y + b + da, backward=True, matrices=batch),
        Step(flops, a + y + db, backward=True, matrices=batch),
    ]


def linear(rows: int, inner: int, columns: int, bias: bool) -> list[Step]:
    """y = x w + b for x (rows, inner), w (inner, columns), and its backward."""
    steps = product(1, rows, inner, columns)
    if bias:
        y = rows * columns
        steps += walk(y + columns + y), walk(y + columns, backward=True)
    return steps


def short(x: float) -> str:
    """Three digits and the prefix of a unit: 12.6 M."""
    if not x:
        return "0 "
    power = min(max(math.floor(math.log10(x) / 3), -3), 5)
    return f"{x / 1000**power:.3g} {'nµm kMGTP'[power + 3].strip()}"
