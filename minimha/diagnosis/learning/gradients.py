"""Does a right gradient reach every parameter?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from minimha_autograd import no_grad
from minimha_autograd.gradcheck import listed
from minimha_autograd.tape import ancestors

from ...nn import AdamW
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


def reach(probe: Probe) -> Iterator[Finding]:
    """Every parameter gets a gradient, and every leaf of the graph is a parameter."""
    yield from _unregistered(probe)
    now = probe.gradients()
    if not (without := [name for name, g in now.items() if _is_zero(g)]):
        _note_structural_zeros(probe, now)
        return
    with probe.holding(probe.moved()):
        moved = probe.gradients()
    never = [name for name in without if _is_zero(moved[name])]
    if never:
        influential = [name for name in never if _changes_loss(probe, name)]
        text = (
            "it changes the loss, so the gradient is cut on the way: by detach(), .data, "
            "no_grad(), Tensor(…) around a Tensor, or a pullback that returns zeros or None"
            if influential
            else "it does not change the loss: a layer that the forward pass does not call, or "
            "whose result is not used"
        )
        names = influential or never
        figure = f"{len(never)} of {len(now)} parameters get none: {some(never)}"
        yield Finding("no gradient", _common(names), figure, text, "02 autograd")
    if stuck := [name for name in without if name not in never and name in _after_steps(probe)]:
        figure = f"the gradient is 0 in {some(stuck)}, also after two steps"
        text = (
            "zeros that keep each other at zero: the gradient of each is a product with the other. "
            "Initialise at random all but the last map of a branch"
        )
        yield Finding("stuck at zero", _common(stuck), figure, text, "09 training")
    if not (never or stuck):
        probe.figures["gradients"] = (
            f"0 in {some(without)} at first, because other weights start at zero"
        )


def right(probe: Probe) -> Iterator[Finding]:
    """The gradient agrees with differences of the loss along random directions.

    All parameters are moved at once first; one by one only if that fails.
    """
    arrays, precise = _in_float64(probe)
    step, allowed = (1e-5, 1e-4) if precise else (3e-3, 0.1)
    with probe.holding(arrays):
        batch = _few(probe)
        gradients = {n: _or_zero(g, arrays[n]) for n, g in probe.gradients(*batch).items()}
        sizes = {n: float(np.linalg.norm(g)) for n, g in gradients.items()}
        least = 1e-3 * max(sizes.values())
        directions = {
            n: probe.rng.standard_normal(g.shape) / (sizes[n] + least) for n, g in gradients.items()
        }
        largest = max(float(np.sqrt(np.mean(d**2))) for d in directions.values())
        directions = {n: d / largest for n, d in directions.items()}

        def loss_at(names: list[str], h: float) -> float:
            there = {n: (arrays[n] + h * directions[n]).astype(arrays[n].dtype) for n in names}
            with probe.holding(there), no_grad():
                return float(probe.loss(*batch).item())

        def slopes(names: list[str]) -> tuple[float, float, float]:
            """The change of the loss along these directions, by the gradients and measured, and the
            error of the latter, by comparison with a larger step."""
            yours = sum(float(np.sum(gradients[n] * directions[n])) for n in names)
            near, far = (
                (loss_at(names, h) - loss_at(names, -h)) / (2 * h) for h in (step, 3 * step)
            )
            return yours, near, 3 * abs(near - far)

        scale = float(np.sqrt(len(sizes))) / largest  # each product is of the order of 1/largest
        yours, measured, error = slopes([*gradients])
        probe.figures["gradient check"] = (
            f"differs by {abs(yours - measured) / scale:.1e} from differences of the loss"
            + ("" if precise else ", in float32")
        )
        if abs(yours - measured) <= allowed * scale + error:
            return
        each = {n: slopes([n]) for n in gradients}
        wrong = [n for n, (a, b, e) in each.items() if abs(a - b) > allowed / largest + e]
        if not wrong:
            return
        tied = len(wrong) == 1 and _is_tied(probe, wrong[0])
    yours, measured, _ = each[wrong[-1]]
    figure = (
        f"along a random direction of {wrong[-1]} the gradient says {yours:.4g}, the loss itself "
        f"changes by {measured:.4g}. Wrong: {some(wrong)}; the other "
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
        "detach() or Tensor(…). mh.gradcheck of the layer at the end of this list finds the step"
    )
    yield Finding("wrong gradient", _common(wrong[-1:]), figure, text, "03 gradient-checks")


def symmetric(probe: Probe) -> Iterator[Finding]:
    """The units of a layer differ, or their gradients do."""
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
    """The gradient is of the same order in all layers, in proportion to the weights."""
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


_UNEVEN = 1e-3


def steps(probe: Probe) -> Iterator[Finding]:
    """A step of AdamW changes a weight by a few percent at most.

    Its first steps change each entry by lr, so the ratio is lr / root mean square of the weights.
    """
    sizes = [float(np.sqrt(np.mean(x**2))) for x in probe.weights().values() if x.ndim > 1]
    ratio = probe.lr / max(float(np.median([s for s in sizes if s] or [1.0])), 1e-30)
    figure = (
        f"a step of AdamW at lr = {probe.lr:g} changes the weights by {ratio:.1%} of their size"
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


_LARGE_STEP, _SMALL_STEP = 0.5, 1e-5


def _unregistered(probe: Probe) -> Iterator[Finding]:
    """Leaves that get a gradient and are no parameters."""
    own = {p._edge[0] for p in probe.parameters.values() if p._edge is not None}
    root = probe.loss(*_few(probe))._edge
    leaves = [n for n in ancestors(root[0]) if n.signature is None] if root else []
    unknown = [leaf for leaf in leaves if leaf not in own]
    if unknown:
        users = {
            n.signature.name
            for n in ancestors(root[0])
            for edge in n.edges
            if edge is not None and edge[0] in unknown
        }
        figure = (
            f"{len(unknown)} of {len(leaves)} Tensors that get a gradient are not among the "
            f"parameters; they are arguments of {listed(sorted(users))}"
        )
        text = (
            "an optimiser that is given model.parameters() never updates them. Module finds "
            "Tensors and Modules in attributes, lists, tuples and dictionaries; here one is in "
            "something else, or is not an attribute at all"
        )
        yield Finding("parameter not registered", "the model", figure, text, "09 training")


def _few(probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    return probe.inputs[:2], probe.targets[:2]


def _is_zero(g: np.ndarray | None) -> bool:
    return g is None or not g.any()


def _or_zero(g: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    return np.zeros(x.shape) if g is None else g.astype(np.float64)


def _common(names: list[str]) -> str:
    """The path that these parameters share, or the first of them."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared) or some(names)


