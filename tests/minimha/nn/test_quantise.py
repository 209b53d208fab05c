"""Matrices of int8 with scales."""

import copy
import pickle

import numpy as np
import pytest

import minimha as mh
from minimha.functional import Quantised, cross_entropy, linear
from minimha.nn import quantise

V, M = 11, 12


def test_an_entry_changes_by_at_most_half_a_step_and_the_largest_not_at_all(rng):
    w = rng.standard_normal((40, 7)) * 10.0 ** np.arange(-3, 4)
    w[:, 2] = 0
    q = Quantised.of(w, axis=0)
    near = q.values * q.scale
    assert q.values.dtype == np.int8
    assert np.all(abs(near - w) <= abs(w).max(axis=0) / 254 * (1 + 1e-9))
    largest = abs(w).argmax(axis=0), range(7)
    np.testing.assert_allclose(near[largest], w[largest], rtol=1e-12)


def test_subnormal_entries_keep_their_sign():
    w = np.array([[189.0], [-189.0], [100.0]], "float32") * np.float32(2) ** -149
    np.testing.assert_array_equal(Quantised.of(w, axis=0).values, [[127], [-127], [100]])


@pytest.mark.parametrize("rows", [1, 20])
def test_a_product_is_that_of_the_rounded_matrix_forwards_and_backwards(rows, rng):
    """For a normal w, the error is that of a uniform rounding: 1/√12 of a step, which is about
    max |w|/127 = 3/127, so 0.7 % of the standard deviation of w."""
    x, w = rng.standard_normal((rows, 300)), rng.standard_normal((300, 200))
    dy, q = rng.standard_normal((rows, 200)), Quantised.of(w, axis=0)
    (y, pull), (expected, pull_wide) = (linear.with_pullback(x, a) for a in (q, q.values * q.scale))
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-10)
    dx, dw = pull(dy)
    np.testing.assert_allclose(dx, pull_wide(dy)[0], rtol=1e-10, atol=1e-10)
    assert dw is None
    error = np.linalg.norm(y - x @ w) / np.linalg.norm(x @ w)
    assert 0.004 < error < 0.009


def test_an_array_of_float16_or_bfloat16_gets_scales_of_float32(rng):
    for dtype in ("float16", "bfloat16"):
        pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")
        assert Quantised.of(rng.standard_normal((3, 2)).astype(dtype), 0).scale.dtype == np.float32


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_entries_with_one_scale_are_neighbours_in_memory(axis, rng):
    for w in (rng.standard_normal((5, 3)), rng.standard_normal((3, 5)).T):
        q = Quantised.of(w, axis)
        assert q.shape == w.shape
        assert q.scale.shape == ((1, 3) if axis == 0 else (5, 1))
        assert (q.values.T if axis == 0 else q.values).flags.c_contiguous


def trained(steps):
    """A GPT that has learned a sequence that repeats, and its loss on the next tokens."""
    model = mh.GPT(V, context=16, d_model=M, num_heads=2, num_layers=2, tie=True, rng=0)
    tokens = np.random.default_rng(0).permutation(V)[np.arange(500) % V]
    for _ in mh.training.Training(model, tokens, steps=steps, batch=8, lr=1e-2, seed=0):
        pass
    inputs, targets = tokens[None, :16], tokens[1:17]
    return model, tokens, lambda: cross_entropy(model(inputs)[0], targets).item()


def test_a_trained_gpt_keeps_its_loss_and_its_text():
    model, tokens, loss = trained(100)
    before, text = loss(), mh.generate(model, tokens[None, :4], 12, temperature=0)
    assert quantise(model) is model
    assert before == pytest.approx(0.043, abs=0.0005)
    assert abs(loss() - before) < 1e-4
    np.testing.assert_array_equal(mh.generate(model, tokens[None, :4], 12, temperature=0), text)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_gpt_of_any_dtype_can_be_quantised(dtype):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")
    model = mh.GPT(V, context=16, d_model=M, num_heads=2, num_layers=1, dtype=dtype)
    wide = copy.deepcopy(model)
    for p in wide.parameters():
        p.data = p.data.astype("float64" if dtype == "float64" else "float32")
    wide.tokens.widens = wide.positions.widens = False
    tokens = np.arange(10)[None]
    logits, expected = quantise(model)(tokens).data, wide(tokens).data
    assert logits.dtype == expected.dtype
    assert np.linalg.norm(logits - expected) < 0.03 * np.linalg.norm(expected)


@pytest.mark.parametrize("form", ["per-head", "stacked", "fused", "double"])
def test_a_layer_can_be_quantised_in_each_form(form, rng):
    layer = mh.MultiHeadAttention(M, 2, form=form, rng=0, dtype="float32")
    x = rng.standard_normal((2, 5, M)).astype("float32")
    expected = layer(x).data
    error = np.linalg.norm(quantise(layer)(x).data - expected)
    assert error < 0.03 * np.linalg.norm(expected)


def test_w_qk_of_the_bilinear_form_stays_and_the_absorbed_form_refuses_quantised_matrices(rng):
    x = rng.standard_normal((2, 5, M)).astype("float32")
    with pytest.raises(TypeError, match="not a Quantised"):
        quantise(mh.MultiHeadAttention(M, 2, form="bilinear", dtype="float32"))(x)
    layer = mh.MultiHeadAttention(M, 2, form="bilinear", bias=False, dtype="float32")
    w_qk, expected = layer.w_qk.data, layer(x).data
    error = np.linalg.norm(quantise(layer)(x).data - expected)
    assert layer.w_qk.data is w_qk
    assert 0 < error < 0.03 * np.linalg.norm(expected)
    latent = quantise(mh.LatentAttention(M, 2, latent=4, head_dim=4, rope_dim=2))
    assert latent(x).data.shape == x.shape
    with pytest.raises(TypeError, match="not a Quantised"):
        latent(x, absorbed=True)


def test_a_quantised_module_can_be_copied_but_not_saved(tmp_path):
    model = quantise(mh.GPT(V, context=16, d_model=M, num_heads=2, num_layers=1))
    assert {p.ndim for p in model.parameters()} == {1}
    tokens = np.arange(10)[None]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other(tokens).data, model(tokens).data)
    for save in (mh.interchange.save, mh.interchange.save_pretrained):
        with pytest.raises(ValueError, match=r"after quantise\(\) cannot be saved: save it before"):
            save(model, tmp_path / "model")


def test_an_index_out_of_range_is_refused():
    with pytest.raises(IndexError, match="indices must be from 0 to 3"):
        quantise(mh.Embedding(4, 3))(np.array([-1]))
