"""What a wrong gradient looks like: known mistakes, each with the mark that it leaves.

A signature is a function of an Edge that recognises one mistake, or a family of them. Those here
know arrays and their arithmetic only; others are registered by who knows more.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .edge import Edge, bare, elementwise, fitted, grouped, products
from .locate import RESULT, Trace
from .report import listed

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


Signature = Callable[[Edge], Cause | None]
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
    if plain := _before_any_guess(trace, name):
        return plain
    for edge in _edges(trace, name):
        for recognise in (_uses, _nothing, *_special, *_general):
            if cause := _asked(recognise, edge):
                return cause
    return Cause(UNEXPLAINED, "no mistake that is known here: the facts above are all there is")


def _before_any_guess(trace: Trace, name: str) -> Cause | None:
    """What needs no comparison of numbers, and what rules it out."""
    consumers, target, bent = trace.consumers(name), trace.targets[name], trace.subject.bent
    cause = None
    if bent and (name in bent or name not in trace.inputs):
        how = bent.get(name) or next(iter(bent.values()))
        cause = Cause("not-linear", f"the gradient of {name} {how}", "02 autograd")
    elif not {name, *consumers} <= trace.right.keys():
        cause = Cause(
            UNEXPLAINED,
            "no known mistake was looked for among so many entries: try smaller arrays",
        )
    elif target.gradient.shape != target.x.shape:
        cause = _of_another(target.gradient, trace, name)
        cause = cause or _wrong_shape(target.gradient, trace.right[name], name)
    elif not np.isfinite(target.gradient).all():
        cause = _not_a_number(target.gradient)
    elif not consumers:
        cause = Cause(UNEXPLAINED, f"the result does not depend on {name}: its gradient is 0")
    return cause


def _asked(recognise: Signature, edge: Edge) -> Cause | None:
    """What a signature says. The facts have to reach the reader whatever happens to a guess."""
    try:
        return recognise(edge)
    except Exception as error:
        warnings.warn(
            f"no guess by {recognise.__name__} at {edge.step}: {error!r}", RuntimeWarning, 2
        )
        return None


def _edges(trace: Trace, name: str) -> Iterator[Edge]:
    consumers = trace.consumers(name)
    if len(consumers) != 1:
        yield Edge(trace, name, None)
    for consumer in consumers:
        yield Edge(trace, name, consumer)


def _uses(e: Edge) -> Cause | None:
    """A node that is used more than once: the uses that yours adds up, and how often."""
    if e.consumer is not None or not 2 <= len(e.consumers) <= 4:
        return None
    shares = [e.trace.share(e.name, c) for c in e.consumers]
    if any(_parallel(a, b) for a, b in itertools.combinations(shares, 2)):
        return None  # a factor in one looks like more or less of the other
    for times in itertools.product((0, 1, 2), repeat=len(shares)):
        if len(set(times)) != 2 or {0, 2} <= set(times) or not e.is_yours(_sum(times, shares)):
            continue
        missing = [c for c, n in zip(e.consumers, times, strict=True) if n == 0]
        twice = [c for c, n in zip(e.consumers, times, strict=True) if n == 2]
        if missing:
            return Cause(
                "path-missing",
                f"it is right but for what comes through {listed(missing)}: is that use forgotten? "
                f"{e.name} is used {len(shares)} times, and its gradient is the sum over its uses: "
                "+=, not =",
                "02 autograd",
            )
        return Cause(
            "path-twice",
            f"what comes through {listed(twice)} is in it twice: {e.name} is used {len(shares)} "
            "times, and each use counts once",
            "02 autograd",
        )
    return None


def _parallel(a: np.ndarray, b: np.ndarray) -> bool:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return bool(abs(abs(np.sum(a * b)) - lengths) <= 1e-9 * lengths)


def _sum(times: tuple[int, ...], shares: list[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(n * x for n, x in zip(times, shares, strict=True)))


def lengths(e: Edge) -> Iterator[tuple[int, str]]:
    """Products of lengths of axes that a gradient could have been summed or averaged over: those
    that one side of the step has and the other lacks."""
    made = e.trace.values[e.consumer or RESULT].shape
    shape = [*(Counter(made) - Counter(e.value.shape)).elements()]
    shape += (Counter(e.value.shape) - Counter(made)).elements()
    for count in range(1, min(len(shape), 3) + 1):
        for axes in itertools.combinations(shape, count):
            if (n := int(np.prod(axes))) > 1:
                yield n, f" = {' · '.join(map(str, axes))}" if count > 1 else ""


def _of_another(yours: np.ndarray, trace: Trace, name: str) -> Cause | None:
    """A gradient of another shape may be the right one of an input that is wrong as well."""
    for other in trace.wrong:
        right = trace.right.get(other) if other != name else None
        if right is not None and right.shape == yours.shape and _close(yours, right):
            return _swapped(other)
    return None


def _swapped(name: str) -> Cause:
    return Cause(
        "another-input",
        f"it is the gradient of {name}: are two gradients returned in the wrong order?",
        "02 autograd",
    )


def _wrong_shape(yours: np.ndarray, right: np.ndarray, name: str) -> Cause:
    if yours.shape == right.shape[::-1] and _close(yours.T, right):
        return Cause("transposed", "it is the right gradient, transposed", "02 autograd")
    heads = grouped(yours, right)
    if heads.shape == right.shape and _close(heads, right):
        return Cause(
            "unsummed",
            f"summed over the heads of each group, it is right: each head of {name} serves "
            f"{yours.shape[-3] // right.shape[-3]} others, and its gradient is the sum of theirs",
            "07 multi-head",
        )
    total = fitted(yours, right.shape)
    if total is not None and _close(total, right):
        return Cause(
            "unsummed",
            f"summed over the axes that {name} lacks, it is right: {name} was broadcast in the "
            "forward, so its gradient is a sum over all the places where it was used",
            "01 arrays",
        )
    return Cause(UNEXPLAINED, f"a gradient has the shape of its argument, {right.shape}")


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(abs(a - b).max(initial=0.0) <= 1e-5 * abs(b).max(initial=0.0))


def _not_a_number(yours: np.ndarray) -> Cause:
    where = int((~np.isfinite(yours)).sum())
    return Cause(
        "not-finite",
        f"{where} entries are NaN or infinite: is something divided by 0, or 0 multiplied by ∞? "
        "`with mh.detect_anomaly():` names the operation on Tensors",
        "06 masks",
    )


def _nothing(e: Edge) -> Cause | None:
    if e.yours.any() and not e.is_yours(np.zeros_like(e.right)):
        return None
    if e.consumer is not None and len(e.consumers) > 1:
        text = f"nothing arrives at {e.name} through {e.consumer}: is that use forgotten?"
        return Cause("path-missing", text, "02 autograd")
    return Cause(
        "zero",
        f"no gradient arrives at {e.name}: "
        + (
            "is it cut off, by detach() or .data?"
            if e.trace.subject.on_tensors
            else "is it None, or zeros that are never filled in?"
        ),
        "02 autograd",
    )


@_plain
def _constant_ratio(e: Edge) -> Cause | None:
    ratio = e.multiple(e.right, e.yours)
    if ratio is None:
        return None
    if abs(ratio + 1) < 1e-6:
        return Cause("sign", f"the sign of {e.step} is turned: it is −1 times the right one")
    for n, product in lengths(e):
        if abs(ratio * n - 1) < 1e-6:
            return Cause(
                "averaged",
                f"it is 1/{n} of the right one in every entry, and {n}{product} is a length that "
                "is summed over: is it the mean where the sum belongs?",
                "01 arrays",
            )
    known = next((product for n, product in lengths(e) if abs(ratio / n - 1) < 1e-6), "")
    what = f"what comes through {e.consumer}" if e.consumer and len(e.consumers) > 1 else "it"
    digits = 6 if abs(ratio - 1) > 1e-4 else 12
    return Cause(
        "factor",
        f"{what} is {ratio:.{digits}g}{known} times the right one in every entry: is a factor of "
        f"{e.step} missing in the backward, or there twice?",
    )


@_plain
def _transposed(e: Edge) -> Cause | None:
    for axes in itertools.permutations(range(e.right.ndim)):
        if list(axes) != sorted(axes) and e.is_yours(np.transpose(e.right, axes)):
            return Cause("transposed", "it is the right gradient, transposed", "02 autograd")
    return None


@_plain
def _reordered(e: Edge) -> Cause | None:
    """Yours is the right one under a bare reshape, where axes are swapped as well."""
    if not e.distance or e.yours.size < 3:
        return None
    shapes = {x.shape for x in e.values.values() if x.size == e.value.size and x.ndim > 1}
    if len(e.consumers) > 1:  # cut into parts, each split into heads
        n, parts = len(e.consumers), [e.values[c].shape for c in e.consumers]
        split = [(*s[:-3], s[-2], n, s[-3], s[-1]) for s in parts if len(s) > 2]
        shapes |= {s for s in split if np.prod(s) == e.value.size}
    for shape in sorted({*shapes, e.value.shape}):
        for axes in itertools.permutations(range(len(shape))):
            for a, is_it in ((e.yours, e.is_right), (e.right, e.is_yours)):
                if is_it(np.transpose(a.reshape(shape), axes).reshape(e.value.shape)):
                    return Cause(
                        "reshape-for-swap",
                        "it has the right numbers in another order: is there a reshape where axes "
                        "have to be swapped? From (…, H, T, D) to (…, T, H·D) it takes both",
                        "07 multi-head",
                    )
    return None


@_plain
def _another_input(e: Edge) -> Cause | None:
    for name, gradient in e.gradients.items():
        if name in set(e.trace.wrong) - {e.name, *e.downstream} and e.is_yours(gradient):
            return _swapped(name)
    return None


@_plain
def _passed_through(e: Edge) -> Cause | None:
    for name in e.downstream:
        dy = fitted(e.gradients.get(name), e.value.shape)
        if (ratio := e.multiple(dy, e.yours)) is not None:
            for factor in e.values.keys() - set(e.downstream):
                x = e.values[factor]
                if x.shape == e.gradients[name].shape and e.is_right(
                    fitted(x * e.gradients[name], e.value.shape)
                ):
                    return Cause(
                        "operand-wrong",
                        f"it is d{bare(name)}, where d{bare(name)} · {bare(factor)} is right",
                        "02 autograd",
                    )
            times = "" if abs(ratio - 1) < e.tolerance else f", times {ratio:.6g}"
            return Cause(
                "slope-missing",
                f"the gradient of {name} is passed on as it came{times}: is the derivative of the "
                f"step from {e.name} missing?",
                "02 autograd",
            )
        if name not in e.consumers and dy is not None and e.is_yours(e.right + dy):
            return Cause(
                "path-twice",
                f"the gradient of {name} is added once too often: does the forward use {e.name} "
                "there?",
                "02 autograd",
            )
    return None


@_plain
def _product(e: Edge) -> Cause | None:
    """Yours is a product of a gradient and a value, and so is the right one, but of others."""
    made = itertools.chain(products(e), elementwise(e))
    known = [(p, fitted(p.array, e.value.shape)) for p in made]
    same = [p for p, made in known if e.multiple(made, e.right) is not None]
    for p in same:
        if (n := _one_of_many(e, p.array)) is not None:
            return Cause(
                "path-missing",
                f"it is {p.text} of item {n} of the batch alone: {e.name} serves all of them, "
                "and its gradient is the sum over their shares",
                "01 arrays",
            )
    mine = next((p for p, made in known if e.multiple(made, e.yours) is not None), None)
    if mine is None:
        return None
    same.sort(key=lambda p: (p.is_matrix != mine.is_matrix, p.operands != mine.operands))
    right = same[0] if same else None
    told = "" if right is None else f", and {right.text} would be right"
    if mine.is_matrix and right is not None and right.operands == mine.operands:
        return Cause(
            "operand-transposed",
            f"it is {mine.text}{told}: for y = a b the gradients are da = dy bᵀ and db = aᵀ dy",
            "04 projections",
        )
    name = "operand-wrong" if mine.is_matrix or right is not None else UNEXPLAINED
    return Cause(name, f"it is {mine.text}{told}", "04 projections")


def _one_of_many(e: Edge, x: np.ndarray) -> int | None:
    """Which one of the items that a right gradient sums over is yours."""
    if x.ndim <= e.value.ndim:
        return None
    items = (fitted(item, e.value.shape) for item in x)
    return next((n for n, x in enumerate(items) if e.multiple(x, e.yours) is not None), None)
