"""Can the model learn one batch by heart?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ...nn import AdamW
from .probe import Probe
from .report import Finding

_STEPS, _RATES, _TOKENS = 200, (3e-3, 3e-2, 3e-4), 64


def one_batch(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the model cannot learn a few sequences by heart in a few hundred steps."""
    rows = max(1, _TOKENS // probe.inputs.shape[1]) if probe.per_position else 8
    batch = probe.inputs[:rows], probe.targets[:rows]
    goal = _goal(*batch, probe.counted(*batch), probe.logits(batch[0]).shape[-1])
    losses: list[float] = []
    for rate in _RATES:
        losses.clear()
        with probe.copies():
            for loss in islice(training(probe, batch, rate), _STEPS + 1):
                losses.append(loss)
                if loss <= goal or not math.isfinite(loss):
                    break
        if min(losses) <= goal:
            probe.figures["one batch"] = (
                f"{batch[1].size} targets: loss {losses[0]:.2f} -> {losses[-1]:.2f} in "
                f"{len(losses) - 1} steps"
            )
            return
    figure = (
        f"{batch[1].size} targets, {_STEPS} steps: loss {losses[0]:.3f} -> "
        f"{losses[-1]:.3f}, expected {goal:.3f} or less"
    )
    text = (
        "a model that cannot learn a single batch by heart will not learn from more data. The "
        "other checks did not find the cause: look for inputs that never reach the logits, a layer "
        "that is far too narrow, or a mask that hides too much"
    )
    yield Finding("cannot learn one batch", "the model", figure, text, "10 debugging")


def training(probe: Probe, batch: Sequence[np.ndarray], rate: float) -> Iterator[float]:
    """Train the model on one batch, (inputs, targets), with AdamW and the learning rate `rate`.
    Yields the loss before each step, without end."""
    optimiser = AdamW(list(probe.parameters.values()), lr=rate, weight_decay=0.0)
    while True:
        optimiser.zero_grad()
        loss = probe.loss(*batch)
        yield loss.item()
        loss.backward()
        optimiser.step()


def _goal(inputs: np.ndarray, targets: np.ndarray, counted: np.ndarray, classes: int) -> float:
    """Return the loss that the model must reach: a quarter of log(classes), the loss of a uniform
    guess, plus the loss that no model can avoid because equal inputs have different targets.
    `counted` is False for targets that do not count in the loss, such as padding."""
    pairs = []
    for place in map(tuple, np.argwhere(counted)):
        sequence = inputs[place[0]]
        if len(place) == 2:  # a target at each position, which sees the tokens up to its own
            sequence = sequence[: place[1] + 1]
        pairs.append((sequence.tobytes(), int(targets[place])))
    seen = Counter(context for context, _ in pairs)
    losses = (n * math.log(seen[context] / n) for (context, _), n in Counter(pairs).items())
    return sum(losses) / max(1, len(pairs)) + 0.25 * math.log(classes)
