"""What a wrong gradient looks like, by its numbers alone: factors, transposes, missing terms.

A recogniser is a function of a Step that yields the gradients to which known mistakes lead; the
mistake is recognised if one of them equals the gradient found. If a recogniser knows the mistake by
other facts, it yields the gradient found itself.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from minimha_autograd.gradcheck import listed

from .arrays import in_same_place, summed_over_groups, summed_to
from .causes import ALL_PAIRS, UNEXPLAINED, Cause
from .closeness import is_close
from .step import Mistake, Product, Step, elementwise, products
from .trace import RESULT, Trace


def before_comparing(trace: Trace, name: str) -> Cause | None:
    """Return the cause of the wrong gradient of a node, `name`, if it is obvious without comparing
    this gradient with those that known mistakes would give: a NaN or a wrong shape, for example. If
    no comparison is possible, return a cause that says so. Otherwise return None."""
    consumers, target = trace.consumers(name), trace.targets[name]
    not_linear = trace.failed.gradients.not_linear
    if not_linear and (name in not_linear or name not in trace.inputs):
        how = not_linear.get(name) or next(iter(not_linear.values()))
        return Cause("not-linear", f"the gradient of {name} {how}")
    if not {name, *consumers} <= trace.right.keys():
        text = "too many entries to look for a known mistake: use smaller arrays"
        return Cause(UNEXPLAINED, text)
    if target.gradient.shape != target.x.shape:
        return _wrong_shape(target.gradient, trace, name)
    if where := int((~np.isfinite(target.gradient)).sum()):
        return Cause(
            "not-finite",
            f"{where} entries are NaN or infinite: look for a division by 0, or 0 · ∞. On Tensors, "
            "`with mh.detect_anomaly():` names the operation",
        )
    if not consumers:
        return Cause(UNEXPLAINED, f"the result does not depend on {name}, so its gradient is 0")
    return None


def _wrong_shape(yours: np.ndarray, trace: Trace, name: str) -> Cause:
    right = trace.right[name]

    def is_(other: np.ndarray, candidate: np.ndarray | None) -> bool:
        return candidate is not None and is_close(candidate, other, 1e-5)

    for other in trace.wrong:  # the right gradient of an input that is wrong as well?
        if other != name and other in trace.right and is_(trace.right[other], yours):
            return Cause("another-input", _SWAPPED.format(other))
    if is_(right, yours.T):
        return Cause("transposed", "it is the right gradient, transposed")
    if is_(right, in_same_place(yours, right.shape)):
        return Cause("all-pairs", ALL_PAIRS)
    if is_(right, summed_over_groups(yours, right)):
        served = yours.shape[-3] // right.shape[-3]
        text = f"it has to be summed over the heads of each group: each head of {name} serves "
        return Cause("groups-unsummed", f"{text}{served} query heads")
    if is_(right, summed_to(yours, right.shape)):
        text = f"it has to be summed over the axes that {name} lacks: the forward broadcasts it "
        return Cause("unsummed", f"{text}along these axes, so each entry is used several times")
    return Cause(UNEXPLAINED, f"a gradient must have the shape of its input, {right.shape}")


_SWAPPED = "it is the gradient of {}: check the order in which the gradients are returned"


def counted(step: Step) -> Iterator[Mistake]:
    """For a function that runs on several ranks, yield the gradient that results if every
    contribution is counted once per rank instead of once, and the one that results if the
    contributions of other ranks are left out."""
    trace = step.trace
    ranks = getattr(trace.function.f, "ranks", 1)  # `parallel.across` sets it
    if ranks == 1 or step.consumer is not None or step.name not in trace.inputs:
        return
    text = (
        f"the gradient is counted once per rank: it is {ranks} times the right one, and there are "
        f"{ranks} ranks. Is the same loss differentiated on every rank, or a sum over ranks summed "
        "a second time?"
    )
    yield "counted-per-rank", ranks * step.right, text
    rank = trace.inputs.index(step.name) * ranks // len(trace.inputs)
    per_rank = len(trace.results) // ranks
    own = trace.results[rank * per_rank : (rank + 1) * per_rank]
    others = [result for result in step.consumers if result not in own]
    alone = sum(
        (trace.part(step.name, result) for result in own if result in step.consumers),
        np.zeros_like(step.right),
    )
    text = (
        "the all-reduce was forgotten: the gradient holds only what comes from the result of rank "
        f"{rank} itself. The results of other ranks depend on {step.name} as well: add their "
        "contributions"
    )
    yield "all-reduce-missing", alone if others else None, text


def uses(step: Step) -> Iterator[Mistake]:
    """Yield the gradients that result for a node that is used several times, if the contributions
    of some uses are missing or counted twice."""
    parts = [*step.parts.values()]
    if any(_parallel(a, b) for a, b in itertools.combinations(parts, 2)):
        return  # a factor in one looks like more or less of the other
    for times in itertools.product((0, 1, 2), repeat=len(parts)):
        if set(times) in ({0, 1}, {1, 2}):
            total = sum(n * x for n, x in zip(times, parts, strict=True))
            wrong = listed([c for c, n in zip(step.consumers, times, strict=True) if n != 1])
            cause, how = ("missing", "missing") if 0 in times else ("twice", "counted twice")
            text = (
                f"the share that comes through {wrong} is {how}: {step.name} is used {len(parts)} "
                "times, and its gradient is the sum over these uses (+=, not =)"
            )
            yield f"path-{cause}", np.asarray(total), text


def _parallel(a: np.ndarray, b: np.ndarray) -> bool:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return bool(abs(abs(np.sum(a * b)) - lengths) <= 1e-9 * lengths)


def nothing(step: Step) -> Iterator[Mistake]:
    """Yield a gradient of zeros, which results if the gradient is never set or is cut off."""
    zero = np.zeros_like(step.right)
    if step.is_part:
        text = f"the share of the gradient that comes through {step.consumer} is missing"
        yield "path-missing", zero, text
    text = f"the gradient of {step.name} is 0: it is never set, or cut off by detach() or .data"
    yield "zero", zero, text


def constant_ratio(step: Step) -> Iterator[Mistake]:
    """Yield the right gradient with its sign flipped, divided by a number of entries, or multiplied
    by another constant factor."""
    ratio = step.multiple(step.right, step.yours)
    if ratio is None:
        return
    yield "sign", -step.right, f"the sign is flipped in {step.place}"
    for n, product in _lengths(step):
        text = (
            f"every entry is 1/{n} of the right one, and {n}{product} entries are summed: this "
            "looks like the mean instead of the sum"
        )
        yield "averaged", step.right / n, text
    known = next((product for n, product in _lengths(step) if abs(ratio / n - 1) < 1e-6), "")
    what = f"the share that comes through {step.consumer}" if step.is_part else "every entry"
    digits = 6 if abs(ratio - 1) > 1e-4 else 12
    text = f"{what} is {ratio:.{digits}g}{known} times the right one: a factor is missing in "
    yield "factor", step.yours, f"{text}{step.place}, or is applied twice"


def _lengths(step: Step) -> Iterator[tuple[int, str]]:
    """Yield the numbers of entries over which a gradient may have been summed or averaged, each
    with its factors as text: 12 and " = 3 · 4", or 3 and "" for a single axis. A number is the
    product of the lengths of up to three axes, each of which the node has but not its consumer, the
    node computed from it, or the other way round."""
    before, after = (Counter(step.values[n].shape) for n in (step.name, step.consumer or RESULT))
    lengths = [*(after - before).elements(), *(before - after).elements()]
    for count in range(1, min(len(lengths), 3) + 1):
        for axes in itertools.combinations(lengths, count):
            if (n := math.prod(axes)) > 1:
                yield n, f" = {' · '.join(map(str, axes))}" if count > 1 else ""


def reordered(step: Step) -> Iterator[Mistake]:
    """Yield the right gradient with its axes in every order. Also yield the gradient that the
    pullback computed, if it has the right numbers in the wrong order that results when a reshape
    takes the place of a transpose."""
    for axes in itertools.permutations(range(step.right.ndim)):
        swapped = np.transpose(step.right, axes)
        yield "transposed", swapped, "it is the right gradient, transposed"
    shape = step.value.shape
    shapes = {x.shape for x in step.values.values() if x.size == step.value.size and x.ndim > 1}
    if len(step.consumers) > 1:  # cut into parts, each split into heads
        n, parts = len(step.consumers), [step.values[c].shape for c in step.consumers]
        split = [(*s[:-3], s[-2], n, s[-3], s[-1]) for s in parts if len(s) > 2]
        shapes |= {s for s in split if np.prod(s) == step.value.size}
    for other in sorted({*shapes, shape}):
        for axes in itertools.permutations(range(len(other))):
            for a, is_it in ((step.yours, step.is_right), (step.right, step.is_yours)):
                if is_it(np.transpose(a.reshape(other), axes).reshape(shape)):
                    text = (
                        "it has the right numbers in the wrong order: reshape does not swap axes. "
                        "From (…, H, T, D) to (…, T, H·D), swap H and T first, then reshape"
                    )
                    yield "reshape-for-swap", step.yours, text


def another_input(step: Step) -> Iterator[Mistake]:
    """Yield the right gradients of the other nodes whose gradients are wrong, since the pullback
    may have returned two gradients in the wrong order."""
    candidates = set(step.trace.wrong) - {step.name, *step.downstream}
    for name, gradient in step.gradients.items():
        if name in candidates:
            yield "another-input", gradient, _SWAPPED.format(name)


def passed_through(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if it is a multiple of the gradient of a later
    node: then the derivative of the step between the two nodes is missing. Also yield the right
    gradient plus that of a later node, as if the forward added the step's node to the later one."""
    for name in step.downstream:
        dy = summed_to(step.gradients.get(name), step.value.shape)
        if (ratio := step.multiple(dy, step.yours)) is not None:
            d = f"d{step.letter(name)}"
            for factor in (n for n in step.values if n not in step.downstream):
                x, dx = step.values[factor], step.gradients[name]
                if x.shape == dx.shape and step.is_right(summed_to(x * dx, step.value.shape)):
                    correct = f"Correct: d{step.name} = {d} · {step.letter(factor)}"
                    yield "operand-wrong", step.yours, f"d{step.name} = {d}.\n{correct}"
            times = "" if abs(ratio - 1) < step.tolerance else f", times {ratio:.6g}"
            text = f"it equals the gradient of {name}{times}: the derivative of the step from "
            yield "slope-missing", step.yours, f"{text}{step.name} to {name} is missing"
        if name not in step.consumers and dy is not None:
            text = f"the gradient of {name} is added once too often, as if the forward added "
            yield "path-twice", step.right + dy, f"{text}{step.name} to it"


