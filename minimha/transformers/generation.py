"""Generation: a model continues sequences of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from minimha_autograd import array_of, backend, no_grad
from minimha_autograd.backend import Array, Rng

from ..functional.checks import at_least_0, integer
from ..multihead import KeyValueCache
from .gpt import GPT


class Reader:
    """A model that reads a growing sequence.

    When the context is full, it goes on with the newest half of it, as if nothing had come before.
    """

    def __init__(self, model: GPT, cache: bool = True, reserve: int = 64) -> None:
        self.model, self.cache, self.reserve = model, cache, reserve
        self.like = model.parameters()[0].data
        self.start = self.seen = 0  # where the context begins, and the tokens in the caches end
        self.caches: list[KeyValueCache] | None = None

    def room(self, end: int) -> int:
        """How many tokens can follow the first `end` tokens before the context is full."""
        if end - self.start > self.model.context:
            self.start, self.caches = end - (self.model.context + 1) // 2, None
        return self.start + self.model.context - end

    def __call__(self, known: np.ndarray, last: int = 1) -> np.ndarray:
        """The logits (B, last, V) at the last positions of known tokens (B, T), of which those that
        were passed earlier are not read again."""
        self.room(known.shape[1])
        if not self.caches:
            self.caches = self.model.new_caches(self.reserve) if self.cache else None
            self.seen = self.start
        new = backend.like(known[:, self.seen :], self.like)
        with no_grad():
            logits = backend.to_numpy(self.model(new, caches=self.caches)[:, -last:].data)
        self.seen = known.shape[1]
        if np.isnan(logits).any():
            raise ValueError("the model's logits are NaN, probably because its training diverged")
        return logits

    def rewind(self, end: int) -> None:
        """Forget the tokens after the first `end` tokens."""
        for cache in self.caches or ():
            cache.rewind(max(0, self.seen - end))
        self.seen = min(self.seen, end)


class Sampling(NamedTuple):
    """The settings of `generate` that decide how tokens are drawn."""

    temperature: float
    top_k: int | None
    top_p: float | None
    stop: list[int]

    @classmethod
    def checked(cls, temperature: Any, top_k: Any, top_p: Any, stop: Collection[int]) -> Sampling:
        """The settings as Python numbers. Raises TypeError for settings that are not numbers,
        ValueError for settings out of range."""
        temperature = at_least_0(temperature, "temperature")
        if top_k is not None:
            top_k = integer(top_k, "top_k", least=1)
        if top_p is not None:
            top_p = at_least_0(top_p, "top_p")
            if not 0 < top_p <= 1:
                raise ValueError(f"top_p = {top_p} must be above 0 and at most 1")
        ends = [integer(token, "a token of stop", least=0) for token in stop]
        return cls(temperature, top_k, top_p, ends)


def generate(
    model: GPT,
    tokens: Array,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Collection[int] = (),
    rng: Rng = 0,
    cache: bool = True,
) -> Array:
    """Continue tokens (B, T), with T at least 1, by count tokens. Returns (B, T + count).

    temperature  the logits are divided by it; 0 takes the token with the largest logit
    top_k        draw from the k most likely tokens: see `probabilities`, also for ties
    top_p        draw from the most likely tokens that together have at least this probability
    stop         tokens that end a sequence, which is then filled up with the one that ended it;
                 the result is shorter if all sequences have ended
    rng          a generator or a seed
    cache        whether to keep the keys and values of earlier tokens that later ones see. Without,
                 each step computes them all again; the tokens are the same, unless rounding decides
                 between two of them

    When the context is full, the model continues with the newest half of it: learned positions
    count from the start of the context, so moving it by one token would change every cached key.
    `speculate` draws from the same distribution, with the help of a smaller model.

    Raises ValueError for settings out of range and for a model whose logits are NaN, TypeError for
    tokens that are not integers and for settings that are not numbers.
    """
    drawn = stream(
        model, tokens, count, temperature=temperature, top_k=top_k, top_p=top_p, stop=stop,
        rng=rng, cache=cache,
    )  # fmt: skip
    columns = [checked_tokens(tokens), *(new[:, None] for new in drawn)]
    return backend.like(np.concatenate(columns, axis=1), array_of(tokens))


def stream(
    model: GPT,
    tokens: Array,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Collection[int] = (),
    rng: Rng = 0,
    cache: bool = True,
) -> Iterator[np.ndarray]:
    """The new tokens of `generate`, step by step: (B,) as soon as they are drawn.

    Arguments and errors are those of `generate`.
    """
    known = checked_tokens(tokens)
    by = Sampling.checked(temperature, top_k, top_p, stop)
    count = integer(count, "count", least=0)
    rng = backend.generator(rng)

    def draw(logits: np.ndarray) -> np.ndarray:
        if by.temperature == 0:
            return logits.argmax(axis=-1)
        return sample(probabilities(logits, by.temperature, by.top_k, by.top_p), rng)

    return itertools.islice(_drawn(model, known, draw, by.stop, cache), count)


def _drawn(
    model: GPT, known: np.ndarray, draw: Callable[[Array], Array], ends: list[int], cache: bool
) -> Iterator[np.ndarray]:
    """The tokens (B,) drawn from the logits (B, V) after known tokens (B, T), step by step, until
    each sequence has one of the ends."""
    read, ended = Reader(model, cache), np.zeros(len(known), dtype=bool)
    while not ended.all():
        drawn = np.where(ended, known[:, -1], draw(read(known)[:, -1]))
        ended |= np.isin(drawn, ends)
        known = np.concatenate([known, drawn[:, None]], axis=1)
        yield drawn


def checked_tokens(tokens: Array) -> np.ndarray:
    """The tokens (B, T), of any integer type, as int64 on the host. Raises as `generate` does."""
    backend.require(backend.is_integral, array_of(tokens), "tokens")
    known = backend.to_numpy(array_of(tokens)).astype("int64")  # uint8 has no token above 255
    if known.ndim != 2 or not known.shape[1]:
        raise ValueError(f"tokens has shape {known.shape}, but must be (B, T) with T at least 1")
    return known


def sample(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One token for each row of probabilities (B, V): (B,)."""
    cumulative = p.cumsum(axis=-1)
    drawn = rng.random((len(p), 1)) * cumulative[:, -1:]
    return (cumulative <= drawn).sum(axis=-1)


def probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> np.ndarray:
    """The probabilities (B, V) from which `generate` draws, for logits (B, V).

    softmax(logits / temperature), in float64; tokens with the logit +∞ share all the probability.
    The probabilities of all tokens outside top_k, and then outside top_p, are set to 0, and the
    others are scaled to sum to 1. A token that is as likely as the last one inside is kept too.
    Source of top_p: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
    """
    logits = logits.astype(np.float64)
    largest = logits.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):  # ∞ − ∞, and quotients below the range of float64: exp gives 0
        p = np.exp(np.where(logits == largest, 0.0, (logits - largest) / temperature))
    p /= p.sum(axis=-1, keepdims=True)
    if top_k is not None and top_k < p.shape[-1]:
        p = _at_least(p, np.sort(p, axis=-1)[:, -top_k, None])
    if top_p is not None:
        falling = -np.sort(-p, axis=-1)
        inside = falling.cumsum(axis=-1) - falling < top_p  # those before have less than top_p
        p = _at_least(p, np.min(falling, axis=-1, keepdims=True, where=inside, initial=1.0))
    return p


def _at_least(p: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """p with smaller entries set to 0, scaled to sum to 1."""
    p = np.where(p >= smallest, p, 0.0)
    return p / p.sum(axis=-1, keepdims=True)
