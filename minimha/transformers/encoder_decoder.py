"""The transformer of "Attention Is All You Need": an encoder, a decoder, and greedy decoding.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3 and figure 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minimha_autograd import backend, no_grad
from minimha_autograd.backend import Array, Rng, namespace

from .. import masks
from ..functional import linear
from ..functional.checks import integer
from ..masks.mask import AnyMask
from ..multihead import KeyValueCache, positions
from ..nn import Dropout, Embedding, LayerNorm, Module
from .block import Block, widen_vectors


class Stack(Module):
    """num_layers blocks, one after another, of width M = d_model and with H = num_heads heads.

    With norm_first, a LayerNorm follows the last block, whose output is a sum that is not yet
    normalised. Without norm_first, as in the paper, each block ends in a LayerNorm.
    The other arguments are those of `Block`.
    """

    cross = False

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int,
        *,
        norm_first: bool = False,
        rng: Rng = 0,
        dtype: str = "float32",
        **settings: Any,
    ) -> None:
        settings |= {"cross": self.cross, "norm_first": norm_first, "dtype": dtype}
        rng = backend.generator(rng)
        num_layers = integer(num_layers, "num_layers", least=0)
        self.blocks = [Block(d_model, num_heads, rng=rng, **settings) for _ in range(num_layers)]
        self.norm = None
        if norm_first:
            self.norm = LayerNorm(d_model, dtype=dtype)


class Encoder(Stack):
    """Blocks in which every position sees all others; they turn a source into a memory."""

    def __call__(
        self, x: Any, mask: AnyMask = None, *, rng: backend.Generator | None = None
    ) -> Any:
        """Apply the blocks to x (B, S, M): return the memory (B, S, M).

        mask  hides the padding of the source, such as `masks.padding(lengths)`; by default no
              position is hidden
        rng   the generator of dropout; without it there is no dropout
        """
        for block in self.blocks:
            x = block(x, mask, rng=rng)
        if self.norm is not None:
            x = self.norm(x)
        return x


class Decoder(Stack):
    """A stack of blocks in which position t sees the positions up to t and the whole memory."""

    cross = True

    def __call__(
        self,
        x: Any,
        memory: Any,
        memory_mask: AnyMask = None,
        *,
        caches: Sequence[KeyValueCache] | None = None,
        rng: backend.Generator | None = None,
    ) -> Any:
        """Apply the blocks to x (B, T, M), with attention to the memory (B, S, M). Returns an array
        (B, T, M).

        memory_mask  hides the padding of the source, from which the memory was made; by default no
                     position is hidden
        caches       one `KeyValueCache` for each block; x then continues that of earlier calls
        rng          the generator of dropout; without it there is no dropout
        """
        one_each: Sequence[KeyValueCache | None] = caches or [None] * len(self.blocks)
        for block, cache in zip(self.blocks, one_each, strict=True):
            x = block(x, masks.causal(), memory, memory_mask, cache=cache, rng=rng)
        if self.norm is not None:
            x = self.norm(x)
        return x


class EncoderDecoder(Module):
    """The paper's transformer: from source tokens (B, S) and target tokens (B, T) to the logits of
    the next target token.

        memory = encoder(√M · source_tokens(source) + p)           p: sinusoidal positions
        logits = decoder(√M · tokens(target) + p, memory) · tableᵀ

    vocabulary         number of different target tokens
    d_model            M, the width: even, and a multiple of num_heads
    num_heads          H
    num_layers         number of blocks in the encoder, and in the decoder
    source_vocabulary  number of different source tokens, which then have an embedding of their own.
                       Without it, one table embeds source and target, as in the paper
    dropout            its probability, for the embeddings and in the blocks, in calls with an rng
    rng                a generator or a seed, for the weights
    dtype              of the weights. "bfloat16" is for the matrices alone: biases and the weights
                       of norms are then float32

    The table of the target tokens is also the last linear map, so its gradient is the sum over all
    its uses. hidden, activation and norm_first are those of `Block`, with the paper's defaults.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        d_model: int,
        num_heads: int,
        num_layers: int,
        source_vocabulary: int | None = None,
        hidden: int | None = None,
        activation: str = "relu",
        norm_first: bool = False,
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        rng = backend.generator(rng)
        self.d_model = backend.setting(d_model)
        settings: dict[str, Any] = {
            "hidden": hidden, "activation": activation, "norm_first": norm_first,
            "dropout": dropout, "rng": rng, "dtype": dtype,
        }  # fmt: skip

        def table(count: int) -> Embedding:
            return Embedding(count, d_model, std=1 / math.sqrt(d_model), rng=rng, dtype=dtype)

        self.tokens = table(vocabulary)
        self.source_tokens = self.tokens
        if source_vocabulary:
            self.source_tokens = table(source_vocabulary)
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(d_model, num_heads, num_layers, **settings)
        self.decoder = Decoder(d_model, num_heads, num_layers, **settings)
        if dtype == "bfloat16":
            widen_vectors(self)

    def __call__(
        self,
        source: Array,
        target: Array,
        source_mask: AnyMask = None,
        *,
        rng: backend.Generator | None = None,
    ) -> Any:
        """The logits (B, T, vocabulary) for source (B, S) and target (B, T), arrays of tokens. rng
        is the generator of dropout; without it there is no dropout.

        source_mask hides the padding of the source from the encoder and from the decoder:
        `masks.padding(lengths)`. A target needs no mask if its padding is at the end, which causal
        attention does not see; leave the padding out of the loss.
        """
        memory = self.encode(source, source_mask, rng=rng)
        return self.decode(target, memory, source_mask, rng=rng)

    def encode(
        self, source: Array, source_mask: AnyMask = None, *, rng: backend.Generator | None = None
    ) -> Any:
        """Encode the source tokens (B, S): return the memory (B, S, M). source_mask hides padding;
        rng is the generator of dropout, without which there is none."""
        x = self._embedded(self.source_tokens, source, 0, rng)  # (B, S, M)
        return self.encoder(x, source_mask, rng=rng)

    def decode(
        self,
        target: Array,
        memory: Any,
        source_mask: AnyMask = None,
        *,
        caches: Sequence[KeyValueCache] | None = None,
        rng: backend.Generator | None = None,
    ) -> Any:
        """The logits (B, T, vocabulary) for target (B, T) and the memory (B, S, M), which `encode`
        made of its source. source_mask is the one given to `encode`; rng is the generator of
        dropout, without which there is none.

        With caches, one `KeyValueCache` for each block, the target continues that of earlier calls.
        """
        past = 0
        if caches:
            past = len(caches[0])
        x = self._embedded(self.tokens, target, past, rng)  # (B, T, M)
        x = self.decoder(x, memory, source_mask, caches=caches, rng=rng)  # (B, T, M)
        return linear(x, self.tokens.table.mT)

    def _embedded(
        self, table: Embedding, tokens: Array, past: int, rng: backend.Generator | None
    ) -> Any:
        """The vectors (B, T, M) of tokens (B, T): their rows of the table, times √M, plus the
        encoding of their positions, which begin at `past`. rng draws the dropout."""
        # The entries of the table have the variance 1/M: times √M, they are about as large as sin
        # and cos.
        x = math.sqrt(self.d_model) * table(tokens)
        p = positions.sinusoidal(
            tokens.shape[1], self.d_model, offset=past, dtype=x.dtype, like=tokens
        )
        return self.dropout(x + p, rng)


