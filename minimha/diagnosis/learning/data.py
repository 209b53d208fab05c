"""Are the targets the next tokens?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .probe import Probe
from .report import Finding

_MOST = 0.95  # of the pairs; some tokens repeat by chance
_SHIFTED = {
    0: (
        "targets not shifted",
        "the targets are the inputs themselves: a model that copies its input has loss 0 and "
        "predicts nothing. Shift by one: inputs = tokens[:, :-1], targets = tokens[:, 1:]",
    ),
    -1: (
        "targets shifted the wrong way",
        "each target is the previous token, which a causal model has already seen: "
        "it learns to look back, not to predict. Swap the slices: inputs = tokens[:, :-1], "
        "targets = tokens[:, 1:]",
    ),
    2: (
        "targets shifted too far",
        "each target is the second token from here, so generation skips every other token. Is the "
        "shift applied twice, once by the data and once in the loss?",
    ),
}


def targets(probe: Probe) -> Iterator[Finding]:
    """targets[t] should be inputs[t + 1], if they are tokens of the same sequence at all."""
    x, y, t = probe.inputs, probe.targets, probe.inputs.shape[1]
    if x.shape != y.shape:
        probe.figures["targets"] = "one class for each sequence"
        return

    def agreement(k: int) -> float:
        """The fraction of positions with target[t] = input[t + k]."""
        ahead, here = slice(max(k, 0), t + min(k, 0)), slice(max(-k, 0), t - max(k, 0))
        real = probe.real[:, ahead] & probe.real[:, here]
        same = (x[:, ahead] == y[:, here])[real]
        return float(np.mean(same)) if same.size >= 4 else 0.0

    probe.predicts_next = agreement(1) >= _MOST
    if probe.predicts_next:
        probe.figures["targets"] = "the next tokens"
        return
    probe.figures["targets"] = "not tokens of the same sequence, so causality is not checked"
    for k, (name, text) in _SHIFTED.items():
        if (share := agreement(k)) >= _MOST:
            what = f"inputs[t{f' {k:+d}' if k else ''}]".replace("+", "+ ").replace("-", "− ")
            figure = f"targets[t] = {what} at {share:.0%} of the positions"
            yield Finding(name, "the targets", figure, text, "09 training")
