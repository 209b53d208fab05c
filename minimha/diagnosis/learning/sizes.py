"""Do the weights, their gradients and the steps have the right order of magnitude?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from .probe import Probe
from .report import Finding

_UNEVEN, _LARGE_STEP, _SMALL_STEP = 1e-3, 0.5, 1e-5


def symmetric(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if all units of a layer have equal weights and equal gradients, so that they
    can never become different."""
    gradients = probe.gradients()
    for name, w in probe.weights().items():
        g = gradients[name]
        if w.ndim < 2 or min(w.shape[-2:]) < 2 or g is None or not g.any():
            continue
        if not np.ptp(w, axis=-1).any() and np.ptp(g, axis=-1).max() <= 1e-4 * abs(g).max():
            figure = f"all {w.shape[-1]} columns are equal, and so are all columns of the gradient"
            text = (
                "units that start equal stay equal: the layer computes one unit many times. "
                "Initialise its weights at random"
            )
            yield Finding("identical units", name, figure, text, "09 training")
            return


def depth(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the gradient, relative to the weights, has a very different size in the
    first layer than in the last."""
    gradients, weights = probe.gradients(), probe.weights()
    layers: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, w in weights.items():
        numbered, size, g = re.match(r"(.*?)\.?(\d+)\.", name), np.linalg.norm(w), gradients[name]
        if numbered and w.ndim >= 2 and size and g is not None:
            layers[numbered[1]][int(numbered[2])].append(float(np.linalg.norm(g) / size))
    for stack, by_layer in layers.items():
        ratios = [float(np.median(by_layer[k])) for k in sorted(by_layer)]
        if len(ratios) < 2 or not all(ratios):
            continue
        last, first = f"{stack}.{max(by_layer)}", f"{stack}.{min(by_layer)}"
        fall = ratios[0] / ratios[-1]
        figure = f"gradient over weight: {ratios[0]:.1e} in {first}, {ratios[-1]:.1e} in {last}"
        if fall < _UNEVEN:
            text = (
                "the gradient shrinks from layer to layer on its way back, so the first layers "
                "hardly learn: a residual connection or a norm is missing, or the initial weights "
                "are too small"
            )
            yield Finding("vanishing gradient", first, figure, text, "09 training")
        elif fall > 1 / _UNEVEN:
            text = (
                "the gradient grows from layer to layer on its way back: a norm is missing, or the "
                "initial weights are too large. Clipping hides it"
            )
            yield Finding("exploding gradient", first, figure, text, "09 training")
        else:
            probe.figures[f"{stack}: gradient over weight"] = (
                f"{min(ratios):.1e} to {max(ratios):.1e} in {len(ratios)} layers"
            )


def steps(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a step of AdamW would change the weights by far more than a few percent,
    or hardly at all.

    The first step of AdamW changes each entry by lr, so the relative change is lr / root mean
    square of the weights: it is computed, and no step is made.
    """
    sizes = [float(np.sqrt(np.mean(x**2))) for x in probe.weights().values() if x.ndim > 1]
    ratio = probe.lr / max(float(np.median([s for s in sizes if s] or [1.0])), 1e-30)
    figure = (
        f"a first step of AdamW at lr = {probe.lr:g} would change the weights by {ratio:.1%} of "
        "their size"
    )
    probe.figures["update over weight"] = figure
    if ratio > _LARGE_STEP:
        text = (
            "each step undoes the earlier ones: divide the learning rate by ten until the loss "
            "falls steadily. Or the initial weights are far too small"
        )
        yield Finding("learning rate too high", "all matrices", figure, text, "09 training")
    elif ratio < _SMALL_STEP:
        text = (
            "thousands of steps hardly change the model: multiply the learning rate by ten until "
            "the loss becomes unstable, then divide it by ten. Or the initial weights are far too "
            "large"
        )
        yield Finding("learning rate too low", "all matrices", figure, text, "09 training")
