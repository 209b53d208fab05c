"""Which inputs influence each output? Found by changing inputs and comparing outputs.

The weights are moved at random first: at initialisation, zeros among them may block a path from an
input to an output.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .probe import Arrays, Probe
from .report import Finding, some


def batch(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a sequence of the batch influences the logits of another."""
    if len(probe.inputs) < 2:
        return
    changed = probe.inputs.copy()
    changed[0] = probe.other_tokens(changed[0])
    with probe.holding(probe.moved()):
        moved = _differ(probe.logits(), probe.logits(changed))[1:]  # (B - 1, T), or (B - 1,)
    if moved.any():
        count = np.count_nonzero(moved.reshape(len(moved), -1).any(axis=1))
        figure = f"other tokens in sequence 0 change the logits of {count} of {len(moved)} others"
        text = (
            "information passes from one sequence of the batch to another: a reshape that mixes "
            "the axes B, H and T where a transpose is needed, or a mean or softmax over "
            "the batch axis"
        )
        where = "axis 0, the batch"
        yield Finding("sequences of a batch mix", where, figure, text, "07 multi-head")


def future_and_past(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a model that predicts the next token sees the future, or does not see the
    past."""
    if not probe.per_position:
        return
    places, sizes = _influence(probe, probe.moved())
    t, moved = np.arange(sizes.shape[1]), sizes > _ROUNDING
    earlier, later = moved & (t < places[:, None]), moved & (t > places[:, None])
    leaks, unseen = earlier.any(axis=1), ~later.any(axis=1) & (places < places.max())
    if later.any() and unseen.any():  # small weights: a sharp softmax hides keys that a mask shows
        small = {
            name: (0.02 * probe.rng.standard_normal(x.shape)).astype(x.dtype) if x.ndim > 1 else x
            for name, x in probe.weights().items()
        }
        again = _influence(probe, small)[1] * (t > places[:, None])
        unseen &= ~(again > _ROUNDING).any(axis=1)
    clear = np.median(np.max(sizes * later, axis=1)) > _CLEAR  # else it may be too weak to be seen
    if probe.predicts_next and leaks.any():
        yield _leak(probe, places[leaks], earlier[leaks], bool(later.any()))
    elif not later.any() and not leaks.any() and not probe.attention(probe.inputs[:1]):
        probe.figures["past and future"] = "invisible: the model sees the current token only"
    elif probe.predicts_next and unseen.any() and (clear or not later.any()):
        where = "any position" if not later.any() else f"position {places[unseen][0]}"
        figure = f"a new token at {where} changes no later logits"
        text = (
            "the past has no influence, although the model computes attention: its output is "
            "not used, or every query sees only itself. Is the mask inverted?"
            if not later.any()
            else f"the past is cut off after {int(unseen.sum())} of {len(places)} positions. Heads "
            "that are split by a reshape without a transpose do this: it cuts the sequence "
            "into pieces, and each head sees only one of them"
        )
        chapter = "07 multi-head" if later.any() else "06 masks"
        yield Finding("past without influence", _layers(probe), figure, text, chapter)
    else:
        causal = "so is the future" if leaks.any() else "the future is not"
        probe.figures["past and future"] = f"the past is visible, {causal}"


def _influence(probe: Probe, weights: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Replace one token of a sequence at a time, at up to `_MOST` positions. Return these P
    positions (P,), and how much each replacement changes the logits at all positions (P, T), in
    units in the last place of the largest logit. The parameters have the values in `weights`."""
    row = int(np.argmax(probe.real.sum(axis=1)))
    real = probe.real[row].nonzero()[0]
    places = real[np.unique(np.linspace(0, len(real) - 1, _MOST).astype(int))]
    changed = np.repeat(probe.inputs[row : row + 1], len(places) + 1, axis=0)
    for k, place in enumerate(places):
        changed[k : k + 1, place] = probe.other_tokens(changed[k : k + 1, place])
    with probe.holding(weights):
        logits = probe.logits(changed)
    return places, _difference(logits[:-1], logits[-1:])


_MOST = 64  # positions
_ROUNDING, _CLEAR = 50, 1e4  # units in the last place of the largest logit


def _leak(probe: Probe, places: np.ndarray, earlier: np.ndarray, sees_past: bool) -> Finding:
    """Return the finding that the tokens at these positions change the logits of earlier positions:
    `earlier` (P, T) is True for each such change. `sees_past` says whether tokens also change the
    logits of later positions, as they should."""
    k = len(places) // 2
    found = earlier[k].nonzero()[0]
    span = f"s {found[0]} to {found[-1]}" if len(found) > 1 else f" {found[0]}"
    figure = f"a new token at position {places[k]} changes the logits of position{span}"
    if not sees_past:
        figure += ", and of no later position"
        text = (
            "each position sees the future and not the past: the mask is inverted or "
            "transposed. In minimha, True means may attend; in torch's boolean masks, True often "
            "means hidden"
        )
        return Finding("mask the wrong way round", _layers(probe), figure, text, "06 masks")
    cause = (
        "It sees only a few positions too far: check the offset of the causal mask"
        if found[0] > 0
        else "The causal mask is missing, is not passed on to attention, or comes after the "
        "softmax; a mean or norm runs over the positions; or heads are merged by a reshape "
        "without a transpose"
    )
    text = (
        "a position sees a token that it should predict, so the loss in training is low and "
        f"generation fails. {cause}"
    )
    return Finding("leak from the future", _layers(probe), figure, text, "06 masks")


def positions(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the model does not know the order of its inputs.

    In a sequence of equal tokens, all positions look the same to a model without positional
    information: each query gives all visible keys the same weight, and the logits are the same at
    all positions. The finding is yielded if both are true. A classifier has one row of logits for
    the whole sequence: instead of the second condition, these must stay the same if the tokens
    between the first and the last are reversed.
    """
    if probe.inputs.dtype.kind == "f" or probe.inputs.shape[1] < 3:
        return
    equal = np.repeat(probe.inputs[:1, :1], probe.inputs.shape[1], axis=1)
    with probe.holding(probe.moved()):
        weights = probe.attention(equal)
        if probe.per_position:
            logits = probe.logits(equal)[0]
            same = not _differ(logits, logits[:1]).any()
        else:  # the order of all but the first and the last input: [CLS] and [SEP] may be there
            order = np.arange(probe.inputs.shape[1])
            order[1:-1] = order[-2:0:-1]
            same = not _differ(probe.logits(), probe.logits(probe.inputs[:, order])).any()
    if not weights or not same or not all(_is_uniform(step.value) for step in weights):
        return
    figure = (
        "for a sequence of equal tokens, all positions have the same logits"
        if probe.per_position
        else "the inputs in reverse order have the same logits"
    )
    text = (
        "attention by itself ignores the order of its keys, and nothing adds it: add an embedding "
        "of the positions to that of the tokens, or rotate queries and keys (rope)"
    )
    yield Finding("no positions", "the input", figure, text, "08 positions")


def padding(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the logits of real positions change when the padding after them is
    removed."""
    if probe.padding is None:
        return
    t = probe.inputs.shape[1]
    lengths = np.max(probe.real * np.arange(1, t + 1), axis=1)
    rows = [b for b in np.argsort(lengths) if 0 < lengths[b] < t][:4]
    probe.figures["padding"] = f"invisible in {len(rows)} sequences" if rows else "none at the end"
    with probe.holding(probe.moved()):
        whole = probe.logits()
        for b in rows:
            alone = probe.logits(probe.inputs[b : b + 1, : lengths[b]])[0]
            with_padding = whole[b, : lengths[b]] if probe.per_position else whole[b]
            if _differ(with_padding, alone, loose=100).any():
                figure = (
                    f"without the {t - lengths[b]} padded positions of sequence {b}, "
                    f"its logits change by {abs(with_padding - alone).max():.2g}"
                )
                text = (
                    "padded positions take part: attention needs a mask that hides them as keys, "
                    "mask=mh.masks.padding(lengths), and a mean over positions must leave them out"
                )
                yield Finding("padding is visible", _layers(probe), figure, text, "06 masks")
                return


def _layers(probe: Probe) -> str:
    """Return the paths of the modules that compute attention, as text for a message; "the model" if
    no attention is found."""
    steps = probe.attention(probe.inputs[:1])
    places = dict.fromkeys(probe.place(step.node) for step in steps)
    return some([*places]) or "the model"


def _is_uniform(weights: np.ndarray) -> bool:
    visible = weights > 0
    mean = 1 / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    return bool(abs(weights / mean - 1)[visible].max(initial=0.0) < 1e-4)


def _differ(a: np.ndarray, b: np.ndarray, loose: float = 1.0) -> np.ndarray:
    """Return a boolean array: True for each row in which a and b differ by more than rounding can
    explain. `loose` multiplies the difference that is put down to rounding."""
    return _difference(a, b) > loose * _ROUNDING


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the largest difference between a and b in each row, in units in the last place of the
    largest entry."""
    unit = float(np.finfo(a.dtype).eps) * max(abs(a).max(), abs(b).max())
    return np.asarray(abs(a - b).max(axis=-1) / (unit or 1.0))
