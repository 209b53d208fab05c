"""A GPT: transformer blocks under a causal mask, which predict the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minimha_autograd import backend, ops
from minimha_autograd.backend import Array, Rng, namespace

from .. import masks
from ..functional import linear
from ..multihead import KeyValueCache
from ..nn import Dropout, Embedding, Linear, Module
from .arguments import arguments_of, explained_by
from .block import Block, new_norm, widen_vectors
from .settings import GPTSettings


# settings.py says what each argument means; the decorator shows it at the end of help(GPT).
@explained_by(GPTSettings)
class GPT(Module):
    """A causal transformer over a vocabulary: token t sees the tokens up to t and predicts t + 1.

        x = table[tokens] + positions[0 … T − 1]          (B, T, M)
        x = block(x)                                      for each block, under a causal mask
        logits = head(norm(x))                            (B, T, vocabulary)

    With tie=True the defaults make a GPT-2; a Llama has norm="rms", activation="swiglu", bias=False
    and rope. `settings` holds all arguments but rng: GPT(**model.settings) has the same shapes.
    Source: Radford et al., GPT-2 (2019); Touvron et al., Llama (2023).
    """

    # The decorator turns the fields of GPTSettings into the arguments: GPT(65, context=8, …) makes
    # the settings and passes them here.
    @arguments_of(GPTSettings)
    def __init__(self, settings: GPTSettings) -> None:
        self.settings = dict(vars(settings))
        del self.settings["rng"]  # used up: GPT(**model.settings) draws new weights

        vocabulary = settings.vocabulary
        context = settings.context
        d_model = settings.d_model
        dtype = settings.dtype
        rng = settings.rng

        self.context = context
        self.logit_softcap = settings.logit_softcap
        self.embedding_scale = None
        if settings.scale_embeddings:
            self.embedding_scale = math.sqrt(d_model)

        # The order of the attributes is that of the parameters, in names and in files.
        self.tokens = Embedding(vocabulary, d_model, rng=rng, dtype=dtype)  # (vocabulary, M)
        self.positions = None
        if not settings.rope:
            self.positions = Embedding(context, d_model, rng=rng, dtype=dtype)  # (context, M)
        self.dropout = Dropout(settings.dropout)
        self.blocks = [Block(**arguments) for arguments in settings.of_each_block()]

        # The output of the last block is a sum that is not yet normalised.
        self.norm = new_norm(settings)
        self.head = None
        if not settings.tie:
            self.head = Linear(d_model, vocabulary, bias=False, rng=rng, dtype=dtype)

        self._draw_matrices(rng)
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
        return_weights  also return a list with the attention weights (B, H, T, S) of each block,
                        where S is T plus the number of earlier keys in the cache

        Raises ValueError for more tokens than the context and for too many or too few caches,
        TypeError for tokens that are not integers.
        """
        of_blocks: Sequence[KeyValueCache | None] = caches or [None] * len(self.blocks)
        past = 0
        if caches:
            past = len(caches[0])
        self._check(tokens, past, len(of_blocks))

        x = self._embed(tokens, past, positions)  # (B, T, M)
        x = self.dropout(x, rng)

        all_weights = []
        for block, cache in zip(self.blocks, of_blocks, strict=True):
            # The causal mask is all that hides the next token from a position that predicts it.
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

        logits = self._predict(self.norm(x))  # (B, T, vocabulary)
        if return_weights:
            return logits, all_weights
        return logits

    def _embed(self, tokens: Array, past: int, positions: Array | None) -> Any:
        """The input of the first block, (B, T, M), for tokens (B, T) at these positions (T,). If
        positions is None, the tokens follow `past` earlier ones."""
        x = self.tokens(tokens)  # (B, T, M)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.positions is None:
            return x  # with rope, each layer of attention rotates queries and keys instead

        if positions is None:
            xp = namespace(tokens)
            positions = xp.arange(past, past + tokens.shape[1], device=tokens.device)
        return x + self.positions(positions)  # (B, T, M) + (T, M)

    def _predict(self, x: Any) -> Any:
        """The logits (B, T, vocabulary) for x (B, T, M), the normalised output of the blocks."""
        # With tied weights, the logit of a token is the product of x and the token's embedding.
        logits = self.head(x) if self.head is not None else linear(x, self.tokens.table.mT)

        if self.logit_softcap is not None:
            # tanh has the slope 1 at 0 and stays between −1 and 1: only large logits change.
            logits = self.logit_softcap * ops.tanh(logits / self.logit_softcap)
        return logits

    def new_caches(self, reserve: int = 64) -> list[KeyValueCache]:
        """An empty `KeyValueCache` for each block, with the window and the sinks of the block.

        reserve  for blocks with a window, how many of the newest tokens `KeyValueCache.rewind` can
                 take back
        """
        return [KeyValueCache(b.window, sinks=b.sinks, reserve=reserve) for b in self.blocks]

    def _draw_matrices(self, rng: Rng) -> None:
        """Draw all matrices again, as nanoGPT does: normal with standard deviation 0.02, and
        0.02/√(2L) for the maps whose output is added to the residual stream, with L blocks."""
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02
                if name.endswith(("attention.w_o", "mlp.narrow.weight")):
                    # The residual stream adds up two outputs of each block. Their sum does not
                    # grow with the number of blocks if each of them shrinks with its root.
                    std /= math.sqrt(2 * len(self.blocks))
                p.data = backend.normal(rng, p.shape, std=std, dtype=self.settings["dtype"])

    def _check(self, tokens: Array, past: int, caches: int) -> None:
        """Raise TypeError unless tokens are integers, and ValueError unless they are (B, T), the
        context has room for them after `past` earlier tokens, and the number `caches` of caches is
        the number of blocks."""
        backend.require(backend.is_integral, tokens, "tokens")
        room = self.context - past
        if tokens.ndim != 2 or tokens.shape[1] > room:
            after = ""
            if past:
                after = f" after {past} in the cache"
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}{after}, but must be (B, T) with T at most "
                f"{room}, the context"
            )
        if caches != len(self.blocks):
            raise ValueError(
                f"caches has {caches} entries, but must have one for each of the "
                f"{len(self.blocks)} blocks: `new_caches` makes them"
            )
