"""Which wrong gradients `mh.diagnose` sees, and which it does not: as docs/diagnose.md says."""

import numpy as np
import pytest
from student_models import M, student

import minimha as mh
from minimha.diagnosis.learning import correct
from minimha.diagnosis.learning.probe import Probe

MODELS = 14


def found(damage, offset=None, scale=1.0):
    """In how many models a damaged gradient of the embedded tokens is found.

    damage  a function of the gradient (B, T, M)
    offset  a constant of float32, with which the model cannot run in float64
    scale   of the embedded tokens, and so of this gradient
    """

    @mh.operation
    def damaged(x):
        return 1 * x, lambda dy: (damage(dy),)

    def embed(self, tokens):
        x = damaged(scale * self.tokens(tokens)) + self.places(np.arange(tokens.shape[1]))
        return x if offset is None else x + offset

    count = 0
    for seed in range(MODELS):
        model, inputs, targets = student(seed, model={"embed": embed})
        probe = Probe(model, inputs, targets, None, 1e-3, seed)
        with probe.copies():
            count += bool([*correct.right(probe)])
    return count


def times(factor):
    return lambda dy: factor * dy


def test_errors_of_1e4_are_found_and_of_1e6_are_hardly_ever_found():
    assert found(times(1 + 1e-4)) == MODELS
    assert found(times(1 + 1e-5)) > MODELS / 2
    assert found(times(1 + 1e-6)) <= 1


def test_errors_of_a_small_gradient_count_by_a_thousandth_of_the_largest():
    assert found(times(1.1), scale=1e-6) == MODELS
    assert found(times(1.001), scale=1e-6) <= 1


def test_in_float32_errors_of_30_percent_are_often_missed_and_of_100_percent_sometimes():
    offset = np.full(M, 0.1, "float32")
    assert found(times(1.0), offset) == 0
    assert found(times(1.3), offset) < 0.7 * MODELS
    assert MODELS / 2 < found(times(2.0), offset) < MODELS


def test_errors_in_what_the_check_does_not_run_are_missed():
    def in_later_sequences(dy):
        return dy * np.where(np.arange(len(dy)) < 2, 1, 2)[:, None, None].astype(dy.dtype)

    def in_float32(dy):
        return 2 * dy if dy.dtype == np.float32 else dy

    assert found(in_later_sequences) == 0
    assert found(in_float32) == 0


@pytest.mark.parametrize(
    ("settings", "is_zero"),
    [
        ({}, True),
        ({"alibi": True}, True),
        ({"rope": mh.positions.Rope()}, False),
        ({"qk_norm": True}, False),
        ({"softcap": 3.0}, False),
        ({"sink": True}, False),
    ],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else "",
)
def test_the_gradient_of_the_key_bias_is_zero_only_in_plain_attention(settings, is_zero, rng):
    mha = mh.MultiHeadAttention(12, 3, rng=1, dtype="float64", **settings)
    mha.b_k.data = rng.standard_normal(mha.b_k.shape)
    x = rng.standard_normal((2, 5, 12))
    (mha(x, mask=mh.masks.causal()) * rng.standard_normal((2, 5, 12))).sum().backward()
    size = abs(mha.b_k.grad).max() / abs(mha.b_q.grad).max()
    assert size < 1e-12 if is_zero else size > 1e-3
