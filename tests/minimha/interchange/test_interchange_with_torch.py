"""torch.nn.MultiheadAttention and the layer with its weights compute the same, forward and
backward, to 1e-5 in float32 and 1e-12 in float64 of the largest entry, because sums of about 20
numbers round in a different order. Skipped if torch is not installed."""

import numpy as np
import pytest
from layers import close, of_gradients

import minimha as mh
from minimha import interchange

torch = pytest.importorskip("torch", reason="torch is not installed")

B, T, S, M, H = 2, 5, 7, 12, 3
WIDTHS = {"one": (M, M), "two": (8, 8), "three": (9, 10)}  # Mk, Mv
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def layer(rng, num_heads=H, dtype="float64", **settings):
    """torch's layer with random biases, which torch initialises to zero."""
    theirs = torch.nn.MultiheadAttention(
        M, num_heads, batch_first=True, dtype=getattr(torch, dtype), **settings
    )
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(rng.standard_normal(p.shape) / 2))
    return theirs


def masked(kind, rng, t, s, num_heads, dtype):
    """One mask, for minimha and for torch. Key 0 stays visible, or torch would return NaN."""
    lengths, hidden = np.array([s - 2, s]), rng.random((t, s)) < 0.4
    hidden[:, 0] = False
    padded = torch.arange(s) >= torch.tensor(lengths)[:, None]
    if kind == "none":
        return {}, {}
    if kind == "padding":
        return {"mask": mh.masks.padding(lengths)}, {"key_padding_mask": padded}
    if kind == "dense":  # in torch's layer, True means hidden
        visible = mh.masks.dense(~hidden) & mh.masks.padding(lengths)
        return {"mask": visible}, {"attn_mask": torch.tensor(hidden), "key_padding_mask": padded}
    if kind == "causal":
        past, future = mh.masks.causal(align="top-left"), torch.ones(t, s, dtype=torch.bool).triu(1)
        return {"mask": past}, {"attn_mask": future, "is_causal": True}
    bias = rng.standard_normal((B, num_heads, t, s)).astype(dtype)
    bias[..., 1:][rng.random((B, num_heads, t, s - 1)) < 0.3] = -np.inf
    return {"bias": bias}, {"attn_mask": torch.tensor(bias).reshape(-1, t, s)}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", ["none", "padding", "dense", "causal", "float"])
@pytest.mark.parametrize(
    ("widths", "num_heads", "bias"),
    [(None, H, True), (None, 1, False), ("one", M, False), ("two", H, True), ("three", 2, False)],
)
def test_outputs_and_gradients_agree_with_torch(widths, num_heads, bias, mask, dtype, rng):
    kdim, vdim = WIDTHS[widths or "one"]
    theirs = layer(rng, num_heads, dtype, bias=bias, kdim=kdim, vdim=vdim)
    ours = interchange.from_torch(theirs.state_dict(), num_heads)
    shapes = [(B, T, M)] if widths is None else [(B, T, M), (B, S, kdim), (B, S, vdim)]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    inputs = [mh.Tensor(x, requires_grad=True) for x in arrays]
    their_inputs = [torch.tensor(x, requires_grad=True) for x in arrays]
    settings, their_settings = masked(mask, rng, T, shapes[-1][1], num_heads, dtype)

    out, weights = ours(*inputs, **settings, return_weights=True)
    query, key, value = (their_inputs * 3)[:3]
    expected, expected_weights = theirs(
        query, key, value, **their_settings, average_attn_weights=False
    )
    close(out.data, expected, TOLERANCE[dtype])
    close(weights.data, expected_weights, TOLERANCE[dtype])

    dout, dweights = (
        rng.standard_normal(x.shape).astype(dtype) for x in (expected, expected_weights)
    )
    (mh.ops.sum(out * dout) + mh.ops.sum(weights * dweights)).backward()
    torch.autograd.backward(
        [expected, expected_weights], [torch.tensor(dout), torch.tensor(dweights)]
    )
    for x, their_x in zip(inputs, their_inputs, strict=True):
        close(x.grad, their_x.grad, TOLERANCE[dtype])
    their_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    our_gradients = interchange.to_torch(of_gradients(ours))
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in our_gradients.items():
        close(gradient, their_gradients[name], TOLERANCE[dtype])


