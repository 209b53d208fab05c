"""The speed-up of speculative decoding."""

from __future__ import annotations

from ..functional.checks import check_at_least_0, check_probability, integer


def speculation(acceptance: float, ahead: int, ratio: float) -> float:
    """How many times faster `speculate` is than `generate`: (1 − aᵏ⁺¹) / ((1 − a) (c k + 1)).

    acceptance  a, the probability that a drafted token is accepted, whatever the earlier ones were
    ahead       k, the number of tokens drafted in a round
    ratio       c, the time of a call of the draft over that of the model. A call of the model is
                assumed to take the same time for 1 and for k + 1 tokens

    The numerator, 1 + a + … + aᵏ, is the mean number of tokens in a round: with ratio=0, the result
    is the number of tokens for each call of the model. If a ≤ c, no k makes it faster.
    Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
    Decoding" (2023), theorem 3.8.
    """
    check_probability(acceptance, "acceptance")
    check_at_least_0(ratio, "ratio")
    k = integer(ahead, "ahead", least=1)
    return sum(acceptance**n for n in range(k + 1)) / (ratio * k + 1)
