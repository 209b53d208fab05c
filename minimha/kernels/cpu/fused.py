"""Scale, bias, mask and softmax of all scores in one pass over them, and back in one."""

from __future__ import annotations

import math
from typing import Any

from .jit import kernel
from .parallel import led
from .rows import exp_less, is_finite, largest, scale_by, weighted
from .tiles import finish


@kernel
def weigh(
    part: Any, scores: Any, first: Any, last: Any, rest: Any, bias: Any, scale: Any,
    t0: int, t1: int,
) -> None:  # fmt: skip
    """scores <- softmax(scale · scores + bias) over what is visible, for scores (B, H, T, S): of
    a part of the heads, b · H + h, the queries from t0 to t1."""
    if led(part):
        return
    none, heads, s = scale * 0, scores.shape[1], scores.shape[3]
    for n in range(part[0], part[1]):
        b, h = n // heads, n % heads
        begin = first[b % len(first), h % first.shape[1], t0:t1]
        end = last[b % len(last), h % last.shape[1], t0:t1]
        some = scores[b, h, t0:t1]
        scale_by(some.reshape(-1), scale)
        finish(some, some, s, b, h, t0, 0, none, bias, rest, t0, begin, end)
        for i in range(len(some)):
            row = some[i]
            peak = largest(row)
            if peak == -math.inf:
                row[:] = 0
            else:
                scale_by(row, 1 / exp_less(row, peak))


@kernel
def unweigh(part: Any, weights: Any, dweights: Any, nonfinite: Any) -> None:
    """dweights <- weights · (dweights − Σ dweights · weights), for both (N, S), a part of the rows.

    nonfinite[0] becomes true unless that is finite.
    """
    for n in range(part[0], part[1]):
        row, drow = weights[n], dweights[n]
        mean = weighted(row, drow)
        for j in range(len(row)):
            drow[j] = row[j] * (drow[j] - mean)
    if not is_finite(dweights[part[0] : part[1]].reshape(-1)):
        nonfinite[0] = True
