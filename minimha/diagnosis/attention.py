"""What wrong gradients of attention look like: scale, groups, softmax, dropout, mask.

Each recogniser looks at the values of a step to see which operation it is, whatever its name, and
compares the gradient under check with the gradients to which known mistakes lead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .arrays import by_group, matmul, summed_over_groups, summed_to, through_softmax
from .step import Mistake, Step, products


def scale(step: Step) -> Iterator[Mistake]:
    """Yield the gradients that result if the scale 1/√D of the scores is missing or applied
    twice."""
    if step.multiple(step.right, step.yours) is None or not _before_weights(step):
        return
    nodes = step.trace.values if step.trace.located else ()
    made_from = [n for n in nodes if step.name in step.trace.descendants(n)]
    widths = {step.values[n].shape[-1] for n in (step.name, *made_from) if step.values[n].ndim >= 2}
    for d in sorted(widths - {1}):
        root, whole = f"√D = √{d} = {math.sqrt(d):.4g}", math.isqrt(d)
        also = f". Any other factor of {whole} would look the same" * (whole**2 == d)
        text = f"every entry is too large by the factor {root}: the gradient of {step.name} "
        yield "scale", math.sqrt(d) * step.right, f"{text}lacks the 1/√D of the scores{also}"
        text = f"every entry is too small by the factor {root}: the scale is applied twice, or "
        yield "scale-twice", step.right / math.sqrt(d), f"{text}is 1/D instead of 1/√D{also}"


def _before_weights(step: Step) -> bool:
    """Whether the step's node is used to compute attention weights, according to its name or to the
    values computed from it."""
    named = {name.lower() for name in step.trace.inputs}
    operands = [both for both in ({"query", "key"}, {"q", "k"}) if both <= named]
    if step.name.lower() in {"raw", "scaled", "scores"}.union(*operands):
        return True
    weights = (step.values[n] for n in step.downstream if n not in step.trace.results)
    return any(
        x.ndim >= 2 and (x >= 0).all() and np.allclose(x.sum(axis=-1).max(initial=0), 1)
        for x in weights
    )


def groups(step: Step) -> Iterator[Mistake]:
    """Yield wrong gradients of a key or value head that several query heads share: the mean over
    these heads, the gradient of one of them, or the sum over the wrong heads."""
    per_head = [p.array for p in products(step, each_head=True)]
    for x in (*per_head, *step.gradients.values()):
        each = by_group(x, step.value)
        factor = None if each is None else step.multiple(each.sum(axis=-3), step.right)
        if each is None or factor is None:
            continue
        each, rep = factor * each, each.shape[-3]
        in_turn = (factor * x).reshape(*x.shape[:-3], rep, -1, *x.shape[-2:]).sum(axis=-4)
        rule = f"; each head of {step.name} serves {rep} query heads, and its gradient is the sum "
        rule += "of their gradients"
        one, turns = "it is the gradient of query head {} of each group alone", "h, h + G, h + 2G …"
        yield "groups-mean", each.mean(axis=-3), f"it is the mean over the group{rule}"
        for n in range(rep):
            yield "groups-one-member", each[..., n, :, :], one.format(n) + rule
        text = f"it sums heads {turns}, but the heads of a group are adjacent{rule}"
        yield "groups-interleaved", in_turn, text


def wrong_softmax(step: Step) -> Iterator[Mistake]:
    """Yield the gradients that known mistakes in dx = y · (dy − Σ dy · y) give, if the step
    computes y = softmax(x)."""
    if not step.keeps_shape:
        return
    y, dy, x = step.output, step.dy, step.value
    for axis in reversed(range(y.ndim)):
        c = sharpness(x, y, axis)
        if c and step.is_right(c * through_softmax(y, dy, axis)):
            break
    else:
        return
    letters = step.letter(step.name), step.letter(step.consumer or "")
    if step.trace.function.on_tensors and not step.trace.function.takes_tap:
        letters = "x", "y"  # the nodes of the tape have no names given by the student
    for name, dx, text in _softmax_mistakes(y, dy, letters, axis):
        yield name, c * dx, text
    for name, z in step.values.items():
        if z.shape == y.shape and np.isfinite(z).all() and np.allclose(z[y > 0], x[y > 0]):
            unmasked = np.exp(c * (z - z.max(axis=axis, keepdims=True)))
            unmasked /= unmasked.sum(axis=axis, keepdims=True)
            text = f"it is the gradient of softmax({name}) without the mask: the backward has to "
            text += "use the weights that the forward computed"
            yield "mask-ignored", c * through_softmax(unmasked, dy, axis), text


def untapped_softmax(step: Step) -> Iterator[Mistake]:
    """Yield the gradients of queries and keys that follow from a mistake in the softmax, for a
    function that computes attention without showing its intermediates through `tap`."""
    if "weights" in step.trace.values or not {"weights", "scores"} <= step.gradients.keys():
        return
    y, dy, dx = step.values["weights"], step.gradients["weights"], step.gradients["scores"]

    def onto(dx: np.ndarray, x: np.ndarray, is_key: bool) -> np.ndarray | None:
        """Return the gradient of the step's node, given the gradient dx of the scores and x, the
        other factor of Q Kᵀ: dS K if the node is the query, dSᵀ Q if it is the key (`is_key`). The
        product is summed to the node's shape. Returns None if its shape does not allow this."""
        made = matmul(dx.mT if is_key else dx, x)
        like = step.value
        return None if made is None else summed_to(summed_over_groups(made, like), like.shape)

    inputs = [step.values[name] for name in step.trace.inputs if step.values[name].ndim >= 2]
    for x, is_key in itertools.product(inputs, (False, True)):
        c = step.multiple(onto(dx, x, is_key), step.right)
        if c is None:
            continue
        for name, dscores, text in _softmax_mistakes(y, dy, ("scores", "weights")):
            wrong = onto(dscores, x, is_key)
            yield name, None if wrong is None else c * wrong, f"it follows from {text}"


