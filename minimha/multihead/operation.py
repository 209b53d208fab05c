"""Multi-head attention as one operation on arrays, its backward composed by hand.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

from __future__ import annotations

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array
from minimha_autograd.operation import Wanted

from .. import masks
from ..attention import Arguments
from ..attention.arguments import Wanted, check
from ..attention.reference import attention
from ..functional.checks import integer
from ..masks.queries import typed
from ..projections import project_in, project_out


@operation
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
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
    w_o (H·Dv, N), biases (columns of w,); out (…, T, N), weights (…, H, T, S). H is num_heads, and
    G, num_kv_heads, is H unless given.

    The backward pass calls the pullbacks of the parts in reverse order. The gradient of b_k is
    zero up to rounding: b_k adds the same number to every score of a row, which does not change the
    softmax.

    Raises ValueError for shapes that do not match, or if num_heads or num_kv_heads does not divide
    the columns.
    """
    num_heads = integer(num_heads, "num_heads")
    groups = num_heads if num_kv_heads is None else integer(num_kv_heads, "num_kv_heads")
    widths, counts = [w.shape[-1] for w in (w_q, w_k, w_v)], (num_heads, groups, groups)
    if min(counts) < 1 or any(width % n for width, n in zip(widths, counts, strict=True)):
        raise ValueError(
            f"num_heads = {num_heads} and num_kv_heads = {groups} must divide the columns {widths} "
            "of w_q, w_k, w_v"
        )
    to_q = project_in.wanted(wanted.query, wanted.w_q, wanted.b_q)
    to_k = project_in.wanted(wanted.key, wanted.w_k, wanted.b_k)
    to_v = project_in.wanted(wanted.value, wanted.w_v, wanted.b_v)
    to_out = project_out.wanted(True, wanted.w_o, wanted.b_o)
    q, pull_q = project_in.function(query, w_q, b_q, num_heads=num_heads, wanted=to_q)
    k, pull_k = project_in.function(key, w_k, b_k, num_heads=groups, wanted=to_k)
    v, pull_v = project_in.function(value, w_v, b_v, num_heads=groups, wanted=to_v)
    check(Arguments(q, k, v))
    seen = None if mask is None else typed(mask, (*q.shape[:-1], k.shape[-2]))
    to_attention = Wanted(any(to_q), any(to_k), any(to_v))
    (heads, weights, _), pull_attention = attention(Arguments(q, k, v, mask=seen), to_attention)
    out, pull_o = project_out.function(heads, w_o, b_o, wanted=to_out)

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dheads, dw_o, db_o = (None,) * 3 if dout is None else pull_o(dout)
        dq, dk, dv, *_ = pull_attention(dheads, dweights, None)
        dquery, dw_q, db_q = (None,) * 3 if dq is None else pull_q(dq)
        dkey, dw_k, db_k = (None,) * 3 if dk is None else pull_k(dk)
        dvalue, dw_v, db_v = (None,) * 3 if dv is None else pull_v(dv)
        return dquery, dkey, dvalue, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o

    return (out, weights), pullback
