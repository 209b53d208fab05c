"""A GPT: transformer blocks under a causal mask, which predict the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from minimha_autograd import backend, ops
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..functional import linear
from ..functional.checks import integer
from ..multihead import KeyValueCache
from ..nn import Dropout, Embedding, Linear, Module
from .block import Block, CommonSettings, norm_layer, widen_vectors
from .settings import arguments_of


@dataclass(kw_only=True)
class GPTSettings(CommonSettings):
    """The settings of a `GPT`, which explains them."""

    vocabulary: int = field(kw_only=False)
    context: int
    d_model: int  # M, given by name here
    num_heads: int  # H, likewise
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
        """The settings of every block: the common ones, in which its entry of layers replaces
        some."""
        names = [setting.name for setting in fields(CommonSettings)]
        common = {name: getattr(self, name) for name in names}
        if self.layers is None:
            return [common] * self.num_layers
        return [{**common, **own} for own in self.layers]


class GPT(Module):
    """A causal transformer over a vocabulary: token t sees the tokens up to t and predicts t + 1.

    vocabulary   number of different tokens
    context      the longest sequence, in tokens
    d_model      M, the width, a multiple of num_heads unless head_dim is given
    num_heads    H
    num_layers   number of blocks
    tie          whether the table of embeddings is also the last linear map: its gradient is then
                 the sum over both uses
    rope         `positions.Rope(…)`: rotary positions in every block, in place of learned ones
    dropout      of the embeddings and in the blocks, in calls with an rng
    layers       settings of single blocks in place of the common ones: a dictionary for each, such
                 as {"window": 512} or {"rope": None}; by default all blocks are alike
    scale_embeddings
                 whether the embeddings are multiplied by √M
    logit_softcap
                 limits the logits to logit_softcap · tanh(logits / logit_softcap). This is the
                 formula with which softcap limits the scores inside attention; a Gemma 2 has both
    rng          a generator or a seed; `backend.EMPTY` leaves the weights to be set by the caller
    dtype        of the weights. "bfloat16" is for the matrices alone: biases, the weights of norms
                 and activations are then float32

    The other arguments are those of `Block`. With tie=True the defaults make a GPT-2; a Llama has
    norm="rms", activation="swiglu", bias=False and rope. `settings` holds all arguments but rng:
    GPT(**model.settings) has the same shapes. Initial matrices are those of nanoGPT: normal with
    standard deviation 0.02, and 0.02/√(2 · num_layers) for the maps whose output is added to the
    residual stream.
    Source: Radford et al., GPT-2 (2019); Touvron et al., Llama (2023).
    """

    @arguments_of(GPTSettings)
    def __init__(self, settings: GPTSettings) -> None:
        self.settings = dict(vars(settings))
        del self.settings["rng"]  # used up: GPT(**model.settings) draws new weights

        vocabulary = settings.vocabulary
        d_model = settings.d_model
        dtype = settings.dtype
        rng = settings.rng
        self.context = settings.context
        self.logit_softcap = settings.logit_softcap
        self.embedding_scale = None
        if settings.scale_embeddings:
            self.embedding_scale = math.sqrt(d_model)

        # The order of the attributes is that of the parameters, in names and in files.
        self.tokens = Embedding(vocabulary, d_model, rng=rng, dtype=dtype)  # (vocabulary, M)
        self.positions = None
        if not settings.rope:
            context = settings.context
            self.positions = Embedding(context, d_model, rng=rng, dtype=dtype)  # (context, M)
        self.dropout = Dropout(settings.dropout)
        self.blocks = [Block(**of_block) for of_block in settings.of_each_block()]

        # The output of the last block is a sum that is not yet normalised.
        self.norm = norm_layer(
            settings.norm, d_model, bias=settings.bias, eps=settings.norm_eps, dtype=dtype
        )
        self.head = None
        if not settings.tie:
            self.head = Linear(d_model, vocabulary, bias=False, rng=rng, dtype=dtype)

        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02
                if name.endswith(("attention.w_o", "mlp.narrow.weight")):
                    # The residual stream adds up two outputs of each block. Their sum does not
                    # grow with the number of blocks if each of them shrinks with its root.
                    std /= math.sqrt(2 * settings.num_layers)
                p.data = backend.normal(rng, p.shape, std=std, dtype=dtype)

        if dtype == "bfloat16":
            widen_vectors(self)

    def __call__(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        rng: backend.Generator | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The logits (B, T, vocabulary) for tokens (B, T), an array of integers.

        positions       (T,), where the tokens are in the whole sequence, if they are a part of one
                        that several ranks share; by default 0 … T − 1, or after those in the caches
        caches          one `KeyValueCache` for each block, as `new_caches` makes them: tokens
                        continue those of earlier calls
        rng             the generator of dropout; without it there is no dropout
        return_weights  also return a list with the attention weights (B, H, T, S) of each block

        Raises ValueError for more tokens than the context, TypeError for tokens that are not
        integers.
        """
        backend.require(backend.is_integral, tokens, "tokens")
        past = 0
        if caches:
            past = len(caches[0])
        room = self.context - past
        if tokens.ndim != 2 or tokens.shape[1] > room:
            after = ""
            if past:
                after = f" after {past} in the cache"
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}{after}, but must be (B, T) with T at most "
                f"{room}, the context"
            )

        x = self.tokens(tokens)  # (B, T, M)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale

        # Without rope, positions are rows of a table, added to the tokens.
        if self.positions is not None:
            rows = positions
            if rows is None:
                xp = namespace(tokens)
                end = past + tokens.shape[1]
                rows = xp.arange(past, end, device=tokens.device)  # (T,)
            x = x + self.positions(rows)  # (B, T, M) + (T, M)
        x = self.dropout(x, rng)

        # The causal mask is all that hides the next token from a position that predicts it.
        all_weights = []
        for k, block in enumerate(self.blocks):
            cache = None
            if caches:
                cache = caches[k]
            x = block(
                x,
                masks.causal(),
                positions=positions,
                cache=cache,
                rng=rng,
                return_weights=return_weights,
            )
            if return_weights:
                x, weights = x  # (B, T, M), (B, H, T, S)
                all_weights.append(weights)
        x = self.norm(x)  # (B, T, M)

        # The last linear map is (M, vocabulary). If it is tied, the logit of a token is the product
        # of x with the embedding of this token.
        logits = linear(x, self.tokens.table.mT) if self.head is None else self.head(x)
        if self.logit_softcap is not None:
            # tanh has the slope 1 at 0 and stays between −1 and 1: only large logits change.
            logits = self.logit_softcap * ops.tanh(logits / self.logit_softcap)
        if return_weights:
            return logits, all_weights
        return logits  # (B, T, vocabulary)

    def new_caches(self, reserve: int = 64) -> list[KeyValueCache]:
        """An empty cache for each block, with its window and sinks, and with this reserve."""
        return [KeyValueCache(b.window, sinks=b.sinks, reserve=reserve) for b in self.blocks]
