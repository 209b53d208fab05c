"""Does a gradient reach every parameter, and are all parameters known?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from minimha_autograd import Tensor, no_grad
from minimha_autograd.gradcheck import listed
from minimha_autograd.tape import Node, ancestors

from .fitting import training
from .probe import Probe, parents
from .report import Finding, common, some


def reach(probe: Probe) -> Iterator[Finding]:
    """Yield a finding for parameters that get no gradient, and for Tensors that get a gradient but
    are not among the model's parameters."""
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
        yield Finding("no gradient", common(names), figure, text, "02 autograd")
    blocked = [name for name in without if name not in never]
    still = _zero_after_steps(probe) if blocked else set()
    if stuck := [name for name in blocked if name in still]:
        figure = f"the gradient is 0 in {some(stuck)}, even after two steps"
        text = (
            "zeros that keep each other at zero: the gradient of each is a product with the other. "
            "Initialise at random all but the last map of a branch"
        )
        yield Finding("stuck at zero", common(stuck), figure, text, "09 training")
    if not (never or stuck):
        probe.figures["gradients"] = (
            f"0 in {some(without)} at first, because other weights start at zero"
        )


def _unregistered(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if some Tensors get a gradient but are not among the parameters. Only Tensors
    that the model uses in two calls count, not those that it creates in each call."""
    nodes, again = ([*_graph(probe.loss(*probe.few))] for _ in range(2))
    leaves = {node for node in nodes if node.signature is None and node in again}
    if unknown := leaves - probe.leaves.keys():
        users = {node.signature.name for node in nodes if unknown.intersection(parents(node))}
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


def _graph(loss: Tensor) -> list[Node]:
    return ancestors(loss._edge[0]) if loss._edge is not None else []


def _is_zero(g: np.ndarray | None) -> bool:
    return g is None or not g.any()


def _changes_loss(probe: Probe, name: str) -> bool:
    with no_grad():
        before = probe.loss().item()
        with probe.holding({name: probe.moved(0.5)[name]}):
            return abs(probe.loss().item() - before) > 1e-6 * abs(before)


def _zero_after_steps(probe: Probe) -> set[str]:
    """Return the names of the parameters whose gradient is still zero after two steps of AdamW."""
    with probe.copies():
        steps = training(probe, (probe.inputs, probe.targets), 1e-3)
        list(islice(steps, 3))  # the third loss comes after two steps
        return {name for name, g in probe.gradients().items() if _is_zero(g)}


def _note_structural_zeros(probe: Probe, gradients: dict[str, np.ndarray | None]) -> None:
    """Write in the report which parameters have a gradient of almost 0 because they cannot change
    the loss. The bias b_k of the keys, for example, adds the same number to all scores of a query,
    which does not change their softmax. `gradients` has the gradients of all parameters."""
    sizes = {n: float(abs(g).max()) for n, g in gradients.items() if g is not None}
    tiny = [n for n, size in sizes.items() if size < 1e-5 * float(np.median([*sizes.values()]))]
    zeros = [n for n in tiny if not _changes_loss(probe, n)]
    text = f"reach all {len(gradients)} parameters"
    probe.figures["gradients"] = text + (f"; structural zeros: {some(zeros)}" if zeros else "")
