"""The loss over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TRAINING, _VALIDATION = "#0072B2", "#D55E00"  # colours of Okabe and Ito, for the colour-blind


def losses(
    training: Mapping[int, float] | Sequence[float], validation: Mapping[int, float] | None = None
) -> Figure:
    """A picture of the training loss of every step with its running mean, and of the validation
    loss.

    training    the loss, in nats, by step, or a list of the losses of steps 1, 2, …
    validation  the loss on held-out data, by step; by default none is drawn

    The losses of single batches vary widely. So the running mean at a step averages the latest
    losses: as many as a fiftieth of the steps in `training`.

    Returns the figure; `save` writes it to a file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not isinstance(training, Mapping):
        training = dict(enumerate(training, 1))
    steps, values = list(training), list(training.values())
    axes.plot(steps, values, color=_TRAINING, alpha=0.25, linewidth=0.8)
    mean = _running_mean(values, max(1, len(values) // 50))
    axes.plot(steps, mean, color=_TRAINING, label="training")
    if validation:
        axes.plot(
            list(validation), list(validation.values()), "o--",
            color=_VALIDATION, markersize=4, label="validation",
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _running_mean(values: Sequence[float], span: int) -> np.ndarray:
    """For each of the values, the mean of the last `span` values up to and including it; at the
    start there are fewer."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - span)
    return (sums[ends] - sums[starts]) / (ends - starts)