def _softmax_mistakes(
    y: np.ndarray, dy: np.ndarray, letters: tuple[str, str], axis: int = -1
) -> list[tuple[str, np.ndarray, str]]:
    """List known mistakes in the gradient of y = softmax(x) along an axis: for each, the name of
    the cause, the gradient that results, and a sentence about it, in which x and y are called by
    the two `letters`."""

    def row(a: np.ndarray, axis: Any = axis) -> np.ndarray:
        return np.asarray(a.sum(axis=axis, keepdims=True))

    n, (dx_, y_), dy_ = y.shape[axis], (f"d{letters[0]}", letters[1]), f"d{letters[1]}"
    weighted, one_row = f"Σ {dy_} · {y_}", "over each row"
    if axis % y.ndim != y.ndim - 1:
        one_row = f"over axis {axis % y.ndim}"
    where = f"the sum must run {one_row} of {y_}"
    right = f"{y_} · ({dy_} − {weighted})"
    known = [
        ("row-term", y * dy, f"{y_} · {dy_}", f"the sum {one_row} is missing"),
        ("row-term", y * (dy - row(dy)), f"{y_} · ({dy_} − Σ {dy_})", f"the sum lacks {y_}"),
        ("row-term", y * (dy + row(y * dy)), f"{y_} · ({dy_} + {weighted})", "the sign is wrong"),
        ("without-p", dy - row(y * dy), f"{dy_} − {weighted}", f"the factor {y_} is missing"),
        (
            "mean", y * (dy - row(y * dy) / n), f"{y_} · ({dy_} − mean({dy_} · {y_}))",
            "the mean is used instead of the sum",
        ),
        (
            "mean", y * (dy - row(dy) / n), f"{y_} · ({dy_} − mean({dy_}))",
            f"this subtracts the plain mean of {dy_}; the right mean is weighted by {y_}",
        ),
        (
            "diagonal", y * (1 - y) * dy, f"{y_} · (1 − {y_}) · {dy_}",
            f"this is only the diagonal of the Jacobian, but an entry of {letters[0]} changes its "
            f"whole row of {y_}",
        ),
        ("axis", y * (dy - np.sum(y * dy)), f"{right} with the sum over all entries", where),
    ]  # fmt: skip
    known += [
        ("axis", y * (dy - row(y * dy, k)), f"{right} with the sum over axis {k}", where)
        for k in range(y.ndim)
        if k != axis % y.ndim
    ]
    if axis % y.ndim == y.ndim - 1 and y.ndim > 1 and y.shape[-1] == y.shape[-2]:
        across = y * (dy - row(y * dy).mT)
        what = f"{right} with the sum of row j in column j"
        known.append(("axis", across, what, "keepdims=True keeps each sum in its row"))
    return [
        (f"softmax-{name}", dx, f"{dx_} = {yours}: {fault}.\nCorrect: {dx_} = {right}")
        for name, dx, yours, fault in known
    ]


