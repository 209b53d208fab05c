"""What a wrong gradient looks like: known mistakes, each with the mark that it leaves.

A signature is a function of an Edge that recognises one mistake, or a family of them. Those here
know arrays and their arithmetic only; others are registered by who knows more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .locate import Trace

UNEXPLAINED = "unexplained"


class Cause(NamedTuple):
    """A likely mistake: its short name, a sentence for the reader, and the chapter to read."""

    name: str
    text: str
    chapter: str = ""


@dataclass(frozen=True)
class Finding:
    """A node at fault, what is computed from it with right gradients, and the likely cause."""

    node: str
    after: tuple[str, ...]
    cause: str
    text: str
    chapter: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The nodes at fault, the last made first. The cause of the first speaks for all."""

    findings: tuple[Finding, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of inputs and intermediates at fault."""
        return tuple(finding.node for finding in self.findings)

    @property
    def cause(self) -> str:
        """The short name of the likely cause, or "unexplained"."""
        return self.findings[0].cause if self.findings else UNEXPLAINED

    @property
    def text(self) -> str:
        """The likely cause in a sentence."""
        return self.findings[0].text if self.findings else ""

    @property
    def chapter(self) -> str:
        """The chapter to read about it, "" for none."""
        return self.findings[0].chapter if self.findings else ""


class Edge:
    """A step from a node to one consumer: its share of the node's gradient, yours and right.

    What other consumers add is taken off, as they are right. Where nothing is known of consumers,
    or of all of them together, `consumer` is None.

    name, value         of the node
    consumer, output    name and value of what the step makes; dy is its gradient
    yours, right        the two shares
    values, gradients   of all nodes by name, the gradients numeric
    """

    def __init__(self, trace: Trace, name: str, consumer: str | None) -> None:
        self.trace, self.name, self.consumer = trace, name, consumer
        self.values, self.gradients = trace.values, trace.right
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
        """How far yours is from right, relative to its largest entry."""
        return float(abs(self.yours - self.right).max() / abs(self.right).max())

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
        return bool(off <= 1e-2 * abs(self.yours - self.right).max(initial=0.0)) and bool(
            off <= self._tolerance * abs(wanted).max(initial=0.0)
        )

    @cached_property
    def _tolerance(self) -> float:
        return 1e-6 if self.trace.targets[self.name].gradient.dtype == np.float64 else 1e-3

    def multiple(self, candidate: np.ndarray | None, wanted: np.ndarray) -> float | None:
        """The factor that makes candidate wanted, None if there is none."""
        if candidate is None or candidate.shape != wanted.shape:
            return None
        square = float(np.sum(candidate * candidate))
        if not square or not np.isfinite(square):
            return None
        factor = float(np.sum(candidate * wanted)) / square
        return factor if factor and self._same(factor * candidate, wanted) else None

    @property
    def step(self) -> str:
        """The step in words."""
        return f"the step from {self.name} to {self.consumer}" if self.consumer else self.name


Signature = Callable[[Edge], Cause | None]
AXES: dict[tuple[str, int], tuple[str, ...]] = {}
"""The names of the axes of arrays that go by a usual name, by that name and how many there are."""
_special: list[Signature] = []
_general: list[Signature] = []


def signature(function: Signature) -> Signature:
    """Register a signature. It is asked before the ones that know arithmetic only."""
    _special.append(function)
    return function


def _plain(function: Signature) -> Signature:
    _general.append(function)
    return function


def diagnose(trace: Trace) -> Diagnosis:
    """The nodes at fault and what the fault looks like."""
    findings = []
    for name in trace.culprits:
        after = tuple(trace.consumers(name)) if trace.located else ()
        cause = _cause(trace, name)
        findings.append(Finding(name, after, *cause))
    return Diagnosis(tuple(findings))


def _cause(trace: Trace, name: str) -> Cause:
    if name not in trace.right:
        return Cause(UNEXPLAINED, "no known mistake was looked for: there are too many entries")
    with np.errstate(all="ignore"):
        for edge in _edges(trace, name):
            for recognise in (*_special, *_general):
                if cause := recognise(edge):
                    return cause
    return Cause(UNEXPLAINED, "no mistake that is known here: the facts above are all there is")


def _edges(trace: Trace, name: str) -> Iterator[Edge]:
    consumers = trace.consumers(name)
    if len(consumers) != 1:
        yield Edge(trace, name, None)
    for consumer in consumers:
        yield Edge(trace, name, consumer)


def fitted(x: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """x with the axes summed along which an array of this shape was broadcast; None if none was."""
    if x is None or x.ndim < len(shape):
        return None
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    for k, n in enumerate(shape):
        if n == 1 != x.shape[k]:
            x = x.sum(axis=k, keepdims=True)
    return x if x.shape == shape else None


def lengths(e: Edge) -> Iterator[tuple[int, str]]:
    """Products of lengths of axes that a gradient could have been summed or averaged over."""
    shape = e.output.shape if e.consumer else e.value.shape
    for count in range(1, min(len(shape), 3) + 1):
        for axes in itertools.combinations(shape, count):
            if (n := int(np.prod(axes))) > 1:
                yield n, " · ".join(map(str, axes)) if count > 1 else str(n)


@_plain
def _wrong_shape(e: Edge) -> Cause | None:
    shape, yours = e.value.shape, e.trace.targets[e.name].gradient
    if yours.shape == shape:
        return None
    if yours.shape == shape[::-1] and np.allclose(yours.T, e.trace.right[e.name]):
        return Cause("transposed", "the right gradient, transposed", "02 autograd")
    total = fitted(yours, shape)
    if total is not None and np.allclose(total, e.trace.right[e.name]):
        return Cause(
            "unsummed",
            f"summed over the axes that {e.name} lacks, it is right: {e.name} was broadcast in the "
            "forward, so its gradient is a sum over all the places where it was used",
            "01 arrays",
        )
    return Cause(UNEXPLAINED, f"a gradient has the shape of its argument, {shape}")


@_plain
def _not_a_number(e: Edge) -> Cause | None:
    if np.isfinite(e.yours).all():
        return None
    where = int((~np.isfinite(e.yours)).sum())
    return Cause(
        "not-finite",
        f"{where} entries are NaN or infinite: is something divided by 0, or 0 multiplied by ∞? "
        "`with mh.detect_anomaly():` names the operation on Tensors",
        "06 masks",
    )


@_plain
def _nothing(e: Edge) -> Cause | None:
    if e.yours.any() and not e.is_yours(np.zeros_like(e.right)):
        return None
    if e.consumer and len(e.consumers) > 1:
        return Cause(
            "path-missing",
            f"what comes through {e.consumer} is missing: {e.name} is used more than once, and its "
            "gradient is the sum (+=, not =) over its uses",
            "02 autograd",
        )
    return Cause(
        "zero",
        f"no gradient arrives at {e.name}: is it never filled in, or cut off by detach() or .data?",
        "02 autograd",
    )


@_plain
def _constant_ratio(e: Edge) -> Cause | None:
    ratio = e.multiple(e.right, e.yours)
    if ratio is None:
        return None
    if e.consumer and len(e.consumers) > 1 and abs(ratio - 2) < 1e-6:
        return Cause(
            "path-twice",
            f"what comes through {e.consumer} is counted twice among the uses of {e.name}",
            "02 autograd",
        )
    if abs(ratio + 1) < 1e-6:
        return Cause("sign", f"the sign of {e.step} is turned: it is −1 times the right one")
    for n, product in lengths(e):
        if abs(ratio * n - 1) < 1e-6:
            return Cause(
                "averaged",
                f"it is 1/{n} of the right one, and {n} = {product} is a length of axes: is it the "
                "mean where the sum belongs?",
                "01 arrays",
            )
    known = next((f" = {product}" for n, product in lengths(e) if abs(ratio / n - 1) < 1e-6), "")
    return Cause(
        "factor",
        f"it is {ratio:.6g}{known} times the right one in every entry: is a factor of {e.step} "
        "missing in the backward, or there twice?",
    )


@_plain
def _transposed(e: Edge) -> Cause | None:
    for axes in itertools.permutations(range(e.right.ndim)):
        if list(axes) != sorted(axes) and e.is_yours(np.transpose(e.right, axes)):
            return Cause("transposed", "the right gradient, transposed", "02 autograd")
    return None


@_plain
def _reordered(e: Edge) -> Cause | None:
    if not np.any(e.right) or e.yours.size < 3:
        return None
    yours, right = np.sort(e.yours, axis=None), np.sort(e.right, axis=None)
    if abs(yours - right).max() > min(1e-9, 1e-2 * e.distance) * abs(right).max():
        return None
    return Cause(
        "reshape-for-swap",
        "the right numbers in another order: is there a reshape where axes have to be swapped? "
        "(…, H, T, D) and (…, T, H·D) are one permutation and one reshape apart",
        "07 multi-head",
    )


@_plain
def _another_input(e: Edge) -> Cause | None:
    for name, gradient in e.gradients.items():
        if name not in e.trace.results and name != e.name and e.is_yours(gradient):
            return Cause(
                "another-input",
                f"it is the gradient of {name}: are two gradients returned in the wrong order?",
                "02 autograd",
            )
    return None


@_plain
def _passed_through(e: Edge) -> Cause | None:
    if e.consumer and e.multiple(fitted(e.dy, e.value.shape), e.yours) is not None:
        return Cause(
            "slope-missing",
            f"the gradient of {e.consumer} is passed on as it came: the derivative of {e.step} is "
            "missing",
            "02 autograd",
        )
    return None


@_plain
def _product(e: Edge) -> Cause | None:
    """Yours is a product of a gradient and a value, and so is the right one, but of others."""
    mine = next((p for p in _products(e) if e.multiple(p.array, e.yours) is not None), None)
    if mine is None:
        return None
    same = [p for p in _products(e) if e.multiple(p.array, e.right) is not None]
    right = next((p for p in same if p.operands == mine.operands), same[0] if same else None)
    known = "" if right is None else f", and {right.text} would be right"
    if right is not None and right.operands == mine.operands:
        return Cause(
            "operand-transposed",
            f"it is {mine.text}{known}: for y = a b the gradients are da = dy bᵀ and db = aᵀ dy",
            "04 projections" if e.value.ndim == 2 else "05 attention",
        )
    return Cause("operand-wrong", f"it is {mine.text}{known}", "05 attention")


class _Product(NamedTuple):
    text: str
    operands: frozenset[str]
    array: np.ndarray


def _products(e: Edge) -> Iterator[_Product]:
    """All products of a gradient and a value, or their transposes, that have the node's shape."""
    gradients = [(f"d{_bare(n)}", x) for n, x in e.gradients.items() if n != e.name and x.ndim >= 2]
    values = [(_bare(n), x) for n, x in (e.values | e.trace.constants).items() if x.ndim >= 2]
    for (g, dy), (a, x) in itertools.product(_with_merged(gradients), _with_merged(values)):
        if x.dtype.kind != "f":
            continue
        for (gt, p), (at, q) in itertools.product(_both(g, dy), _both(a, x)):
            for text, left, right in ((f"{gt} {at}", p, q), (f"{at} {gt}", q, p)):
                if left.shape[-1] != right.shape[-2]:
                    continue
                try:
                    made = grouped(np.matmul(*_heads_alike(left, right)), e.value.shape)
                except ValueError:  # they do not broadcast
                    continue
                if made is not None:
                    yield _Product(text, frozenset({g, a}), made)


def _bare(name: str) -> str:
    return name.removeprefix("the ")


def _both(name: str, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(name, x), (f"{name}ᵀ", np.swapaxes(x, -1, -2))]


def _with_merged(arrays: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """These, and those of three axes or more with the heads side by side: (…, T, H·D)."""
    return arrays + [
        (f"merged {name}", np.swapaxes(x, -3, -2).reshape(*x.shape[:-3], x.shape[-2], -1))
        for name, x in arrays
        if x.ndim >= 3
    ]


def _heads_alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with as many heads, where those of one are a multiple of the other's."""
    if a.ndim < 3 or b.ndim < 3 or a.shape[-3] == b.shape[-3]:
        return a, b
    if a.shape[-3] < b.shape[-3]:
        b, a = _heads_alike(b, a)
        return a, b
    rep, rest = divmod(a.shape[-3], b.shape[-3])
    return (a, b) if rest else (a, np.repeat(b, rep, axis=-3))


def grouped(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """x summed over the axes, and over the heads of a group, that an array of this shape lacks."""
    if x.ndim == len(shape) >= 3 and 1 < shape[-3] < x.shape[-3] and not x.shape[-3] % shape[-3]:
        x = x.reshape(*x.shape[:-3], shape[-3], -1, *x.shape[-2:]).sum(axis=-3)
    return fitted(x, shape)
