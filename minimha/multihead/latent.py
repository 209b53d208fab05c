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
    c, and W_i^UV follows. Both forms have the same output and gradients up to rounding.

    d_model       M
    num_heads     H
    latent        C
    head_dim      D, the width of the part of queries and keys that is not rotated
    rope_dim      Dr, the width of the rotated part
    v_head_dim    Dv, by default D
    query_latent  Cq, the width of c_q; by default queries are made from x itself, c_q = x
    rope          the rotation; None for none
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
        v_head_dim = head_dim if v_head_dim is None else integer(v_head_dim, "v_head_dim", least=1)
        if query_latent is not None:
            query_latent = integer(query_latent, "query_latent", least=1)
        rng = backend.generator(rng)

        def matrix(rows: int, columns: int) -> Tensor:
            x = backend.normal(rng, (rows, columns), std=1 / math.sqrt(rows), dtype=dtype)
            return parameter(x)

        def ones(length: int) -> Tensor:
            return parameter(backend.full((length,), 1, dtype=dtype))

        self.d_model, self.num_heads, self.latent = d_model, num_heads, latent
        self.rope, self.dropout = rope, dropout
        self.scale = 1 / math.sqrt(head_dim + rope_dim)
        self.w_dkv, self.norm_kv = matrix(d_model, latent), ones(latent)
        self.w_kr = matrix(d_model, rope_dim)
        self.w_uk = matrix(latent, num_heads * head_dim)
        self.w_uv = matrix(latent, num_heads * v_head_dim)
        self.w_dq = self.norm_q = None
        if query_latent is not None:
            self.w_dq, self.norm_q = matrix(d_model, query_latent), ones(query_latent)
        self.w_uq = matrix(query_latent or d_model, num_heads * head_dim)
        self.w_qr = matrix(query_latent or d_model, num_heads * rope_dim)
        self.w_o = matrix(num_heads * v_head_dim, d_model)

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

        The other arguments and the errors are those of `MultiHeadAttention`.
        """
        past = positions_in(cache)
        check_input("x", x, "M", self.d_model)
        h, width = self.num_heads, self.latent
        c_q = x if self.w_dq is None else rms_norm(linear(x, self.w_dq), self.norm_q)
        q = project_in(c_q, self.w_uq, num_heads=h)  # (…, H, T, D)
        q_r = project_in(c_q, self.w_qr, num_heads=h)  # (…, H, T, Dr)
        c = rms_norm(project_in(x, self.w_dkv, num_heads=1), self.norm_kv)  # (…, 1, T, C)
        k_r = project_in(x, self.w_kr, num_heads=1)  # (…, 1, T, Dr)
        if self.rope is not None:
            q_r, k_r = (self.rope(r, offset=past, positions=positions) for r in (q_r, k_r))
        latents, nothing = ops.concat(c, k_r, axis=-1), c[..., :0]
        if cache is not None:
            latents, nothing = cache.joined(latents, nothing)  # (…, 1, S, C + Dr)
            mask, keep = cache.mask(mask, q.shape), cache.held(keep)
        absorbed = past > 0 if absorbed is None else absorbed
        if absorbed:
            q = q @ _by_head(self.w_uk, h).mT  # (…, H, T, C)
            k, v = latents, latents[..., :width]
        else:
            c, k_r = latents[..., 0, :, :width], latents[..., width:]  # (…, S, C), (…, 1, S, Dr)
            k, v = (project_in(c, w, num_heads=h) for w in (self.w_uk, self.w_uv))
            k_r = ops.broadcast_to(k_r, (*k.shape[:-1], k_r.shape[-1]))
            k = ops.concat(k, k_r, axis=-1)  # (…, H, S, D + Dr)
        attended = scaled_dot_product_attention(
            ops.concat(q, q_r, axis=-1), k, v, mask, scale=self.scale,
            dropout=0.0 if rng is None and keep is None else self.dropout, rng=rng, keep=keep,
            return_weights=return_weights, implementation=implementation,
        )  # fmt: skip
        heads, *weights = attended if return_weights else (attended,)
        if absorbed:
            heads = heads @ _by_head(self.w_uv, h)  # (…, H, T, C) -> (…, H, T, Dv)
        out = project_out(heads, self.w_o)
        if cache is not None:
            cache.store(latents, nothing)
        return (out, *weights) if weights else out


def _by_head(w: Any, num_heads: int) -> Any:
    """(C, H·D) -> (H, C, D), without a copy."""
    return ops.permute_dims(ops.reshape(w, shape=(w.shape[0], num_heads, -1)), axes=(1, 0, 2))
