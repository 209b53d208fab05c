"""An array without axes on the device serves as a number, where NumPy's does."""

import json

import numpy as np
import pytest

import minimha as mh
from minimha import functional, masks, nn, training
from minimha_autograd import backend, ops

X = np.arange(24.0).reshape(2, 3, 4)
LINE = np.arange(40) * 7 % 11

NUMBERS = {
    "index": lambda x, n: x[n(1)],
    "index from the end": lambda x, n: x[n(-1)],
    "index beside others": lambda x, n: x[:, n(2), n(1) : n(3)],
    "index beside arrays": lambda x, n: x[n(1), x.data.argmax(axis=-1)[0] * 0],
    "gather": lambda x, n: x.gather(n(1), axis=n(1)),
    "embedding": lambda x, n: functional.embedding(x[0], n(2)),
    "split into": lambda x, n: x.split(n(3), axis=n(1))[1],
    "split at": lambda x, n: x.split((n(1), n(2)), axis=1)[1],
    "reshape": lambda x, n: x.reshape(n(4), n(6)),
    "reshape to one axis": lambda x, n: x.reshape(n(24)),
    "permute": lambda x, n: x.permute(n(2), n(0), n(1)),
    "transpose": lambda x, n: x.transpose(n(0), n(1)),
    "expand": lambda x, n: x.expand((n(2), 2, 3, 4)),
    "flip": lambda x, n: x.flip(n(1)),
    "flip axes": lambda x, n: x.flip((n(0), n(1))),
    "repeat": lambda x, n: x.repeat(n(2), n(1)),
    "sum": lambda x, n: x.sum((n(0), n(2))),
    "max": lambda x, n: x.max(n(1)),
    "cumsum": lambda x, n: x.cumsum(n(1)),
    "squeeze": lambda x, n: x[:, :1].squeeze(n(1)),
    "expand_dims": lambda x, n: ops.expand_dims(x, n(1)),
    "concat": lambda x, n: ops.concat([x, x], axis=n(1)),
    "stack": lambda x, n: ops.stack([x, x], n(1)),
    "pad": lambda x, n: ops.pad(x, ((n(0), n(1)), (n(2), 0), (0, 0)), n(7)),
    "pad by": lambda x, n: ops.pad(x, n(1)),
    "clip": lambda x, n: x.clip(n(3.0), n(9.0)),
    "var": lambda x, n: x.var(axis=n(0), correction=n(1)),
    "softmax": lambda x, n: functional.softmax(x, n(1)),
    "dropout": lambda x, n: functional.drop(x, n(0.5), rng=np.random.default_rng(0)),
    "rope": lambda x, n: functional.rope(x, offset=n(3), base=n(100.0), width=n(2)),
    "scale": lambda x, n: mh.scaled_dot_product_attention(x, x, x, scale=n(0.25)),
    "softcap": lambda x, n: mh.scaled_dot_product_attention(x, x, x, softcap=n(2.0)),
    "dropout of attention": lambda x, n: mh.scaled_dot_product_attention(
        x, x, x, dropout=n(0.5), keep=x[..., :1].data * 0 + x[0, :, :3].data > 4
    ),
    "window": lambda x, n: mh.scaled_dot_product_attention(
        x, x, x, masks.sliding_window(n(1), n(0), offset=n(1))
    ),
    "prefix": lambda x, n: mh.scaled_dot_product_attention(x, x, x, masks.prefix(n(2))),
    "shape of a mask": lambda x, n: masks.causal(offset=0).array((n(3), n(4)), like=x),
    "rows of a mask": lambda x, n: masks.causal(offset=0).array(
        (3, 4), like=x, queries=slice(n(1), n(3))
    ),
    "blocks": lambda x, n: masks.causal().blocks((n(4), n(4)), (n(2), n(2)), like=x)[0],
    "sinusoidal": lambda x, n: mh.positions.sinusoidal(n(3), n(4), offset=n(2), like=x),
    "alibi": lambda x, n: mh.positions.alibi(n(2), n(3), n(3), offset=n(0), like=x),
}
"""Calls in which each number is an array without axes, made by n."""


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS.keys())
def test_an_array_without_axes_can_be_an_index_a_length_or_a_setting_as_with_numpy(there, call):
    def value_and_gradient(move):
        x = mh.Tensor(move(X), requires_grad=True)
        y = call(x, lambda number: move(np.asarray(number)))
        if not isinstance(y, mh.Tensor):
            return y, y
        y.sum().backward()
        return y.data, x.grad

    for x, y in zip(value_and_gradient(there), value_and_gradient(np.asarray), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x.get(), y, rtol=1e-13)


