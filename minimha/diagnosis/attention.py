"""What wrong gradients of attention, and of what stands around it, look like.

Each signature recognises a step of the forward by its values, whatever it is called, and compares
the gradient with what the known mistakes in its backward give. `mh.gradcheck` asks them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from minimha_autograd.gradcheck.edge import (
    Edge,
    Named,
    fitted,
    grouped,
    heads_alike,
    members,
    products,
    stand_in,
)
from minimha_autograd.gradcheck.explain import AXES
from minimha_autograd.gradcheck.locate import Trace
from minimha_autograd.gradcheck.signatures import Cause, signature

from ..attention import attention_steps as steps_of_attention

_NAMES = {  # of the usual number of axes: with fewer, the first could be any
    ("query", "q", "heads"): ("batch", "head", "query", "column"),
    ("key", "k", "value", "v"): ("batch", "head", "key", "column"),
    ("raw", "scaled", "capped", "biased", "scores", "weights", "dropped"): (
        "batch", "head", "query", "key",
    ),
}  # fmt: skip
AXES.update({(name, len(axes)): axes for names, axes in _NAMES.items() for name in names})


@signature
def scale(e: Edge) -> Cause | None:
    """The scale 1/√D of the scores, missing or there twice."""
    ratio = e.multiple(e.right, e.yours)
    if ratio is None or not _before_weights(e):
        return None
    nodes = e.trace.values if e.trace.located else ()
    made_from = [n for n in nodes if e.name in e.trace.descendants(n)]
    widths = {e.values[n].shape[-1] for n in (e.name, *made_from) if e.values[n].ndim >= 2}
    for d in sorted(widths - {1}):
        root = f"√D = √{d} = {math.sqrt(d):.4g}"
        whole = math.isqrt(d)
        also = f" As √{d} is whole, any other factor of {whole} looks the same." * (whole**2 == d)
        if abs(ratio / math.sqrt(d) - 1) < e.tolerance:
            return Cause(
                "scale",
                f"it is {root} times the right one in every entry: is the 1/√D of the scores "
                f"missing from the gradient of {e.name}?{also}",
                "05 attention",
            )
        if abs(ratio * math.sqrt(d) - 1) < e.tolerance:
            return Cause(
                "scale-twice",
                f"it is 1/√D of the right one, with {root}: is the scale applied twice, or 1/D in "
                f"place of 1/√D?{also}",
                "05 attention",
            )
    return None


def _before_weights(e: Edge) -> bool:
    """Whether attention's weights are computed from it, or the names say that they are."""
    named = {name.lower() for name in e.trace.inputs}
    pairs = [pair for pair in ({"query", "key"}, {"q", "k"}) if pair <= named]
    if e.name.lower() in {"raw", "scaled", "scores"}.union(*pairs):
        return True
    weights = (e.values[n] for n in e.downstream if n not in e.trace.results)
    return any(
        x.ndim >= 2 and (x >= 0).all() and np.allclose(x.sum(axis=-1).max(initial=0), 1)
        for x in weights
    )


@signature
def groups(e: Edge) -> Cause | None:
    """Query heads that read the same key head, and the gradient of that one."""
    shared = [p.array for p in products(e, heads=True)]
    for x in (*shared, *e.gradients.values()):
        each = members(x, e.value)
        if each is None or each.sum(axis=-3).shape != e.right.shape:
            continue
        factor = e.multiple(each.sum(axis=-3), e.right)
        if factor is None:
            continue
        each, rep = factor * each, each.shape[-3]
        says = (
            f"each head of {e.name} serves {rep} query heads, and its gradient is the sum of theirs"
        )
        if e.is_yours(each.mean(axis=-3)):
            return Cause("groups-mean", f"it is the mean over the group: {says}", "07 multi-head")
        for n in range(rep):
            if e.is_yours(each[..., n, :, :]):
                return Cause(
                    "groups-one-member",
                    f"it is that of query head {n} of each group alone: {says}",
                    "07 multi-head",
                )
        in_turn = (factor * x).reshape(*x.shape[:-3], rep, -1, *x.shape[-2:]).sum(axis=-4)
        if e.is_yours(in_turn):
            return Cause(
                "groups-interleaved",
                f"it is summed over heads h, h + G, h + 2G …: {says}, and a group is {rep} heads "
                "in a row",
                "07 multi-head",
            )
    return None


