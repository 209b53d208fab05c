"""Multi-head latent attention: keys and values of all heads made from one short vector."""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Tensor, backend, ops
from minimha_autograd.backend import Array, Rng

from .. import masks
from ..attention import scaled_dot_product_attention
from ..functional import linear, rms_norm
from ..functional.checks import integer, probability
from ..nn import Module
from ..nn.module import parameter
from ..projections import project_in, project_out
from .cache import KeyValueCache
from .layer import check_input, check_rope, positions_in
from .positions import Rope


class LatentAttention(Module):
    """Self-attention in H heads whose keys and values are linear maps of a latent vector c of width
    C, which a cache holds in their place.

        c = rms_norm(x W^DKV)              k_i = c W_i^UK,  v_i = c W_i^UV        for head i
        k^R = rope(x W^KR)                 one for all heads
        c_q = rms_norm(x W^DQ)             q_i = c_q W_i^UQ,  q_i^R = rope(c_q W_i^QR)
        scores = (q_i · k_i + q_i^R · k^R) / √(D + Dr)
        out = [heads side by side] W^O

    Only a part of queries and keys, q_i^R and k^R, is rotated, because a rotation, which depends on
    the position, would stand between q_i and W_i^UK. For the other part,
    q_i · (c W_i^UK) = (q_i W_i^UKᵀ) · c: the *absorbed* form never makes keys and values. All heads
    attend to the latents themselves, as in multi-query attention with the key [c k^R] and the value
    c, and W_i^UV is applied to the result of head i. Both forms have the same output and gradients
    up to rounding.

    d_model       M
    num_heads     H
    latent        C
    head_dim      D, the width of the part of queries and keys that is not rotated
    rope_dim      Dr, the width of the rotated part
    v_head_dim    Dv, by default D
    query_latent  Cq, the width of c_q; by default queries are made from x itself, c_q = x
    rope          the settings of the rotation, a `positions.Rope`; None for none
    dropout, rng, dtype
                  as in `MultiHeadAttention`

    The parameters are w_dkv (M, C), w_kr (M, Dr), w_uk (C, H·D), w_uv (C, H·Dv), w_dq (M, Cq),
    w_uq (Cq, H·D), w_qr (Cq, H·Dr), w_o (H·Dv, M) and the weights norm_kv, norm_q of the norms;
    without query_latent there are no w_dq and norm_q, and Cq is M. There are no biases.
    Raises ValueError for sizes below 1.
    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1 and appendix C; the norms: section 3.1.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        latent: int,
        head_dim: int,
        rope_dim: int,
        v_head_dim: int | None = None,
        query_latent: int | None = None,
        rope: Rope | None = Rope(),  # noqa: B008
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        dropout = probability(dropout, "dropout")
        check_rope(rope)
        d_model = integer(d_model, "d_model", least=1)
        num_heads = integer(num_heads, "num_heads", least=1)
        latent = integer(latent, "latent", least=1)
        head_dim = integer(head_dim, "head_dim", least=1)
        rope_dim = integer(rope_dim, "rope_dim", least=1)
        if v_head_dim is None:
            v_head_dim = head_dim
        v_head_dim = integer(v_head_dim, "v_head_dim", least=1)
        if query_latent is not None:
            query_latent = integer(query_latent, "query_latent", least=1)
        rng = backend.generator(rng)

        def matrix(rows: int, columns: int) -> Tensor:
            x = backend.normal(rng, (rows, columns), std=1 / math.sqrt(rows), dtype=dtype)
            return parameter(x)

        def ones(length: int) -> Tensor:
            return parameter(backend.full((length,), 1, dtype=dtype))

        self.d_model = d_model
        self.num_heads = num_heads
        self.latent = latent
        self.rope = rope
        self.dropout = dropout

        # Queries and keys have the width D + Dr: both parts add to a score.
        self.scale = 1 / math.sqrt(head_dim + rope_dim)

        # From x to c and k^R, which are all that a cache holds.
        self.w_dkv = matrix(d_model, latent)  # (M, C)
        self.norm_kv = ones(latent)  # (C,)
        self.w_kr = matrix(d_model, rope_dim)  # (M, Dr)

        # From c to the keys and values of all heads.
        self.w_uk = matrix(latent, num_heads * head_dim)  # (C, H·D)
        self.w_uv = matrix(latent, num_heads * v_head_dim)  # (C, H·Dv)

        # From x to c_q, and from c_q to the queries of all heads.
        self.w_dq = None
        self.norm_q = None
        query_width = d_model
        if query_latent is not None:
            query_width = query_latent
            self.w_dq = matrix(d_model, query_latent)  # (M, Cq)
            self.norm_q = ones(query_latent)  # (Cq,)
        self.w_uq = matrix(query_width, num_heads * head_dim)  # (Cq, H·D)
        self.w_qr = matrix(query_width, num_heads * rope_dim)  # (Cq, H·Dr)

        self.w_o = matrix(num_heads * v_head_dim, d_model)  # (H·Dv, M)

    def __call__(
        self,
        x: Any,
        mask: masks.Mask | Array | None = None,
        *,
        absorbed: bool | None = None,
        positions: Array | None = None,
        cache: KeyValueCache | None = None,
        rng: backend.Generator | None = None,
        keep: Array | None = None,
        return_weights: bool | str = False,
        implementation: str = "auto",
    ) -> Any:
        """The output (…, T, M) of x (…, T, M) and, with return_weights, the weights (…, H, T, S).

        absorbed  whether to compute the absorbed form; by default when the cache holds earlier
                  positions, whose keys and values would otherwise be made again in every call
        cache     holds [c k^R], one key (…, 1, S, C + Dr) for all heads, and values of width 0

        The other arguments and the errors are those of a call of `MultiHeadAttention`.
        """
        past = positions_in(cache)
        check_input("x", x, "M", self.d_model)
        h = self.num_heads
        width = self.latent

        c_q = x
        if self.w_dq is not None:
            c_q = rms_norm(linear(x, self.w_dq), self.norm_q)  # (…, T, Cq)
        q = project_in(c_q, self.w_uq, num_heads=h)  # (…, H, T, D)
        q_r = project_in(c_q, self.w_qr, num_heads=h)  # (…, H, T, Dr)

        # c and k^R have one head, which all query heads share.
        c = rms_norm(project_in(x, self.w_dkv, num_heads=1), self.norm_kv)  # (…, 1, T, C)
        k_r = project_in(x, self.w_kr, num_heads=1)  # (…, 1, T, Dr)
        if self.rope is not None:
            q_r = self.rope(q_r, offset=past, positions=positions)
            k_r = self.rope(k_r, offset=past, positions=positions)

        # The cache holds c and k^R side by side as a key, and values of width 0.
        latents = ops.concat(c, k_r, axis=-1)  # (…, 1, T, C + Dr)
        nothing = c[..., :0]
        if cache is not None:
            latents, nothing = cache.joined(latents, nothing)  # (…, 1, S, C + Dr), (…, 1, S, 0)
            mask = cache.mask(mask, q.shape)
            keep = cache.held(keep)

        if absorbed is None:
            absorbed = past > 0
        if absorbed:
            # q · (c W^UK) = (q W^UKᵀ) · c, so the latents themselves are the keys.
            q = q @ _by_head(self.w_uk, h).mT  # (…, H, T, C)
            k = latents
            v = latents[..., :width]  # (…, 1, S, C)
        else:
            # Each head makes its keys and values from c; k^R is repeated for all of them.
            c = latents[..., 0, :, :width]  # (…, S, C)
            k = project_in(c, self.w_uk, num_heads=h)  # (…, H, S, D)
            v = project_in(c, self.w_uv, num_heads=h)  # (…, H, S, Dv)
            k_r = latents[..., width:]  # (…, 1, S, Dr)
            k_r = ops.broadcast_to(k_r, (*k.shape[:-1], k_r.shape[-1]))  # (…, H, S, Dr)
            k = ops.concat(k, k_r, axis=-1)  # (…, H, S, D + Dr)
        q = ops.concat(q, q_r, axis=-1)  # (…, H, T, D + Dr), absorbed (…, H, T, C + Dr)

        dropout = self.dropout
        if rng is None and keep is None:
            dropout = 0.0  # evaluation: nothing says which weights to drop
        heads = scaled_dot_product_attention(
            q, k, v, mask, scale=self.scale, dropout=dropout, rng=rng, keep=keep,
            return_weights=return_weights, implementation=implementation,
        )  # fmt: skip
        if return_weights:
            heads, weights = heads
        if absorbed:
            # The values were the latents: W^UV follows here.
            heads = heads @ _by_head(self.w_uv, h)  # (…, H, T, C) -> (…, H, T, Dv)
        out = project_out(heads, self.w_o)  # (…, T, M)

        # Stored last, so that a call that raised an error can be repeated.
        if cache is not None:
            cache.store(latents, nothing)
        if return_weights:
            return out, weights
        return out


def _by_head(w: Any, num_heads: int) -> Any:
    """Cut w (C, H·D), in which the matrices of H = num_heads heads stand side by side, into a
    matrix for each head, (H, C, D), without copying entries."""
    w = ops.reshape(w, shape=(w.shape[0], num_heads, -1))  # (C, H, D)
    return ops.permute_dims(w, axes=(1, 0, 2))  # (H, C, D)
