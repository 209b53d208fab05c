"""Why a model does not learn: the checks that an experienced person runs, in their order.

A check is a function of a Probe that yields a Finding for each fault that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import activity, correct, fitting, outputs, reach, sizes, visibility
from .probe import Probe
from .report import Finding, ModelReport

__all__ = ["Finding", "ModelReport", "diagnose"]

Stages = tuple[tuple[Callable[[Probe], Iterator[Finding]], ...], ...]

AS_IT_IS: Stages = ((outputs.targets,), (outputs.finite,))
"""The checks that run before the parameters are copied, in stages: only a model in its own
precision shows what overflows in float16."""

ON_COPIES: Stages = (
    (outputs.deterministic,),
    (outputs.dtypes, outputs.probabilities),
    (visibility.batch, activity.softmax_axis),
    (visibility.future_and_past, visibility.positions, visibility.padding),
    (activity.collapsed, activity.dead_units),
    (reach.reach,),
    (correct.copies, correct.right, sizes.symmetric),
    (activity.residual,),
    (sizes.depth,),
    (activity.uniform, outputs.loss, sizes.steps),
    (fitting.one_batch,),
)
"""The checks that run on copies of the parameters, in stages. What an earlier stage finds explains
what a later one would find, so the search ends with the first stage that finds anything."""


def diagnose(
    model: Any,
    inputs: Any,
    targets: Any,
    *,
    padding: int | None = None,
    lr: float = 1e-3,
    seed: int = 0,
) -> ModelReport:
    """Check a model, its data and its gradients on one batch.

    model    a module, or any callable with `named_parameters()`, that maps inputs to logits
             (B, T, V), or (B, C) for a classifier; if it returns a tuple, the logits come first
    inputs   (B, T), integers
    targets  (B, T), or (B,) for a classifier; integers from 0 to V − 1
    padding  the token that fills up short sequences, if there is one
    lr       the learning rate of your optimiser
    seed     of the generator that all random choices come from

    Returns a ModelReport. `report.findings` is empty if no check finds a fault; otherwise it has
    the most likely cause first, each with a name, where it is, what was measured, the likely cause
    and the chapter to read. Print the report to read it. The model keeps its parameters and
    gradients.

    Raises ValueError for shapes that do not match. Errors that the model itself raises pass
    through.
    """
    probe = Probe(model, inputs, targets, padding, lr, seed)
    findings = _first_findings(probe, AS_IT_IS)
    if not findings:
        with probe.copies():
            findings = _first_findings(probe, ON_COPIES)
    return ModelReport(type(model).__name__, findings, probe.figures)


def _first_findings(probe: Probe, stages: Stages) -> list[Finding]:
    """Run the stages in order, and return all findings of the first stage that finds anything."""
    for stage in stages:
        findings = [finding for check in stage for finding in check(probe)]
        if findings:
            return findings
    return []