def product(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if it is a product of a gradient and a value,
    but not the right one: a factor is wrong or not transposed, for example. Also yield it if it is
    the right product for one item of the batch, instead of the sum over all items."""
    shape = step.value.shape
    known = [(p, summed_to(p.array, shape)) for p in (*products(step), *elementwise(step))]
    same = [p for p, made in known if step.multiple(made, step.right) is not None]
    for p in same:
        items = p.array if p.array.ndim > step.value.ndim else ()
        for n, item in enumerate(items):  # the right one sums over them
            if step.multiple(summed_to(item, shape), step.yours) is not None:
                text = f"it is {p.text} for item {n} of the batch alone: all items use {step.name}"
                yield (
                    "path-missing",
                    step.yours,
                    f"{text}, so its gradient is the sum over the batch",
                )
    mine = next((p for p, made in known if step.multiple(made, step.yours) is not None), None)
    if mine is None or any(p is mine for p in same):
        return

    def unlike(p: Product) -> tuple[bool, bool]:
        return p.is_matrix != mine.is_matrix, p.operands != mine.operands

    right = min(same, key=unlike, default=None)
    text = f"d{step.name} = {mine.text}"
    if right is not None:
        text += f".\nCorrect: d{step.name} = {right.text}"
    if mine.is_matrix and right is not None and right.operands == mine.operands:
        text += ".\nFor y = a b the gradients are da = dy bᵀ and db = aᵀ dy"
        yield "operand-transposed", step.yours, text
    name = "operand-wrong" if mine.is_matrix or right is not None else UNEXPLAINED
    yield name, step.yours, text
