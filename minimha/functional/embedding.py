"""Embedding: rows of a table."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, half, operation
from minimha_autograd.backend import Array

from .implementations import accelerated


def _entries(table: Array, indices: Array) -> int:
    """The size by which `accelerated` decides whether a kernel computes `embedding`: the number of
    entries of y. It is 0 if table does not have two axes or indices is not an array, so that
    `embedding` itself raises the error."""
    if table.ndim != 2 or not backend.is_array(indices):
        return 0
    return math.prod(indices.shape) * table.shape[1]


@operation(native=half.always)
@accelerated(size=_entries)
def embedding(table: Array, indices: Array) -> tuple[Array, Pullback]:
    """y = table[indices].   dtable[n] = Σ dy over all places where indices = n.

    table (N, M), indices (…) integers from 0 to N − 1, y (…, M).
    Raises IndexError for an index out of range, TypeError for indices that are not integers,
    ValueError unless the table has two axes. On a device an index out of range gives NaN instead,
    since the check would make the host wait for the device.
    """
    backend.require(backend.is_integral, indices, "indices")
    xp = backend.namespace(table)
    indices = xp.astype(indices, xp.int64)  # a narrow type may not hold the number of rows
    shape = table.shape
    if len(shape) != 2:
        raise ValueError("table must have two axes, (N, M)")
    rows, width = shape  # N, M
    places = xp.reshape(indices, (-1,))  # (n,), n being the number of indices
    outside = (places < 0) | (places >= rows)  # (n,)
    if backend.on_host(outside):
        if xp.any(outside):
            raise IndexError(f"indices must be from 0 to {rows - 1}, the rows of the table")
        y = xp.take(table, places, axis=0)  # (n, M)
    else:
        # Row 0 is read in place of a row that does not exist, and replaced by NaN.
        y = xp.take(table, xp.where(outside, xp.zeros_like(places), places), axis=0)  # (n, M)
        y = xp.where(outside[:, None], xp.full_like(y, math.nan), y)

    # A row that was read several times receives the sum of its gradients.
    def pullback(dy: Array) -> tuple[Array, None]:
        dtable = backend.add_at(shape, (indices,), dy)  # (N, M)
        return dtable, None

    return xp.reshape(y, (*indices.shape, width)), pullback
