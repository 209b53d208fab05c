"""Which inputs can each output see? Found by changing inputs and comparing outputs.

The weights are moved at random first, so that a path that zeros block at initialisation is open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .probe import Probe, Step
from .report import Finding, some


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
        yield Finding(
            "sequences of a batch mix", "axis 0, the batch", figure, text, "07 multi-head"
        )


def future_and_past(probe: Probe) -> Iterator[Finding]:
    """A model that predicts the next token sees the past, and not the future."""
    t = probe.inputs.shape[1]
    if not (probe.per_position and t > 1):
        return
    at = t // 2
    changed = probe.inputs.copy()
    changed[:, at] = probe.other_tokens(changed[:, at])
    moved = _any(_change(probe, changed).T)  # (T,)
    earlier, later = moved[:at].nonzero()[0], moved[at + 1 :]
    if probe.predicts_next and len(earlier):
        inverted = not later.any() and at + 1 < t
        figure = f"another token at position {at} changes the logits of {_positions(earlier)}"
        if inverted:
            figure += ", and of no later position"
        name = "mask the wrong way round" if inverted else "leak from the future"
        text = (
            "each position sees the future and not the past: the mask is inverted or "
            "transposed. In minimha True means may attend; in torch's boolean masks True often "
            "means hidden"
            if inverted
            else "a position sees a token that it should predict, so the loss in training is low "
            "and generation fails. "
            + (
                "It sees one position too far: check the offset of the causal mask"
                if list(earlier) == [at - 1]
                else "The causal mask is missing, is not passed on to attention, or comes after "
                "the softmax; or a mean or norm runs over the positions"
            )
        )
        yield Finding(name, _layers(probe), figure, text, "06 masks")
    elif at + 1 < t and not later.any() and (not len(earlier) or probe.predicts_next):
        if not _attentions(probe):
            probe.figures["past"] = "unused: the model sees the current token only"
            return
        figure = f"another token at position {at} changes no later logits"
        text = (
            "the past has no influence, although the model computes attention: its output is "
            "not used, or every query sees only itself. Is the mask inverted?"
        )
        yield Finding("past without influence", _layers(probe), figure, text, "06 masks")
    else:
        probe.figures["past and future"] = (
            "the past is visible, the future is not"
            if probe.predicts_next
            else "not causal"
            if len(earlier)
            else "causal"
        )


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
    lengths: np.ndarray = np.where(probe.real, np.arange(1, probe.inputs.shape[1] + 1), 0).max(
        axis=1
    )
    rows = [b for b in np.argsort(lengths) if 0 < lengths[b] < probe.inputs.shape[1]][:4]
    probe.figures["padding"] = f"invisible in {len(rows)} sequences" if rows else "none at the end"
    with probe.holding(probe.moved()):
        whole = probe.logits()
        for b in rows:
            alone = probe.logits(probe.inputs[b : b + 1, : lengths[b]])[0]
            with_padding = whole[b, : lengths[b]] if probe.per_position else whole[b]
            if _differ(with_padding, alone, loose=100).any():
                figure = (
                    f"without the {probe.inputs.shape[1] - lengths[b]} padded positions of "
                    f"sequence {b}, its logits change by {abs(with_padding - alone).max():.2g}"
                )
                text = (
                    "padded positions take part: attention needs a mask that hides them as keys, "
                    "mask=mh.masks.padding(lengths), and a mean over positions must leave them out"
                )
                yield Finding("padding is visible", _layers(probe), figure, text, "06 masks")
                return


def softmax_axis(probe: Probe) -> Iterator[Finding]:
    """The softmax of the scores runs over the keys, the last axis."""
    t = probe.inputs.shape[1]
    if t < 2 or t == len(probe.inputs):
        return
    for step in probe.trace(probe.inputs)[1]:
        y = step.value
        if not _is_square(y, t) or _sums_to_one(y, -1):
            continue
        others = (k for k in range(-2, -y.ndim - 1, -1) if y.shape[k] > 1)
        if axis := next((k for k in others if _sums_to_one(y, k)), None):
            figure = f"{step.operation} {y.shape} sums to 1 over axis {axis}, not over the last"
            text = (
                "the softmax runs over the wrong axis: the weights of each query must sum to 1 "
                "over the keys, softmax(scores, axis=-1)"
            )
            place = probe.place(step.node)
            yield Finding("softmax over the wrong axis", place, figure, text, "05 attention")
            return


def attention_weights(probe: Probe, steps: list[Step], t: int) -> list[Step]:
    """The values that are attention weights: (…, T, T), rows that sum to 1, nothing negative.

    Those of a student's own softmax, too, and cross-attention's, (…, T, S), if it is minimha's.
    """
    return [
        step
        for step in steps
        if (_is_square(step.value, t) or (step.operation == "attention" and step.value.ndim > 2))
        and step.value.shape[-1] > 1
        and _sums_to_one(step.value, -1)
    ]


def _is_square(y: np.ndarray, t: int) -> bool:
    return y.ndim > 2 and y.shape[-2:] == (t, t) and y.dtype.kind == "f"


def _sums_to_one(y: np.ndarray, axis: int) -> bool:
    """Whether the entries are weights over this axis. Rows without a visible key sum to 0."""
    if y.min(initial=0.0) < 0:
        return False
    sums = y.sum(axis=axis, dtype=np.float64)
    return bool(((abs(sums - 1) < 1e-3) | (sums == 0)).all() and sums.any())


def _is_uniform(weights: np.ndarray) -> bool:
    visible = weights > 0
    mean = 1 / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    return bool(abs(weights / mean - 1)[visible].max(initial=0.0) < 1e-4)


def _attentions(probe: Probe) -> list[Step]:
    t = probe.inputs.shape[1]
    return attention_weights(probe, probe.trace(probe.inputs[:1])[1], t)


def _layers(probe: Probe) -> str:
    """Where attention is, for a message."""
    places = dict.fromkeys(probe.place(step.node) for step in _attentions(probe))
    return some([*places]) or "the model"


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


def _positions(places: np.ndarray) -> str:
    return f"position {places[0]}" + (f" to {places[-1]}" if len(places) > 1 else "")