def _changes_loss(probe: Probe, name: str) -> bool:
    with no_grad():
        before = probe.loss().item()
        with probe.holding({name: probe.moved(0.5)[name]}):
            return abs(probe.loss().item() - before) > 1e-6 * abs(before)


def _after_steps(probe: Probe) -> set[str]:
    """The parameters whose gradient is still zero after two steps of AdamW."""
    with probe.copies():
        optimiser = AdamW(list(probe.parameters.values()), lr=1e-3, weight_decay=0.0)
        for _ in range(2):
            probe.gradients()
            optimiser.step()
        return {name for name, g in probe.gradients().items() if _is_zero(g)}


def _note_structural_zeros(probe: Probe, gradients: dict[str, np.ndarray | None]) -> None:
    """b_k adds the same number to all scores of a query, which the softmax ignores."""
    sizes = {n: float(abs(g).max()) for n, g in gradients.items() if g is not None}
    tiny = [n for n, size in sizes.items() if size < 1e-5 * float(np.median([*sizes.values()]))]
    zeros = [n for n in tiny if not _changes_loss(probe, n)]
    text = f"reach all {len(gradients)} parameters"
    probe.figures["gradients"] = text + (f"; structural zeros: {some(zeros)}" if zeros else "")


def _in_float64(probe: Probe) -> tuple[Arrays, bool]:
    """The parameters in float64, if the model can be evaluated so."""
    wide = {name: x.astype(np.float64) for name, x in probe.weights().items()}
    try:
        with probe.holding(wide), no_grad():
            if probe.logits(_few(probe)[0]).dtype == np.float64:
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