def sharpness(x: np.ndarray, p: np.ndarray, axis: int) -> float | None:
    """Return the number c for which each row of p along the axis is proportional to exp(c · x), as
    in p = softmax(c · x), except that masked entries of p are 0. Returns None if there is no such
    c, or if p has too few entries for an answer."""
    seen = p > 0
    count = seen.sum(axis=axis, keepdims=True)
    free = seen.sum() - (count > 0).sum()
    if (p < 0).any() or not free:
        return None

    def centred(a: np.ndarray) -> np.ndarray:
        a = np.where(seen, a, 0)
        return np.where(seen, a - a.sum(axis=axis, keepdims=True) / np.maximum(count, 1), 0)

    logs, x = centred(np.log(np.where(seen, p, 1))), centred(x)
    c = float(np.sum(logs * x) / (np.sum(x * x) or 1.0))
    is_plain = free > 1 or abs(c - 1) < 1e-6  # a single difference has a c in any case
    return c if c > 1e-6 and is_plain and np.allclose(logs, c * x, atol=1e-6) else None


def dropout(step: Step) -> Iterator[Mistake]:
    """Yield the gradients that result if the backward of dropout does not drop the entries that the
    forward dropped, or lacks the factor 1 / (1 − p)."""
    if not step.keeps_shape:
        return
    some = step.value != 0
    ratios = step.output[some] / step.value[some]
    grown = float(ratios.max(initial=0.0))  # 1 / (1 − p)
    is_kept = abs(ratios - grown) < 1e-9 * grown
    if grown <= 1 + 1e-9 or not (is_kept | (ratios == 0)).all() or is_kept.all():
        return
    if not step.value[some][~is_kept].max() > step.value[some][is_kept].min():
        return  # relu's threshold is not a random draw
    unscaled = f"the factor 1/(1 − p) = {grown:.4g} of the forward is missing in the backward"
    dropped_too = "a gradient reaches entries that dropout set to 0: they must get gradient 0"
    yield "dropout-unscaled", step.dy * ((step.output != 0) | ~some), unscaled
    yield "dropout-ignored", step.dy, dropped_too
    yield "dropout-ignored", grown * step.dy, dropped_too
    redrawn = grown * step.dy * (step.yours != 0)
    text = "it drops different entries from the forward: draw the dropout mask once, and use it in "
    yield "dropout-redrawn", redrawn if redrawn.any() else None, f"{text}both"


def mask(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if it is wrong only at entries that do not
    affect the result, because the forward masks them."""
    if step.is_part:
        return  # the other consumers may depend on what is masked here
    size, off = abs(step.right).max(initial=0.0), step.off
    if not off.any() or not step.right[~off].any():
        return
    if (abs(step.right[off]) <= 1e-12 * size).all():
        text = f"{int(off.sum())} entries that do not affect the result get a gradient, and all "
        yield (
            "mask-ignored",
            step.yours,
            f"{text}others are right: the mask is missing in the backward",
        )


def parts_exchanged(step: Step) -> Iterator[Mistake]:
    """For a node that is split into parts, yield its right gradient with the gradients of two parts
    swapped."""
    for (a, x), (b, y) in itertools.combinations(step.parts.items(), 2):
        here, there = x != 0, y != 0
        if (here & there).any() or here.sum() != there.sum():
            continue
        exchanged = step.right.copy()
        exchanged[here], exchanged[there] = step.right[there], step.right[here]
        text = f"the gradients of {a} and {b} are swapped in that of {step.name}"
        yield "another-input", exchanged, text
