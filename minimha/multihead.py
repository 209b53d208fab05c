"""Multi-head attention: the operation on arrays first, the module that holds its weights last.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Pullback, Tensor, backend, operation
from minimha_autograd.backend import Array, Rng

from . import masks
from .functional.attention import attention
from .functional.scaled_dot_product import check
from .modules.module import Module
from .projections import project_in, project_out


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
    mask: masks.Mask | Array | None = None,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Array, Array], Pullback]:
    """The values (out, weights) of attention in H heads, and the pullback to all eleven arrays.

        Q, K, V = split_heads(query w_q + b_q), split_heads(key w_k + b_k), …
        out     = merge_heads(attention(Q, K, V)) w_o + b_o

    query (…, T, M), key (…, S, Mk), value (…, S, Mv), w_q (M, H·D), w_k (Mk, H·D), w_v (Mv, H·Dv),
    w_o (H·Dv, M), biases (columns of w,); out (…, T, M), weights (…, H, T, S).

    The backward is the pullbacks of the parts in reverse order. The gradient of b_k is zero: it
    adds the same number to every score of a row, which softmax does not see.

    Raises ValueError for shapes that do not fit, of num_heads and the columns among them.
    """
    widths = [w.shape[-1] for w in (w_q, w_k, w_v)]
    if num_heads < 1 or any(width % num_heads for width in widths):
        raise ValueError(
            f"num_heads = {num_heads} must divide the columns {widths} of w_q, w_k, w_v"
        )
    to_q, to_k, to_v = ((wanted[n], wanted[3 + n], wanted[7 + n]) for n in range(3))
    q, pull_q = project_in.with_pullback(query, w_q, b_q, num_heads=num_heads, wanted=to_q)
    k, pull_k = project_in.with_pullback(key, w_k, b_k, num_heads=num_heads, wanted=to_k)
    v, pull_v = project_in.with_pullback(value, w_v, b_v, num_heads=num_heads, wanted=to_v)
    check(q, k, v)
    (heads, weights), pull_attention = attention.with_pullback(
        q,
        k,
        v,
        mask=masks.resolve(mask, q, k),
        wanted=(any(to_q), any(to_k), any(to_v), False, False, False, False),
    )
    out, pull_o = project_out.with_pullback(heads, w_o, b_o, wanted=(True, wanted[6], wanted[10]))

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dheads, dw_o, db_o = (None,) * 3 if dout is None else pull_o(dout)
        dq, dk, dv, *_ = pull_attention(dheads, dweights)
        dquery, dw_q, db_q = (None,) * 3 if dq is None else pull_q(dq)
        dkey, dw_k, db_k = (None,) * 3 if dk is None else pull_k(dk)
        dvalue, dw_v, db_v = (None,) * 3 if dv is None else pull_v(dv)
        return dquery, dkey, dvalue, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o

    return (out, weights), pullback


class MultiHeadAttention(Module):
    """Attention in H heads of width D = M/H, with the projections W^Q, W^K, W^V, W^O of the paper.

    d_model    M, the width of query, key, value and output; a multiple of num_heads
    num_heads  H
    bias       whether the projections add b_q, b_k, b_v, b_o
    rng        a generator, or the seed of one; weights start normal with variance 1/M
    dtype      of the weights

    Call it with query (…, T, M) for self-attention, or with key and value (…, S, M) as well.
    Raises ValueError for a width that the heads do not divide.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        bias: bool = True,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        if d_model < 1 or num_heads < 1 or d_model % num_heads:
            raise ValueError(
                f"d_model = {d_model} must be a positive multiple of num_heads = {num_heads}"
            )
        rng = backend.generator(rng)
        self.d_model, self.num_heads = d_model, num_heads

        def weight() -> Tensor:
            shape, std = (d_model, d_model), 1 / math.sqrt(d_model)
            draws = backend.normal(rng, shape, std=std, dtype=dtype)
            return Tensor(draws, requires_grad=True)

        def zeros() -> Tensor | None:
            start = backend.full((d_model,), 0, dtype=dtype)
            return Tensor(start, requires_grad=True) if bias else None

        self.w_q, self.w_k, self.w_v, self.w_o = weight(), weight(), weight(), weight()
        self.b_q, self.b_k, self.b_v, self.b_o = zeros(), zeros(), zeros(), zeros()

    def __call__(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        mask: masks.Mask | Array | None = None,
        *,
        return_weights: bool = False,
    ) -> Any:
        """The output (…, T, M) and, with return_weights, the weights (…, H, T, S).

        Without a key this is self-attention; without a value, the value is the key.
        Raises ValueError for an input of another width than M, TypeError for what is no array.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in {"query": query, "key": key, "value": value}.items():
            if isinstance(x, masks.Mask):
                raise TypeError(f"{name} is a mask: pass it by name, mask=…")
            if not isinstance(x, Tensor) and not backend.is_array(x):
                raise TypeError(f"{name} must be an array or a Tensor, not {type(x).__name__}")
            if x.ndim < 2 or x.shape[-1] != self.d_model:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, required is (…, positions, M) "
                    f"with M = {self.d_model}"
                )
        out, weights = multi_head_attention(
            query,
            key,
            value,
            self.w_q,
            self.w_k,
            self.w_v,
            self.w_o,
            self.b_q,
            self.b_k,
            self.b_v,
            self.b_o,
            num_heads=self.num_heads,
            mask=mask,
        )
        return (out, weights) if return_weights else out
