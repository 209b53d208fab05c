"""Scale, bias, mask and softmax of all scores in one pass over them, and back in one."""

from __future__ import annotations

import math
from typing import Any

from .jit import kernel
from .rows import exp_less, is_finite, largest, scale_by, weighted
from .tiles import finish


@kernel
def weigh(
    scores: Any, first: Any, last: Any, rest: Any, bias: Any, scale: Any, b: int, h: int, t0: int
) -> None:
    """scores <- softmax(scale · scores + bias) over what is visible, for the queries of a head from
    t0 on."""
    begin = first[b % len(first), h % first.shape[1], t0 : t0 + len(scores)]
    end = last[b % len(last), h % last.shape[1], t0 : t0 + len(scores)]
    none, s = scale * 0, scores.shape[1]
    scale_by(scores.reshape(-1), scale)
    finish(scores, scores, s, b, h, t0, 0, none, bias, rest, t0, begin, end)
    for i in range(len(scores)):
        row = scores[i]
        peak = largest(row)
        if peak == -math.inf:
            row[:] = 0
        else:
            scale_by(row, 1 / exp_less(row, peak))


@kernel
def unweigh(weights: Any, dweights: Any) -> bool:
    """dweights <- weights · (dweights − Σ dweights · weights), both (T, S). Returns whether that is
    finite."""
    finite = True
    for t in range(len(weights)):
        row, drow = weights[t], dweights[t]
        mean = weighted(row, drow)
        for j in range(len(row)):
            drow[j] = row[j] * (drow[j] - mean)
        finite &= is_finite(drow)
    return finite
