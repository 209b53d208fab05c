"""The transformer block, and a GPT made of such blocks."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array, Rng, namespace

from .. import masks
from ..functional import gelu
from ..multihead import MultiHeadAttention
from ..nn import Embedding, LayerNorm, Linear, Module


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): a pre-norm transformer block of width M.

    The multi-layer perceptron widens to 4 M. Source: Radford et al., GPT-2 (2019).
    """

    def __init__(
        self, d_model: int, num_heads: int, *, rng: Rng = 0, dtype: str = "float32"
    ) -> None:
        rng = backend.generator(rng)
        self.norm_attention = LayerNorm(d_model, dtype=dtype)
        self.attention = MultiHeadAttention(d_model, num_heads, rng=rng, dtype=dtype)
        self.norm_mlp = LayerNorm(d_model, dtype=dtype)
        self.widen = Linear(d_model, 4 * d_model, rng=rng, dtype=dtype)
        self.narrow = Linear(4 * d_model, d_model, rng=rng, dtype=dtype)

    def __call__(
        self, x: Any, mask: masks.Mask | Array | None = None, *, return_weights: bool = False
    ) -> Any:
        """The output (B, T, M) for x (B, T, M); with return_weights also the attention weights
        (B, H, T, T)."""
        attended = self.attention(self.norm_attention(x), mask=mask, return_weights=return_weights)
        attended, *weights = attended if return_weights else (attended,)
        x = x + attended
        x = x + self.narrow(gelu(self.widen(self.norm_mlp(x))))
        return (x, *weights) if weights else x


class GPT(Module):
    """A causal transformer over a vocabulary: token t sees the tokens up to t and predicts t + 1.

    vocabulary   number of different tokens
    context      the longest sequence, in tokens
    d_model      M, the width, a multiple of num_heads
    num_heads    H
    num_layers   number of blocks
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        rng = backend.generator(rng)
        self.context = context
        self.tokens = Embedding(vocabulary, d_model, std=0.1, rng=rng, dtype=dtype)
        self.positions = Embedding(context, d_model, std=0.1, rng=rng, dtype=dtype)
        self.blocks = [Block(d_model, num_heads, rng=rng, dtype=dtype) for _ in range(num_layers)]
        self.norm = LayerNorm(d_model, dtype=dtype)
        self.head = Linear(d_model, vocabulary, bias=False, rng=rng, dtype=dtype)

    def __call__(self, tokens: Array, *, return_weights: bool = False) -> Any:
        """The logits (B, T, vocabulary) for tokens (B, T), an array of integers.

        With return_weights also a list with the attention weights (B, H, T, T) of each block.
        Raises ValueError for more tokens than the context, TypeError for tokens that are not
        integers.
        """
        backend.require(backend.is_integral, tokens, "tokens")
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}, but must be (B, T) with T at most "
                f"{self.context}, the context"
            )
        positions = namespace(tokens).arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        all_weights = []
        for block in self.blocks:
            x = block(x, masks.causal(), return_weights=return_weights)
            if return_weights:
                x, weights = x
                all_weights.append(weights)
        logits = self.head(self.norm(x))
        return (logits, all_weights) if return_weights else logits
