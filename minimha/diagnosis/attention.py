"""What wrong gradients of attention look like: scale, groups, softmax, dropout, mask.

Each signature recognises a step of the forward by its values, whatever it is called, and compares
the gradient with what the known mistakes in its backward give.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .arrays import by_group, matmul, summed_over_groups, summed_to, through_softmax, transposed
from .causes import Cause
from .step import Step, products


def scale(step: Step) -> Cause | None:
    """The scale 1/√D of the scores, missing or there twice."""
    ratio = step.multiple(step.right, step.yours)
    if ratio is None or not _before_weights(step):
        return None
    nodes = step.trace.values if step.trace.located else ()
    made_from = [n for n in nodes if step.name in step.trace.descendants(n)]
    widths = {step.values[n].shape[-1] for n in (step.name, *made_from) if step.values[n].ndim >= 2}
    for d in sorted(widths - {1}):
        root, whole = f"√D = √{d} = {math.sqrt(d):.4g}", math.isqrt(d)
        also = f" As √{d} is whole, any other factor of {whole} looks the same." * (whole**2 == d)
        if abs(ratio / math.sqrt(d) - 1) < step.tolerance:
            text = f"it is {root} times the right one in every entry: is the 1/√D of the scores "
            return Cause("scale", f"{text}missing from the gradient of {step.name}?{also}")
        if abs(ratio * math.sqrt(d) - 1) < step.tolerance:
            text = f"it is 1/√D of the right one, with {root}: is the scale applied twice, or 1/D "
            return Cause("scale-twice", f"{text}in place of 1/√D?{also}")
    return None


def _before_weights(step: Step) -> bool:
    """Whether attention's weights are computed from it, or the names say that they are."""
    named = {name.lower() for name in step.trace.inputs}
    operands = [both for both in ({"query", "key"}, {"q", "k"}) if both <= named]
    if step.name.lower() in {"raw", "scaled", "scores"}.union(*operands):
        return True
    weights = (step.values[n] for n in step.downstream if n not in step.trace.results)
    return any(
        x.ndim >= 2 and (x >= 0).all() and np.allclose(x.sum(axis=-1).max(initial=0), 1)
        for x in weights
    )


def groups(step: Step) -> Cause | None:
    """Query heads that read the same key head, and the gradient of that one."""
    per_head = [p.array for p in products(step, each_head=True)]
    for x in (*per_head, *step.gradients.values()):
        each = by_group(x, step.value)
        factor = None if each is None else step.multiple(each.sum(axis=-3), step.right)
        if each is None or factor is None:
            continue
        each, rep = factor * each, each.shape[-3]
        in_turn = (factor * x).reshape(*x.shape[:-3], rep, -1, *x.shape[-2:]).sum(axis=-4)
        rule = f": each head of {step.name} serves {rep} query heads, and its gradient is their sum"
        one, turns = "it is that of query head {} of each group alone", "heads h, h + G, h + 2G …"
        mistakes = [
            ("groups-mean", each.mean(axis=-3), f"it is the mean over the group{rule}"),
            *(("groups-one-member", each[..., n, :, :], one.format(n) + rule) for n in range(rep)),
            (
                "groups-interleaved",
                in_turn,
                f"it sums {turns}, but a group is adjacent heads{rule}",
            ),
        ]
        if cause := step.made_by(mistakes):
            return cause
    return None


def softmax(step: Step) -> Cause | None:
    """dscores = P · (dP − Σ P · dP), and what is left when a piece of it is missing."""
    if not step.keeps_shape:
        return None
    p, dp, scores = step.output, step.dy, step.value
    for axis in reversed(range(p.ndim)):
        c = sharpness(scores, p, axis)
        if c and step.is_right(c * through_softmax(p, dp, axis)):
            break
    else:
        return None
    mistakes = _softmax_mistakes(p, dp, axis)
    if cause := step.made_by((name, c * ds, f"it is {text}") for name, ds, text in mistakes):
        return cause
    for name, z in step.values.items():
        if z.shape == p.shape and np.isfinite(z).all() and np.allclose(z[p > 0], scores[p > 0]):
            unmasked = np.exp(c * (z - z.max(axis=axis, keepdims=True)))
            unmasked /= unmasked.sum(axis=axis, keepdims=True)
            if step.is_yours(c * through_softmax(unmasked, dp, axis)):
                text = f"it is that of softmax({name}) without the mask: the backward needs the "
                return Cause("mask-ignored", f"{text}weights that the forward made")
    return None


def untapped_softmax(step: Step) -> Cause | None:
    """A mistake in the softmax of attention without taps, as it shows in dQ and dK."""
    if "weights" in step.trace.values or not {"weights", "scores"} <= step.gradients.keys():
        return None
    p, dp, ds = step.values["weights"], step.gradients["weights"], step.gradients["scores"]

    def onto(ds: np.ndarray, x: np.ndarray, is_key: bool) -> np.ndarray | None:
        """dQ = dS K or dK = dSᵀ Q, in the shape of the node; None if it has no such shape."""
        made = matmul(transposed(ds) if is_key else ds, x)
        like = step.value
        return None if made is None else summed_to(summed_over_groups(made, like), like.shape)

    inputs = [step.values[name] for name in step.trace.inputs if step.values[name].ndim >= 2]
    for x, is_key in itertools.product(inputs, (False, True)):
        c = step.multiple(onto(ds, x, is_key), step.right)
        if c is None:
            continue
        for name, dscores, text in _softmax_mistakes(p, dp):
            wrong = onto(dscores, x, is_key)
            if wrong is not None and step.is_yours(c * wrong):
                return Cause(name, f"it is what comes of {text}")
    return None


