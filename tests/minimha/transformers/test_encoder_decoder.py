"""The encoder-decoder: gradients, masks, decoding with and without a cache."""

import importlib.util

import numpy as np
import pytest
from layers import assert_gradients, far

import minimha as mh
from minimha.transformers import Decoder, Encoder, greedy_decode

V, VS, M, H = 7, 9, 6, 3
LENGTHS = np.array([5, 3])


def model(rng, vocabulary=V, **settings):
    sizes = {"d_model": M, "num_heads": H, "num_layers": 2, "hidden": 10, "dtype": "float64"}
    return far(mh.EncoderDecoder(vocabulary, **sizes | settings), rng)


@pytest.fixture
def tokens(rng):
    """Sources (2, 5), the second one padded, and targets (2, 4)."""
    return rng.integers(0, V, (2, 5)), rng.integers(0, V, (2, 4))


@pytest.mark.parametrize(
    "settings", [{"source_vocabulary": VS}, {"norm_first": True, "activation": "gelu"}]
)
def test_gradients_of_an_encoder_decoder(settings, rng, tokens):
    net, (source, target) = model(rng, num_layers=1, **settings), tokens
    assert (net.source_tokens is net.tokens) == ("source_vocabulary" not in settings)

    def run():
        return net(source, target, mh.masks.padding(LENGTHS))

    assert_gradients(run, [], net, rng, 1e-7)


def test_every_position_of_memory_and_target_sees_the_whole_source(rng, tokens):
    net, (source, target) = model(rng), tokens
    for k in range(source.shape[1]):
        changed = source.copy()
        changed[:, k] = (changed[:, k] + 1) % V
        for run in (net.encode, lambda source: net(source, target)):
            assert (abs(run(source).data - run(changed).data).max(axis=-1) > 1e-6).all()


def test_the_padding_of_the_source_is_invisible(rng, tokens):
    net, (source, target) = model(rng), tokens
    short = net(source[1:, :3], target[1:]).data
    mask = mh.masks.padding(LENGTHS)
    for filler in (0, V - 1):
        source[1, 3:] = filler
        np.testing.assert_allclose(
            net(source, target, mask).data[1:], short, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoding_with_the_cache_equals_decoding_without(norm_first, rng):
    net, source = model(rng, norm_first=norm_first), rng.integers(0, V, (6, 5))
    lengths = np.array([5, 3, 4, 2, 5, 1])
    settings = {"start": 0, "end": 1, "count": 9}
    cached, whole = (
        greedy_decode(net, source, mh.masks.padding(lengths), cache=cache, **settings)
        for cache in (True, False)
    )
    np.testing.assert_array_equal(cached, whole)
    memory = net.encode(source, mh.masks.padding(lengths))
    before = np.concatenate([np.zeros((6, 1), int), cached[:, :-1]], axis=1)
    expected = net.decode(before, memory, mh.masks.padding(lengths)).data.argmax(axis=-1)
    ended = np.cumsum(before == 1, axis=1) > 0
    np.testing.assert_array_equal(cached, np.where(ended, 1, expected))
    assert len({len(set(row)) for row in cached.tolist()}) > 1  # the targets differ


def test_decoding_without_blocks_does_not_depend_on_the_cache():
    settings = {"start": 0, "end": 6, "count": 8}
    for seed in range(20):
        net = mh.EncoderDecoder(7, d_model=4, num_heads=2, num_layers=0, norm_first=True, rng=seed)
        cached, whole = (
            greedy_decode(net, np.array([[1, 2, 3]]), cache=cache, **settings)
            for cache in (True, False)
        )
        np.testing.assert_array_equal(cached, whole)


def test_decoding_stops_when_every_target_has_ended(rng):
    """A decoder that says 3 until position 1 + its source token, then the end."""

    class Counting(mh.EncoderDecoder):
        def decode(self, target, memory, source_mask=None, *, caches=None, rng=None):
            ends = target.shape[1] > memory[:, 0]
            logits = np.zeros((len(target), target.shape[1], V))
            logits[:, -1, 3], logits[:, -1, 1] = 1, 2 * ends
            return mh.Tensor(logits)

        def encode(self, source, source_mask=None, *, rng=None):
            return source

    net = Counting(V, d_model=M, num_heads=H, num_layers=1)
    source, settings = np.array([[2], [0], [1]]), {"start": 0, "end": 1, "cache": False}
    decoded = greedy_decode(net, source, count=8, **settings)
    assert decoded.tolist() == [[3, 3, 1], [1, 1, 1], [3, 1, 1]]
    assert greedy_decode(net, source, count=1, **settings).tolist() == [[3], [1], [3]]
    assert greedy_decode(net, source, count=0, **settings).shape == (3, 0)


def test_an_encoder_with_norm_first_ends_in_a_norm(rng):
    x = 5 * rng.standard_normal((2, 4, M))
    for norm_first in (False, True):
        y = Encoder(M, H, 2, norm_first=norm_first, dtype="float64")(x)
        np.testing.assert_allclose(y.data.mean(axis=-1), 0, atol=1e-12)
        np.testing.assert_allclose(y.data.std(axis=-1), 1, atol=1e-4)


def torch_weights(block):
    """A block's weights under the names of `torch.nn.TransformerDecoderLayer`."""
    import torch

    parts = {
        "linear1": block.mlp.widen, "linear2": block.mlp.narrow, "norm1": block.norm_attention,
        "norm2": block.norm_cross, "norm3": block.norm_mlp,
    }  # fmt: skip
    named = {f"{name}.weight": part.weight.data.T for name, part in parts.items()}
    named |= {f"{name}.bias": part.bias.data for name, part in parts.items()}
    for name, attention in (("self_attn", block.attention), ("multihead_attn", block.cross)):
        state = mh.interchange.to_torch(attention)
        named |= {f"{name}.{key}": array for key, array in state.items()}
    return {name: torch.tensor(np.ascontiguousarray(array)) for name, array in named.items()}


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_agrees_with_torch(norm_first, rng):
    import torch

    decoder = far(
        Decoder(M, H, 1, hidden=10, activation="relu", norm_first=norm_first, dtype="float64"), rng
    )
    layer = torch.nn.TransformerDecoderLayer(
        M, H, 10, dropout=0.0, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    layer.load_state_dict(torch_weights(decoder.blocks[0]))
    x, memory = rng.standard_normal((2, 4, M)), rng.standard_normal((2, 5, M))
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    hidden = torch.arange(5) >= torch.tensor(LENGTHS)[:, None]
    out = decoder.blocks[0](x, mh.masks.causal(), memory, mh.masks.padding(LENGTHS))
    expected = layer(
        *map(torch.tensor, (x, memory)), tgt_mask=future, memory_key_padding_mask=hidden
    )
    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
