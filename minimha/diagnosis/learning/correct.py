"""Is the gradient right, and is a tied weight one Tensor?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from minimha_autograd import no_grad

from .probe import Arrays, Probe
from .report import Finding, some


def copies(probe: Probe) -> Iterator[Finding]:
    """No two parameters are copies of each other: a tied weight is one Tensor in two places."""
    weights = {n: x for n, x in probe.weights().items() if x.ndim == 2 and np.unique(x).size > 2}
    for (a, x), (b, y) in combinations(weights.items(), 2):
        same = np.array_equal(x, y)
        if same or np.array_equal(x, y.T):
            figure = f"{b} equals {a if same else 'the transpose of ' + a} in all {x.size} entries"
            text = (
                "two parameters with the same values, each with half of the gradient: they move "
                "apart at the first step. To tie them, use the same Tensor in both places, "
                "table and table.mT, so that its gradient is the sum of both uses; to keep "
                "them apart, draw both from one generator, not twice from the same seed"
            )
            yield Finding("copied weights", f"{a} and {b}", figure, text, "09 training")
            return


def right(probe: Probe) -> Iterator[Finding]:
    """The gradient agrees with differences of the loss along a random direction.

    All parameters are moved at once; one by one only if that disagrees.
    """
    arrays, precise = _in_float64(probe)
    with probe.holding(arrays):
        for _ in range(3):  # one direction may miss the error, or meet a kink
            slopes = _Slopes(probe, arrays, precise)
            together = slopes([*arrays])
            if not slopes.agree(together, len(arrays)):
                break
        error = abs(together.yours - together.measured) / slopes.scale / len(arrays) ** 0.5
        probe.figures["gradient check"] = f"differs by {error:.1e} from differences of the loss" + (
            "" if precise else ", in float32"
        )
        if slopes.agree(together, len(arrays)):
            return
        each = {name: slopes([name]) for name in arrays}
        wrong = [name for name, slope in each.items() if not slopes.agree(slope)]
        tied = len(wrong) == 1 and _is_tied(probe, wrong[0])
    if not wrong:
        return
    last = each[wrong[-1]]
    figure = (
        f"along a random direction of {wrong[-1]} the gradient predicts {last.yours:.4g}, but the "
        f"loss changes by {last.measured:.4g}. Wrong: {some(wrong)}; the other "
        f"{len(each) - len(wrong)} are right"
    )
    if tied:
        text = (
            "the table is used twice, for the embedding and for the logits, and the gradient of "
            "one use is missing: a tied weight needs the sum of both. Is one use table.data or a "
            "new Tensor? Use the Tensor itself, table.mT"
        )
        yield Finding("tied weights not summed", wrong[0], figure, text, "09 training")
        return
    text = (
        "a pullback is wrong, or part of the computation is cut off from the tape by .data, "
        "detach() or Tensor(…). Of all wrong gradients, this one is closest to the loss: start "
        "here, and run mh.gradcheck on one layer after another"
    )
    yield Finding("wrong gradient", wrong[-1], figure, text, "03 gradient-checks")


class _Slope(NamedTuple):
    """The change of the loss along a direction by the gradient, and as measured, with the error of
    the measurement."""

    yours: float
    measured: float
    error: float


class _Slopes:
    """A random direction for each parameter, scaled to change the loss by about `scale`.

    precise  whether the parameters are in float64
    """

    def __init__(self, probe: Probe, arrays: Arrays, precise: bool) -> None:
        self.probe, self.arrays = probe, arrays
        self.step, self.allowed = (1e-5, 1e-4) if precise else (3e-3, 0.1)
        found = probe.gradients(*probe.few)
        self.gradients = {
            name: np.zeros(x.shape) if (g := found[name]) is None else g.astype(np.float64)
            for name, x in arrays.items()
        }
        sizes = {name: float(np.linalg.norm(g)) for name, g in self.gradients.items()}
        least = 1e-3 * max(sizes.values())
        directions = {
            name: probe.rng.standard_normal(g.shape) / (sizes[name] + least)
            for name, g in self.gradients.items()
        }
        longest = max(float(np.sqrt(np.mean(d**2))) for d in directions.values())
        self.directions, self.scale = {n: d / longest for n, d in directions.items()}, 1 / longest

    def __call__(self, names: list[str]) -> _Slope:
        """The slope with these parameters moved; a second step size gives the error."""
        yours = sum(float(np.sum(self.gradients[n] * self.directions[n])) for n in names)
        h = self.step
        near, far = ((self.loss(names, x) - self.loss(names, -x)) / (2 * x) for x in (h, 3 * h))
        return _Slope(yours, near, 3 * abs(near - far))

    def loss(self, names: list[str], h: float) -> float:
        """The loss with these parameters moved by h along their directions."""
        moved = {n: self.arrays[n] + h * self.directions[n] for n in names}
        moved = {n: x.astype(self.arrays[n].dtype) for n, x in moved.items()}
        with self.probe.holding(moved), no_grad():
            return float(self.probe.loss(*self.probe.few).item())

    def agree(self, slope: _Slope, count: int = 1) -> bool:
        """Whether the two slopes agree, for a number of parameters moved together."""
        allowed = self.allowed * self.scale * count**0.5
        return abs(slope.yours - slope.measured) <= allowed + slope.error


def _in_float64(probe: Probe) -> tuple[Arrays, bool]:
    """The parameters in float64, if the model can be evaluated so."""
    wide = {name: x.astype(np.float64) for name, x in probe.weights().items()}
    try:
        with probe.holding(wide), no_grad():
            if probe.logits(probe.few[0]).dtype == np.float64:
                return wide, True
    except (TypeError, ValueError):  # an array of float32 among the constants of the model
        pass
    return probe.weights(), probe.dtype == np.float64


def _is_tied(probe: Probe, name: str) -> bool:
    """Whether the rows of a parameter are embeddings of tokens and also weights of their logits."""
    x, equal = probe.weights()[name], probe.inputs[:1]
    v = probe.logits(equal).shape[-1]
    if x.ndim != 2 or v not in x.shape or equal.dtype.kind == "f" or v < 3:
        return False
    present = int(equal[0, 0])
    equal = np.full_like(equal, present)
    absent = (present + 1) % v
    before = probe.logits(equal)

    def moved_by(token: int) -> np.ndarray:
        there = x.copy()
        np.moveaxis(there, x.shape.index(v), 0)[token] += probe.rng.standard_normal(x.size // v)
        with probe.holding({name: there}):
            changed = abs(probe.logits(equal) - before) > 1e-6 * abs(before).max()
        return changed.reshape(-1, v).any(axis=0)

    embeds = np.delete(moved_by(present), present).any()
    return bool(embeds and moved_by(absent)[absent])
