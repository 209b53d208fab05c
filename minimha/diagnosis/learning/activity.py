"""Do the parts of the model have any effect: attention, the units of the perceptrons, the residual
connections?"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

import numpy as np

from minimha_autograd.tape import Node, ancestors

from .probe import Intermediate, Probe, parents
from .report import Finding

_SHARP, _ALL, _FLAT = 0.999, 0.95, 1e-3
_DEAD_BELOW = {"relu": 0.0, "maximum": 0.0, "gelu": -5.0, "silu": -10.0}
"""For inputs below this value, the slope of the activation is 0 or nearly 0."""


def softmax_axis(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the softmax of the attention scores does not run over the keys, the
    last axis."""
    t = probe.inputs.shape[1]
    if t < 2 or t == len(probe.inputs):
        return
    for step in probe.trace(probe.inputs):
        y = step.value
        if not step.is_square(t) or step.sums_to_one():
            continue
        others = (k for k in range(-2, -y.ndim - 1, -1) if y.shape[k] > 1)
        if axis := next((k for k in others if step.sums_to_one(k)), None):
            figure = f"{step.operation} {y.shape} sums to 1 over axis {axis}, not over the last"
            text = (
                "the softmax runs over the wrong axis: the weights of each query must sum to 1 "
                "over the keys, softmax(scores, axis=-1)"
            )
            place = probe.place(step.node)
            yield Finding("softmax over the wrong axis", place, figure, text, "05 attention")
            return


def collapsed(probe: Probe) -> Iterator[Finding]:
    """Yield a finding for each attention layer in which nearly every query puts all of its weight
    on one key, although it sees several."""
    for step, rows in _rows(probe):
        sharp = float(np.mean(rows.max(axis=1) > _SHARP))
        if sharp < _ALL or not _sees_several(probe, step):
            continue
        figure = f"{sharp:.0%} of the queries have more than {_SHARP} of the weight on one key"
        text = (
            "the scores are so large that the softmax is saturated, and hardly any gradient passes "
            "through it. Is the scale 1/√D missing, are W^Q and W^K too large, or is the norm "
            "before attention missing?"
        )
        place = probe.place(step.node)
        yield Finding("attention collapsed", place, figure, text, "05 attention")


def uniform(probe: Probe) -> Iterator[Finding]:
    """Yield a finding for each attention layer in which each query gives all of its visible keys
    the same weight, so that queries and keys have no effect."""
    entropies = []
    for step, every in _rows(probe):
        rows = every[(every > 0).sum(axis=1) > 1]
        if not len(rows):
            continue
        n, seen = (rows > 0).sum(axis=1, keepdims=True), rows > 0
        logs = np.log(rows, out=np.zeros_like(rows), where=seen)
        entropies.append(float(np.mean(-(rows * logs).sum(axis=1) / np.log(n[:, 0]))))
        spread = float(abs(rows * n - 1)[seen].max())
        if spread < _FLAT:
            figure = f"all weights of a query are equal, to {spread:.1e} of their mean"
            text = (
                "queries and keys have no effect, and each output is the mean of the visible "
                "values: W^Q or W^K is nearly zero, or the scores are divided by far too much"
            )
            place = probe.place(step.node)
            yield Finding("attention uniform", place, figure, text, "05 attention")
    probe.figures["attention"] = (
        f"entropy {min(entropies):.3f} to {max(entropies):.3f} of that of equal weights"
        if entropies
        else "no weights seen"
    )


def _rows(probe: Probe) -> Iterator[tuple[Intermediate, np.ndarray]]:
    """Yield the attention weights of each layer, and the same weights as a matrix with one row for
    each query."""
    for step in probe.attention(probe.inputs):
        yield step, step.value.reshape(-1, step.value.shape[-1]).astype(np.float64)


