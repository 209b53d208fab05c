"""A GPT: transformer blocks under a causal mask, which predict the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minimha_autograd import backend, ops
from minimha_autograd.backend import Array, Rng, namespace

from .. import masks
from ..functional import linear
from ..functional.checks import integer
from ..multihead import KeyValueCache, QKNorm, positions
from ..nn import Dropout, Embedding, Linear, Module
from .block import Block, norm_layer, widen_vectors


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
                 limits the logits to logit_softcap · tanh(logits / logit_softcap)
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

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        bias: bool = True,
        tie: bool = False,
        dropout: float = 0.0,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        activation: str = "gelu",
        norm: str = "layer",
        norm_eps: float | None = None,
        norm_of: str = "input",
        rope: positions.Rope | None = None,
        window: int | None = None,
        sinks: int = 0,
        qk_norm: bool | QKNorm = False,
        scale: float | None = None,
        softcap: float | None = None,
        attention_bias: bool | str | None = None,
        layers: Sequence[Mapping[str, Any]] | None = None,
        scale_embeddings: bool = False,
        logit_softcap: float | None = None,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        num_layers = integer(num_layers, "num_layers", least=0)
        vocabulary, context, d_model = backend.setting((vocabulary, context, d_model))
        of_blocks: dict[str, Any] = {
            "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
            "hidden": hidden, "activation": activation, "norm": norm, "norm_eps": norm_eps,
            "norm_of": norm_of, "rope": rope, "window": window, "sinks": sinks, "qk_norm": qk_norm,
            "scale": scale, "softcap": softcap, "bias": bias, "attention_bias": attention_bias,
            "dropout": dropout, "dtype": dtype,
        }  # fmt: skip
        of_blocks, layers, logit_softcap = backend.setting((of_blocks, layers, logit_softcap))
        self.settings = {
            "vocabulary": vocabulary, "context": context, "d_model": d_model,
            "num_layers": num_layers, "tie": tie, "layers": layers,
            "scale_embeddings": scale_embeddings, "logit_softcap": logit_softcap, **of_blocks,
        }  # fmt: skip
        own = [{}] * num_layers if layers is None else layers
        if len(own) != num_layers:
            raise ValueError(f"layers has {len(own)} entries, but num_layers is {num_layers}")
        self.embedding_scale = math.sqrt(d_model) if scale_embeddings else None
        self.logit_softcap = logit_softcap
        rng, self.context = backend.generator(rng), context
        self.tokens = Embedding(vocabulary, d_model, rng=rng, dtype=dtype)
        self.positions = None if rope else Embedding(context, d_model, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.blocks = [Block(d_model, rng=rng, **{**of_blocks, **layer}) for layer in own]
        self.norm = norm_layer(norm, d_model, bias=bias, eps=norm_eps, dtype=dtype)
        self.head = None if tie else Linear(d_model, vocabulary, bias=False, rng=rng, dtype=dtype)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                residual = name.endswith(("attention.w_o", "mlp.narrow.weight"))
                std = 0.02 / math.sqrt(2 * num_layers) if residual else 0.02
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
        past = len(caches[0]) if caches else 0
        if tokens.ndim != 2 or past + tokens.shape[1] > self.context:
            after = f" after {past} in the cache" if past else ""
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}{after}, but must be (B, T) with T at most "
                f"{self.context - past}, the context"
            )
        x = self.tokens(tokens)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.positions is not None:
            end, xp = past + tokens.shape[1], namespace(tokens)
            own = xp.arange(past, end, device=tokens.device) if positions is None else positions
            x = x + self.positions(own)
        x, all_weights = self.dropout(x, rng), []
        for k, block in enumerate(self.blocks):
            cache = caches[k] if caches else None
            x = block(
                x, masks.causal(), positions=positions, cache=cache, rng=rng,
                return_weights=return_weights,
            )  # fmt: skip
            if return_weights:
                x, weights = x
                all_weights.append(weights)
        x = self.norm(x)
        logits = linear(x, self.tokens.table.mT) if self.head is None else self.head(x)
        if self.logit_softcap is not None:
            logits = self.logit_softcap * ops.tanh(logits / self.logit_softcap)
        return (logits, all_weights) if return_weights else logits

    def new_caches(self, reserve: int = 64) -> list[KeyValueCache]:
        """An empty cache for each block, with its window and sinks, and with this reserve."""
        return [KeyValueCache(b.window, sinks=b.sinks, reserve=reserve) for b in self.blocks]
