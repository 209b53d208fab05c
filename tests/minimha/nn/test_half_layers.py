"""Layers in 16 bits: their outputs and all gradients against float32, over thousands of rows."""

import copy

import numpy as np
import pytest
from layers import far

import minimha as mh
from minimha import nn, transformers
from minimha.transformers.encoder_decoder import Decoder, Encoder

B, T, M, V = 6, 500, 8, 11
SMALL = {"d_model": M, "num_heads": 2}
HALF_A_UNIT = {"float16": 2**-11, "bfloat16": 2**-8}
"""The largest relative error of rounding once."""


def rows(rng):
    return (rng.standard_normal((B, T, M)),)


def tokens(rng):
    return (rng.integers(0, V, (B, T)),)


def of_encoder(rng):
    return rng.standard_normal((B, T, M)), rng.standard_normal((B, 7, M))


LAYERS = {
    "linear": (lambda **k: nn.Linear(M, 5, **k), rows),
    "layer norm": (lambda **k: nn.LayerNorm(M, **k), rows),
    "rms norm": (lambda **k: nn.RMSNorm(M, **k), rows),
    "rms norm plus one": (lambda **k: nn.RMSNorm(M, plus_one=True, **k), rows),
    "embedding": (lambda **k: nn.Embedding(V, M, **k), tokens),
    "learned positions": (lambda **k: mh.positions.Learned(T, M, **k), lambda _: (T,)),
    **{
        activation: (lambda activation=activation, **k: nn.MLP(M, activation=activation, **k), rows)
        for activation in ("gelu", "relu", "swiglu", "geglu")
    },
    **{
        form: (lambda form=form, **k: mh.MultiHeadAttention(**SMALL, form=form, bias=False, **k), rows)
        for form in mh.projections.FORMS
    },
    "attention with a sink": (
        lambda **k: mh.MultiHeadAttention(
            **SMALL, num_kv_heads=1, sink=True, qk_norm=True, softcap=5.0, rope=mh.positions.Rope(),
            **k,
        ),
        rows,
    ),
    "latent": (lambda **k: mh.LatentAttention(**SMALL, latent=6, head_dim=4, rope_dim=2, **k), rows),
    "block": (lambda **k: transformers.Block(**SMALL, **k), rows),
    "encoder": (lambda **k: Encoder(**SMALL, num_layers=1, **k), rows),
    "decoder": (lambda **k: Decoder(**SMALL, num_layers=1, **k), of_encoder),
    "encoder and decoder": (
        lambda **k: mh.EncoderDecoder(V, **SMALL, num_layers=1, **k),
        lambda rng: tokens(rng) * 2,
    ),
    "gpt": (lambda **k: mh.GPT(V, context=T, **SMALL, num_layers=2, **k), tokens),
    "llama": (
        lambda **k: mh.GPT(
            V, context=T, **SMALL, num_layers=2, norm="rms", activation="swiglu", bias=False,
            rope=mh.positions.Rope(), tie=True, logit_softcap=20.0, **k,
        ),
        tokens,
    ),
}  # fmt: skip


def test_every_layer_with_parameters_is_among_these():
    """Except the models of the homework, whose faults are to be found."""
    made = {type(m) for make, _ in LAYERS.values() for m in make().modules()}
    missing = [
        kind.__name__
        for kind in subclasses(nn.Module)
        if kind.__module__.startswith("minimha.")
        if not kind.__module__.startswith("minimha.homework.")
        if not any(issubclass(m, kind) for m in made)
    ]
    assert missing == []


def subclasses(kind):
    for under in kind.__subclasses__():
        yield under
        yield from subclasses(under)


def computed(module, inputs):
    """The output, and the gradients of the inputs and parameters by name, as float32.

    The cotangents are positive, so that sums over rows grow.
    """
    leaves = {f"input {k}": mh.Tensor(x, True) for k, x in enumerate(inputs) if is_drawn(x)}
    y = module(*(leaves.get(f"input {k}", x) for k, x in enumerate(inputs)))
    c = np.random.default_rng(1).uniform(0.5, 1.5, y.shape).astype("float16")
    y.backward(c.astype(y.dtype))
    named = leaves | dict(module.named_parameters())
    assert all(x.grad.dtype == x.dtype for x in named.values())
    return {"output": y.data.astype("float32")} | {
        name: x.grad.astype("float32") for name, x in named.items()
    }


def is_drawn(x):
    return isinstance(x, np.ndarray) and x.dtype.kind != "i"


def cast(module, dtype):
    """A copy of a module with its parameters in a dtype."""
    module = copy.deepcopy(module)
    for p in module.parameters():
        p.data = p.data.astype(dtype)
    return module


@pytest.mark.parametrize("dtype", HALF_A_UNIT)
@pytest.mark.parametrize("made", ["in 16 bits", "in 32 bits"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_in_16_bits_are_those_of_float32(name, made, dtype, rng):
    """Errors are relative to the norm of each array, or to 1/30 of the largest norm if that is more,
    since some true gradients are 0. In units of a single rounding, the bound is 8, because two
    blocks round several times; we saw up to 3.2. A sum that stops growing is off by hundreds."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")  # it adds the dtype
    make, draw = LAYERS[name]
    narrow = far(make(dtype=dtype) if made == "in 16 bits" else cast(make(), dtype), rng)
    assert dtype in {str(p.dtype) for p in narrow.parameters()}
    inputs = [x.astype(dtype) if is_drawn(x) else x for x in draw(rng)]
    wide = cast(narrow, "float32"), [x.astype("float32") if is_drawn(x) else x for x in inputs]
    ours, expected = computed(narrow, inputs), computed(*wide)
    longest = max(np.linalg.norm(x) for n, x in expected.items() if n != "output")
    for what, x in expected.items():
        size = max(np.linalg.norm(x), longest / 30)
        error = np.linalg.norm(ours[what] - x) / size
        assert error <= 8 * HALF_A_UNIT[dtype], what


@pytest.mark.parametrize("dtype", HALF_A_UNIT)
def test_embeddings_of_tokens_and_of_positions_can_be_added(dtype, rng):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")  # it adds the dtype
    embeddings, positions = nn.Embedding(V, M, dtype=dtype), mh.positions.Learned(T, M, dtype=dtype)
    y = embeddings(*tokens(rng)) + positions(T)
    y.sum().backward()
    assert positions.table.grad.dtype == dtype