def greedy_decode(
    model: EncoderDecoder,
    source: Array,
    source_mask: AnyMask = None,
    *,
    start: int,
    end: int,
    count: int,
    cache: bool = True,
) -> Array:
    """Decode a target for each source in source (B, S), an array of tokens: choose the most likely
    token at each step. Returns the targets (B, T), with T at most count.

    source_mask  hides the padding of the source, such as `masks.padding(lengths)`
    start, end   tokens: a target begins after start, which is not returned, and stops with end.
                 Decoding stops when every target of the batch has ended; shorter ones are filled up
                 with end
    cache        whether the decoder keeps the keys and values of earlier tokens. Without, each step
                 computes them all again; the result is the same, unless rounding decides between
                 two tokens
    """
    count = integer(count, "count", least=0)
    with no_grad():
        memory = model.encode(source, source_mask)
        xp = namespace(source)
        batch = source.shape[0]
        tokens = xp.full((batch, 1), start, dtype=xp.int64, device=source.device)
        ended = xp.zeros((batch,), dtype=xp.bool, device=source.device)
        caches = None
        if cache:
            caches = [KeyValueCache() for _ in model.decoder.blocks]

        while tokens.shape[1] <= count and not bool(xp.all(ended)):
            new = tokens
            if caches:  # a model without blocks has none
                new = tokens[:, -1:]
            logits = model.decode(new, memory, source_mask, caches=caches)
            best = xp.argmax(logits.data[:, -1], axis=-1)  # (B,)

            # A target that has ended is filled up.
            best = xp.where(ended, xp.full_like(best, end), best)
            tokens = xp.concat([tokens, best[:, None]], axis=1)
            ended = ended | (best == end)
    return tokens[:, 1:]
