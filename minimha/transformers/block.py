"""The transformer block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minimha_autograd import backend, widened
from minimha_autograd.backend import Array, Rng

from ..masks.mask import AnyMask
from ..multihead import KeyValueCache, MultiHeadAttention, QKNorm, positions
from ..multihead.cache import window_mask
from ..nn import MLP, Dropout, LayerNorm, Module, RMSNorm
from .settings import arguments_of


@dataclass(kw_only=True)
class CommonSettings:
    """The settings that a GPT has in common with each of its blocks: see `Block`."""

    d_model: int = field(kw_only=False)  # M
    num_heads: int = field(kw_only=False)  # H

    # self-attention
    num_kv_heads: int | None = None  # G
    head_dim: int | None = None  # D
    scale: float | None = None
    softcap: float | None = None
    qk_norm: bool | QKNorm = False
    rope: positions.Rope | None = None
    window: int | None = None
    sinks: int = 0
    attention_bias: bool | str | None = None

    # the perceptron
    hidden: int | None = None
    activation: str = "gelu"

    # norms
    norm: str = "layer"
    norm_eps: float | None = None
    norm_of: str = "input"

    # all parts
    bias: bool = True
    dropout: float = 0.0
    rng: Rng = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        # NumPy's numbers become Python's, which files can hold.
        vars(self).update(backend.setting(vars(self)))

        # One generator draws the weights of all parts, one after another.
        self.rng = backend.generator(self.rng)


@dataclass(kw_only=True)
class BlockSettings(CommonSettings):
    """The settings of a `Block`, which explains them."""

    norm_first: bool = True
    cross: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.norm_of in ("input", "output", "both")
        if not known or not (self.norm_first or self.norm_of == "input"):
            raise ValueError(
                f"norm_of = {self.norm_of!r} must be 'input', and with norm_first 'output' or "
                "'both'"
            )


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

    @arguments_of(BlockSettings)
    def __init__(self, settings: BlockSettings) -> None:
        d_model = settings.d_model
        bias = settings.bias
        dtype = settings.dtype
        rng = settings.rng

        # Some models, such as Qwen2, have biases in attention alone.
        attention_bias = settings.attention_bias
        if attention_bias is None:
            attention_bias = bias

        self.norm_first = settings.norm_first
        self.window = settings.window
        self.sinks = settings.sinks
        self.near = None
        if settings.window is not None:
            self.near = window_mask(settings.window, settings.sinks)

        def new_norm(wanted: bool) -> LayerNorm | RMSNorm | None:
            if not wanted:
                return None
            return norm_layer(settings.norm, d_model, bias=bias, eps=settings.norm_eps, dtype=dtype)

        before = settings.norm_of != "output"  # of what a part gets
        after = settings.norm_of != "input"  # of what it adds

        # The order of the attributes is that of the parameters, in names and in files.
        self.norm_attention = new_norm(before)
        self.attention = MultiHeadAttention(
            d_model,
            settings.num_heads,
            num_kv_heads=settings.num_kv_heads,
            head_dim=settings.head_dim,
            scale=settings.scale,
            softcap=settings.softcap,
            qk_norm=settings.qk_norm,
            rope=settings.rope,
            bias=attention_bias,
            dropout=settings.dropout,
            rng=rng,
            dtype=dtype,
        )
        self.norm_attention_output = new_norm(after)

        # Keys and values of cross-attention come from the memory, which has positions of its own:
        # neither rope nor a window applies to it.
        self.norm_cross = new_norm(settings.cross)
        self.cross = None
        if settings.cross:
            self.cross = MultiHeadAttention(
                d_model,
                settings.num_heads,
                bias=bias,
                dropout=settings.dropout,
                rng=rng,
                dtype=dtype,
            )

        self.norm_mlp = new_norm(before)
        self.mlp = MLP(
            d_model,
            settings.hidden,
            activation=settings.activation,
            bias=bias,
            rng=rng,
            dtype=dtype,
        )
        self.norm_mlp_output = new_norm(after)
        self.dropout = Dropout(settings.dropout)

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
        # The window hides what the mask still shows.
        if self.near is not None:
            mask = self.near if mask is None else mask & self.near

        # x = x + attention(norm(x))
        y = self.attention(
            self._before(x, self.norm_attention),
            mask=mask,
            positions=positions,
            cache=cache,
            rng=rng,
            return_weights=return_weights,
        )
        weights = []
        if return_weights:
            y, seen = y  # (B, T, M), (B, H, T, T)
            weights.append(seen)
        x = self._after(x, y, self.norm_attention, self.norm_attention_output, rng)
        del y  # or it would stay in memory beside the perceptron's hidden units

        # x = x + cross(norm(x), memory)
        if self.cross is not None:
            y = self.cross(
                self._before(x, self.norm_cross),
                memory,
                mask=memory_mask,
                rng=rng,
                return_weights=return_weights,
            )
            if return_weights:
                y, seen = y  # (B, T, M), (B, H, T, S)
                weights.append(seen)
            x = self._after(x, y, self.norm_cross, None, rng)
            del y

        # x = x + mlp(norm(x))
        y = self.mlp(self._before(x, self.norm_mlp))  # (B, T, M)
        x = self._after(x, y, self.norm_mlp, self.norm_mlp_output, rng)
        if return_weights:
            return x, *weights
        return x  # (B, T, M)

    def _before(self, x: Any, norm: Any) -> Any:
        """What a part gets: x (B, T, M), normalised by pre-norm."""
        if norm is None or not self.norm_first:
            return x
        return norm(x)

    def _after(self, x: Any, y: Any, norm: Any, norm_output: Any, rng: Any) -> Any:
        """x with the output y of a part added, both (B, T, M)."""
        if norm_output is not None:
            y = norm_output(y)
        x = x + self.dropout(y, rng)

        # Post-norm, as in the paper, normalises the sum.
        if not self.norm_first:
            x = norm(x)
        return x  # (B, T, M)


def norm_layer(
    kind: str, width: int, *, bias: bool = True, eps: float | None = None, dtype: str = "float32"
) -> LayerNorm | RMSNorm:
    """A `LayerNorm` for "layer", an `RMSNorm` for the other kinds. Raises ValueError if there is no
    such kind."""
    settings: dict[str, Any] = {"dtype": dtype}
    if eps is not None:
        settings["eps"] = eps  # each kind has its own default
    if kind == "layer":
        return LayerNorm(width, bias=bias, **settings)
    if kind == "rms":
        return RMSNorm(width, **settings)
    if kind == "rms plus one":
        return RMSNorm(width, plus_one=True, **settings)
    raise ValueError(f"norm = {kind!r} must be 'layer', 'rms' or 'rms plus one'")


def widen_vectors(model: Module) -> None:
    """Convert the biases and the weights of norms to float32. The matrices stay as they are: linear
    maps and embeddings widen them, so that the model computes in float32."""
    for p in model.parameters():
        if p.ndim < 2:
            p.data = widened(p.data)
