"""What a wrong gradient looks like in a function that runs on several ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .step import Mistake, Step


def counted(step: Step) -> Iterator[Mistake]:
    """Contributions of ranks that are counted once for each rank, or left out."""
    trace = step.trace
    ranks = getattr(trace.function.f, "ranks", 1)  # `parallel.across` sets it
    if ranks == 1 or step.consumer is not None or step.name not in trace.inputs:
        return
    text = (
        f"the gradient is counted once per rank: it is {ranks} times the right one, and there are "
        f"{ranks} ranks. Is the same loss differentiated on every rank, or a sum over ranks summed "
        "a second time?"
    )
    yield "counted-per-rank", ranks * step.right, text
    rank = trace.inputs.index(step.name) * ranks // len(trace.inputs)
    per_rank = len(trace.results) // ranks
    own = trace.results[rank * per_rank : (rank + 1) * per_rank]
    others = [result for result in step.consumers if result not in own]
    alone = sum(
        (trace.part(step.name, result) for result in own if result in step.consumers),
        np.zeros_like(step.right),
    )
    text = (
        "the all-reduce was forgotten: the gradient holds only what comes from the result of rank "
        f"{rank} itself. The results of other ranks depend on {step.name} as well: add their "
        "contributions"
    )
    yield "all-reduce-missing", alone if others else None, text
