"""Matrices of int8 with scales: a quarter of the memory of float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minimha_autograd import backend, widened
from minimha_autograd.backend import Array, namespace

from .embedding import embedding


@dataclass(frozen=True, eq=False)
class Quantised:
    """The matrix values · scale, for inference: it takes the place of w (M, N) in linear maps.

    values  (M, N) of int8, from −127 to 127
    scale   (1, N), one for each column, or (M, 1), one for each row

    When `of` rounds w, it changes an entry by at most about scale/2, which is max |w|/254 over its
    column or row, unless the scale is subnormal. With one scale for each column, scale (1, N), the
    product with a matrix x is x w = (x values) · scale.
    Source: Dettmers et al., "LLM.int8()" (2022), for the weights alone, without its treatment of
    outliers.
    """

    values: Array
    scale: Array

    @classmethod
    def of(cls, w: Array, axis: int) -> Quantised:
        """The matrix w (M, N) rounded to multiples of max |w|/127, the scales. All entries along
        `axis` share a scale: axis 0 gives one for each column, axis 1 one for each row.

        Entries with the same scale are neighbours in memory, in the order in which kernels read
        them. float16 and bfloat16 get scales of float32.
        """
        if axis % 2 == 0:
            return cls.of(w.mT, axis=1).mT
        w = widened(w)
        xp = namespace(w)
        scale = xp.max(xp.abs(w), axis=1, keepdims=True) / 127  # (M, 1)

        # A row of zeros has scale 0: it is divided by 1.
        steps = xp.round(w / xp.where(scale > 0, scale, xp.ones_like(scale)))
        steps = backend.clip(steps, -127, 127)  # a subnormal scale may be far too small
        values = xp.empty(w.shape, dtype=xp.int8, device=w.device)  # row by row in memory
        values[...] = xp.astype(steps, xp.int8)
        return cls(values, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def mT(self) -> Quantised:  # noqa: N802 — the name in the array-API standard
        return Quantised(self.values.mT, self.scale.mT)

    def rows(self, indices: Array) -> Array:
        """The rows with these indices, multiplied by their scales, in the dtype of the scales. The
        matrix must have one scale for each row."""
        rows = embedding(self.values, indices)  # (…, N)
        scale = embedding(self.scale, indices)  # (…, 1)
        return namespace(scale).astype(rows, scale.dtype) * scale
