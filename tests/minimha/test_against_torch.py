"""The same numbers as PyTorch, forward and backward. Skipped where torch is not installed."""

import numpy as np
import pytest

import minimha as mh

torch = pytest.importorskip("torch", reason="torch is not installed")

B, H, T, S, D, DV, M = 2, 3, 5, 7, 4, 6, 12


def close(ours, theirs):
    theirs = theirs.detach().numpy()
    assert abs(ours - theirs).max() <= 1e-12 * abs(theirs).max()


@pytest.mark.parametrize("mask", ["none", "dense", "bias", "causal"])
def test_scaled_dot_product_attention(mask, rng):
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


def test_multi_head_attention(rng):
    ours = mh.MultiHeadAttention(M, H, rng=rng, dtype="float64")
    theirs = torch.nn.MultiheadAttention(M, H, batch_first=True, dtype=torch.float64)
    for bias in (ours.b_q, ours.b_k, ours.b_v, ours.b_o):
        bias.data = rng.standard_normal(M)
    with torch.no_grad():  # torch keeps its weights transposed, and the three of Q, K, V stacked
        stacked = np.concatenate([w.data.T for w in (ours.w_q, ours.w_k, ours.w_v)])
        biases = np.concatenate([b.data for b in (ours.b_q, ours.b_k, ours.b_v)])
        theirs.in_proj_weight.copy_(torch.tensor(stacked))
        theirs.in_proj_bias.copy_(torch.tensor(biases))
        theirs.out_proj.weight.copy_(torch.tensor(ours.w_o.data.T))
        theirs.out_proj.bias.copy_(torch.tensor(ours.b_o.data))
    x, cotangent = rng.standard_normal((B, T, M)), rng.standard_normal((B, T, M))
    out, weights = ours(x, mask=mh.masks.padding([3, 5]), return_weights=True)
    hidden = torch.arange(T) >= torch.tensor([3, 5])[:, None]  # torch's polarity: True = hidden
    expected, expected_weights = theirs(
        *[torch.tensor(x)] * 3, key_padding_mask=hidden, average_attn_weights=False
    )
    close(out.data, expected)
    close(weights.data, expected_weights)
    out.backward(cotangent)
    expected.backward(torch.tensor(cotangent))
    close(
        np.concatenate([w.grad.T for w in (ours.w_q, ours.w_k, ours.w_v)]),
        theirs.in_proj_weight.grad,
    )
    close(ours.w_o.grad.T, theirs.out_proj.weight.grad)
    close(ours.b_v.grad, theirs.in_proj_bias.grad[2 * M :])


def test_adamw_takes_the_same_steps(rng):
    start, gradients = rng.standard_normal((4, 3)), rng.standard_normal((20, 4, 3))
    ours, theirs = mh.Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    optimisers = [
        mh.AdamW([ours], lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
        torch.optim.AdamW([theirs], lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
    ]
    for step, gradient in enumerate(gradients):
        ours.grad, theirs.grad = gradient, torch.tensor(gradient)
        if step < 5:  # steps are counted from a parameter's first gradient
            ours.grad = theirs.grad = None
        for optimiser in optimisers:
            optimiser.step()
    close(ours.data, theirs)
