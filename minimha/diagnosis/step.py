"""A step of a function with its gradient, and the products that could yield such a gradient."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .arrays import matmul, summed_over_groups
from .causes import Cause
from .closeness import MEASURED, factor
from .trace import Trace

Mistake = tuple[str, np.ndarray | None, str]
"""A known mistake: the short name of the cause, the gradient to which it leads, and a sentence for
the reader."""


class Step:
    """One step of a function: from a node to another node that is computed from it, its consumer.
    The step's contribution is the part of the node's gradient that flows back from the consumer.

    If the node has other consumers, too, `yours` is the node's gradient as the pullback computes it
    minus the right contributions of the steps to the others.

    trace               what is known about all nodes of the function
    name, value         name and value of the node
    consumer, output    name and value of the consumer, whose gradient is dy. The consumer is None
                        if none is known, or if this object describes the steps to all consumers
                        together: then the contribution is the node's whole gradient
    yours, right        the contribution as the pullback computes it, and as it should be
    values, gradients   the values and the numeric gradients of all nodes by name. The values also
                        include constants, and intermediates that were inferred rather than tapped
    """

    def __init__(self, trace: Trace, name: str, consumer: str | None) -> None:
        self.trace, self.name, self.consumer = trace, name, consumer
        values, gradients = trace.attention
        self.values = trace.values | trace.constants | values
        self.gradients = trace.right | gradients
        self.value, self.consumers = trace.values[name], trace.consumers(name)
        self.yours, self.right = trace.targets[name].gradient.astype(np.float64), trace.right[name]
        if consumer is not None:
            self.output, self.dy = trace.values[consumer], trace.right[consumer]
            if self.is_part and self.yours.shape == self.right.shape:
                self.right = trace.part(name, consumer)
                others = (trace.part(name, c) for c in self.consumers if c != consumer)
                self.yours = self.yours - sum(others)

    @property
    def place(self) -> str:
        """The step in words, for a message: "the backward of the step from scores to weights"."""
        if self.consumer is None:
            return f"the backward of {self.name}"
        return f"the backward of the step from {self.name} to {self.consumer}"

    def letter(self, name: str) -> str:
        """Return the name of a node in formulas. A result is called y if the pullback's parameter
        is dy, and out if it is dout; any other node has its own name."""
        return self.trace.letters.get(name, name)

    @property
    def is_part(self) -> bool:
        """Whether the node has several consumers and this step leads to one of them, so that only a
        part of the node's gradient flows back through it."""
        return self.consumer is not None and len(self.consumers) > 1

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The part of the right gradient that flows back through each consumer, by the consumer's
        name. Empty unless this object describes the steps to all consumers together, and there
        are two to four of them."""
        several = self.consumer is None and 2 <= len(self.consumers) <= 4
        return {c: self.trace.part(self.name, c) for c in self.consumers if several}

    @property
    def keeps_shape(self) -> bool:
        """Whether this step leads to a single consumer, whose shape is that of the node."""
        return self.consumer is not None and self.output.shape == self.value.shape

    @cached_property
    def distance(self) -> float:
        """How far the computed gradient is from the right one, relative to the largest entry of
        either."""
        return float(abs(self.yours - self.right).max(initial=0.0) / (self._size or 1.0))

    def is_yours(self, candidate: np.ndarray | None) -> bool:
        """Whether a candidate, such as the gradient to which a known mistake leads, equals `yours`
        up to rounding, and is at least 100 times closer to it than `right` is. False for None, and
        for another shape."""
        return self._same(candidate, self.yours)

    def is_right(self, candidate: np.ndarray | None) -> bool:
        """Whether a candidate for the gradient equals `right` up to rounding, and is at least 100
        times closer to it than `yours` is. False for None, and for another shape."""
        return self._same(candidate, self.right)

    def _same(self, candidate: np.ndarray | None, wanted: np.ndarray) -> bool:
        if candidate is None or not candidate.shape == wanted.shape == self.yours.shape:
            return False
        off = abs(candidate - wanted).max(initial=0.0)
        return bool(off <= min(1e-2 * self.distance, self.tolerance) * self._size)

    @cached_property
    def off(self) -> np.ndarray:
        """A boolean array: True for each entry at which the computed gradient is wrong."""
        return np.asarray(abs(self.yours - self.right) > 1e-3 * self.tolerance * self._size)

    @cached_property
    def _size(self) -> float:
        return float(max(abs(x).max(initial=0.0) for x in (self.yours, self.right)))

    @cached_property
    def tolerance(self) -> float:
        """The relative error below which two numbers count as equal."""
        return MEASURED.get(self.trace.targets[self.name].gradient.dtype.name, 1e-3)

    def made_by(self, mistakes: Iterable[Mistake]) -> Cause | None:
        """Return the cause of the first of these mistakes that leads to the gradient which the
        pullback computed, or None if no mistake does."""
        return next((Cause(name, text) for name, dx, text in mistakes if self.is_yours(dx)), None)

    def multiple(self, candidate: np.ndarray | None, wanted: np.ndarray) -> float | None:
        """Return the factor by which `candidate` must be multiplied to give `wanted`, or None if
        there is none.

        If `candidate` has only one entry that is not 0, some factor fits by chance. Then it counts
        only if it is as simple as 2, 1/3 or √8: its square, or one over its square, must be a whole
        number.
        """
        if candidate is None or candidate.shape != wanted.shape:
            return None
        times = float(factor(candidate, wanted))
        if not times or not self._same(times * candidate, wanted):
            return None
        whole = max(times * times, 1 / (times * times))
        is_simple = whole < 1000 and abs(whole - round(whole)) < self.tolerance
        return times if is_simple or np.count_nonzero(candidate) > 1 else None

    @cached_property
    def downstream(self) -> list[str]:
        """The nodes that are computed from this step's node, directly or through others; the step's
        consumer comes first."""
        later = self.trace.descendants(self.name)
        return sorted((n for n in self.values if n in later), key=lambda n: n != self.consumer)


class Product(NamedTuple):
    """A product of a gradient and a value: its formula, such as "xᵀ dy", the names of the two
    factors, the product itself, and whether it is a matrix product rather than one entry by
    entry."""

    text: str
    operands: frozenset[str]
    array: np.ndarray
    is_matrix: bool = True


def products(step: Step, each_head: bool = False) -> Iterator[Product]:
    """Yield each matrix product, of one of the step's gradients and one of its values in either
    order, that has as many rows and columns as the value of the step's node.

    Each factor is tried as it is, transposed, and with its heads merged. If a product has H query
    heads but the node only G key heads, it is added up over the query heads that share a key head,
    unless each_head is true.
    """
    gradients = [
        (f"d{step.letter(n)}", x)
        for n, x in step.gradients.items()
        if n != step.name and x.ndim >= 2
    ]
    values = [(step.letter(n), x) for n, x in step.values.items() if x.ndim >= 2]
    for (g, dy), (a, x) in itertools.product(_with_merged(gradients), _with_merged(values)):
        ways = itertools.product(((g, dy), (f"{g}ᵀ", dy.mT)), ((a, x), (f"{a}ᵀ", x.mT)))
        for way in ways:
            for (left, p), (right, q) in (way, way[::-1]):
                ends = p.shape[-2], q.shape[-1]
                if p.shape[-1] != q.shape[-2] or ends != step.value.shape[-2:]:
                    continue
                if (made := matmul(p, q)) is not None:
                    made = made if each_head else summed_over_groups(made, step.value)
                    yield Product(f"{left} {right}", frozenset({g, a}), made)


def elementwise(step: Step) -> Iterator[Product]:
    """Yield the product, entry by entry, of the consumer's gradient with each value that has the
    same shape as this gradient."""
    for a, x in step.values.items():
        if step.consumer and x.shape == step.dy.shape:
            g, b = f"d{step.letter(step.consumer)}", step.letter(a)
            yield Product(f"{g} · {b}", frozenset({g, a}), step.dy * x, is_matrix=False)


def _with_merged(arrays: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """Return the named arrays, followed by a copy of each one that has three axes or more, in which
    the heads are merged: (…, T, H·D)."""
    return arrays + [
        (f"merged {name}", np.swapaxes(x, -3, -2).reshape(*x.shape[:-3], x.shape[-2], -1))
        for name, x in arrays
        if x.ndim >= 3
    ]
