"""The linear maps of Q, K, V and of the output as operations: one matmul for all heads.

The heads are blocks of D columns: (…, T, H·D) becomes (…, T, H, D), and only then are the axes
swapped to (…, H, T, D). A reshape straight to (…, H, T, D) would mix time with heads.
"""

from __future__ import annotations

from minimha_autograd import Pullback, half, operation
from minimha_autograd.backend import Array, namespace

from ..functional.linear import linear_maps


def split_heads(x: Array, num_heads: int) -> Array:
    """(…, T, H·D) -> (…, H, T, D) for an array: the inverse of `merge_heads`.

    Raises ValueError if H does not divide the last axis, or if x has only one axis.
    """
    if x.ndim < 2 or num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"H = {num_heads} heads need (…, T, H·D), at least two axes, not {tuple(x.shape)}"
        )
    xp = namespace(x)
    x = xp.reshape(x, (*x.shape[:-1], num_heads, x.shape[-1] // num_heads))  # (…, T, H, D)
    return _swap(x)


def merge_heads(x: Array) -> Array:
    """(…, H, T, D) -> (…, T, H·D) for an array: the inverse of `split_heads`."""
    x = _swap(x)  # (…, T, H, D)
    return namespace(x).reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def of_roles(x: Array, h: int, g: int, d: int) -> tuple[Array, Array, Array]:
    """The columns of Q, of K and of V in x (…, (H + G)·D + G·Dv)."""
    return x[..., : h * d], x[..., h * d : (h + g) * d], x[..., (h + g) * d :]


def _swap(x: Array) -> Array:
    n = x.ndim
    return namespace(x).permute_dims(x, (*range(n - 3), n - 2, n - 3, n - 1))


@operation(narrow=("w",), native=half.on_device)
def project_in(
    x: Array, w: Array, b: Array | None = None, *, num_heads: int, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = split_heads(x w + b).   The gradients are those of `linear`, of merge_heads(dy).

    x (…, T, M), w (M, H·D), b (H·D,), y (…, H, T, D).
    """
    (y,), pull = linear_maps(x, (w,), (b,), wanted=wanted)
    return split_heads(y, num_heads), lambda dy: pull(merge_heads(dy))


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
    wanted: tuple[bool, ...],
) -> tuple[tuple[Array, Array, Array], Pullback]:
    """The values (Q, K, V) of self-attention: `project_in` of one x for each role.

    dx = dq w_qᵀ + dk w_kᵀ + dv w_vᵀ, with dq = merge_heads(dQ), and so on.

    x (…, T, M), w_q (M, H·D), w_k (M, G·D), w_v (M, G·Dv), biases (columns of w,); Q (…, H, T, D),
    K (…, G, T, D), V (…, G, T, Dv).
    """
    ys, pull = linear_maps(x, (w_q, w_k, w_v), (b_q, b_k, b_v), wanted=wanted)
    counts = num_heads, num_kv_heads, num_kv_heads
    q, k, v = (split_heads(y, n) for y, n in zip(ys, counts, strict=True))

    def pullback(*dheads: Array | None) -> tuple[Array | None, ...]:
        return pull(*(None if dhead is None else merge_heads(dhead) for dhead in dheads))

    return (q, k, v), pullback


@operation(narrow=("w",), native=half.on_device)
def project_fused(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Array, Array, Array], Pullback]:
    """The values (Q, K, V) = x w + b, cut into roles and then into heads.

    The gradients are those of `linear`, of the merged dQ, dK and dV side by side.

    x (…, T, M), w (M, (H + G)·D + G·Dv), b of as many columns; Q (…, H, T, D), K (…, G, T, D),
    V (…, G, T, Dv).
    """
    (y,), pull = linear_maps(x, (w,), (b,), wanted=wanted)
    parts = of_roles(y, num_heads, num_kv_heads, head_dim)
    counts = num_heads, num_kv_heads, num_kv_heads
    q, k, v = (split_heads(part, n) for part, n in zip(parts, counts, strict=True))
    xp, shapes = namespace(y), [part.shape for part in parts]

    def pullback(*dheads: Array | None) -> tuple[Array | None, ...]:
        like = next(dhead for dhead in dheads if dhead is not None)
        dy = xp.concat(
            [
                xp.zeros(shape, dtype=like.dtype, device=like.device)
                if dhead is None
                else merge_heads(dhead)
                for dhead, shape in zip(dheads, shapes, strict=True)
            ],
            axis=-1,
        )
        return pull(dy)

    return (q, k, v), pullback


@operation(narrow=("w",), native=half.on_device)
def project_out(
    x: Array, w: Array, b: Array | None = None, *, wanted: tuple[bool, ...]
) -> tuple[Array, Pullback]:
    """y = merge_heads(x) w + b.   dx = split_heads(dy wᵀ).

    x (…, H, T, D), w (H·D, M), b (M,), y (…, T, M).
    """
    merged = merge_heads(x)
    if w.shape[:1] != merged.shape[-1:]:
        raise ValueError(f"w needs H·D = {merged.shape[-1]} rows, one for each column of all heads")
    (y,), pull = linear_maps(merged, (w,), (b,), wanted=wanted)
    num_heads = x.shape[-3]

    def pullback(dy: Array) -> tuple[Array | None, ...]:
        dmerged, dw, db = pull(dy)
        return None if dmerged is None else split_heads(dmerged, num_heads), dw, db

    return y, pullback