def _sees_several(probe: Probe, step: Intermediate) -> bool:
    """Whether most queries of an attention layer may attend to several keys. The attention weights
    in `step` do not show it, because a saturated softmax rounds some of them to 0. So the model is
    run again with much smaller matrices as parameters, hence smaller scores: then the attention
    weight of every visible key is above 0."""
    small = {n: (1e-3 * x).astype(x.dtype) for n, x in probe.weights().items() if x.ndim > 1}
    with probe.holding(small):
        again = probe.attention(probe.inputs[:1])
        places = [s for s in again if probe.place(s.node) == probe.place(step.node)]
    return any(np.mean((s.value > 0).sum(axis=-1) > 1) > 0.5 for s in places or again)


def dead_units(probe: Probe) -> Iterator[Finding]:
    """Yield a finding for each layer in which most units are off at all positions of the batch: the
    slope of their activation is 0 or nearly 0."""
    steps = probe.trace(probe.inputs)
    values = {step.node: step.value for step in steps}
    shares = []
    for step in steps:
        if step.operation not in _DEAD_BELOW or step.node is None or step.value.ndim < 2:
            continue
        edges = step.node.edges if step.operation == "maximum" else step.node.edges[:1]
        # Of a gate, silu(x, times), the first input decides which units are off.
        before = [values[edge[0]] for edge in edges if edge and edge[0] in values]
        if len(before) != 1 or before[0].shape != step.value.shape:
            continue
        x = before[0].reshape(-1, step.value.shape[-1])
        dead = x.max(axis=0) < _DEAD_BELOW[step.operation]
        shares.append(float(dead.mean()))
        if dead.mean() > 0.5:
            figure = f"{dead.sum()} of {dead.size} units are off at all {len(x)} positions"
            text = (
                "units that are off everywhere get no gradient and never come back: the bias "
                "before them is far below zero, or a step was too large"
            )
            yield Finding("dead units", probe.place(step.node), figure, text, "09 training")
    if shares:
        probe.figures["dead units"] = f"at most {max(shares):.0%} of a layer"


def residual(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a model with several attention layers has no residual connections: either
    every path from the tokens to the logits passes through the attention of some layer, or every
    path passes through a perceptron that lies between two attention layers."""
    steps = probe.trace(probe.inputs[:1])
    root = steps[-1].node
    weights = {s.node for s in steps if s.node and s.is_attention(probe.inputs.shape[1])}
    if root is None or len(weights) < 2:
        return
    before = {node for one in weights for node in ancestors(one)}
    # An activation after the last attention layer may be part of a head, which needs no residual.
    gates = {
        s.node
        for s in steps
        if s.operation in _DEAD_BELOW and s.node in before and weights & {*ancestors(s.node)}
    }
    users = {node for node in ancestors(root) if weights.intersection(parents(node))}
    for what, blocked in (("attention", weights | users), ("the perceptrons", gates)):
        if not _reaches_table(root, blocked, probe.leaves.keys()):
            figure = f"every path from the tokens to the logits passes through {what}"
            text = (
                f"x = x + f(norm(x)) adds what a layer computes to its input; here the input is "
                f"replaced, x = f(norm(x)), around {what}. Each token's own embedding is lost, "
                "and the gradient shrinks with every layer"
            )
            yield Finding("no residual connection", what, figure, text, "09 training")
            return


def _reaches_table(root: Node, blocked: set[Node], leaves: KeysView[Node | None]) -> bool:
    """Whether a path that avoids the blocked nodes leads from `root`, the logits, back to a lookup
    in a table of embeddings. `leaves` are the nodes of the parameters."""
    reached = {root} - blocked
    for node in ancestors(root):  # the newest first: a node comes before its parents
        if node in reached:
            is_lookup = node.signature is not None and node.signature.name in _LOOKUPS
            if is_lookup and not leaves.isdisjoint(parents(node)):
                return True
            reached.update(set(parents(node)) - blocked)
    return False


_LOOKUPS = {"embedding", "getitem", "gather"}
