"""Modules: parameters by name, and the logits of a GPT."""

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend


@pytest.fixture
def gpt():
    return mh.GPT(7, context=6, d_model=4, num_heads=2, num_layers=2, rng=3, dtype="float64")


def test_parameters_are_named_by_their_attributes(gpt):
    names = [name for name, _ in gpt.named_parameters()]
    assert len(names) == len(set(names)) == 2 + 2 * 16 + 2 + 1
    some = "tokens.table", "blocks.0.attention.w_q", "blocks.1.mlp.narrow.bias", "head.weight"
    assert set(some) <= set(names)


def test_parameters_are_found_in_lists_tuples_dictionaries_and_unnamed_attributes():
    class Many(mh.Module):
        unnamed = ("hidden",)

        def __init__(self):
            self.some = [mh.Tensor([1.0], requires_grad=True)]
            self.others = (mh.Linear(2, 3),)
            self.named = {"a": mh.Linear(3, 1, bias=False)}
            self.hidden = mh.Linear(2, 2)

    names = [name for name, _ in Many().named_parameters()]
    assert names == [
        "some.0", "others.0.weight", "others.0.bias", "named.a.weight", "weight", "bias"
    ]  # fmt: skip


def test_tied_weights_are_one_parameter():
    class Tied(mh.Module):
        def __init__(self):
            self.weight = mh.Tensor([1.0], requires_grad=True)
            self.again = [self.weight]

    assert [name for name, _ in Tied().named_parameters()] == ["weight"]


def test_a_tensor_without_gradient_is_no_parameter_but_moves_with_the_module(xp, library):
    class Scaled(mh.Module):
        def __init__(self):
            self.weight = mh.Tensor([1.0], requires_grad=True)
            self.factor = mh.Tensor([2.0])

    scaled = Scaled()
    assert len(scaled.parameters()) == 1
    scaled.to(library)
    assert backend.namespace(scaled.factor.data) is xp


def test_the_seed_determines_the_weights_and_layers_differ(gpt):
    again = mh.GPT(7, context=6, d_model=4, num_heads=2, num_layers=2, rng=3, dtype="float64")
    for one, other in zip(gpt.parameters(), again.parameters(), strict=True):
        np.testing.assert_array_equal(one.data, other.data)
    w = [block.attention.w_q.data for block in gpt.blocks]
    assert not np.allclose(*w)
    assert not np.allclose(w[0], gpt.blocks[0].attention.w_k.data)


def test_a_gpt_shows_its_weights_without_changing_its_logits(gpt):
    tokens = np.array([[1, 2, 3, 4, 5]])
    logits, weights = gpt(tokens, return_weights=True)
    np.testing.assert_array_equal(logits.data, gpt(tokens).data)
    assert [w.shape for w in weights] == [(1, 2, 5, 5)] * 2
    np.testing.assert_allclose(weights[1].data.sum(-1), 1)


@pytest.mark.parametrize(("tokens", "error", "message"), [
    (np.zeros((1, 7), int), ValueError, r"\(1, 7\), but must be \(B, T\) with T at most 6"),
    (np.array([[7]]), IndexError, "from 0 to 6"),
    (np.array([[-1]]), IndexError, "from 0 to 6"),
    ([[1, 2]], TypeError, "tokens must be an array of integers, not of"),
    (np.array([[1.0]]), TypeError, "tokens must be an array of integers, not of"),
])  # fmt: skip
def test_invalid_tokens_are_refused(gpt, tokens, error, message):
    with pytest.raises(error, match=message):
        gpt(tokens)
