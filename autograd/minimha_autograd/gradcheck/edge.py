"""A step of a function with its gradient, and what such a gradient could have been made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .locate import RESULT, Trace


class Edge:
    """A step from a node to one consumer: its share of the node's gradient, yours and right.

    What other consumers add is taken off, as they are right. Where nothing is known of consumers,
    or of all of them together, `consumer` is None.

    name, value         of the node
    consumer, output    name and value of what the step makes; dy is its gradient
    yours, right        the two shares
    values, gradients   of all nodes by name, the gradients numeric; values of constants as well,
                        and what stands in for intermediates that nobody taps
    """

    def __init__(self, trace: Trace, name: str, consumer: str | None) -> None:
        self.trace, self.name, self.consumer = trace, name, consumer
        values, gradients = _assumed(trace)
        self.values = trace.values | trace.constants | values
        self.gradients = trace.right | gradients
        self.value, self.consumers = trace.values[name], trace.consumers(name)
        self.yours, self.right = trace.targets[name].gradient.astype(np.float64), trace.right[name]
        if consumer is not None:
            self.output, self.dy = trace.values[consumer], trace.right[consumer]
            if len(self.consumers) > 1 and self.yours.shape == self.right.shape:
                self.right = trace.share(name, consumer)
                others = (trace.share(name, c) for c in self.consumers if c != consumer)
                self.yours = self.yours - sum(others)

    @cached_property
    def distance(self) -> float:
        """How far yours is from right, relative to the largest entry of either."""
        return float(abs(self.yours - self.right).max(initial=0.0) / (self._size or 1.0))

    def is_yours(self, candidate: np.ndarray | None) -> bool:
        """Whether this is the gradient found, much closer to it than the right one is."""
        return self._same(candidate, self.yours)

    def is_right(self, candidate: np.ndarray | None) -> bool:
        """Whether this is the right gradient, much closer to it than the one found is."""
        return self._same(candidate, self.right)

    def _same(self, candidate: np.ndarray | None, wanted: np.ndarray) -> bool:
        if candidate is None or not candidate.shape == wanted.shape == self.yours.shape:
            return False
        off = abs(candidate - wanted).max(initial=0.0)
        return bool(off <= min(1e-2 * self.distance, self.tolerance) * self._size)

    @cached_property
    def off(self) -> np.ndarray:
        """Where yours is not right."""
        return np.asarray(abs(self.yours - self.right) > 1e-3 * self.tolerance * self._size)

    @cached_property
    def _size(self) -> float:
        return float(max(abs(x).max(initial=0.0) for x in (self.yours, self.right)))

    @cached_property
    def tolerance(self) -> float:
        """The relative error at which two numbers are as good as the same."""
        return 1e-6 if self.trace.targets[self.name].gradient.dtype == np.float64 else 1e-3

    def multiple(self, candidate: np.ndarray | None, wanted: np.ndarray) -> float | None:
        """The factor that makes candidate wanted, None if there is none.

        Of a single number all others are multiples: there the square of the factor, or one over it,
        has to be a whole number.
        """
        if candidate is None or candidate.shape != wanted.shape:
            return None
        square = float(np.sum(candidate * candidate))
        if not square or not np.isfinite(square):
            return None
        factor = float(np.sum(candidate * wanted)) / square
        if not factor or not self._same(factor * candidate, wanted):
            return None
        whole = max(factor * factor, 1 / (factor * factor))
        is_simple = whole < 1000 and abs(whole - round(whole)) < self.tolerance
        return factor if is_simple or np.count_nonzero(candidate) > 1 else None

    @cached_property
    def downstream(self) -> list[str]:
        """The nodes computed from this one, the consumer first."""
        later = self.trace.descendants(self.name)
        return sorted((n for n in self.values if n in later), key=lambda n: n != self.consumer)

    @property
    def step(self) -> str:
        """The step in words."""
        return f"the step from {self.name} to {self.consumer}" if self.consumer else self.name


Named = Mapping[str, np.ndarray]
_stand_ins: list[Callable[[Trace], tuple[Named, Named]]] = []


def stand_in(function: Callable[[Trace], tuple[Named, Named]]) -> Any:
    """Register a function that knows intermediates of a trace without taps by what it computes:
    their values and their right gradients by name, none where it does not."""
    _stand_ins.append(function)
    return function


def _assumed(trace: Trace) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    if trace.assumed is None:
        found = [function(trace) for function in _stand_ins]
        values, gradients = ({n: x for f in found for n, x in f[k].items()} for k in (0, 1))
        trace.assumed = values, gradients
    return trace.assumed


def fitted(x: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """x with the axes summed along which an array of this shape was broadcast; None if none was."""
    if x is None or x.ndim < len(shape):
        return None
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    for k, n in enumerate(shape):
        if n == 1 != x.shape[k]:
            x = x.sum(axis=k, keepdims=True)
    return x if x.shape == shape else None


class Product(NamedTuple):
    """A product of a gradient and a value, in words, the two names, the array, and whether it is a
    matrix product."""

    text: str
    operands: frozenset[str]
    array: np.ndarray
    is_matrix: bool = True


def products(e: Edge, heads: bool = False) -> Iterator[Product]:
    """All products of a gradient and a value, or their transposes, that broadcast from the node's
    shape; those of the heads of a group are added up, unless heads asks for them one by one."""
    gradients = [(f"d{bare(n)}", x) for n, x in e.gradients.items() if n != e.name and x.ndim >= 2]
    values = [(bare(n), x) for n, x in e.values.items() if x.ndim >= 2]
    for (g, dy), (a, x) in itertools.product(_with_merged(gradients), _with_merged(values)):
        for (gt, p), (at, q) in itertools.product(_both(g, dy), _both(a, x)):
            for text, left, right in ((f"{gt} {at}", p, q), (f"{at} {gt}", q, p)):
                ends = left.shape[-2], right.shape[-1]
                if left.shape[-1] != right.shape[-2] or ends != e.value.shape[-2:]:
                    continue
                try:
                    made = np.matmul(*heads_alike(left, right))
                except ValueError:  # they do not broadcast
                    continue
                yield Product(text, frozenset({g, a}), made if heads else grouped(made, e.value))


def elementwise(e: Edge) -> Iterator[Product]:
    """The products of the consumer's gradient and a value that has its shape."""
    for a, x in e.values.items():
        if e.consumer and x.shape == e.dy.shape:
            g = f"d{bare(e.consumer)}"
            yield Product(f"{g} · {bare(a)}", frozenset({g, a}), e.dy * x, is_matrix=False)


