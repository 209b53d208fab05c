"""What a wrong gradient looks like, by its numbers alone: factors, transposes, missing terms.

A signature is a function of a Step that recognises one mistake, or a family of mistakes, by its
effect on the gradient.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from minimha_autograd.gradcheck import listed

from .arrays import summed_over_groups, summed_to
from .causes import UNEXPLAINED, Cause
from .step import Product, Step, elementwise, products
from .trace import RESULT, Trace


def before_comparing(trace: Trace, name: str) -> Cause | None:
    """The cause, if the numbers cannot be compared or need no comparison."""
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
        if candidate is None or candidate.shape != other.shape:
            return False
        return bool(abs(candidate - other).max(initial=0.0) <= 1e-5 * abs(other).max(initial=0.0))

    for other in trace.wrong:  # the right gradient of an input that is wrong as well?
        if other != name and other in trace.right and is_(trace.right[other], yours):
            return _swapped(other)
    if is_(right, yours.T):
        return Cause("transposed", "it is the right gradient, transposed")
    if is_(right, summed_over_groups(yours, right)):
        served = yours.shape[-3] // right.shape[-3]
        text = f"it has to be summed over the heads of each group: each head of {name} serves "
        return Cause("groups-unsummed", f"{text}{served} query heads")
    if is_(right, summed_to(yours, right.shape)):
        text = f"it has to be summed over the axes that {name} lacks: the forward broadcasts it "
        return Cause("unsummed", f"{text}along these axes, so each entry is used several times")
    return Cause(UNEXPLAINED, f"a gradient must have the shape of its input, {right.shape}")


def _swapped(name: str) -> Cause:
    text = f"it is the gradient of {name}: check the order in which the gradients are returned"
    return Cause("another-input", text)


def uses(step: Step) -> Cause | None:
    """A node that is used several times: a use is missing in its gradient, or counted twice."""
    if step.consumer is not None or not 2 <= len(step.consumers) <= 4:
        return None
    parts = [step.trace.part(step.name, c) for c in step.consumers]
    if any(_parallel(a, b) for a, b in itertools.combinations(parts, 2)):
        return None  # a factor in one looks like more or less of the other
    for times in itertools.product((0, 1, 2), repeat=len(parts)):
        total = sum(n * x for n, x in zip(times, parts, strict=True))
        if len(set(times)) != 2 or {0, 2} <= set(times) or not step.is_yours(np.asarray(total)):
            continue
        wrong = listed([c for c, n in zip(step.consumers, times, strict=True) if n != 1])
        cause, how = ("path-missing", "missing") if 0 in times else ("path-twice", "counted twice")
        return Cause(
            cause,
            f"the share that comes through {wrong} is {how}: {step.name} is used {len(parts)} "
            "times, and its gradient is the sum over these uses (+=, not =)",
        )
    return None


def _parallel(a: np.ndarray, b: np.ndarray) -> bool:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return bool(abs(abs(np.sum(a * b)) - lengths) <= 1e-9 * lengths)


def nothing(step: Step) -> Cause | None:
    """No gradient at all."""
    if step.yours.any() and not step.is_yours(np.zeros_like(step.right)):
        return None
    if step.is_part:
        text = f"the share of the gradient that comes through {step.consumer} is missing"
        return Cause("path-missing", text)
    text = f"the gradient of {step.name} is 0: it is never set, or cut off by detach() or .data"
    return Cause("zero", text)


def constant_ratio(step: Step) -> Cause | None:
    """The right gradient times a number."""
    ratio = step.multiple(step.right, step.yours)
    if ratio is None:
        return None
    if abs(ratio + 1) < 1e-6:
        return Cause("sign", f"the sign is flipped in {step.place}")
    for n, product in _lengths(step):
        if abs(ratio * n - 1) < 1e-6:
            return Cause(
                "averaged",
                f"every entry is 1/{n} of the right one, and {n}{product} entries are summed: this "
                "looks like the mean instead of the sum",
            )
    known = next((product for n, product in _lengths(step) if abs(ratio / n - 1) < 1e-6), "")
    what = f"the share that comes through {step.consumer}" if step.is_part else "every entry"
    digits = 6 if abs(ratio - 1) > 1e-4 else 12
    return Cause(
        "factor",
        f"{what} is {ratio:.{digits}g}{known} times the right one: a factor is missing in "
        f"{step.place}, or is applied twice",
    )


def _lengths(step: Step) -> Iterator[tuple[int, str]]:
    """Products of the lengths of axes over which a gradient may have been summed or averaged: axes
    that only one side of the step has."""
    before, after = (Counter(step.values[n].shape) for n in (step.name, step.consumer or RESULT))
    lengths = [*(after - before).elements(), *(before - after).elements()]
    for count in range(1, min(len(lengths), 3) + 1):
        for axes in itertools.combinations(lengths, count):
            if (n := math.prod(axes)) > 1:
                yield n, f" = {' · '.join(map(str, axes))}" if count > 1 else ""


def transposed(step: Step) -> Cause | None:
    """The right gradient with axes swapped."""
    for axes in itertools.permutations(range(step.right.ndim)):
        if list(axes) != sorted(axes) and step.is_yours(np.transpose(step.right, axes)):
            return Cause("transposed", "it is the right gradient, transposed")
    return None


def reordered(step: Step) -> Cause | None:
    """The right gradient, reshaped where axes have to be swapped as well."""
    if not step.distance or step.yours.size < 3:
        return None
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
                    return Cause(
                        "reshape-for-swap",
                        "it has the right numbers in the wrong order: reshape does not swap axes. "
                        "From (…, H, T, D) to (…, T, H·D), swap H and T first, then reshape",
                    )
    return None


def another_input(step: Step) -> Cause | None:
    """The right gradient of another input."""
    candidates = set(step.trace.wrong) - {step.name, *step.downstream}
    for name, gradient in step.gradients.items():
        if name in candidates and step.is_yours(gradient):
            return _swapped(name)
    return None


def passed_through(step: Step) -> Cause | None:
    """The unchanged gradient of a later node, or one term too many."""
    for name in step.downstream:
        dy = summed_to(step.gradients.get(name), step.value.shape)
        if (ratio := step.multiple(dy, step.yours)) is not None:
            d = f"d{step.letter(name)}"
            for factor in (n for n in step.values if n not in step.downstream):
                x, dx = step.values[factor], step.gradients[name]
                if x.shape == dx.shape and step.is_right(summed_to(x * dx, step.value.shape)):
                    text = (
                        f"d{step.name} = {d}.\nCorrect: d{step.name} = {d} · {step.letter(factor)}"
                    )
                    return Cause("operand-wrong", text)
            times = "" if abs(ratio - 1) < step.tolerance else f", times {ratio:.6g}"
            text = f"it equals the gradient of {name}{times}: the derivative of the step from "
            return Cause("slope-missing", f"{text}{step.name} to {name} is missing")
        if name not in step.consumers and dy is not None and step.is_yours(step.right + dy):
            text = f"the gradient of {name} is added once too often, as if the forward added "
            return Cause("path-twice", f"{text}{step.name} to it")
    return None


def product(step: Step) -> Cause | None:
    """A product of a gradient and a value, but not the right product."""
    shape = step.value.shape
    known = [(p, summed_to(p.array, shape)) for p in (*products(step), *elementwise(step))]
    same = [p for p, made in known if step.multiple(made, step.right) is not None]
    for p in same:
        if (n := _one_of_many(step, p.array)) is not None:
            return Cause(
                "path-missing",
                f"it is {p.text} for item {n} of the batch alone: all items use {step.name}, so "
                "its gradient is the sum over the batch",
            )
    mine = next((p for p, made in known if step.multiple(made, step.yours) is not None), None)
    if mine is None or any(p is mine for p in same):
        return None

    def unlike(p: Product) -> tuple[bool, bool]:
        return p.is_matrix != mine.is_matrix, p.operands != mine.operands

    right = min(same, key=unlike, default=None)
    text = f"d{step.name} = {mine.text}" + (
        f".\nCorrect: d{step.name} = {right.text}" if right else ""
    )
    if mine.is_matrix and right is not None and right.operands == mine.operands:
        text += ".\nFor y = a b the gradients are da = dy bᵀ and db = aᵀ dy"
        return Cause("operand-transposed", text)
    name = "operand-wrong" if mine.is_matrix or right is not None else UNEXPLAINED
    return Cause(name, text)


def _one_of_many(step: Step, x: np.ndarray) -> int | None:
    """The item whose share alone is the gradient, where the right one sums over all."""
    items = (summed_to(item, step.value.shape) for item in x) if x.ndim > step.value.ndim else ()
    return next((n for n, x in enumerate(items) if step.multiple(x, step.yours) is not None), None)