def test_files_that_safetensors_writes_for_torch_can_be_read(tmp_path, rng):
    from safetensors.torch import load_file, save_file

    theirs = layer(rng).state_dict() | {"small": torch.tensor([1.5, -0.1], dtype=torch.bfloat16)}
    save_file(theirs, tmp_path / "torch", metadata={"format": "pt"})
    arrays = interchange.read(tmp_path / "torch")
    assert arrays.keys() == theirs.keys()
    for name, x in theirs.items():
        np.testing.assert_array_equal(arrays[name], x.float() if name == "small" else x)
    interchange.write(theirs, tmp_path / "ours")
    for name, x in load_file(tmp_path / "ours").items():
        assert torch.equal(x, theirs[name].float() if name == "small" else theirs[name])


def test_a_module_of_torch_is_refused():
    with pytest.raises(TypeError, match=r"not MultiheadAttention: call its state_dict\(\)"):
        interchange.from_torch(torch.nn.MultiheadAttention(M, H), H)


def test_torch_s_learned_key_and_value_are_refused_with_all_other_faults(rng):
    weights = layer(rng, add_bias_kv=True).state_dict()
    del weights["out_proj.bias"]
    weights["in_proj_weight"] = weights["in_proj_weight"].to(torch.float8_e4m3fn)
    weights["in_proj_bias"] = weights["in_proj_bias"].to("meta")
    with pytest.raises(ValueError, match="do not make") as failure:
        interchange.from_torch(weights, 5)
    for part in (
        "bias_k is extra",
        "bias_v is extra",
        "out_proj.bias is missing",
        "in_proj_weight is a Tensor of torch.float8_e4m3fn, which NumPy cannot read",
        "in_proj_bias is a Tensor of torch.float64, which NumPy cannot read",
        "M = 12 must be a multiple of num_heads = 5",
    ):
        assert part in str(failure.value)


def test_the_weights_do_not_show_whether_zeros_are_added_to_the_keys(rng):
    plain, added = (layer(rng, add_zero_attn=zeros) for zeros in (False, True))
    added.load_state_dict(plain.state_dict())
    x = torch.tensor(rng.standard_normal((B, T, M)))
    assert not torch.allclose(plain(x, x, x)[0], added(x, x, x)[0])


def test_torch_puts_positions_first_and_returns_the_mean_of_the_heads(rng):
    theirs = layer(rng)
    first = torch.nn.MultiheadAttention(M, H, dtype=torch.float64)
    mha = interchange.from_torch(theirs.state_dict(), H)
    weights = interchange.to_torch(mha)
    first.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x = torch.tensor(rng.standard_normal((B, T, M)))
    y, mean = theirs(x, x, x)
    z, _ = first(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))
    torch.testing.assert_close(z.transpose(0, 1), y)
    _, each = theirs(x, x, x, average_attn_weights=False)
    assert each.shape == (B, H, T, T)
    torch.testing.assert_close(each.mean(1), mean)


def test_a_layer_on_torch_tensors_exports_and_imports_its_weights():
    mha = mh.MultiHeadAttention(M, H, form="per-head", rng=1)
    before, theirs = interchange.state(mha), interchange.to_torch(mha)
    mha.to("torch")
    np.testing.assert_equal(interchange.to_torch(mha), theirs)
    interchange.set_state(mha, {name: torch.tensor(-x) for name, x in before.items()})
    assert all(isinstance(p.data, torch.Tensor) for p in mha.parameters())
    np.testing.assert_equal(interchange.state(mha), {name: -x for name, x in before.items()})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_query_without_keys_is_nan_with_weights_and_on_the_fast_path(
    training, need_weights, recorded, rng
):
    """The fast path is taken in eval() if no gradient is recorded, and with an even number of heads."""
    theirs = layer(rng, 2, "float32").train(training)
    x = torch.tensor(rng.standard_normal((B, T, M)), dtype=torch.float32)
    hidden = torch.zeros((T, T), dtype=torch.bool)
    hidden[1] = True
    with torch.set_grad_enabled(recorded):
        out, _ = theirs(x, x, x, attn_mask=hidden, need_weights=need_weights)
    is_fast = not (training or need_weights or recorded)
    if need_weights or is_fast:
        assert torch.isnan(out[:, 1]).all()
    else:
        np.testing.assert_allclose(out[0, 1].detach(), theirs.out_proj.bias.detach(), 1e-6)

    ours = interchange.from_torch(theirs.state_dict(), num_heads=2)
    y = ours(x.numpy(), mask=mh.masks.dense(~hidden.numpy()))
    np.testing.assert_allclose(y.data[0, 1], ours.b_o.data, 1e-6)
