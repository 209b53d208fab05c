"""The linear maps of Q, K, V and of the output as operations: one matmul for all heads.

The heads are blocks of D columns: (…, T, H·D) becomes (…, T, H, D), and only then are the axes
swapped to (…, H, T, D). A reshape straight to (…, H, T, D) would mix time with heads.
"""

from __future__ import annotations

from typing import Any

from minimha_autograd import Pullback, half, operation
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ..functional.linear import WantedOfMaps, linear_maps


def split_heads(x: Array, num_heads: int) -> Array:
    """(…, T, H·D) -> (…, H, T, D) for an array, with H = num_heads: the inverse of `merge_heads`.

    Raises ValueError if H does not divide the last axis, or if x has only one axis.
    """
    if x.ndim < 2 or num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"H = {num_heads} heads need (…, T, H·D), at least two axes, not {tuple(x.shape)}"
        )
    xp = namespace(x)
    head_dim = x.shape[-1] // num_heads
    x = xp.reshape(x, (*x.shape[:-1], num_heads, head_dim))  # (…, T, H, D)
    return _swap(x)  # (…, H, T, D)


def merge_heads(x: Array) -> Array:
    """(…, H, T, D) -> (…, T, H·D) for an array: the inverse of `split_heads`."""
    xp = namespace(x)
    x = _swap(x)  # (…, T, H, D)
    num_heads, head_dim = x.shape[-2:]
    return xp.reshape(x, (*x.shape[:-2], num_heads * head_dim))  # (…, T, H·D)


def of_roles(x: Array, h: int, g: int, d: int) -> tuple[Array, Array, Array]:
    """Cut the columns of x (…, (H + G)·D + G·Dv) into those of Q, of K and of V; h, g and d are H,
    G and D."""
    end_q = h * d
    end_k = end_q + g * d
    q = x[..., :end_q]  # (…, H·D)
    k = x[..., end_q:end_k]  # (…, G·D)
    v = x[..., end_k:]  # (…, G·Dv)
    return q, k, v


def _swap(x: Array) -> Array:
    """Swap the third-last and the second-last axis: (…, A, B, D) -> (…, B, A, D)."""
    n = x.ndim
    return namespace(x).permute_dims(x, (*range(n - 3), n - 2, n - 3, n - 1))