@signature
def softmax(e: Edge) -> Cause | None:
    """dscores = P · (dP − Σ P · dP), and what is left when a piece of it is."""
    if e.consumer is None or e.output.shape != e.value.shape:
        return None
    p, dp = e.output, e.dy
    for axis in reversed(range(p.ndim)):
        c = sharpness(e.value, p, axis)
        if c and e.is_right(c * _through_softmax(p, dp, axis)):
            break
    else:
        return None
    for cause, dscores in _slips(p, dp, axis):
        if e.is_yours(c * dscores):
            return cause._replace(text=f"it is {cause.text}")
    for name, z in e.values.items():
        if z.shape == p.shape and np.isfinite(z).all() and np.allclose(z[p > 0], e.value[p > 0]):
            u = np.exp(c * (z - z.max(axis=axis, keepdims=True)))
            u /= u.sum(axis=axis, keepdims=True)
            if e.is_yours(c * _through_softmax(u, dp, axis)):
                return Cause(
                    "mask-ignored",
                    f"it is that of softmax({name}) without the mask: the backward needs the "
                    "weights that the forward made",
                    "06 masks",
                )
    return None


@stand_in
def attention_steps(trace: Trace) -> tuple[Named, Named]:
    """The weights of attention, where a function without taps turns out to compute it."""
    named = {name.lower(): name for name in trace.inputs}
    roles = [named.get(role) or named.get(role[0]) for role in ("query", "key", "value")]
    if None in roles or set(trace.values) != {*trace.inputs, *trace.results}:
        return {}, {}
    q, k, v = (trace.values[name] for name in roles if name)
    out, dout = (x[trace.results[0]] for x in (trace.values, trace.right))
    if not min(q.ndim, k.ndim, v.ndim) >= 2 or not q.size * k.size:
        return {}, {}
    reach = k.shape[-2] - q.shape[-2]
    seen = [None, *(np.tri(q.shape[-2], k.shape[-2], n, dtype=bool) for n in {0, reach})]
    seen += [x for x in map(np.asarray, trace.subject.arrays) if x.dtype == bool]
    width = q.shape[-1]
    for visible, scale in itertools.product(seen, (width**-0.5, 1.0, 1 / width)):
        try:
            steps = steps_of_attention(q, k, v, visible, scale=scale)
        except (TypeError, ValueError):
            continue
        if steps["out"].shape == out.shape and np.allclose(steps["out"], out, rtol=1e-9, atol=0):
            p = steps["weights"]
            dp = dout @ np.swapaxes(heads_alike(dout, v)[1], -1, -2)
            return {"weights": p}, {"weights": dp, "scores": _through_softmax(p, dp, -1)}
    return {}, {}


@signature
def untapped_softmax(e: Edge) -> Cause | None:
    """A mistake in the softmax of attention without taps, as it shows in dQ and dK."""
    if "weights" in e.trace.values or not {"weights", "scores"} <= e.gradients.keys():
        return None
    p, dp, ds = e.values["weights"], e.gradients["weights"], e.gradients["scores"]
    for x in (x for name, x in e.values.items() if name in e.trace.inputs and x.ndim >= 2):
        for turned in (False, True):
            for cause, dscores in _slips(p, dp):
                right, wrong = (_onto(e.value, a, x, turned) for a in (ds, dscores))
                c = e.multiple(right, e.right)
                if c and wrong is not None and e.is_yours(c * wrong):
                    return cause._replace(text=f"it is what comes of {cause.text}")
    return None


