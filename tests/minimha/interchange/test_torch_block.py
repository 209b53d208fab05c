"""torch.nn.TransformerEncoderLayer and the block with its weights compute the same, forward and
backward, to 1e-5 in float32 and 1e-12 in float64 of the largest entry. The comparison is skipped
without torch."""

import numpy as np
import pytest
from layers import close, far, of_gradients, reasons, same_bits

import minimha as mh
from minimha import interchange

B, T, M, H, HIDDEN = 2, 5, 12, 3, 17
SETTINGS = {
    "torch's defaults": {"norm_first": False, "activation": "relu"},
    "pre-norm": {"norm_first": True, "activation": "gelu", "norm_eps": 0.1},
    "no biases": {"norm_first": True, "activation": "relu", "bias": False},
}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def drawn(kind, dtype, rng):
    """A block in which no weight is zero."""
    return far(mh.Block(M, H, hidden=HIDDEN, dtype=dtype, **SETTINGS[kind]), rng)


def known(kind):
    """What does not show in the weights."""
    return {name: x for name, x in SETTINGS[kind].items() if name != "bias"}


@pytest.mark.parametrize("prefix", ["", "layers.1"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_block_survives_a_round_trip_through_torch_s_layout(kind, prefix, rng):
    block = drawn(kind, "float16", rng)
    weights = interchange.block_to_torch(block)
    if prefix:
        others = {f"layers.10.{name}": x[:1] for name, x in weights.items()}
        weights = others | {f"{prefix}.{name}": x for name, x in weights.items()}
    back = interchange.block_from_torch(weights, H, prefix=prefix, dropout=0.25, **known(kind))
    assert (back.dropout.p, back.attention.dropout) == (0.25, 0.25)
    same_bits(interchange.state(back), interchange.state(block))
    x = rng.standard_normal((B, T, M)).astype("float16")
    np.testing.assert_array_equal(back(x).data, block(x).data)


def test_all_entries_that_do_not_fit_a_block_are_named(rng):
    weights = interchange.block_to_torch(drawn("pre-norm", "float64", rng))
    weights |= {"norm1.weight": np.ones(3), "extra": np.ones(2)}
    del weights["self_attn.in_proj_bias"]
    assert reasons(interchange.block_from_torch, weights, H, match="do not make") == [
        "extra is extra",
        "norm1.weight is float64 (3,), but must be float64 (12,)",
        "self_attn.in_proj_bias is missing",
    ]
    with pytest.raises(ValueError, match=r"x\.linear1\.weight is a NoneType, but must be"):
        interchange.block_from_torch(weights, H, prefix="x")
    with pytest.raises(TypeError, match="must be a dictionary"):
        interchange.block_from_torch([], H)


def test_settings_that_torch_s_encoder_layer_lacks_are_refused():
    strange = mh.Block(
        M, H, num_kv_heads=1, cross=True, norm="rms", activation="swiglu", hidden=HIDDEN
    )
    assert reasons(interchange.block_to_torch, strange, match="has no such layer: ") == [
        "keys there have as many heads as queries, and here are 1 and 3",
        "cross-attention is in torch.nn.TransformerDecoderLayer",
        "norms there are layer norms, and here RMS norms",
        "the perceptron there has no gate, and here it is swiglu",
    ]
    strange = mh.Block(M, H, norm_of="both", window=3)
    assert reasons(interchange.block_to_torch, strange, match="has no such layer: ") == [
        "the outputs of attention and perceptron are not normalised there",
        "the layer there has no window: it comes with the mask",
    ]
    for where in ("attention", "the perceptron"):
        biases = {"bias": where != "attention", "attention_bias": where == "attention"}
        assert reasons(interchange.block_to_torch, mh.Block(M, H, **biases), match="has no") == [
            f"biases there are everywhere or nowhere, and here in {where} alone",
        ]
    with pytest.raises(TypeError, match="block must be a Block, not a Linear"):
        interchange.block_to_torch(mh.Linear(2, 3))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", SETTINGS)
def test_outputs_and_gradients_agree_with_torch(kind, dtype, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    settings, bound = SETTINGS[kind], TOLERANCE[dtype]
    activation = torch.nn.functional.relu
    if settings["activation"] == "gelu":
        activation = lambda x: torch.nn.functional.gelu(x, approximate="tanh")  # noqa: E731
    theirs = torch.nn.TransformerEncoderLayer(
        M, H, HIDDEN, 0.0, activation, settings.get("norm_eps", 1e-5), batch_first=True,
        norm_first=settings["norm_first"], bias=settings.get("bias", True),
        dtype=getattr(torch, dtype),
    )  # fmt: skip
    ours = drawn(kind, dtype, rng)
    weights = interchange.block_to_torch(ours)
    theirs.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x, cotangent = rng.standard_normal((2, B, T, M)).astype(dtype)
    leaf, their_x = mh.Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    y, expected = ours(leaf, mh.masks.causal()), theirs(their_x, future)
    y.backward(cotangent)
    expected.backward(torch.tensor(cotangent))

    close(y.data, expected, bound)
    close(leaf.grad, their_x.grad, bound)
    gradients = interchange.block_to_torch(of_gradients(ours))
    for name, p in theirs.named_parameters():
        close(gradients[name], p.grad, bound)
    back = interchange.block_from_torch(theirs.state_dict(), H, **known(kind))
    close(back(x, mh.masks.causal()).data, expected, bound)
