"""Multi-head attention as one operation on arrays, its backward composed by hand.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

from __future__ import annotations

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array
from minimha_autograd.operation import Wanted

from .. import masks
from ..attention import Arguments, scaled_dot_product_attention
from ..attention.arguments import check
from ..attention.reference import attention
from ..functional.checks import integer
from ..masks.queries import typed
from ..projections import project_in, project_out


@operation
def multi_head_attention(
    query: Array,  # (…, T, M)
    key: Array,  # (…, S, Mk)
    value: Array,  # (…, S, Mv)
    w_q: Array,  # (M, H·D)
    w_k: Array,  # (Mk, G·D)
    w_v: Array,  # (Mv, G·Dv)
    w_o: Array,  # (H·Dv, N)
    b_q: Array | None = None,  # (H·D,)
    b_k: Array | None = None,  # (G·D,)
    b_v: Array | None = None,  # (G·Dv,)
    b_o: Array | None = None,  # (N,)
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    mask: masks.Mask | Array | None = None,
    wanted: Wanted,
) -> tuple[tuple[Array, Array], Pullback]:
    """The values (out, weights) of attention in H heads, and the pullback to all eleven arrays.

        Q, K, V = split_heads(query w_q + b_q), split_heads(key w_k + b_k), …
        out     = merge_heads(attention(Q, K, V)) w_o + b_o

    query (…, T, M), key (…, S, Mk), value (…, S, Mv), w_q (M, H·D), w_k (Mk, G·D), w_v (Mv, G·Dv),
    w_o (H·Dv, N), and each bias has an entry for each column of its matrix; out (…, T, N), weights
    (…, H, T, S). H is num_heads, and G is num_kv_heads, by default H. mask is one of
    `minimha.masks`, or a boolean array, True = may attend; None hides nothing.

    The backward pass calls the pullbacks of the parts in reverse order. The gradient of b_k is zero
    up to rounding: b_k adds the same number to every score of a row, which does not change the
    softmax.

    Raises ValueError for shapes that do not match, or if num_heads does not divide the columns of
    w_q, or num_kv_heads those of w_k and w_v.
    """
    num_heads = integer(num_heads, "num_heads")
    groups = num_heads if num_kv_heads is None else integer(num_kv_heads, "num_kv_heads")
    _check_columns(num_heads, groups, [w_q.shape[-1], w_k.shape[-1], w_v.shape[-1]])
    to_q = project_in.wanted(wanted.query, wanted.w_q, wanted.b_q)
    to_k = project_in.wanted(wanted.key, wanted.w_k, wanted.b_k)
    to_v = project_in.wanted(wanted.value, wanted.w_v, wanted.b_v)
    to_out = project_out.wanted(True, wanted.w_o, wanted.b_o)

    # Attention passes a gradient on if anything before it needs one.
    to_attention = scaled_dot_product_attention.wanted(
        query=any(to_q), key=any(to_k), value=any(to_v)
    )

    # Q (…, H, T, D), K (…, G, S, D) and V (…, G, S, Dv)
    q, pull_q = project_in.function(query, w_q, b_q, num_heads=num_heads, wanted=to_q)
    k, pull_k = project_in.function(key, w_k, b_k, num_heads=groups, wanted=to_k)
    v, pull_v = project_in.function(value, w_v, b_v, num_heads=groups, wanted=to_v)

    x = Arguments(q, k, v)
    check(x)
    if mask is not None:
        x = x._replace(mask=typed(mask, x.shape))

    (heads, weights, _), pull_attention = attention(x, to_attention)  # heads (…, H, T, Dv)
    out, pull_out = project_out.function(heads, w_o, b_o, wanted=to_out)  # (…, T, N)

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dheads, dw_o, db_o = _through(pull_out, dout)
        gradients = pull_attention(dheads, dweights, None)
        dquery, dw_q, db_q = _through(pull_q, gradients.query)
        dkey, dw_k, db_k = _through(pull_k, gradients.key)
        dvalue, dw_v, db_v = _through(pull_v, gradients.value)
        return dquery, dkey, dvalue, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o

    return (out, weights), pullback


def _check_columns(num_heads: int, groups: int, widths: list[int]) -> None:
    """Raise ValueError unless num_heads divides the columns of w_q, and `groups`, the number of key
    and value heads, those of w_k and w_v. `widths` lists the columns of w_q, w_k and w_v."""
    counts = num_heads, groups, groups
    if min(counts) < 1 or any(width % n for width, n in zip(widths, counts, strict=True)):
        raise ValueError(
            f"num_heads = {num_heads} and num_kv_heads = {groups} must divide the columns {widths} "
            "of w_q, w_k, w_v"
        )


def _through(pull: Pullback, dy: Array | None) -> tuple[Array | None, ...]:
    """Apply the pullback of a projection: return the gradients of its x, w and b, given the
    gradient dy of its result. All three are None if dy is None."""
    if dy is None:
        return None, None, None
    return pull(dy)
