"""The settings of blocks and of models, each with its meaning and its default.

`arguments_of` makes them arguments of `Block` and `GPT`, whose `help` ends with these docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Rng

from ..functional.checks import integer
from ..multihead import QKNorm, positions


@dataclass(kw_only=True)
class CommonSettings:
    """The settings that a `GPT` has in common with each of its blocks:

    d_model       M, the width, a multiple of num_heads unless head_dim is given
    num_heads     H

    hidden        width of the perceptron, 4 M by default
    activation    of the perceptron, one of those of `MLP`
    norm          "layer", "rms", or "rms plus one" as in Gemma
    bias          whether the linear maps and the layer norms have biases
    dropout       its probability, for the attention weights and for what is added to the residual
                  stream, in calls with an rng; in a `GPT`, also for the embeddings
    rng           a generator or a seed, for the weights; `backend.EMPTY` leaves the weights to be
                  set by the caller
    dtype         of the weights. In a `GPT`, "bfloat16" is for the matrices alone: biases, the
                  weights of norms and activations are then float32

    num_kv_heads, head_dim, scale, softcap, qk_norm and rope are those of `MultiHeadAttention`, for
    self-attention. The others are rarely needed:

    attention_bias  the bias of `MultiHeadAttention`, by default the same as bias
    window          how many tokens each one sees at most: itself and those before it; None for all
    sinks           with a window, how many of the first tokens all later ones also see
    norm_eps        eps of the norms, by default that of `LayerNorm` or `RMSNorm`
    norm_of         what pre-norm normalises: the "input" of each part, x + attention(norm(x)); its
                    "output", as in OLMo 2, x + norm(attention(x)); or "both", as in Gemma 2

    Source: norms of outputs: Walsh et al., "2 OLMo 2 Furious" (2025); Gemma Team, "Gemma 2" (2024).
    """

    d_model: int  # M
    num_heads: int  # H

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
    """The settings of a `Block` alone, which say what kind of block it is:

    norm_first  pre-norm, as in GPT-2: no norm of the sums in the residual stream; False is the
                paper's post-norm, a norm of each sum
    cross       whether the block also attends to a memory, as in a decoder. With norm_first, it
                then has x = x + cross(norm(x), memory) between self-attention and the perceptron
    """

    # Block(64, 4): these two may be given without their names.
    d_model: int = field(kw_only=False)
    num_heads: int = field(kw_only=False)

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


@dataclass(kw_only=True)
class GPTSettings(CommonSettings):
    """The settings that only a `GPT` has:

    vocabulary  number of different tokens
    context     the longest sequence, in tokens
    num_layers  number of blocks
    tie         whether the table of embeddings is also the last linear map: its gradient is then
                the sum over both uses
    layers      settings of single blocks in place of the common ones: a dictionary for each block,
                such as {"window": 512}, {"rope": None} or {}; by default all blocks are alike

    Learned positions are added to the embeddings, unless rope gives every block rotary ones. Two
    settings that Gemma 2 needs:

    scale_embeddings  whether the embeddings are multiplied by √M
    logit_softcap     limits the logits to logit_softcap · tanh(logits / logit_softcap). This is the
                      formula with which softcap limits the scores inside attention
    """

    # GPT(65, context=8, …): the only one that may be given without its name.
    vocabulary: int = field(kw_only=False)

    context: int
    num_layers: int
    layers: Sequence[Mapping[str, Any]] | None = None
    tie: bool = False
    scale_embeddings: bool = False
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_layers = integer(self.num_layers, "num_layers", least=0)
        if self.layers is not None and len(self.layers) != self.num_layers:
            raise ValueError(
                f"layers has {len(self.layers)} entries, but num_layers is {self.num_layers}"
            )

    def of_each_block(self) -> list[dict[str, Any]]:
        """A list with the settings of each block: the common ones, and in place of some of them
        those in the block's own entry of `layers`, such as {"window": 512}."""
        names = [setting.name for setting in fields(CommonSettings)]
        common = {name: getattr(self, name) for name in names}
        if self.layers is None:
            return [common] * self.num_layers
        return [{**common, **own} for own in self.layers]
