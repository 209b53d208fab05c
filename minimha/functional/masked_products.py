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
    """Whether x is on the host and no entry is NaN or infinite. For an array on a device the result
    is False: the host would have to wait before it could look at the entries."""
    return backend.on_host(x) and is_finite(x)


def hide(x: Array, visible: Array | None) -> Array:
    """x with zeros in place of hidden entries, those where the boolean array `visible` is False; x
    itself if `visible` is None."""
    if visible is None:
        return x
    xp = namespace(x)
    return xp.where(visible, x, xp.zeros_like(x))


def ones_where_hidden(x: Any, visible: Array | None) -> Any:
    """x with 1 in place of hidden entries, those where the boolean array `visible` is False, since
    they might be NaN. x is a scale or a softcap: a number, or an array or Tensor that may have an
    entry for each pair of query and key. x itself is returned if it is a number, if it is known to
    be finite, or if `visible` is None."""
    array = array_of(x)
    if visible is None or not backend.is_array(array) or known_finite(array):
        return x
    return ops.where(visible, x, 1.0)


def products(a: Array, b: Array, visible: Array | None) -> Array:
    """a bᵀ, the products of all rows of a and all rows of b. For a hidden pair, where the boolean
    array `visible` is False, the result is finite, even if the rows contain NaN or infinity.

    a (…, H, T, N), b (…, G, S, N), visible broadcasts to the result (…, H, T, S), or is None if no
    pair is hidden. Head h of a is multiplied by head h // (H // G) of b.
    """
    xp = namespace(a, b)
    shape = (*a.shape[:-1], b.shape[-2])  # (…, H, T, S)
    if visible is not None and backend.on_host(a) and not (is_finite(a) and is_finite(b)):
        a, b = _without_hidden_rows(a, b, xp.broadcast_to(visible, shape))
    y = _unfolded(_folded(a, b) @ b.mT, shape)  # (…, H, T, S)
    if visible is None or known_finite(y):
        return y

    # A product of a hidden pair that is NaN or infinite becomes 0.
    return hide(y, visible | xp.isfinite(y))


def sums_over_keys(weights: Array, b: Array, visible: Array | None) -> Array:
    """weights · b: for every query, the weighted sum of the rows of b over the keys.

    weights (…, H, T, S); b (…, G, S, N), read by query head h as head h // (H // G); the result
    (…, H, T, N). visible is a boolean array that broadcasts to weights, or None if no pair is
    hidden. Where it is False, weights must be 0, and the row of b contributes nothing, even if it
    is NaN.
    """
    xp = namespace(weights, b)
    shape = (*weights.shape[:-1], b.shape[-1])  # (…, H, T, N)
    rows = _folded(weights, b)  # (…, G, H/G · T, S)
    if visible is None or known_finite(b):
        return _unfolded(rows @ b, shape)

    visible = _folded(xp.broadcast_to(visible, weights.shape), b)  # (…, G, H/G · T, S)
    return _unfolded(_visible_matmul(rows, b, visible), shape)


def sums_over_queries(weights: Array, a: Array, visible: Array | None, like: Array) -> Array:
    """weightsᵀ · a: for every key, the weighted sum of the rows of a over all queries that see it.

    weights (…, H, T, S); a (…, H, T, N); the result (…, G, S, N), summed over the query heads that
    share a key head. Of the array like (…, G, S, _) only the shape is used, to know G. visible is
    as in `sums_over_keys`: where it is False, weights must be 0, and the row of a contributes
    nothing.
    """
    xp = namespace(weights, a)
    columns = _folded(weights, like).mT  # (…, G, S, H/G · T)
    rows = _folded(a, like)  # (…, G, H/G · T, N)
    if visible is None or known_finite(a):
        return columns @ rows

    visible = _folded(xp.broadcast_to(visible, weights.shape), like)  # (…, G, H/G · T, S)
    return _visible_matmul(columns, rows, visible.mT)


def _folded(x: Array, like: Array) -> Array:
    """(…, H, T, N) as (…, G, H/G · T, N), where G is the number of heads of `like`: the query heads
    that share a key head become one head with more queries, so that one product computes them."""
    if x.shape[:-2] == like.shape[:-2]:
        return x
    heads = x.shape[-3]  # H
    groups = like.shape[-3]  # G
    shape = (*x.shape[:-3], groups, heads // groups * x.shape[-2], x.shape[-1])
    return namespace(x).reshape(x, shape)


def _unfolded(y: Array, shape: tuple[int, ...]) -> Array:
    """y reshaped to this shape: the inverse of `_folded`."""
    if y.shape == shape:
        return y
    return namespace(y).reshape(y, shape)


def _without_hidden_rows(a: Array, b: Array, visible: Array) -> tuple[Array, Array]:
    """a and b, the arguments of `products`, with zeros in the rows of queries that see no key and
    of keys that no query sees, so that no library warns about NaN or infinity in these rows. The
    boolean array visible (…, H, T, S) is True where a query sees a key."""
    xp = namespace(a, b)
    queries = xp.any(visible, axis=-1)  # (…, H, T), those that see a key
    keys = xp.any(_folded(visible, b), axis=-2)  # (…, G, S), those that a query sees
    return hide(a, queries[..., None]), hide(b, keys[..., None])


def _visible_matmul(a: Array, b: Array, visible: Array) -> Array:
    """The matrix product of a (…, I, J) and b (…, J, N). If row j of b is not finite, it affects
    row i of the result only where visible[…, i, j] is True; visible is (…, I, J).

    On a device, a row of the result that such a row of b affects becomes NaN, even where the sum
    would be infinite.
    """
    xp = namespace(a, b)
    nonfinite = ~xp.all(xp.isfinite(b), axis=-1)  # (…, J)
    y = xp.matmul(a, hide(b, ~nonfinite[..., None]))  # (…, I, N)
    reached = visible & nonfinite[..., None, :]  # (…, I, J)
    if not backend.on_host(y):
        return xp.where(xp.any(reached, axis=-1, keepdims=True), xp.full_like(y, math.nan), y)

    # On the host, the rows of b that are not finite are added one by one.
    others = tuple(range(reached.ndim - 1))
    for j in map(int, xp.nonzero(xp.any(reached, axis=others))[0]):
        here = slice(j, j + 1)
        y = y + a[..., here] * hide(b[..., here, :], reached[..., here])
    return y
