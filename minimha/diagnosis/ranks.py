"""What a wrong gradient looks like in a function that runs on several ranks."""

from __future__ import annotations

import numpy as np

from .causes import Cause
from .step import Step


def counted(step: Step) -> Cause | None:
    """Contributions of ranks that are counted once for each rank, or left out."""
    trace = step.trace
    ranks = getattr(trace.function.f, "ranks", 1)  # `parallel.across` sets it
    if ranks == 1 or step.consumer is not None or step.name not in trace.inputs:
        return None
    if step.is_yours(ranks * step.right):
        return Cause(
            "counted-per-rank",
            f"the gradient is counted once per rank: it is {ranks} times the right one, and there "
            f"are {ranks} ranks. Is the same loss differentiated on every rank, or a sum over "
            "ranks summed a second time?",
        )
    rank = trace.inputs.index(step.name) * ranks // len(trace.inputs)
    per_rank = len(trace.results) // ranks
    own = trace.results[rank * per_rank : (rank + 1) * per_rank]
    others = [result for result in step.consumers if result not in own]
    alone = sum(
        (trace.part(step.name, result) for result in own if result in step.consumers),
        np.zeros_like(step.right),
    )
    if others and step.is_yours(alone):
        return Cause(
            "all-reduce-missing",
            "the all-reduce was forgotten: the gradient holds only what comes from the result of "
            f"rank {rank} itself. The results of other ranks depend on {step.name} as well: add "
            "their contributions",
        )
    return None
