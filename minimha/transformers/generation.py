"""Generation: a model continues sequences of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from minimha_autograd import array_of, backend, no_grad
from minimha_autograd.backend import Array, Rng

from ..functional.checks import at_least_0, integer
from ..multihead import KeyValueCache
from .gpt import GPT


class Reader:
    """A model that reads growing sequences: each call gets them from their start, and returns
    logits for their next tokens.

    When the context is full, the reader drops the older half of it, and the model continues with
    the newer half as if the sequence began there.

    cache    whether to keep the keys and values of earlier tokens; without, each call computes them
             all again
    reserve  for blocks with a window, how many of the newest tokens `rewind` can take back
    """

    def __init__(
        self,
        model: GPT,
        cache: bool = True,
        reserve: int = 64,
    ) -> None:
        self.model = model
        self.cache = cache
        self.reserve = reserve
        self.like = model.parameters()[0].data
        self.caches: list[KeyValueCache] | None = None

        self.start = 0  # where the context begins
        self.seen = 0  # where the tokens in the caches end

    def room(self, end: int) -> int:
        """How many tokens can follow the first `end` tokens before the context is full. If these
        are too many for the context, the reader first drops the older ones."""
        context = self.model.context
        if end - self.start > context:
            self.start = end - (context + 1) // 2
            self.caches = None  # made for other positions
        return self.start + context - end

    def __call__(self, known: np.ndarray, last: int = 1) -> np.ndarray:
        """The logits (B, last, V) at the last positions of the known tokens (B, T): all tokens so
        far. Tokens that an earlier call has read are not read again if there is a cache. Raises
        ValueError if the logits are NaN."""
        self.room(known.shape[1])
        if not self.caches:
            self.seen = self.start
            if self.cache:
                self.caches = self.model.new_caches(self.reserve)

        new = backend.like(known[:, self.seen :], self.like)  # (B, unread)
        with no_grad():
            logits = self.model(new, caches=self.caches)  # (B, unread, V)
            logits = logits[:, -last:]  # (B, last, V)
            logits = backend.to_numpy(logits.data)
        self.seen = known.shape[1]

        if np.isnan(logits).any():
            raise ValueError("the model's logits are NaN, probably because its training diverged")
        return logits

    def rewind(self, end: int) -> None:
        """Forget all tokens read so far but the first `end`, so that others can follow these."""
        unwanted = max(0, self.seen - end)
        for cache in self.caches or ():
            cache.rewind(unwanted)
        self.seen = min(self.seen, end)


@dataclass(kw_only=True)
class Sampling:
    """The settings that decide how tokens are drawn, which `generate` explains.

    Raises TypeError for settings that are not numbers, ValueError for settings out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    stop: Collection[int] = ()
    rng: Rng = 0

    def __post_init__(self) -> None:
        self.temperature = at_least_0(self.temperature, "temperature")
        if self.top_k is not None:
            self.top_k = integer(self.top_k, "top_k", least=1)
        if self.top_p is not None:
            self.top_p = at_least_0(self.top_p, "top_p")
            if not 0 < self.top_p <= 1:
                raise ValueError(f"top_p = {self.top_p} must be above 0 and at most 1")
        self.ends = [integer(token, "a token of stop", least=0) for token in self.stop]
        self.generator = backend.generator(self.rng)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """The probabilities (B, V) from which tokens are drawn, for logits (B, V)."""
        return probabilities(logits, self.temperature, self.top_k, self.top_p)

    def draw(self, logits: np.ndarray) -> np.ndarray:
        """Draw one token for each row of logits (B, V). Returns the tokens (B,)."""
        if self.temperature == 0:
            return logits.argmax(axis=-1)
        return sample(self.probabilities(logits), self.generator)


def generate(
    model: GPT,
    tokens: Array,
    count: int,
    *,
    temperature: float = Sampling.temperature,
    top_k: int | None = Sampling.top_k,
    top_p: float | None = Sampling.top_p,
    stop: Collection[int] = Sampling.stop,
    rng: Rng = Sampling.rng,
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
    known = checked_tokens(tokens)  # (B, T)
    steps = stream(
        model,
        known,
        count,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        rng=rng,
        cache=cache,
    )
    columns = [known]
    for drawn in steps:
        columns.append(drawn[:, None])  # (B, 1)
    whole = np.concatenate(columns, axis=1)  # (B, T + count)
    return backend.like(whole, array_of(tokens))


def stream(
    model: GPT,
    tokens: Array,
    count: int,
    *,
    temperature: float = Sampling.temperature,
    top_k: int | None = Sampling.top_k,
    top_p: float | None = Sampling.top_p,
    stop: Collection[int] = Sampling.stop,
    rng: Rng = Sampling.rng,
    cache: bool = True,
) -> Iterator[np.ndarray]:
    """Yield the new tokens of `generate` step by step: at each step an array (B,), as soon as it is
    drawn.

    Arguments and errors are those of `generate`.
    """
    known = checked_tokens(tokens)  # (B, T)
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        rng=rng,
    )
    count = integer(count, "count", least=0)
    steps = _drawn(model, known, sampling, cache)
    return itertools.islice(steps, count)


