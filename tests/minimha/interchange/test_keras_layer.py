"""keras.layers.MultiHeadAttention and the layer with its weights compute the same, forward and
backward, to 1e-5 of the largest entry in float32. The comparison is skipped without Keras and torch."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
from layers import close, drawn, of_gradients, reasons, same_bits

import minimha as mh
from minimha import interchange

B, T, S, M, H = 2, 5, 7, 12, 3
SETTINGS = {
    "self-attention": {"head_dim": 4},
    "widths": {"head_dim": 5, "v_head_dim": 2, "kdim": 8, "vdim": 9},
    "no biases": {"head_dim": 4, "bias": False, "vdim": 9},
    "grouped": {"head_dim": 5, "num_kv_heads": 1},
}


@pytest.mark.parametrize("form", ["per-head", "stacked"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_layer_survives_a_round_trip_through_keras_s_layout(kind, form, rng):
    mha = drawn(rng, SETTINGS[kind] | {"form": form}, M, H, "float16")
    back = interchange.from_keras(interchange.to_keras(mha), form=form, dropout=0.25)
    assert (back.sizes, back.form, back.dropout) == (mha.sizes, form, 0.25)
    same_bits(interchange.state(back), interchange.state(mha))


def test_all_weights_that_are_not_keras_s_are_named(rng):
    weights = interchange.to_keras(drawn(rng, SETTINGS["widths"], M, H, "float64"))
    weights[1], weights[6] = weights[1][:, :-1], weights[6][..., :-1]
    weights[2] = weights[2].astype("float32")
    assert reasons(interchange.from_keras, weights, match="do not make a keras") == [
        "key kernel is float32 (8, 3, 5), but must be float64 (8, 3, 5)",
        "output kernel is float64 (3, 2, 11), but must be float64 (3, 2, 12)",
        "query bias is float64 (3, 4), but must be float64 (3, 5)",
    ]


def test_settings_that_keras_s_layer_lacks_are_refused(rng):
    mha = drawn(rng, {"sink": True, "rope": mh.positions.Rope()}, M, H)
    with pytest.raises(
        ValueError, match=r"such layer: sink does not .*; rope does not exist there$"
    ):
        interchange.to_keras(mha)
    mha = drawn(rng, {"num_kv_heads": 1, "head_dim": 5, "v_head_dim": 4}, M, H)
    with pytest.raises(ValueError, match=r"grouped heads, .* v_head_dim is 4, head_dim 5"):
        interchange.to_keras(mha)
    with pytest.raises(ValueError, match=r"3 entries, .* pass layer\.get_weights\(\)"):
        interchange.from_keras([np.ones(2)] * 3)
    with pytest.raises(
        ValueError, match=r"query kernel is float64 \(2,\); .*value kernel is a list"
    ):
        interchange.from_keras([np.ones(2), np.ones((2, 3, 4)), [1.0], np.ones((2, 3, 4))])
    with pytest.raises(TypeError, match="mha must be a MultiHeadAttention, not a Linear"):
        interchange.to_keras(mh.Linear(2, 3))


@pytest.mark.thorough  # Keras takes seconds to import
@pytest.mark.skipif(
    not (find_spec("keras") and find_spec("torch")), reason="Keras and torch are not installed"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", SETTINGS)
def test_outputs_and_gradients_agree_with_keras(kind, causal, rng):
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch

    settings = SETTINGS[kind]
    ours = drawn(rng, settings, M, H, "float32")
    d, bias = settings["head_dim"], settings.get("bias", True)
    if kind == "grouped":
        theirs = keras.layers.GroupQueryAttention(d, H, 1)
    else:
        theirs = keras.layers.MultiHeadAttention(H, d, settings.get("v_head_dim"), use_bias=bias)
    widths = M, settings.get("kdim", M), settings.get("vdim", settings.get("kdim", M))
    shapes = [(B, n, width) for n, width in zip((S if causal else T, S, S), widths, strict=True)]
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    query, key, value = (torch.tensor(x, requires_grad=True) for x in inputs)
    theirs.build(query.shape, value.shape, key.shape)
    theirs.set_weights(interchange.to_keras(ours))
    expected = theirs(query, value, key, use_causal_mask=causal)
    cotangent = rng.standard_normal(expected.shape).astype("float32")
    expected.backward(torch.tensor(cotangent))

    leaves = [mh.Tensor(x, requires_grad=True) for x in inputs]
    y = ours(*leaves, mh.masks.causal(offset=0) if causal else None)
    y.backward(cotangent)
    close(y.data, expected, 1e-5)
    for leaf, x in zip(leaves, (query, key, value), strict=True):
        close(leaf.grad, x.grad, 1e-5)
    gradients = interchange.to_keras(of_gradients(ours))
    largest = max(abs(gradient).max() for gradient in gradients)
    for gradient, weight in zip(gradients, theirs.trainable_weights, strict=True):
        # the gradient of the key's bias is 0
        close(gradient, weight.value.grad, 1e-5, largest / 10)

    back = interchange.from_keras(theirs.get_weights())
    close(back(*inputs, mh.masks.causal(offset=0) if causal else None).data, expected, 1e-5)
