"""Embedding and rotary positions on a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from ...functional.implementations import register
from ...functional.rope import Llama3
from ..shared import empty_laid_out_like, four_axes, like_scores
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")


@register("embedding", library="cupy")
def embedding(table: Array, indices: Array) -> Any:
    """The value and the pullback of `functional.embedding`, the rows of the table at the indices.
    Returns None for arrays that the kernel does not support. If an index occurs several times, the
    pullback adds up its gradients in no fixed order, so that their rounding can vary."""
    if not cuda.are_reals(table) or table.ndim != 2:
        return None
    if type(indices) is not type(table) or not backend.is_integral(indices) or not indices.size:
        return None
    xp = namespace(table)
    shape = table.shape
    count, width = shape
    places = cuda.contiguous(xp.astype(indices, xp.int64))
    y = cuda.empty((*indices.shape, width), like=table)
    cuda.launch_for_rows(
        SOURCE, "embedding", table.dtype, places.size, width,
        cuda.contiguous(table), places, y, count, places.size, width,
    )  # fmt: skip
    return y, lambda dy: (backend.add_at(shape, (places,), dy), None)


@register("rotations", library="cupy")
def rotations(positions: Array, width: int, base: float, scaling: Any, dtype: Any) -> Any:
    """The cosines and the sines, both (…, T, width/2), for rotary positions (…, T), as
    `functional.rope.rotations` returns them, or None for arguments that the kernel does not
    support, such as 16-bit floats as dtype.

    width    the number of columns that are rotated, in pairs
    base     pair i turns by base^(−2i/width) from each position to the next
    scaling  a `Llama3`, which changes these angles for long texts, or None
    dtype    that of the cosines and the sines
    """
    if np.dtype(dtype).name not in cuda.REALS or not positions.size or not 0 < base < math.inf:
        return None
    if type(scaling) not in (type(None), Llama3):
        return None
    xp = namespace(positions)
    half = width // 2
    positions = cuda.contiguous(xp.astype(positions, xp.int64, copy=False))
    cos = xp.empty((*positions.shape, half), dtype=dtype, device=positions.device)
    sin = xp.empty_like(cos)

    # Without scaling, the context is 0.
    scaling = Llama3(0.0, 0.0, 0.0, 0) if scaling is None else scaling
    cuda.launch_for_entries(
        SOURCE, "rotations", cos,
        positions, cos, sin, float(base), *map(float, scaling), half, positions.size,
    )  # fmt: skip
    return cos, sin


@register("rotate", library="cupy")
def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Any:
    """The value and the pullback of `functional.rope.rotate`, which rotates pairs of columns of x
    (B, H, T, D) by angles with these cosines and sines, (…, T, width/2), or None for arrays that
    the kernel does not support. A pair consists of two neighbouring columns if `interleaved`, else
    of columns that are width/2 apart. The result has the memory layout of x, even if x is a
    transposed view of an array (B, T, H, D), as the heads of a projection are."""
    if not cuda.are_reals(x, cos, sin) or x.ndim < 2:
        return None
    shape = x.shape
    half = cos.shape[-1]
    angles = [
        like_scores(cuda.contiguous(a), (*shape[:-1], half)) for a in (cos, sin)
    ]  # (B, H, T, half)

    def rotated(x: Array, direction: int) -> Array:
        if x.strides[-1] != x.itemsize:
            x = cuda.contiguous(x)
        x = four_axes(x)
        b, h, t, d = x.shape
        y = empty_laid_out_like(x, d)
        cuda.launch_for_rows(
            SOURCE, "rotate", x.dtype, b * h * t, d,
            x, *_strides(x), *angles, *_strides(angles[0]), y, *_strides(y),
            direction, int(interleaved), half, b * h * t, h, t, d,
        )  # fmt: skip
        return y if y.shape == shape else namespace(y).reshape(y, shape)

    return rotated(x, 1), lambda dy: (rotated(dy, -1),)


def _strides(x: Array) -> tuple[int, int, int]:
    """The strides of x along B, H and T, counted in entries."""
    b, h, t, _ = x.strides
    return b // x.itemsize, h // x.itemsize, t // x.itemsize
