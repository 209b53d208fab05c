"""The transformer block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimha_autograd import backend, widened
from minimha_autograd.backend import Array, Rng

from ..masks.mask import AnyMask
from ..multihead import KeyValueCache, MultiHeadAttention, QKNorm, positions
from ..multihead.cache import window_mask
from ..nn import MLP, Dropout, LayerNorm, Module, RMSNorm


class Block(Module):
    """Attention and a perceptron, each added to the residual stream: a transformer block.

        x = x + attention(norm(x))           then, with cross, x = x + cross(norm(x), memory)
        x = x + mlp(norm(x))

    norm_first    pre-norm, as above and in GPT-2; False is the paper's x = norm(x + attention(x))
    norm_of       what pre-norm normalises: the "input" of each part, as above; its "output", as in
                  OLMo 2, x = x + norm(attention(x)); or "both", as in Gemma 2
    hidden        width of the perceptron, 4 M by default
    activation    of the perceptron, one of those of `MLP`
    norm          "layer", "rms", or "rms plus one" as in Gemma; norm_eps is its eps, by default
                  that of `LayerNorm` or `RMSNorm`
    window        how many tokens each one sees at most: itself and those before it; None for all
    sinks         with a window, how many of the first tokens all later ones also see
    cross         whether the block also attends to a memory, as in a decoder
    bias          whether the linear maps and the layer norms have biases
    attention_bias  the bias of `MultiHeadAttention`, by default the same as bias
    dropout       of the attention weights and of what is added to the residual stream, in calls
                  with an rng

    num_kv_heads, head_dim, scale, softcap, qk_norm and rope are those of `MultiHeadAttention`, for
    self-attention.
    Source: Vaswani et al. (2017), section 3.1; pre-norm: Radford et al., GPT-2 (2019), section 2.3;
    norms of outputs: Walsh et al., "2 OLMo 2 Furious" (2025); Gemma Team, "Gemma 2" (2024).
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
        norm_of: str = "input",
        cross: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        qk_norm: bool | QKNorm = False,
        rope: positions.Rope | None = None,
        window: int | None = None,
        sinks: int = 0,
        bias: bool = True,
        attention_bias: bool | str | None = None,
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        rng = backend.generator(rng)
        common: dict[str, Any] = {"bias": bias, "rng": rng, "dtype": dtype}

        def new_norm() -> LayerNorm | RMSNorm:
            return norm_layer(norm, d_model, bias=bias, eps=norm_eps, dtype=dtype)

        if norm_of not in ("input", "output", "both") or not (norm_first or norm_of == "input"):
            raise ValueError(
                f"norm_of = {norm_of!r} must be 'input', and with norm_first 'output' or 'both'"
            )
        self.norm_first, before, after = norm_first, norm_of != "output", norm_of != "input"
        window, sinks = backend.setting((window, sinks))
        self.window, self.sinks = window, sinks
        self.near = None if window is None else window_mask(window, sinks)
        self.norm_attention = new_norm() if before else None
        self.attention = MultiHeadAttention(
            d_model, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=scale,
            softcap=softcap, qk_norm=qk_norm, rope=rope, dropout=dropout,
            **common | {"bias": bias if attention_bias is None else attention_bias},
        )  # fmt: skip
        self.norm_attention_output = new_norm() if after else None
        self.norm_cross = new_norm() if cross else None
        self.cross = (
            MultiHeadAttention(d_model, num_heads, dropout=dropout, **common) if cross else None
        )
        self.norm_mlp = new_norm() if before else None
        self.mlp = MLP(d_model, hidden, activation=activation, **common)
        self.norm_mlp_output = new_norm() if after else None
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
        With a cache, those of self-attention have a column for each key in it as well.
        positions, cache and rng are those of `MultiHeadAttention`.
        """
        weights = []
        if self.near is not None:
            mask = self.near if mask is None else mask & self.near

        def attend(attention: Any, *inputs: Any, **settings: Any) -> Any:
            out = attention(*inputs, rng=rng, return_weights=return_weights, **settings)
            if return_weights:
                out, seen = out
                weights.append(seen)
            return out

        own: dict[str, Any] = {"mask": mask, "positions": positions, "cache": cache}
        x = self._add(
            x, self.norm_attention, lambda y: attend(self.attention, y, **own), rng,
            self.norm_attention_output,
        )  # fmt: skip
        if self.cross is not None:
            x = self._add(
                x, self.norm_cross, lambda y: attend(self.cross, y, memory, mask=memory_mask), rng
            )
        x = self._add(x, self.norm_mlp, self.mlp, rng, self.norm_mlp_output)
        return (x, *weights) if return_weights else x

    def _add(
        self, x: Any, norm: Any, part: Callable[[Any], Any], rng: Any, norm_output: Any = None
    ) -> Any:
        """x with the output of one part added, normalised before the part, after it, or after the
        sum."""
        if not self.norm_first:
            return norm(x + self.dropout(part(x), rng))
        y = part(x if norm is None else norm(x))
        return x + self.dropout(y if norm_output is None else norm_output(y), rng)


def norm_layer(
    kind: str, width: int, *, bias: bool = True, eps: float | None = None, dtype: str = "float32"
) -> LayerNorm | RMSNorm:
    """A `LayerNorm` for "layer", an `RMSNorm` for the other kinds. Raises ValueError if there is no
    such kind."""
    settings: dict[str, Any] = {"dtype": dtype} if eps is None else {"dtype": dtype, "eps": eps}
    if kind in ("rms", "rms plus one"):
        return RMSNorm(width, plus_one=kind == "rms plus one", **settings)
    if kind != "layer":
        raise ValueError(f"norm = {kind!r} must be 'layer', 'rms' or 'rms plus one'")
    return LayerNorm(width, bias=bias, **settings)


def widen_vectors(model: Module) -> None:
    """Convert the biases and the weights of norms to float32. The matrices stay as they are: linear
    maps and embeddings widen them, so that the model computes in float32."""
    for p in model.parameters():
        if p.ndim < 2:
            p.data = widened(p.data)
