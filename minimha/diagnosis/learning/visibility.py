"""Which inputs can each output see? Found by changing inputs and comparing outputs.

The weights are moved at random first, so that a path that zeros block at initialisation is open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .probe import Probe, Step
from .report import Finding, some
from .weights import attention_weights


def batch(probe: Probe) -> Iterator[Finding]:
    """The sequences of a batch do not see each other."""
    if len(probe.inputs) < 2:
        return
    changed = probe.inputs.copy()
    changed[0] = probe.other_tokens(changed[0])
    moved = _change(probe, changed)[1:]
    if moved.any():
        figure = (
            f"other tokens in sequence 0 change the logits of {int(_any(moved).sum())} of "
            f"{len(moved)} others"
        )
        text = (
            "information passes from one sequence of the batch to another: a reshape that mixes "
            "the axes B, H and T where a transpose is needed, or a mean or softmax over "
            "the batch axis"
        )
        where = "axis 0, the batch"
        yield Finding("sequences of a batch mix", where, figure, text, "07 multi-head")


def future_and_past(probe: Probe) -> Iterator[Finding]:
    """A model that predicts the next token sees the past, and not the future."""
    if not probe.per_position:
        return
    at = probe.inputs.shape[1] // 2
    changed = probe.inputs.copy()
    changed[:, at] = probe.other_tokens(changed[:, at])
    moved = _any(_change(probe, changed).T)  # (T,)
    earlier, later = moved[:at].nonzero()[0], moved[at + 1 :]
    sees_past = bool(later.any()) or not len(later)
    if probe.predicts_next and len(earlier):
        yield _leak(probe, at, earlier, sees_past)
    elif sees_past or len(earlier):
        causal = "the future is not" if not len(earlier) else "so is the future"
        probe.figures["past and future"] = f"the past is visible, {causal}"
    elif not _attentions(probe):
        probe.figures["past and future"] = "invisible: the model sees the current token only"
    else:
        figure = f"another token at position {at} changes no other logits"
        text = (
            "the past has no influence, although the model computes attention: its output is "
            "not used, or every query sees only itself. Is the mask inverted?"
        )
        yield Finding("past without influence", _layers(probe), figure, text, "06 masks")


def _leak(probe: Probe, at: int, earlier: np.ndarray, sees_past: bool) -> Finding:
    """The finding that the token at one position changes the logits of earlier ones."""
    places = f"{earlier[0]}" + (f" to {earlier[-1]}" if len(earlier) > 1 else "")
    figure = f"another token at position {at} changes the logits of position {places}"
    if not sees_past:
        figure += ", and of no later position"
        text = (
            "each position sees the future and not the past: the mask is inverted or "
            "transposed. In minimha True means may attend; in torch's boolean masks True often "
            "means hidden"
        )
        return Finding("mask the wrong way round", _layers(probe), figure, text, "06 masks")
    cause = (
        "It sees one position too far: check the offset of the causal mask"
        if list(earlier) == [at - 1]
        else "The causal mask is missing, is not passed on to attention, or comes after the "
        "softmax; or a mean or norm runs over the positions; or heads are split by a reshape "
        "without a transpose"
    )
    text = (
        "a position sees a token that it should predict, so the loss in training is low and "
        f"generation fails. {cause}"
    )
    return Finding("leak from the future", _layers(probe), figure, text, "06 masks")


def positions(probe: Probe) -> Iterator[Finding]:
    """The model knows the order of its inputs.

    A sequence of equal tokens looks the same from every position unless there are positions; then
    queries or keys differ, or the outputs do.
    """
    if probe.inputs.dtype.kind == "f" or probe.inputs.shape[1] < 3:
        return
    equal = np.repeat(probe.inputs[:1, :1], probe.inputs.shape[1], axis=1)
    with probe.holding(probe.moved()):
        weights = attention_weights(probe, probe.trace(equal)[1], probe.inputs.shape[1])
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
    """The logits of real positions are the same without the padding behind them."""
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


def _attentions(probe: Probe) -> list[Step]:
    t = probe.inputs.shape[1]
    return attention_weights(probe, probe.trace(probe.inputs[:1])[1], t)


def _layers(probe: Probe) -> str:
    """Where attention is, for a message."""
    places = dict.fromkeys(probe.place(step.node) for step in _attentions(probe))
    return some([*places]) or "the model"


def _is_uniform(weights: np.ndarray) -> bool:
    visible = weights > 0
    mean = 1 / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    return bool(abs(weights / mean - 1)[visible].max(initial=0.0) < 1e-4)


def _change(probe: Probe, changed: np.ndarray) -> np.ndarray:
    """Which logits (B, T), or (B,), differ between the batch and a changed one."""
    with probe.holding(probe.moved()):
        return _differ(probe.logits(), probe.logits(changed))


def _differ(a: np.ndarray, b: np.ndarray, loose: float = 1.0) -> np.ndarray:
    """Which rows differ by more than rounding."""
    allowed = 50 * loose * float(np.finfo(a.dtype).eps) * max(abs(a).max(), abs(b).max())
    return np.asarray(abs(a - b).max(axis=-1) > allowed)


def _any(moved: np.ndarray) -> np.ndarray:
    return np.array([bool(row.any()) for row in moved])