def _drawn(
    model: GPT,
    known: np.ndarray,
    sampling: Sampling,
    cache: bool,
) -> Iterator[np.ndarray]:
    """Yield the tokens (B,) that follow the known tokens (B, T), step by step, until all sequences
    have ended. `cache` says whether the model keeps the keys and values of earlier tokens."""
    read = Reader(model, cache)
    ended = np.zeros(len(known), dtype=bool)  # (B,)
    while not ended.all():
        logits = read(known)[:, -1]  # (B, V)
        drawn = sampling.draw(logits)  # (B,)

        # A sequence that has ended goes on with the token that ended it.
        drawn = np.where(ended, known[:, -1], drawn)
        ended |= np.isin(drawn, sampling.ends)
        column = drawn[:, None]  # (B, 1)
        known = np.concatenate([known, column], axis=1)
        yield drawn


def checked_tokens(tokens: Array) -> np.ndarray:
    """The tokens (B, T), of any integer dtype, as a NumPy array of int64. Raises TypeError if they
    are not integers, and ValueError if the shape is not (B, T) with T at least 1."""
    backend.require(backend.is_integral, array_of(tokens), "tokens")

    # Drawn tokens will be appended: uint8, for example, has none above 255.
    known = backend.to_numpy(array_of(tokens)).astype("int64")
    if known.ndim != 2 or not known.shape[1]:
        raise ValueError(f"tokens has shape {known.shape}, but must be (B, T) with T at least 1")
    return known


def sample(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one token for each row of probabilities p (B, V). Returns the tokens (B,). A row
    need not sum to 1: it is divided by its sum."""
    # A point on the line from 0 to the sum, on which each token takes a piece as long as its
    # probability. The token is the number of pieces before the point.
    ends = p.cumsum(axis=-1)  # (B, V)
    total = ends[:, -1:]  # (B, 1)
    point = rng.random((len(p), 1)) * total  # (B, 1)
    return (ends <= point).sum(axis=-1)


def probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> np.ndarray:
    """The probabilities (B, V) from which `generate` draws, for logits (B, V).

    These are softmax(logits / temperature), in float64; tokens with the logit +∞ share all the
    probability. With top_k, the probabilities of all but the k most likely tokens are set to 0, and
    the others are scaled to sum to 1. Then top_p does the same to all but the fewest most likely
    tokens that together have at least this probability. Both keep all tokens that are as likely as
    the least likely one they keep.
    Source of top_p: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
    """
    logits = logits.astype(np.float64)
    largest = logits.max(axis=-1, keepdims=True)  # (B, 1)

    # Without the largest logit, exp cannot overflow. Warnings would be about ∞ − ∞, which `where`
    # replaces, and about quotients below the range of float64, for which exp gives 0.
    with np.errstate(all="ignore"):
        exponents = (logits - largest) / temperature
        p = np.exp(np.where(logits == largest, 0.0, exponents))
    p /= p.sum(axis=-1, keepdims=True)

    if top_k is not None and top_k < p.shape[-1]:
        rising = np.sort(p, axis=-1)
        smallest = rising[:, -top_k, None]  # (B, 1), of the k largest
        p = _at_least(p, smallest)

    if top_p is not None:
        falling = -np.sort(-p, axis=-1)

        # A token is inside if those before it do not yet have the probability top_p.
        before = falling.cumsum(axis=-1) - falling
        inside = before < top_p  # (B, V), at least the first
        smallest = np.min(falling, axis=-1, keepdims=True, where=inside, initial=1.0)
        p = _at_least(p, smallest)
    return p


def _at_least(p: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Set the probabilities in each row of p (B, V) that are below the number of this row in
    `smallest` (B, 1) to 0, and scale the others to sum to 1."""
    p = np.where(p >= smallest, p, 0.0)
    return p / p.sum(axis=-1, keepdims=True)
