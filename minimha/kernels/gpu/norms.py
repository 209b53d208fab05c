"""Layer normalisation, and RMS normalisation, which is the same without mean and bias, on a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array

from ...functional.implementations import register
from . import cuda, sums

SOURCE = Path(__file__).with_suffix(".cu")
_BLOCKS = 2**11
"""The number of blocks in the backward, enough to keep a GPU busy. Each sums the gradients of the
weights over its rows."""
_ROWS = 64
"""The largest number of rows of such a block: if there are more rows, there are more blocks."""


@register("layer_norm", library="cupy")
def layer_norm(x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5) -> Any:
    """The value and the pullback of `functional.layer_norm`: (x − mean) / σ · weight + bias for
    each row, where σ² is the variance of the row plus eps. Returns None for arrays that the kernel
    does not support. The pullback keeps x, the weight, and the mean and 1/σ of each row."""
    given = (weight,) if bias is None else (weight, bias)
    if not cuda.are_reals(x, *given) or any(p.shape != x.shape[-1:] for p in given):
        return None
    return _normalise(x, weight, bias, eps, centred=True)


@register("rms_norm", library="cupy")
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> Any:
    """The value and the pullback of `functional.rms_norm`: x / σ · weight for each row, where σ² is
    the mean of x² plus eps. Returns None for arguments that the kernel does not support. The
    pullback keeps x, the weight and, for each row, a mean of 0 and 1/σ."""
    if not cuda.are_reals(x, weight) or weight.shape != x.shape[-1:] or not eps >= 0:
        return None
    y, pullback = _normalise(x, weight, None, eps, centred=False)
    return y, lambda dy: pullback(dy)[:2]


def _normalise(x: Array, weight: Array, bias: Array | None, eps: float, centred: bool) -> Any:
    """The value and the pullback of `layer_norm` or, if not `centred`, of `rms_norm`, which takes 0
    in place of the mean."""
    x = cuda.contiguous(x)
    weight = cuda.contiguous(weight)
    given_bias = None if bias is None else cuda.contiguous(bias)
    rows = math.prod(x.shape[:-1])
    width = x.shape[-1]

    y = cuda.empty(x.shape, like=x)
    statistics = cuda.empty((rows, 2), like=x)  # mean and 1/σ
    cuda.launch_for_rows(
        SOURCE, "normalise", x.dtype, rows, width,
        x, weight, given_bias, y, statistics, float(eps), int(centred), rows, width,
    )  # fmt: skip
    has_bias = bias is not None

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dy = cuda.contiguous(dy)
        dx = cuda.empty(x.shape, like=x)

        # Each block sums the gradients of weight and bias over its own rows.
        blocks = max(min(rows, _BLOCKS), -(-rows // _ROWS))
        dweights = cuda.empty((blocks, width), like=x)
        dbiases = cuda.empty((blocks, width), like=x) if has_bias else None
        cuda.launch(
            SOURCE, "normalise_backward", x.dtype, blocks, cuda.threads_for(width),
            x, weight, statistics, dy, dx, dweights, dbiases, int(centred), rows, width,
        )  # fmt: skip

        # A second kernel adds up these sums.
        dweight = cuda.empty((width,), like=x)
        dbias = cuda.empty((width,), like=x) if has_bias else None
        tiles = -(-width // sums.COLUMNS)
        cuda.launch(
            SOURCE, "normalise_totals", x.dtype, tiles * (1 + has_bias), sums.threads_for(blocks),
            dweights, dbiases, dweight, dbias, blocks, width,
        )  # fmt: skip
        return dx, dweight, dbias

    return y, pullback