@operation(narrow=("w",), native=half.on_device)
def project_in(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    num_heads: int,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
    """y = split_heads(x w + b).   The gradients are those of `linear`, with merge_heads(dy) as dy.

    x (…, T, M), w (M, H·D), b (H·D,), y (…, H, T, D), with H = num_heads.
    """
    groups = WantedOfMaps(wanted.x, (wanted.w,), (wanted.b,))
    (y,), pull = linear_maps(x, (w,), (b,), wanted=groups)  # (…, T, H·D)

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        return pull(merge_heads(dy))

    return split_heads(y, num_heads), pullback


@operation(narrow=("w_q", "w_k", "w_v"), native=half.on_device)
def project_self(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    wanted: Wanted,
) -> tuple[tuple[Array, Array, Array], Pullback]:
    """The values (Q, K, V) of self-attention: `project_in` of the same x with w_q, w_k and w_v.

    dx = dq w_qᵀ + dk w_kᵀ + dv w_vᵀ, with dq = merge_heads(dQ), and so on.

    x (…, T, M), w_q (M, H·D), w_k (M, G·D), w_v (M, G·Dv), b_q (H·D,), b_k (G·D,), b_v (G·Dv,);
    Q (…, H, T, D), K (…, G, T, D), V (…, G, T, Dv), with H = num_heads, G = num_kv_heads.
    """
    groups = WantedOfMaps(
        wanted.x,
        (wanted.w_q, wanted.w_k, wanted.w_v),
        (wanted.b_q, wanted.b_k, wanted.b_v),
    )
    ws = w_q, w_k, w_v
    bs = b_q, b_k, b_v

    # One call for all three maps, whose gradients of x it adds up.
    (q, k, v), pull = linear_maps(x, ws, bs, wanted=groups)
    heads = (
        split_heads(q, num_heads),  # (…, H, T, D)
        split_heads(k, num_kv_heads),  # (…, G, T, D)
        split_heads(v, num_kv_heads),  # (…, G, T, Dv)
    )

    def pullback(*dheads: Array | None) -> tuple[Array | None, ...]:
        return pull(*map(_merged_if_given, dheads))

    return heads, pullback


def _merged_if_given(dheads: Array | None) -> Array | None:
    """Merge the heads of a gradient, as `merge_heads` does; None stays None: no gradient."""
    if dheads is None:
        return None
    return merge_heads(dheads)


@operation(narrow=("w",), native=half.on_device)
def project_fused(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    wanted: Wanted,
) -> tuple[tuple[Array, Array, Array], Pullback]:
    """The values (Q, K, V): the columns of x w + b are cut into Q, K and V, and each into heads.

    The gradients are those of `linear`, with the merged dQ, dK and dV side by side as dy.

    x (…, T, M), w (M, (H + G)·D + G·Dv), b ((H + G)·D + G·Dv,); Q (…, H, T, D), K (…, G, T, D),
    V (…, G, T, Dv), with H = num_heads, G = num_kv_heads, D = head_dim.
    """
    groups = WantedOfMaps(wanted.x, (wanted.w,), (wanted.b,))
    (y,), pull = linear_maps(x, (w,), (b,), wanted=groups)  # (…, T, (H + G)·D + G·Dv)

    # Columns first become roles, then heads: a head lies within one role.
    q, k, v = of_roles(y, num_heads, num_kv_heads, head_dim)
    shapes = q.shape, k.shape, v.shape
    heads = (
        split_heads(q, num_heads),  # (…, H, T, D)
        split_heads(k, num_kv_heads),  # (…, G, T, D)
        split_heads(v, num_kv_heads),  # (…, G, T, Dv)
    )

    def pullback(*dheads: Array | None) -> tuple[Array | None, ...]:
        return pull(_side_by_side(dheads, shapes))

    return heads, pullback


def _side_by_side(dheads: tuple[Array | None, ...], shapes: tuple[Any, ...]) -> Array:
    """The merged dQ, dK and dV as columns of one array, (…, T, (H + G)·D + G·Dv).

    dheads  dQ (…, H, T, D), dK (…, G, T, D), dV (…, G, T, Dv); zeros take the place of those that
            are None
    shapes  the shapes of the three after merging: (…, T, H·D), (…, T, G·D), (…, T, G·Dv)
    """
    like = next(dhead for dhead in dheads if dhead is not None)
    xp = namespace(like)
    columns = []
    for dhead, shape in zip(dheads, shapes, strict=True):
        if dhead is None:
            part = xp.zeros(shape, dtype=like.dtype, device=like.device)
        else:
            part = merge_heads(dhead)
        columns.append(part)
    return xp.concat(columns, axis=-1)


@operation(narrow=("w",), native=half.on_device)
def project_out(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    wanted: Wanted,
) -> tuple[Array, Pullback]:
    """y = merge_heads(x) w + b.   dx = split_heads(dy wᵀ).

    x (…, H, T, D), w (H·D, M), b (M,), y (…, T, M).
    """
    merged = merge_heads(x)  # (…, T, H·D)
    if w.shape[:1] != merged.shape[-1:]:
        raise ValueError(f"w needs H·D = {merged.shape[-1]} rows, one for each column of all heads")
    groups = WantedOfMaps(wanted.x, (wanted.w,), (wanted.b,))
    (y,), pull = linear_maps(merged, (w,), (b,), wanted=groups)
    num_heads = x.shape[-3]

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dmerged, dw, db = pull(dy)  # (…, T, H·D), (H·D, M), (M,)
        dx = None
        if dmerged is not None:
            dx = split_heads(dmerged, num_heads)  # (…, H, T, D)
        return dx, dw, db

    return y, pullback
