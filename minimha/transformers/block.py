"""The transformer block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array, Rng

from ..masks.mask import AnyMask
from ..multihead import KeyValueCache, MultiHeadAttention, positions
from ..nn import MLP, Dropout, LayerNorm, Module, RMSNorm


class Block(Module):
    """Attention and a perceptron, each added to the residual stream: a transformer block.

        x = x + attention(norm(x))           then, with cross, x = x + cross(norm(x), memory)
        x = x + mlp(norm(x))

    norm_first    pre-norm, as above and in GPT-2; False is the paper's x = norm(x + attention(x))
    hidden        width of the perceptron, 4 M by default
    activation    of the perceptron, one of those of `MLP`
    norm          "layer" or "rms"; norm_eps is its eps, by default that of `LayerNorm` or `RMSNorm`
    cross         whether the block also attends to a memory, as in a decoder
    bias          whether the linear maps and the layer norms have biases
    dropout       of the attention weights and of what is added to the residual stream, in calls
                  with an rng

    num_kv_heads, head_dim and rope are those of `MultiHeadAttention`, for self-attention.
    Source: Vaswani et al. (2017), section 3.1; pre-norm: Radford et al., GPT-2 (2019), section 2.3.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        activation: str = "gelu",
        norm: str = "layer",
        norm_eps: float | None = None,
        norm_first: bool = True,
        cross: bool = False,
        rope: positions.Rope | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        rng = backend.generator(rng)
        common: dict[str, Any] = {"bias": bias, "rng": rng, "dtype": dtype}

        def new_norm() -> LayerNorm | RMSNorm:
            return norm_layer(norm, d_model, bias=bias, eps=norm_eps, dtype=dtype)

        self.norm_first = norm_first
        self.norm_attention = new_norm()
        self.attention = MultiHeadAttention(
            d_model, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope,
            dropout=dropout, **common,
        )  # fmt: skip
        self.norm_cross = new_norm() if cross else None
        self.cross = (
            MultiHeadAttention(d_model, num_heads, dropout=dropout, **common) if cross else None
        )
        self.norm_mlp = new_norm()
        self.mlp = MLP(d_model, hidden, activation=activation, **common)
        self.dropout = Dropout(dropout)

    def __call__(
        self,
        x: Any,
        mask: AnyMask = None,
        memory: Any = None,
        memory_mask: AnyMask = None,
        *,
        positions: Array | None = None,
        cache: KeyValueCache | None = None,
        rng: backend.Generator | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The output (B, T, M) for x (B, T, M) and, with cross, a memory (B, S, M).

        With return_weights also the attention weights (B, H, T, T) and, with cross, (B, H, T, S).
        positions, cache and rng are those of `MultiHeadAttention`.
        """
        weights = []

        def attend(attention: Any, *inputs: Any, **settings: Any) -> Any:
            out = attention(*inputs, rng=rng, return_weights=return_weights, **settings)
            if return_weights:
                out, seen = out
                weights.append(seen)
            return out

        own: dict[str, Any] = {"mask": mask, "positions": positions, "cache": cache}
        x = self._add(x, self.norm_attention, lambda y: attend(self.attention, y, **own), rng)
        if self.cross is not None:
            x = self._add(
                x, self.norm_cross, lambda y: attend(self.cross, y, memory, mask=memory_mask), rng
            )
        x = self._add(x, self.norm_mlp, self.mlp, rng)
        return (x, *weights) if return_weights else x

    def _add(
        self, x: Any, norm: Any, part: Callable[[Any], Any], rng: backend.Generator | None
    ) -> Any:
        """x with the output of one part added, normalised before the part or after the sum."""
        if self.norm_first:
            return x + self.dropout(part(norm(x)), rng)
        return norm(x + self.dropout(part(x), rng))


def norm_layer(
    kind: str, width: int, *, bias: bool = True, eps: float | None = None, dtype: str = "float32"
) -> LayerNorm | RMSNorm:
    """A `LayerNorm` for "layer", an `RMSNorm` for "rms". Raises ValueError for another kind."""
    settings: dict[str, Any] = {"dtype": dtype} if eps is None else {"dtype": dtype, "eps": eps}
    if kind == "rms":
        return RMSNorm(width, **settings)
    if kind != "layer":
        raise ValueError(f"norm = {kind!r} must be 'layer' or 'rms'")
    return LayerNorm(width, bias=bias, **settings)
