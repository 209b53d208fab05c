"""Results agree with PyTorch, forward and backward. Skipped if torch is not installed."""

import pytest

import minimha as mh

torch = pytest.importorskip("torch", reason="torch is not installed")

B, H, T, S, D, DV = 2, 3, 5, 7, 4, 6


def close(ours, theirs):
    theirs = theirs.detach().numpy()
    assert abs(ours - theirs).max() <= 1e-12 * abs(theirs).max()


@pytest.mark.parametrize("mask", ["none", "dense", "bias", "causal"])
def test_scaled_dot_product_attention_agrees_with_torch(mask, rng):
    shapes = [(B, H, T, D), (B, H, S, D), (B, H, S, DV)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    cotangent = rng.standard_normal((B, H, T, DV))
    visible, bias = rng.random((B, 1, T, S)) < 0.7, rng.standard_normal((H, T, S))
    ours = [mh.Tensor(x, requires_grad=True) for x in arrays]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    settings, torch_settings = {
        "none": ({}, {}),
        "dense": ({"mask": mh.masks.dense(visible)}, {"attn_mask": torch.tensor(visible)}),
        "bias": ({"bias": bias}, {"attn_mask": torch.tensor(bias)}),
        "causal": ({"mask": mh.masks.causal(align="top-left")}, {"is_causal": True}),
    }[mask]
    out = mh.scaled_dot_product_attention(*ours, **settings)
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, **torch_settings)
    close(out.data, expected)
    out.backward(cotangent)
    expected.backward(torch.tensor(cotangent))
    for one, other in zip(ours, theirs, strict=True):
        close(one.grad, other.grad)
