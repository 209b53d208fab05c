"""A computation as a list of primitives, one for each array operation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .setting import Setting


@dataclass(frozen=True)
class Primitive:
    """An array operation, or a node of the tape, which has no flops and moves nothing.

    flops     the floating-point operations of one run, counted for matrix products alone
    bytes     the bytes that one run reads and writes; entries until `total` converts them
    times     how many times the operation runs
    backward  whether it belongs to the backward pass
    matrices  how many pairs of matrices a product multiplies, one after another
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
    saved       bytes that are kept for the backward pass, without inputs and parameters
    primitives  the array operations
    """

    parameters: int = 0
    saved: int = 0
    primitives: tuple[Primitive, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products; a multiply and an add count as two."""
        return sum(p.flops * p.times for p in self.primitives)

    @property
    def bytes(self) -> int:
        """Bytes of all operands read and all results written, as if there were no cache."""
        return sum(p.bytes * p.times for p in self.primitives)

    @property
    def calls(self) -> int:
        """The number of array operations and of nodes of the tape."""
        return sum(p.times for p in self.primitives)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters,
            self.saved + other.saved,
            self.primitives + other.primitives,
        )

    def __repr__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {short(self.flops)}flop, "
            f"{short(self.bytes)}B moved in {self.calls} calls, {short(self.saved)}B saved"
        )


def total(
    s: Setting, backward: bool, primitives: list[Primitive], *, parameters: int = 0, saved: int = 0
) -> Cost:
    """The cost of a computation with these primitives and this number of learned parameters. The
    `bytes` of the primitives and the argument `saved` are given in entries, and converted to bytes
    by the dtype of s. Primitives of the backward pass, and what is saved for it, count only if the
    argument `backward` is true."""
    kept = (p for p in primitives if backward or not p.backward)
    in_bytes = (replace(p, bytes=p.bytes * s.itemsize) for p in kept)
    return Cost(parameters, saved * s.itemsize if backward else 0, tuple(in_bytes))


NODE = Primitive(0, 0)


def walk(moved: int, *, times: int = 1, backward: bool = False) -> Primitive:
    """A primitive for an elementwise operation that reads and writes `moved` entries in all. It
    runs `times` times, in the backward pass if `backward` is true."""
    return Primitive(0, moved, times, backward)


def repeated(count: int, primitives: Iterable[Primitive]) -> list[Primitive]:
    """The primitives, each running `count` times as often."""
    return [replace(p, times=count * p.times) for p in primitives]


def product(
    batch: int, rows: int, inner: int, columns: int, a: int | None = None, b: int | None = None
) -> list[Primitive]:
    """The primitives of y = a b for a (batch, rows, inner) and b (batch, inner, columns), and of
    its backward pass, da = dy bᵀ and db = aᵀ dy.

    a, b  the numbers of entries of a and b, if they are broadcast over the batch
    """
    da, db, y = batch * rows * inner, batch * inner * columns, batch * rows * columns
    a, b = da if a is None else a, db if b is None else b
    flops = 2 * batch * rows * inner * columns
    return [
        Primitive(flops, a + b + y, matrices=batch),
        Primitive(flops, y + b + da, backward=True, matrices=batch),
        Primitive(flops, a + y + db, backward=True, matrices=batch),
    ]


def linear(rows: int, inner: int, columns: int, bias: bool) -> list[Primitive]:
    """The primitives of y = x w + b for x (rows, inner) and w (inner, columns), and of its backward
    pass. Without `bias` there is no b."""
    found = product(1, rows, inner, columns)
    if bias:
        y = rows * columns
        found += walk(y + columns + y), walk(y + columns, backward=True)
    return found


def short(x: float) -> str:
    """A number as text, with three digits and the prefix of a unit, such as "12.6 M"."""
    if not x:
        return "0 "
    power = min(max(math.floor(math.log10(x) / 3), -3), 5)
    return f"{x / 1000**power:.3g} {'nµm kMGTP'[power + 3].strip()}"