def bare(name: str) -> str:
    """The name of a node as it stands in a formula."""
    return name.replace(RESULT, "out")


def _both(name: str, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(name, x), (f"{name}ᵀ", np.swapaxes(x, -1, -2))]


def _with_merged(arrays: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """These, and those of three axes or more with the heads side by side: (…, T, H·D)."""
    return arrays + [
        (f"merged {name}", np.swapaxes(x, -3, -2).reshape(*x.shape[:-3], x.shape[-2], -1))
        for name, x in arrays
        if x.ndim >= 3
    ]


def heads_alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with as many heads, where those of one are a multiple of the other's."""
    if a.ndim < 3 or b.ndim < 3 or a.shape[-3] == b.shape[-3]:
        return a, b
    if a.shape[-3] < b.shape[-3]:
        b, a = heads_alike(b, a)
        return a, b
    rep, rest = divmod(a.shape[-3], b.shape[-3])
    return (a, b) if rest else (a, np.repeat(b, rep, axis=-3))


def grouped(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """x with the heads of each group added up, where there are more of them than in like."""
    each = members(x, like)
    return x if each is None else each.sum(axis=-3)


def members(x: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """x (…, H, m, n) as (…, G, H/G, m, n), where like has G heads and x more of them."""
    if not x.ndim == like.ndim >= 3:
        return None
    heads, groups = x.shape[-3], like.shape[-3]
    if not 1 <= groups < heads or heads % groups:
        return None
    return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:])