def _onto(like: np.ndarray, ds: np.ndarray, x: np.ndarray, turned: bool) -> np.ndarray | None:
    """dQ = dS K or, turned, dK = dSᵀ Q, in the shape of the one asked for; None if it has none."""
    try:
        made = np.matmul(*heads_alike(np.swapaxes(ds, -1, -2) if turned else ds, x))
    except ValueError:
        return None
    return fitted(grouped(made, like), like.shape)


def _through_softmax(p: np.ndarray, dp: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(p * (dp - (p * dp).sum(axis=axis, keepdims=True)))


def _slips(p: np.ndarray, dp: np.ndarray, axis: int = -1) -> Iterator[tuple[Cause, np.ndarray]]:
    """Known mistakes in the gradient of softmax, and the gradients that they give."""

    def row(a: np.ndarray, axis: Any = axis) -> np.ndarray:
        return np.asarray(a.sum(axis=axis, keepdims=True))

    formula = "P · (dP − Σ P · dP)"
    right = f"right is {formula}, with the sum over the row"
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
        across = p * (dp - np.swapaxes(row(p * dp), -1, -2))
        known.append(("softmax-axis", across, f"{formula} with Σ of row j in column j: keepdims?"))
    for name, dscores, text in known:
        yield Cause(name, f"dscores = {text}; {right}", "05 attention"), dscores


def sharpness(x: np.ndarray, p: np.ndarray, axis: int) -> float | None:
    """The c of p = softmax(c · x) along an axis, or of a multiple of that in each row; hidden
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


@signature
def dropout(e: Edge) -> Cause | None:
    """dx = keep · dy / (1 − p), for the keep of the forward."""
    if e.consumer is None or e.output.shape != e.value.shape:
        return None
    some = e.value != 0
    ratios = e.output[some] / e.value[some]
    grown = float(ratios.max(initial=0.0))
    is_kept = abs(ratios - grown) < 1e-9 * grown
    if grown <= 1 + 1e-9 or not (is_kept | (ratios == 0)).all() or is_kept.all():
        return None
    if e.value[some][~is_kept].max() > e.value[some][is_kept].min():  # relu's threshold is no draw
        return _drawn(e, (e.output != 0) | ~some, grown)
    return None


def _drawn(e: Edge, keep: np.ndarray, grown: float) -> Cause | None:
    if e.is_yours(e.dy * keep):
        return Cause(
            "dropout-unscaled",
            f"what is kept is multiplied by 1/(1 − p) = {grown:.4g} in the forward, and its "
            "gradient is not",
            "05 attention",
        )
    if e.is_yours(e.dy) or e.is_yours(grown * e.dy):
        return Cause(
            "dropout-ignored",
            "a gradient reaches entries that dropout set to 0: the backward has to drop them too",
            "05 attention",
        )
    other = np.divide(e.yours, e.dy, out=np.zeros_like(e.dy), where=e.dy != 0)
    is_grown = np.isclose(other, grown)
    if is_grown.any() and (is_grown | (e.yours == 0)).all():
        return Cause(
            "dropout-redrawn",
            "it drops other entries than the forward did: is it drawn again? Draw once",
            "05 attention",
        )
    return None


@signature
def mask(e: Edge) -> Cause | None:
    """A gradient where the forward hides."""
    if e.consumer is not None and len(e.consumers) > 1:
        return None  # the others may depend on what is hidden here
    size, off = abs(e.right).max(initial=0.0), e.off
    if not size or not off.any() or off.all() or (abs(e.right[off]) > 1e-12 * size).any():
        return None
    if not e.right[~off].any():
        return None
    return Cause(
        "mask-ignored",
        f"a gradient reaches {int(off.sum())} entries on which the result does not depend, and all "
        "others are right: is the mask missing in the backward?",
        "06 masks",
    )


@signature
def rope(e: Edge) -> Cause | None:
    """Pairs of columns turned by an angle: the gradient turns back."""
    for x, gradient in _in_the_layout_of_the_output(e):
        if x.shape[-1] % 2:
            continue
        for as_pairs in (_halves, _neighbours):
            before, after = as_pairs(x), as_pairs(e.output)
            turn = after / before
            one = turn.reshape(-1, *turn.shape[-2:])[0]  # angles depend on the position alone
            if not np.allclose(abs(turn), 1, rtol=1e-6) or not np.allclose(turn, one):
                continue
            if np.allclose(turn.imag, 0):
                continue
            dy, dx = as_pairs(e.dy), as_pairs(gradient)
            size = abs(dx).max(initial=0.0)
            if abs(dx - dy * turn).max() < e.tolerance * size:
                return Cause(
                    "rope-direction",
                    "it is turned the same way as in the forward: the gradient of a rotation by θ "
                    "is the rotation by −θ",
                    "08 positions",
                )
            if abs(dx - dy).max() < e.tolerance * size:
                return Cause(
                    "rope-ignored",
                    "it is not turned back by the angle by which the forward turned: pairs have "
                    "the right length and the wrong direction",
                    "08 positions",
                )
    return None


def _halves(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def _neighbours(x: np.ndarray) -> np.ndarray:
    return x[..., ::2] + 1j * x[..., 1::2]


def _in_the_layout_of_the_output(e: Edge) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The node and its gradient as the consumer has them: as they are, or split into heads."""
    if e.consumer is None or e.yours.shape != e.value.shape or not e.value.ndim:
        return
    if e.value.shape == e.output.shape:
        yield e.value, e.yours
    elif e.value.ndim == e.output.ndim - 1 and e.value.size == e.output.size:
        heads, positions, width = e.output.shape[-3:]
        shape = (*e.value.shape[:-2], positions, heads, width)
        if e.value.shape[-2:] == (positions, heads * width):
            yield tuple(np.swapaxes(x.reshape(shape), -3, -2) for x in (e.value, e.yours))  # type: ignore[misc]


@signature
def norm(e: Edge) -> Cause | None:
    """Layer norm and RMS norm: dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ, g = dy · γ."""
    if e.consumer is None or e.output.shape != e.value.shape or e.value.ndim < 2:
        return None

    def mean(a: np.ndarray) -> np.ndarray:
        return a.mean(axis=-1, keepdims=True)

    for gain, shift in _affine(e):
        unit = (e.output - shift) / gain
        for is_layer, centred in ((True, e.value - mean(e.value)), (False, e.value)):
            inverse = mean(unit / centred)  # 1/σ
            if not np.allclose(unit, centred * inverse, rtol=1e-6, atol=1e-9):
                continue
            if np.allclose(inverse, inverse.flat[0], rtol=1e-6):
                continue  # one factor for all rows is no norm
            g, along = e.dy * gain, unit * mean(e.dy * gain * unit)
            middle = mean(g)
            right = g - middle - along if is_layer else g - along
            if not e.is_right(right * inverse):
                continue
            known = [
                ("norm-both-terms", g if is_layer else None, "mean(g) + x̂ · mean(g · x̂)"),
                ("norm-mean-term", g - along if is_layer else right - middle, "mean(g)"),
                ("norm-variance-term", g - middle if is_layer else g, "x̂ · mean(g · x̂)"),
            ]
            for name, candidate, text in known:
                if candidate is not None and e.is_yours(candidate * inverse):
                    verb = "is missing" if is_layer or name != "norm-mean-term" else "is too much"
                    return Cause(name, f"{text} {verb}: {_NORM[is_layer]}", "09 training")
            plain = e.dy - unit * mean(e.dy * unit)
            if e.is_yours((plain - mean(e.dy) if is_layer else plain) * inverse):
                text = f"the gain γ is missing in g: {_NORM[is_layer]}"
                return Cause("norm-gain", text, "09 training")
            if e.is_yours(right):
                return Cause("norm-sigma", f"1/σ is missing: {_NORM[is_layer]}", "09 training")
    return None


_NORM = {
    True: "right is dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · γ, since mean and σ "
    "depend on x",
    False: "right is dx = (g − x̂ · mean(g · x̂)) / σ with g = dy · γ, since σ depends on x",
}


def _affine(e: Edge) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Gains and shifts of the last axis that the step could have applied."""
    width = e.value.shape[-1:]
    vectors = [x for x in e.values.values() if x.shape == width]
    gains, shifts = [np.ones(width), *vectors], [np.zeros(width), *vectors]
    yield from itertools.product(gains, shifts)


def _is_normed(x: np.ndarray) -> bool:
    return np.allclose((x * x).mean(axis=-1), 1, rtol=1e-2)


@signature
def gain(e: Edge) -> Cause | None:
    """y = γ x̂ + β with the gradient passed on as it came."""
    if e.consumer is None or e.output.shape != e.value.shape or not e.is_yours(e.dy):
        return None
    for factor, shift in _affine(e):
        if _is_normed(e.value) and np.allclose(e.output, factor * e.value + shift):
            text = "the gain γ is missing: for y = γ · x̂ + β the gradient is dx̂ = γ · dy"
            return Cause("norm-gain", text, "09 training")
    return None


@signature
def blocks(e: Edge) -> Cause | None:
    """A node cut into parts, whose gradients come back in each other's place."""
    if e.consumer is not None or not 2 <= len(e.consumers) <= 4:
        return None
    shares = {c: e.trace.share(e.name, c) for c in e.consumers}
    for (a, x), (b, y) in itertools.combinations(shares.items(), 2):
        here, there = x != 0, y != 0
        if (here & there).any() or here.sum() != there.sum():
            continue
        exchanged = e.right.copy()
        exchanged[here], exchanged[there] = e.right[there], e.right[here]
        if e.is_yours(exchanged):
            text = f"the gradients of {a} and {b} stand in each other's place in that of {e.name}"
            return Cause("another-input", text, "07 multi-head")
    return None


@signature
def target(e: Edge) -> Cause | None:
    """Cross entropy: dlogits = (softmax(logits) − one-hot) / N."""
    if e.value.ndim < 1 or e.yours.shape != e.value.shape or not e.off.any():
        return None
    rows, size = e.off.any(axis=-1), abs(e.right).max(initial=0.0)
    if (e.off.sum(axis=-1) > 1).any() or abs(e.right.sum(axis=-1)).max() > e.tolerance * size:
        return None
    off = np.where(e.off, e.yours - e.right, 0).sum(axis=-1)[rows]
    p = e.yours[rows] / off[:, None]
    if abs(p.sum(axis=-1) - 1).max() > e.tolerance or not sharpness(e.value[rows], p, -1):
        return None
    return Cause(
        "target-missing",
        "it is the softmax, without 1 taken off at the target: dlogits = softmax(logits) − one-hot",
        "09 training",
    )


@signature
def embedding(e: Edge) -> Cause | None:
    """A row of a table that is read more than once."""
    if e.consumer is None or e.value.ndim != 2 or e.dy.shape[-1:] != e.value.shape[-1:]:
        return None
    off, width = e.off.any(axis=-1), e.value.shape[1]
    if not off.any() or width < 2 or fitted(e.dy, e.value.shape) is not None:
        return None
    made, dy = e.output.reshape(-1, width), e.dy.reshape(-1, width)
    for x, dx in zip(e.value[off], e.yours[off], strict=True):
        factor = (made @ x / (x @ x))[:, None]  # rows may be scaled as they are read
        is_read = (abs(made - factor * x) <= 1e-9 * abs(made).max(initial=0.0)).all(axis=-1)
        parts = (factor * dy)[is_read & (factor[:, 0] != 0)]
        size = abs(dx).max()
        if len(parts) < 2 or not (abs(parts - dx) <= e.tolerance * size).all(axis=-1).any():
            return None
    return Cause(
        "repeats-overwritten",
        f"each of the rows {', '.join(map(str, np.flatnonzero(off)[:5]))} is read more than once, "
        "and has the gradient of one of those places alone: gradients add up (np.add.at, not =)",
        "09 training",
    )