def _softmax_mistakes(
    p: np.ndarray, dp: np.ndarray, axis: int = -1
) -> list[tuple[str, np.ndarray, str]]:
    """Known mistakes in the gradient of softmax, and the gradients that they give."""

    def row(a: np.ndarray, axis: Any = axis) -> np.ndarray:
        return np.asarray(a.sum(axis=axis, keepdims=True))

    formula = "P · (dP − Σ P · dP)"
    right = f"correct: {formula}, with the sum over the row"
    known = [
        ("softmax-row-term", p * dp, "P · dP, without the sum that each row shares"),
        ("softmax-row-term", p * (dp - row(dp)), "P · (dP − Σ dP): the P in the sum is missing"),
        ("softmax-row-term", p * (dp + row(p * dp)), "P · (dP + Σ P · dP): the sign is wrong"),
        ("softmax-without-p", dp - row(p * dp), "dP − Σ P · dP, without the factor P"),
        ("softmax-mean", p * (dp - row(p * dp) / p.shape[axis]), f"{formula} with the mean for Σ"),
        ("softmax-axis", p * (dp - np.sum(p * dp)), f"{formula} with the sum over everything"),
        ("softmax-diagonal", p * (1 - p) * dp, "P · (1 − P) · dP, the diagonal of the Jacobian"),
    ]
    known += [
        ("softmax-axis", p * (dp - row(p * dp, n)), f"{formula} with the sum over axis {n}")
        for n in range(p.ndim)
        if n != axis % p.ndim
    ]
    if axis % p.ndim == p.ndim - 1 and p.ndim > 1 and p.shape[-1] == p.shape[-2]:
        across = p * (dp - transposed(row(p * dp)))
        known.append(("softmax-axis", across, f"{formula} with Σ of row j in column j: keepdims?"))
    return [(name, ds, f"dscores = {text}; {right}") for name, ds, text in known]


def sharpness(x: np.ndarray, p: np.ndarray, axis: int) -> float | None:
    """The c of p = softmax(c · x) along an axis, or of a multiple of that in each row; masked
    entries of p are 0. None if there is no such c, or if any p would have one."""
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


def dropout(step: Step) -> Cause | None:
    """dx = keep · dy / (1 − p), for the keep of the forward."""
    if not step.keeps_shape:
        return None
    some = step.value != 0
    ratios = step.output[some] / step.value[some]
    grown = float(ratios.max(initial=0.0))  # 1 / (1 − p)
    is_kept = abs(ratios - grown) < 1e-9 * grown
    if grown <= 1 + 1e-9 or not (is_kept | (ratios == 0)).all() or is_kept.all():
        return None
    if not step.value[some][~is_kept].max() > step.value[some][is_kept].min():
        return None  # relu's threshold is no draw
    other = np.divide(step.yours, step.dy, out=np.zeros_like(step.dy), where=step.dy != 0)
    is_grown = np.isclose(other, grown)
    unscaled = f"the forward multiplies what it keeps by 1/(1 − p) = {grown:.4g}, the backward not"
    dropped_too = "a gradient reaches entries that dropout set to 0: the backward must do the same"
    mistakes = [
        ("dropout-unscaled", step.dy * ((step.output != 0) | ~some), unscaled),
        ("dropout-ignored", step.dy, dropped_too),
        ("dropout-ignored", grown * step.dy, dropped_too),
    ]
    if cause := step.made_by(mistakes):
        return cause
    if is_grown.any() and (is_grown | (step.yours == 0)).all():
        text = "it drops other entries than the forward did: is it drawn again? Draw once"
        return Cause("dropout-redrawn", text)
    return None


def mask(step: Step) -> Cause | None:
    """A gradient where the forward masks."""
    if step.is_part:
        return None  # the others may depend on what is masked here
    size, off = abs(step.right).max(initial=0.0), step.off
    if not off.any() or not step.right[~off].any() or (abs(step.right[off]) > 1e-12 * size).any():
        return None
    return Cause(
        "mask-ignored",
        f"a gradient reaches {int(off.sum())} entries on which the result does not depend, and all "
        "others are right: is the mask missing in the backward?",
    )


def parts_exchanged(step: Step) -> Cause | None:
    """A node cut into parts, whose gradients are returned in each other's place."""
    if step.consumer is not None or not 2 <= len(step.consumers) <= 4:
        return None
    parts = {c: step.trace.part(step.name, c) for c in step.consumers}
    for (a, x), (b, y) in itertools.combinations(parts.items(), 2):
        here, there = x != 0, y != 0
        if (here & there).any() or here.sum() != there.sum():
            continue
        exchanged = step.right.copy()
        exchanged[here], exchanged[there] = step.right[there], step.right[here]
        if step.is_yours(exchanged):
            text = f"the gradients of {a} and {b} are exchanged in that of {step.name}"
            return Cause("another-input", text)
    return None
