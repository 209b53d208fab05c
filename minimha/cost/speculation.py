"""The speed-up of speculative decoding."""

from __future__ import annotations

from ..functional.checks import at_least_0, integer, probability


def speculation(acceptance: float, ahead: int, ratio: float, *, scoring: float = 1.0) -> float:
    """How many times faster than `generate` we expect `speculate` to be, with the same model.

        (1 + a + … + aᵏ) / (c k + s) = (1 − aᵏ⁺¹) / ((1 − a) (c k + s))

    acceptance  a, the probability that a drafted token is accepted, whatever the earlier ones were
    ahead       k, the number of tokens drafted in a round
    ratio       c, the time of a call of the draft model divided by that of a call of the model,
                both with one token, and including the draw of the next one
    scoring     s, the time of the model's call with k + 1 tokens divided by that with one token. It
                is about 1 if reading the weights takes nearly all the time

    The numerator is the mean number of tokens in a round: with ratio=0 and s = 1, the result is
    the mean number of tokens for each call of the model. With s = 1, `speculate` is faster for some
    k if a > c.
    Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
    Decoding" (2023), theorem 3.8, where s = 1.
    """
    acceptance = probability(acceptance, "acceptance")
    ratio = at_least_0(ratio, "ratio")
    scoring = at_least_0(scoring, "scoring")
    k = integer(ahead, "ahead", least=1)
    return sum(acceptance**n for n in range(k + 1)) / (ratio * k + scoring)
