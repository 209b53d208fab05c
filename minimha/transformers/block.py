"""The transformer block."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend, widened
from minimha_autograd.backend import Array

from ..masks.mask import AnyMask
from ..multihead import KeyValueCache, MultiHeadAttention
from ..multihead.cache import window_mask
from ..nn import MLP, Dropout, LayerNorm, Module, RMSNorm
from .arguments import arguments_of, explained_by
from .settings import BlockSettings, CommonSettings


# settings.py says what each argument means; the decorator shows it at the end of help(Block).
@explained_by(BlockSettings)
class Block(Module):
    """Attention and a perceptron, each added to the residual stream: a transformer block.

        pre-norm, as in GPT-2                post-norm, as in the paper
        x = x + attention(norm(x))           x = norm(x + attention(x))
        x = x + mlp(norm(x))                 x = norm(x + mlp(x))

    Source: Vaswani et al. (2017), section 3.1; pre-norm: Radford et al., GPT-2 (2019), section 2.3.
    """

    # The decorator turns the fields of BlockSettings into the arguments: Block(64, 4, bias=False)
    # makes the settings and passes them here.
    @arguments_of(BlockSettings)
    def __init__(self, settings: BlockSettings) -> None:
        self.norm_first = settings.norm_first
        self.window = settings.window
        self.sinks = settings.sinks
        self.window_mask = None  # or the mask of the tokens in the window, and of the sinks
        if settings.window is not None:
            self.window_mask = window_mask(settings.window, settings.sinks)

        # The order of the attributes is that of the parameters, in names and in files.
        self.norm_attention: Any = new_norm(settings)
        self.attention = new_self_attention(settings)
        self.norm_attention_output: Any = unchanged  # no norm: the function returns its argument

        self.norm_cross: Any = None
        self.cross: Any = None
        if settings.cross:
            self.norm_cross = new_norm(settings)
            self.cross = new_cross_attention(settings)

        self.norm_mlp: Any = new_norm(settings)
        self.mlp = MLP(
            settings.d_model,  # M
            settings.hidden,  # 4 M, if it is None
            activation=settings.activation,
            bias=settings.bias,
            rng=settings.rng,
            dtype=settings.dtype,
        )
        self.norm_mlp_output: Any = unchanged
        self.dropout = Dropout(settings.dropout)

        # OLMo 2 and Gemma 2 also normalise what self-attention and the perceptron add.
        if settings.norm_of != "input":
            self.norm_attention_output = new_norm(settings)
            self.norm_mlp_output = new_norm(settings)
        if settings.norm_of == "output":
            self.norm_attention = unchanged
            self.norm_mlp = unchanged

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
        """The output (B, T, M) for x (B, T, M) and, in a block with cross=True, a memory (B, S, M).

        mask         which positions of x each of them sees in self-attention: a mask of `masks`, or
                     an array that is True where a query sees a key; by default all. A window of the
                     block hides positions as well
        memory_mask  the same for cross-attention, in which positions of x see those of the memory
        positions    integers (T,) for rope: where x is in a sequence of which it is a part; by
                     default 0 … T − 1, or after the positions in the cache
        cache        stores the keys and values of earlier calls, which self-attention then also
                     sees
        rng          the generator of dropout; without it there is no dropout

        With return_weights, also returns the weights of self-attention (B, H, T, T) and, with
        cross=True, those of cross-attention (B, H, T, S). With a cache, the weights of
        self-attention have a column for each of the earlier keys in the cache as well.
        """
        weights: list[Any] | None = None
        if return_weights:
            weights = []  # each attention appends its own

        if self.norm_first:
            # Pre-norm: no norm lies on the path from x to the output, which is x plus what the
            # parts add. Gradients pass through these sums unchanged, however many blocks there are.
            x = x + self._attend(self.norm_attention(x), mask, positions, cache, rng, weights)
            if self.cross is not None:
                x = x + self._cross_attend(self.norm_cross(x), memory, memory_mask, rng, weights)
            x = x + self._perceptron(self.norm_mlp(x), rng)  # (B, T, M)
        else:
            # Post-norm: every sum is normalised, so x keeps its size from block to block, but
            # gradients must pass through all the norms.
            x = x + self._attend(x, mask, positions, cache, rng, weights)
            x = self.norm_attention(x)  # (B, T, M)
            if self.cross is not None:
                x = x + self._cross_attend(x, memory, memory_mask, rng, weights)
                x = self.norm_cross(x)  # (B, T, M)
            x = self.norm_mlp(x + self._perceptron(x, rng))  # (B, T, M)

        if weights is not None:
            return x, *weights
        return x

    def _attend(
        self,
        x: Any,
        mask: AnyMask,
        positions: Array | None,
        cache: KeyValueCache | None,
        rng: backend.Generator | None,
        weights: list[Any] | None,
    ) -> Any:
        """What self-attention adds to the residual stream, (B, T, M), for x (B, T, M). Its
        attention weights are appended to the list `weights`, unless this is None. The other
        arguments are those of a call of the block."""
        y = self.attention(
            x,
            mask=self._inside_window(mask),
            positions=positions,
            cache=cache,
            rng=rng,
            return_weights=weights is not None,
        )
        if weights is not None:
            y, seen = y  # (B, T, M), (B, H, T, T)
            weights.append(seen)
        return self.dropout(self.norm_attention_output(y), rng)  # (B, T, M)

    def _cross_attend(
        self,
        x: Any,
        memory: Any,
        mask: AnyMask,
        rng: backend.Generator | None,
        weights: list[Any] | None,
    ) -> Any:
        """What cross-attention adds to the residual stream, (B, T, M), for queries from x (B, T, M)
        and keys and values from the memory (B, S, M). mask says which positions of the memory each
        query sees. The attention weights are appended to the list `weights`, unless this is
        None. rng draws the dropout."""
        y = self.cross(x, memory, mask=mask, rng=rng, return_weights=weights is not None)
        if weights is not None:
            y, seen = y  # (B, T, M), (B, H, T, S)
            weights.append(seen)
        return self.dropout(y, rng)  # (B, T, M)

    def _perceptron(self, x: Any, rng: backend.Generator | None) -> Any:
        """What the perceptron adds to the residual stream, (B, T, M), for x (B, T, M). It maps the
        vector of each position separately. rng draws the dropout."""
        y = self.mlp(x)  # (B, T, M)
        return self.dropout(self.norm_mlp_output(y), rng)  # (B, T, M)

    def _inside_window(self, mask: AnyMask) -> AnyMask:
        """The mask combined with the block's window: tokens outside the window are hidden, too. A
        block without a window returns the mask unchanged. A mask that is None hides nothing."""
        if self.window_mask is None:
            return mask
        if mask is None:
            return self.window_mask
        return mask & self.window_mask  # a token must be visible in both


def new_self_attention(settings: BlockSettings) -> MultiHeadAttention:
    """The self-attention of a block that has these settings."""
    bias = settings.attention_bias
    if bias is None:
        bias = settings.bias  # Qwen2 has biases in attention alone, most others alike everywhere
    return MultiHeadAttention(
        settings.d_model,
        settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        head_dim=settings.head_dim,
        scale=settings.scale,
        softcap=settings.softcap,
        qk_norm=settings.qk_norm,
        rope=settings.rope,
        bias=bias,
        dropout=settings.dropout,
        rng=settings.rng,
        dtype=settings.dtype,
    )


def new_cross_attention(settings: BlockSettings) -> MultiHeadAttention:
    """The cross-attention of a block that has these settings. Its keys and values come from the
    memory, which has positions of its own: neither rope nor a window applies to it."""
    return MultiHeadAttention(
        settings.d_model,
        settings.num_heads,
        bias=settings.bias,
        dropout=settings.dropout,
        rng=settings.rng,
        dtype=settings.dtype,
    )


def new_norm(settings: CommonSettings) -> LayerNorm | RMSNorm:
    """A norm of the kind that the settings name. Raises ValueError if there is no such kind."""
    kind = settings.norm
    width = settings.d_model
    others: dict[str, Any] = {"dtype": settings.dtype}
    if settings.norm_eps is not None:
        others["eps"] = settings.norm_eps  # each kind has its own default

    if kind == "layer":
        return LayerNorm(width, bias=settings.bias, **others)
    if kind == "rms":
        return RMSNorm(width, **others)
    if kind == "rms plus one":
        return RMSNorm(width, plus_one=True, **others)
    raise ValueError(f"norm = {kind!r} must be 'layer', 'rms' or 'rms plus one'")


def unchanged(x: Any) -> Any:
    """x itself, in place of a norm that a block does not have."""
    return x


def widen_vectors(model: Module) -> None:
    """Convert the biases and the weights of norms in a model to float32, in place. The matrices
    keep their dtype, such as bfloat16: linear maps and embeddings widen them, so that the model
    computes in float32."""
    for p in model.parameters():
        if p.ndim < 2:
            p.data = widened(p.data)
