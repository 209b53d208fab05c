"""Is the gradient right, and is a tied weight one Tensor?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

from minimha_autograd import no_grad
from minimha_autograd.gradcheck.compare import Comparison, Target

from .probe import Arrays, Probe
from .report import Finding, some


def copies(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if two matrices among the parameters have the same entries, or one is the
    transpose of the other. Two layers that share a tied weight must use one Tensor: copies get
    separate gradients and become different."""
    weights = {n: x for n, x in probe.weights().items() if x.ndim == 2 and np.unique(x).size > 2}
    for (a, x), (b, y) in combinations(weights.items(), 2):
        same = np.array_equal(x, y)
        if same or np.array_equal(x, y.T):
            figure = f"{b} equals {a if same else 'the transpose of ' + a} in all {x.size} entries"
            text = (
                "two parameters with the same values, each with a gradient of its own: they move "
                "apart at the first step. To tie them, use the same Tensor in both places, "
                "table and table.mT, so that its gradient is the sum of both uses; to keep "
                "them apart, draw both from one generator, not twice from the same seed"
            )
            yield Finding("copied weights", f"{a} and {b}", figure, text, "09 training")
            return


def right(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a gradient is wrong.

    The check moves all parameters a little in a random direction, and compares the change of the
    loss with the change that the gradient predicts. If they differ, it moves each parameter alone
    to find those with a wrong gradient.
    """
    arrays, precise = _in_float64(probe)
    with probe.holding(arrays):
        for _ in range(3):  # one direction may miss the error, or meet a kink
            slope = _slope(probe, arrays)
            together = slope([*arrays])
            if not together.passed:
                break
        text = f"differs by {together.error:.1e} from differences of the loss"
        probe.figures["gradient check"] = text if precise else f"{text}, in float32"
        if together.passed:
            return
        each = {name: slope([name]) for name in arrays}
        wrong = [name for name, along in each.items() if not along.passed]
        if wrong and not precise:  # rounding or a kink may spoil one direction, but hardly two
            again = _slope(probe, arrays)
            wrong = [name for name in wrong if not again([name]).passed]
        tied = len(wrong) == 1 and _is_tied(probe, wrong[0])
    if not wrong:
        return
    last = each[wrong[-1]]
    figure = (
        f"along a random direction of {wrong[-1]} the gradient predicts {last.analytic:.4g}, but "
        f"the loss changes by {last.numeric:.4g}. Wrong: {some(wrong)}; the other "
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


def _slope(probe: Probe, arrays: Arrays) -> Callable[[list[str]], Comparison]:
    """Return a function that takes a list of names, moves these parameters in a random direction,
    and compares the measured slope of the loss with the slope that the gradient predicts. It moves
    a parameter further if its gradient is small, so that the slope does not depend on large
    gradients alone. `arrays` has the values of all parameters."""
    found = probe.gradients(*probe.few)
    gradients = {
        name: np.zeros(x.shape) if (g := found[name]) is None else g.astype(np.float64)
        for name, x in arrays.items()
    }
    sizes = {name: float(np.linalg.norm(g)) for name, g in gradients.items()}
    least = 1e-3 * max(sizes.values())
    directions = {
        name: probe.rng.standard_normal(g.shape) / (sizes[name] + least)
        for name, g in gradients.items()
    }
    longest = max(float(np.sqrt(np.mean(d**2))) for d in directions.values())

    def slope(names: list[str]) -> Comparison:
        def loss(h: np.ndarray) -> float:
            moved = {n: arrays[n] + h / longest * directions[n] for n in names}
            moved = {n: x.astype(arrays[n].dtype) for n, x in moved.items()}
            with probe.holding(moved), no_grad():
                return float(probe.loss(*probe.few).item())

        origin = np.zeros((), next(iter(arrays.values())).dtype)
        eps = float(np.finfo(origin.dtype).eps)
        terms = [np.sum(gradients[n] * directions[n]) / longest for n in names]
        yours = np.asarray(sum(terms), origin.dtype)
        noise = eps * max(map(abs, terms))
        target = Target("", origin, yours, loss, eps * abs(loss(origin)), noise)
        return next(target.compare("central"))

    return slope


def _in_float64(probe: Probe) -> tuple[Arrays, bool]:
    """Return the parameters' values, and whether they are float64. They are converted to float64 if
    the model can be evaluated in float64, and are otherwise those of `Probe.weights`."""
    wide = {name: x.astype(np.float64) for name, x in probe.weights().items()}
    try:
        with probe.holding(wide), no_grad():
            if probe.logits(probe.few[0]).dtype == np.float64:
                return wide, True
    except (TypeError, ValueError):  # an array of float32 among the constants of the model
        pass
    return probe.weights(), probe.dtype == np.float64


def _is_tied(probe: Probe, name: str) -> bool:
    """Whether a parameter is a tied weight: its rows, or its columns, are used both as embeddings
    of tokens and as the weights of the tokens' logits."""
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
