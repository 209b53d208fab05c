"""The attention weights among the values of a model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .probe import Intermediate, Probe
from .report import Finding


def attention_weights(probe: Probe, inputs: np.ndarray) -> list[Intermediate]:
    """The attention weights on the way to the logits."""
    return [step for step in probe.trace(inputs) if are_weights(step, inputs.shape[1])]


def are_weights(step: Intermediate, t: int) -> bool:
    """Whether a value is attention weights: (…, T, T), not negative, with rows that sum to 1.

    They may come from a student's own softmax. Those of cross-attention, (…, T, S), are found if it
    is minimha's.
    """
    y = step.value
    known = step.operation == "attention" and y.ndim > 2
    return (known or _is_square(y, t)) and y.shape[-1] > 1 and _sums_to_one(y, -1)


def softmax_axis(probe: Probe) -> Iterator[Finding]:
    """The softmax of the scores runs over the keys, the last axis."""
    t = probe.inputs.shape[1]
    if t < 2 or t == len(probe.inputs):
        return
    for step in probe.trace(probe.inputs):
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


def _is_square(y: np.ndarray, t: int) -> bool:
    return y.ndim > 2 and y.shape[-2:] == (t, t) and y.dtype.kind == "f"


def _sums_to_one(y: np.ndarray, axis: int) -> bool:
    """Whether the entries are weights over this axis. Rows without a visible key sum to 0."""
    if y.min(initial=0.0) < 0:
        return False
    sums = y.sum(axis=axis, dtype=np.float64)
    return bool(((abs(sums - 1) < 1e-3) | (sums == 0)).all() and sums.any())
