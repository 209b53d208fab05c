"""Products over pairs of a query and a key. Hidden pairs contribute nothing, not even 0 · NaN.

The weight of a hidden pair is exactly 0, so plain products are right as long as all entries are
finite. Only if some are not do we have to leave out the hidden pairs explicitly. On a device we
always leave them out, since to look at the entries the host would have to wait for the device.
"""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import array_of, backend, ops
from minimha_autograd.backend import Array, namespace


def is_finite(x: Array) -> bool:
    """Whether no entry is NaN or infinite."""
    xp = namespace(x)
    return bool(xp.all(xp.isfinite(x)))


def known_finite(x: Array) -> bool:
    """Whether x is on the host and no entry is NaN or infinite."""
    return backend.on_host(x) and is_finite(x)


def hide(x: Array, visible: Array | None) -> Array:
    """x with zeros in the hidden places."""
    xp = namespace(x)
    return x if visible is None else xp.where(visible, x, xp.zeros_like(x))


def ones_where_hidden(x: Any, visible: Array | None) -> Any:
    """A scale or softcap with 1 in place of its hidden entries, if it is an array that is not
    finite; x may be a Tensor."""
    array = array_of(x)
    if visible is None or not backend.is_array(array) or known_finite(array):
        return x
    return ops.where(visible, x, 1.0)


def products(a: Array, b: Array, visible: Array | None) -> Array:
    """a bᵀ, the products of all rows of a and all rows of b; hidden ones are finite.

    a (…, H, T, N), b (…, G, S, N), visible broadcasts to the result (…, H, T, S). Head h of
    a is multiplied by head h // (H // G) of b.
    """
    xp, shape = namespace(a, b), (*a.shape[:-1], b.shape[-2])
    if visible is not None and backend.on_host(a) and not (is_finite(a) and is_finite(b)):
        a, b = _without_hidden_rows(a, b, xp.broadcast_to(visible, shape))
    y = _unfolded(_folded(a, b) @ b.mT, shape)
    if visible is None or known_finite(y):
        return y
    return hide(y, visible | xp.isfinite(y))


def sums_over_keys(weights: Array, b: Array, visible: Array | None) -> Array:
    """weights · b: for every query, the weighted sum of the rows of b.

    weights (…, H, T, S), 0 where hidden; b (…, G, S, N); the result (…, H, T, N).
    """
    xp, shape = namespace(weights, b), (*weights.shape[:-1], b.shape[-1])
    rows = _folded(weights, b)
    if visible is not None and not known_finite(b):
        visible = _folded(xp.broadcast_to(visible, weights.shape), b)
        return _unfolded(_visible_matmul(rows, b, visible), shape)
    return _unfolded(rows @ b, shape)


def sums_over_queries(weights: Array, a: Array, visible: Array | None, like: Array) -> Array:
    """weightsᵀ · a: for every key, the weighted sum of the rows of a over all queries that read it.

    weights (…, H, T, S), 0 where hidden; a (…, H, T, N); the result (…, G, S, N), G being that of
    like (…, G, S, _).
    """
    xp = namespace(weights, a)
    columns, rows = _folded(weights, like).mT, _folded(a, like)
    if visible is not None and not known_finite(a):
        visible = _folded(xp.broadcast_to(visible, weights.shape), like)
        return _visible_matmul(columns, rows, visible.mT)
    return columns @ rows


def _folded(x: Array, like: Array) -> Array:
    """(…, H, T, N) as (…, G, H/G · T, N): the query heads of one key head become one head with
    more queries, so that grouped heads need no separate products."""
    if x.shape[:-2] == like.shape[:-2]:
        return x
    heads, groups = x.shape[-3], like.shape[-3]
    shape = (*x.shape[:-3], groups, heads // groups * x.shape[-2], x.shape[-1])
    return namespace(x).reshape(x, shape)


def _unfolded(y: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_folded`, for a result of this shape."""
    return y if y.shape == shape else namespace(y).reshape(y, shape)


def _without_hidden_rows(a: Array, b: Array, visible: Array) -> tuple[Array, Array]:
    """The arguments of `products` with zeros in rows that are hidden from every query, so that no
    library warns about them."""
    xp = namespace(a, b)
    rows, columns = xp.any(visible, axis=-1), xp.any(_folded(visible, b), axis=-2)
    return hide(a, rows[..., None]), hide(b, columns[..., None])


def _visible_matmul(a: Array, b: Array, visible: Array) -> Array:
    """a b with a (…, I, J), b (…, J, N): rows of b that are not finite affect only the rows of
    a that may see them.

    On a device, a row that sees one becomes NaN, even where the sum would be infinite.
    """
    xp = namespace(a, b)
    nonfinite = ~xp.all(xp.isfinite(b), axis=-1)  # (…, J)
    y = xp.matmul(a, hide(b, ~nonfinite[..., None]))
    reached = visible & nonfinite[..., None, :]
    if not backend.on_host(y):
        return xp.where(xp.any(reached, axis=-1, keepdims=True), xp.full_like(y, math.nan), y)
    others = tuple(range(reached.ndim - 1))
    for j in map(int, xp.nonzero(xp.any(reached, axis=others))[0]):
        here = slice(j, j + 1)
        y = y + a[..., here] * hide(b[..., here, :], reached[..., here])
    return y
