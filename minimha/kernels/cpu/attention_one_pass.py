"""Attention weights from Q Kᵀ in one pass over all scores, and their backward in another."""

from __future__ import annotations

import math

from .attention_tiles import Place, finish_scores, of_head
from .jit import kernel
from .parallel import share
from .row_softmax import dot, exp_minus, is_finite, row_max, scale_by


@kernel
def weights_from_scores(chunk, scores, start, stop, inside, bias, scale, t0, t1):
    """Replace scores (B, H, T, S), which are Q Kᵀ, by softmax(scale · scores + bias) over the
    visible keys, for the queries from t0 to t1 of every head. `chunk`, made by `parallel.whole`,
    divides the B · H heads among threads.

    start, stop  (B, H, T): a query sees the keys from its start to its stop (exclusive)
    inside       boolean (B, H, t1 − t0, S), for the queries from t0 on: a query sees only those of
                 its keys for which this is True; empty if it sees all of them
    bias         (B, H, T, S), or empty for none

    Entries that all sequences or all heads share are stored once, along an axis of length 1; those
    of inside and bias also if all queries share them.
    """
    none = scale * 0
    heads = scores.shape[1]
    s = scores.shape[3]
    for n in range(*share(chunk)):
        b = n // heads
        h = n % heads
        tile = scores[b, h, t0:t1]  # (t1 − t0, S)
        begin = of_head(start, b, h)[t0:t1]  # (t1 − t0,)
        end = of_head(stop, b, h)[t0:t1]  # (t1 − t0,)
        scale_by(tile.reshape(-1), scale)
        slopes = tile  # not stored, since there is no softcap
        place = Place(b, h, t0, 0)
        finish_scores(tile, slopes, s, place, none, bias, inside, t0, begin, end)

        for i in range(len(tile)):
            row = tile[i]
            peak = row_max(row)
            if peak == -math.inf:
                row[:] = 0
            else:
                scale_by(row, 1 / exp_minus(row, peak))


@kernel
def scores_backward(chunk, weights, dweights, nonfinite):
    """Replace dweights, the gradient of the weights, by the gradient of the scores:

        weights · (dweights − Σ dweights · weights)

    Both arrays are (N, S), with a row for each query of each head; `chunk`, made by
    `parallel.whole`, divides the rows among threads. Sets nonfinite[0] to True if any result is not
    finite.
    """
    start, stop = share(chunk)
    for n in range(start, stop):
        row = weights[n]  # (S,)
        drow = dweights[n]  # (S,)
        mean = dot(row, drow)
        for j in range(len(row)):
            drow[j] = row[j] * (drow[j] - mean)
    if not is_finite(dweights[start:stop].reshape(-1)):
        nonfinite[0] = True
