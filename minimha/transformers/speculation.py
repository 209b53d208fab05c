"""Speculative decoding: a small model drafts tokens, and the large one scores them in one call."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from minimha_autograd import array_of, backend
from minimha_autograd.backend import Array, Rng

from ..functional.checks import integer
from .generation import Reader, Sampling, checked_tokens, sample
from .gpt import GPT


class Speculation(NamedTuple):
    """What `speculate` returns.

    tokens       (1, T + count): the T given ones and the new ones, fewer if a token of stop was
                 drawn
    accepted     how many of the draft's tokens the model accepted
    judged       how many of them it judged: in each round, those up to the first rejected one and
                 this one
    calls        calls of the model, one for each round
    draft_calls  calls of the draft
    """

    tokens: Array
    accepted: int
    judged: int
    calls: int
    draft_calls: int

    @property
    def acceptance(self) -> float:
        """The fraction of judged tokens that were accepted; NaN if none was judged."""
        return self.accepted / self.judged if self.judged else float("nan")


def speculate(
    model: GPT,
    draft: GPT,
    tokens: Array,
    count: int,
    *,
    ahead: int = 4,
    temperature: float = Sampling.temperature,
    top_k: int | None = Sampling.top_k,
    top_p: float | None = Sampling.top_p,
    stop: Collection[int] = Sampling.stop,
    rng: Rng = Sampling.rng,
) -> Speculation:
    """Continue tokens (1, T) by count tokens, with the distribution of `generate(model, …)`.

    draft  a faster model with the same vocabulary
    ahead  k, how many tokens the draft proposes in each round

    The other arguments are those of `generate`; temperature, top_k and top_p apply to both models.
    In each round the draft draws k tokens, and the model scores them all in one call. If q are the
    draft's probabilities of a token and p the model's, a token x is accepted with probability
    min(1, p(x) / q(x)). At the first rejected one, the round ends with a token drawn from
    max(0, p − q), normalised; if there is none, it ends with one more token, drawn from p. Both
    caches then forget the rejected tokens.

    The tokens then have the distribution p: x is proposed and accepted with probability
    min(p(x), q(x)), and some token is rejected with probability Σ max(0, p − q). At temperature 0
    the tokens are those of `generate`, unless two logits are equal up to rounding. Only one
    sequence is allowed: those of a batch would accept different numbers of tokens.

    Raises ValueError for tokens that are not (1, T), for models with different vocabularies, and as
    `generate` does.
    Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
    Decoding" (2023), algorithm 1; Chen et al., "Accelerating Large Language Model Decoding with
    Speculative Sampling" (2023).
    """
    known = checked_tokens(tokens)  # (1, T)
    if len(known) != 1:
        raise ValueError(f"tokens has shape {known.shape}, but must be (1, T): one sequence")
    vocabulary = model.settings["vocabulary"]
    other = draft.settings["vocabulary"]
    if vocabulary != other:
        raise ValueError(f"model and draft have vocabularies of {vocabulary} and {other} tokens")
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        rng=rng,
    )
    ahead = integer(ahead, "ahead", least=1)
    count = integer(count, "count", least=0)
    end = known.shape[1] + count

    # A rewind goes back over the tokens that one round has added.
    reserve = max(64, ahead)
    read = Reader(model, reserve=reserve)
    read_draft = Reader(draft, reserve=reserve)
    accepted = 0
    judged = 0
    calls = 0
    draft_calls = 0

    while known.shape[1] < end:
        n = known.shape[1]
        k = min(ahead, read.room(n), read_draft.room(n), end - n - 1)

        # The draft proposes k tokens, one after another.
        q = []
        for _ in range(k):
            q_next = sampling.probabilities(read_draft(known)[0])  # (1, V)
            proposed = sample(q_next, sampling.generator)  # (1,)
            known = np.append(known, proposed[None], axis=1)  # (1, n + 1), …, (1, n + k)
            q.append(q_next[0])

        # The model reads them all in one call.
        p = sampling.probabilities(read(known, last=k + 1)[0])  # (k + 1, V)
        kept, new = judge(p, np.array(q), known[0, n:], sampling.generator)
        known = np.append(known[:, : n + kept], [[new]], axis=1)  # (1, n + kept + 1)
        read.rewind(n + kept)
        read_draft.rewind(n + kept)

        calls += 1
        draft_calls += k
        accepted += kept
        judged += min(kept + 1, k)

        ends = np.isin(known[0, n:], sampling.ends)
        if ends.any():
            end = n + int(ends.argmax()) + 1
            known = known[:, :end]

    continued = backend.like(known, array_of(tokens))
    return Speculation(continued, accepted, judged, calls, draft_calls)


def judge(
    p: np.ndarray, q: np.ndarray, drafted: np.ndarray, rng: np.random.Generator
) -> tuple[int, Any]:
    """How many of the drafted tokens (k,) are accepted, by the rule that `speculate` explains, and
    the token that follows the accepted ones.

    p (k + 1, V) and q (k, V) are the probabilities that the model and the draft give to
    the tokens at each position.
    """
    for place, token in enumerate(drafted):
        if rng.random() * q[place, token] >= p[place, token]:
            return place, sample(np.maximum(p[place] - q[place], 0)[None], rng)[0]
    return len(drafted), sample(p[-1:], rng)[0]