def test_an_index_without_axes_stays_on_the_device(there, traffic):
    x, one = mh.Tensor(there(X), requires_grad=True), there(np.array(1))
    (x[one].sum() + x[:, one].sum() + x.gather(one, axis=2).sum()).backward()
    assert not traffic
    expected = np.zeros_like(X)
    expected[1] += 1
    expected[:, 1] += 1
    expected[:, :, 1] += 1
    np.testing.assert_array_equal(x.grad.get(), expected)


def settled(number):
    """What a model, its training and its generation give for settings made by a function."""
    n = number
    model = mh.GPT(
        n(11), context=n(8), d_model=n(16), num_heads=n(4), num_kv_heads=n(2), num_layers=n(2),
        hidden=n(24), norm_eps=n(1e-5), dropout=n(0.25), window=n(4), sinks=n(1), scale=n(0.3),
        softcap=n(20.0), logit_softcap=n(30.0), layers=[{}, {"window": None, "hidden": n(16)}],
        rng=n(3),
    )  # fmt: skip
    model.to("cupy")
    run = training.Training(
        model, LINE, steps=n(3), batch=n(2), lr=n(0.01), min_lr=n(0.001), warmup=n(1),
        betas=(n(0.9), n(0.98)), weight_decay=n(0.1), clip=n(0.5), seed=n(5),
    )  # fmt: skip
    losses = list(run)
    losses.append(training.evaluate(model, LINE, batch=n(2)))
    tokens = backend.library("cupy").asarray(LINE[None, :3])
    kinds = {"temperature": n(0.8), "top_k": n(4), "top_p": n(0.9), "stop": [n(1)], "rng": n(2)}
    drawn = mh.generate(model, tokens, n(5), **kinds)
    quick = mh.speculate(model, model, tokens, n(5), ahead=n(2), **kinds).tokens
    return [np.asarray(losses), drawn.get(), quick.get()], model.settings, run.settings


@mh.implementation("reference")
def test_a_model_its_training_and_generation_take_arrays_without_axes(there):
    found, model, run = settled(lambda n: there(np.asarray(n)))
    expected, *plain = settled(lambda n: n)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert json.dumps([model, run]) == json.dumps(plain)


def test_other_layers_take_arrays_without_axes(there):
    def parameters(n):
        rope = mh.positions.Rope()
        sizes = {"latent": n(6), "head_dim": n(4), "rope_dim": n(2), "v_head_dim": n(3)}
        layers = [
            nn.Linear(n(3), n(4), std=n(0.5), rng=n(1)), nn.LayerNorm(n(3), eps=n(1e-3)),
            nn.RMSNorm(n(3), eps=n(1e-3)), nn.Embedding(n(3), n(2), rng=n(1)), nn.Dropout(n(0.5)),
            nn.MLP(n(4), n(6), rng=n(1)), mh.positions.Learned(n(3), n(4), rng=n(1)),
            mh.MultiHeadAttention(n(8), n(4), num_kv_heads=n(2), head_dim=n(2), rng=n(1)),
            mh.LatentAttention(n(8), n(2), query_latent=n(5), rope=rope, rng=n(1), **sizes),
            mh.EncoderDecoder(n(7), d_model=n(8), num_heads=n(2), num_layers=n(1), rng=n(1)),
        ]  # fmt: skip
        cache = mh.KeyValueCache(n(3), sinks=n(1), reserve=n(2))
        kept = [cache.window, cache.sinks, cache.reserve, layers[1].eps, layers[4].p]
        return [p.data for layer in layers for p in layer.parameters()], kept

    found, kept = parameters(lambda n: there(np.asarray(n)))
    expected, plain = parameters(lambda n: n)
    assert all(map(np.array_equal, found, expected))
    assert kept == plain
    assert {type(n) for n in kept} == {int, float}
