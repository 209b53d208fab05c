"""Softmax and cross entropy on a GPU, one row at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from ...functional.implementations import register
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")


@register("softmax", library="cupy")
def softmax(x: Array, *, axis: int = -1, mask: Array | None = None) -> Any:
    """The value y and the pullback of `functional.softmax` if `axis` is the last axis and `mask` is
    None. Returns None in other cases, and for arrays that the kernel does not support. The pullback
    keeps only y."""
    if mask is not None or not cuda.are_reals(x) or not x.ndim or axis not in (-1, x.ndim - 1):
        return None
    x = cuda.contiguous(x)
    y = cuda.empty(x.shape, like=x)
    rows = math.prod(x.shape[:-1])
    width = x.shape[-1]
    cuda.launch_for_rows(SOURCE, "softmax", x.dtype, rows, width, x, y, rows, width)

    def pullback(dy: Array) -> tuple[Array]:
        dy = cuda.contiguous(dy)
        dx = cuda.empty(y.shape, like=y)
        cuda.launch_for_rows(
            SOURCE, "softmax_backward", y.dtype, rows, width, y, dy, dx, rows, width
        )
        return (dx,)

    return y, pullback


@register("cross_entropy", library="cupy")
def cross_entropy(logits: Array, targets: Array) -> Any:
    """The value and the pullback of `functional.cross_entropy`: the mean loss of logits
    (…, classes) if the right classes have the numbers `targets` (…). Returns None for arrays that
    the kernel does not support. The pullback keeps the logits, the targets and, for each row, the
    largest logit and the sum of the exponentials."""
    if not cuda.are_reals(logits) or not logits.ndim or targets.shape != logits.shape[:-1]:
        return None
    if type(targets) is not type(logits) or not backend.is_integral(targets):
        return None
    xp = namespace(logits)
    x = cuda.contiguous(logits)
    classes = cuda.contiguous(xp.astype(targets, xp.int64))  # a copy, safe from later changes
    rows = math.prod(x.shape[:-1])
    width = x.shape[-1]

    losses = cuda.empty((rows,), like=x)
    statistics = cuda.empty((rows, 2), like=x)  # the largest logit and the sum of exponentials
    cuda.launch_for_rows(
        SOURCE, "cross_entropy", x.dtype, rows, width,
        x, classes, losses, statistics, rows, width,
    )  # fmt: skip
    y = cuda.empty((), like=x)
    cuda.launch(SOURCE, "mean", x.dtype, 1, 1024, losses, y, rows)

    def pullback(dy: Array) -> tuple[Array, None]:
        dx = cuda.empty(x.shape, like=x)
        cuda.launch_for_rows(
            SOURCE, "cross_entropy_backward", x.dtype, rows, width,
            x, classes, statistics, dy, dx, rows, width,
        )  # fmt: skip
        return dx, None

    return y, pullback
